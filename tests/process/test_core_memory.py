"""What the C library does with the memory that SQLite frees at each commit of another process."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

#: Where a block lies tells what the library does with it: on the heap it is kept, mapped it is not.
#: Only the first block of a process tells: to free it is what raises the limit.
LOOK = """
import sys
from killproof import Queue

if len(sys.argv) > 1:
    queue = Queue(sys.argv[1], durability="process")
block = bytes(1 << 20)
for line in open("/proc/self/maps"):
    if line.endswith("[heap]\\n"):
        first, last = (int(part, 16) for part in line.split()[0].split("-"))
        print(first <= id(block) < last)
"""


def is_kept(*arguments: str) -> bool:
    done = subprocess.run([sys.executable, "-c", LOOK, *arguments], capture_output=True, text=True)
    assert done.stdout.strip() in ("True", "False"), done.stderr
    return done.stdout.strip() == "True"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_an_open_queue_keeps_the_memory_that_the_next_call_takes_again(place: Path) -> None:
    assert not is_kept()
    assert is_kept(str(place / "queue.db"))
