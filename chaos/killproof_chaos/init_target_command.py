"""The command `killproof chaos init-target`: a target of one's own, to be filled in."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from killproof_chaos.skeleton import Kind, write


def init_target(
    name: Annotated[str, typer.Argument(help="Of the queue, such as my-queue.")],
    kind: Annotated[
        Kind,
        typer.Option(
            help="python: a file that imports the queue here; isolated: likewise, in an "
            "environment of its own; command: argv and JSON lines, for any language."
        ),
    ] = Kind.PYTHON,
    output: Annotated[Path, typer.Option(help="The folder to write into.")] = Path("."),
    as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Write a target that runs at once, with a tiny queue in the place of yours.

    Nothing is overwritten. The comments of the contract say what each promise means.
    """
    written = write(name, kind, output)
    target = shlex.quote(str(written[0]))
    commands = [
        f"killproof chaos lint-target {target}",
        f"killproof chaos run --target {target} --workers 4 --kills 20 --pauses 6",
    ]
    if as_json:
        files = [str(path) for path in written]
        print(json.dumps({"target": files[0], "files": files, "next": commands}))
        return
    for path in written:
        print(f"wrote {path}")
    print(
        "next: put your own calls in, look what is wrong, and have it judged:",
        file=sys.stderr,
    )
    for command in commands:
        print(f"  {command}")
