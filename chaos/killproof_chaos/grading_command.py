"""What `killproof chaos gallery NAME --copy FILE` and `--grade FILE` do, and what they print.

Exit codes of a grading: 0 repaired, 1 not yet, 2 it could not be judged, 64 the file is no queue.
"""

import ast
import json
import sys
from pathlib import Path
from typing import Final

import typer
from rich.text import Text

from killproof.wording import printable
from killproof_chaos import gallery_command, grading
from killproof_chaos.command import EXIT_OF, console, harness, shown
from killproof_chaos.gallery import Fault
from killproof_chaos.summary import MARKS

HIDDEN: Final = '"for you to find"'
#: Of a reader's file; the longest of the gallery has a hundredth of it.
FILE_BYTES_MAX: Final = 1_000_000
ENDINGS: Final = {"pass": "passed", "violated": "not yet", "unknown": "unknown"}


def copy(fault: Fault, to: Path) -> None:
    """Write a copy of a broken queue's file for a reader to repair; its answer is left out.

    Raises:
        ValueError: the place is taken, or can not be written; the message says what to do.
    """
    text = without_answer(gallery_command.file_of(fault).read_text(encoding="utf-8"))
    if to.suffix != ".py":
        raise ValueError(f"--copy {str(to)!r} could not be graded: give a name that ends in .py")
    try:
        file = to.open("x", encoding="utf-8")
        try:
            with file:
                file.write(text)
        except OSError:  # The disk is full: half a file would be in the way of the next try.
            to.unlink()
            raise
    except FileExistsError:
        raise ValueError(f"--copy {str(to)!r} exists: give another name, or remove it") from None
    except OSError as error:
        raise ValueError(
            f"--copy {str(to)!r} cannot be written ({error.strerror}): give a file in a folder "
            "of yours"
        ) from None
    print(f"{to} is {fault.name}: {fault.wrong}")
    print(f"repair it, then: killproof chaos gallery {fault.name} --grade {to}")


def without_answer(text: str) -> str:
    """Return a gallery file's text with another `right` in its FAULT.

    >>> without_answer('FAULT = Fault(name="x", right="one line")')
    'FAULT = Fault(name="x", right="for you to find")'
    """
    call = next(
        node
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "Fault"
    )
    right = next(each.value for each in call.keywords if each.arg == "right")
    assert right.end_lineno is not None
    assert right.end_col_offset is not None
    lines = text.splitlines(keepends=True)
    # The columns of a node count bytes.
    head = lines[right.lineno - 1].encode()[: right.col_offset].decode()
    tail = lines[right.end_lineno - 1].encode()[right.end_col_offset :].decode()
    lines[right.lineno - 1 : right.end_lineno] = [head + HIDDEN + tail]
    return "".join(lines)


def grade(fault: Fault, file: str, *, hint: bool, as_json: bool) -> None:
    """Grade a repaired copy, tell what came of it, and end with its exit code.

    Raises:
        ValueError: there is no such file, or it is no queue; the message says what to do.
    """
    if not file.endswith(".py") or not Path(file).is_file():
        raise ValueError(
            f"--grade {file!r} is no Python file: make one with `killproof chaos gallery "
            f"{fault.name} --copy mine.py`"
        )
    size = Path(file).stat().st_size
    if size > FILE_BYTES_MAX:
        raise ValueError(f"--grade {file!r} has {size:,} bytes, at most {FILE_BYTES_MAX:,}: cut it")
    with harness(), shown(_text_of) as show:
        found = grading.grade(fault, file, show)
    if found.is_unusable:
        raise ValueError(found.steps[-1].said)
    if as_json:
        answer = {"class": fault.kind} | ({"right": fault.right} if hint else {})
        print(json.dumps(found.record() | answer, ensure_ascii=False, indent=1))
    else:
        tell(found, fault, hint=hint)
    raise typer.Exit(EXIT_OF[found.verdict])


def _text_of(turn: grading.Turn) -> str:
    if turn.left < 1:  # What is over its time would say so again and again.
        return f"{turn.what}, longer than on a quiet machine"
    return f"{turn.what}, about {turn.left:.0f} s left"


def tell(found: grading.Grade, fault: Fault, *, hint: bool) -> None:
    """Print what came of a grading, for a reader who wants to go on; `hint`: with the answer."""
    out = console()

    def say(text: str, style: str = "") -> None:
        out.print(Text(printable(text), style=style), highlight=False)

    say(f"{found.file}, repaired from {found.name}", "bold")
    for step in found.steps:
        mark, style = MARKS[step.verdict]
        say(f"  {mark} {step.what}" + (f": {step.said}" if step.said else ""), style)
    for line in found.story:
        say(f"    {line}")
    say(_ending(found, fault), "bold")
    if found.verdict == "pass":
        return
    # Plain print: what is folded to the width can not be pasted.
    sys.stdout.flush()
    print(f"class: {fault.kind}")
    if hint:
        print(f"right: {fault.right}")
    else:
        print(f"hint:  killproof chaos gallery {fault.name} --grade {found.file} --hint")
    if found.again:
        print(f"again: {found.again}")
        print(f"evidence in {found.evidence}")


def _ending(found: grading.Grade, fault: Fault) -> str:
    """Return the verdict in one line, which says what is left to do."""
    word = ENDINGS[found.verdict]
    if found.verdict == "pass":
        return f"{word}: {fault.name} is repaired; nothing that was tried here breaks it"
    if found.verdict == "unknown":
        return f"{word}: it was not broken, and not shown to be whole; try again"
    if not found.broken:
        return f"{word}: mend that first"
    first, sentence = found.broken[0], grading.SENTENCES[found.broken[0]]
    if first == fault.promise or first in fault.also:
        return f"{word}: {first} is still broken: {sentence}"
    return f"{word}: {first} is broken now: {sentence}"
