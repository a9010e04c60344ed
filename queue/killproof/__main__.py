"""The command `killproof`, and what it says when its extra is not installed."""

import sys
from importlib.util import find_spec


def main() -> int:
    """Run the command line; return the exit code."""
    if sys.argv[1:] == ["--version"]:
        # Scripts ask for it: the command-line library alone costs more than all the rest.
        from importlib.metadata import version

        print(f"killproof {version('killproof')}")
        return 0
    for needed in ("typer", "rich"):
        if find_spec(needed) is None:
            print("the command line needs its extra: pip install 'killproof[cli]'", file=sys.stderr)
            return 3
    from killproof import cli

    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
