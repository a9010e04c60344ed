"""A run of one engine in a process of its own, which dies with who started it.

python -m killproof_chaos.prove.child PARENT_PID WORDS OF A CHAOS COMMAND...
"""

import os
import sys

from killproof_evidence.lifetime import die_with_parent


def main() -> int:
    """Run the command as the command line does."""
    from killproof import cli

    die_with_parent(int(sys.argv[1]))
    os.environ.pop("GITHUB_STEP_SUMMARY", None)  # One summary of all is enough.
    sys.argv = ["killproof", "chaos", *sys.argv[2:]]
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
