"""The command line of a worker of a Python target: `python -m killproof_chaos.targets.worker`.

It is what `worker_argv` names; the warm server forks the same work without starting Python anew.
"""

import sys
from pathlib import Path
from typing import Any

from killproof_chaos.targets import load


def main() -> None:
    """Work for the target named first, in the place named second, until SIGTERM."""
    name, place = sys.argv[1:]
    target: Any = load(name)
    target.work(Path(place))


if __name__ == "__main__":
    main()
