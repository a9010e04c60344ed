"""Build the shim with the machine's C compiler, once, into the user's cache.

The cache's key is the source, the compiler and the platform: an edited source or a new compiler
builds anew, and homes that are shared between machines hold one library for each. The finished
library is renamed into place, so that processes which build at once do not see each other's half.
"""

import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("preload.c")
#: Warnings are errors in the tests, not here: a newer compiler's new warning must not stop a user.
FLAGS: Final = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-shared", "-fPIC", "-pthread")
LIBRARIES: Final = ("-ldl",)  #: dlsym lives there before glibc 2.34
COMPILERS: Final = ("cc", "gcc", "clang")
REMEDY: Final = "install a C compiler: apt-get install gcc libc6-dev"
BUILD_SECONDS_MAX: Final = 120.0


class ShimUnavailable(RuntimeError):
    """The shim cannot be built here; the message is one line and ends with the remedy."""


def build() -> Path:
    """Return the library to preload, built if it is not in the cache.

    Raises:
        ShimUnavailable: not Linux, no C compiler, or it failed.
    """
    if sys.platform != "linux":
        raise ShimUnavailable(f"the shim needs Linux, this is {sys.platform}: run it there")
    compiler = find_compiler()
    library = cache_folder() / f"shim-{_cache_key(compiler)}.so"
    if library.exists():
        return library
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="shim-", dir=library.parent) as folder:
            fresh = Path(folder, library.name)
            _run(compiler, *FLAGS, "-o", str(fresh), str(SOURCE), *LIBRARIES)
            os.replace(fresh, library)
    except OSError as error:
        raise ShimUnavailable(
            f"the shim cannot be kept in {library.parent} ({error.strerror}): "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    return library


def find_compiler() -> str:
    """Return the compiler's path: `$CC`, else the first of cc, gcc and clang.

    Raises:
        ShimUnavailable: there is none.
    """
    for name in (os.environ.get("CC", ""), *COMPILERS):
        if name and (path := shutil.which(name)):
            return path
    raise ShimUnavailable(f"no C compiler found; {REMEDY}")


def cache_folder() -> Path:
    """Return where built libraries are kept."""
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home, "killproof")


def _cache_key(compiler: str) -> str:
    version = _run(compiler, "--version").partition("\n")[0]
    parts = (SOURCE.read_text(encoding="utf-8"), " ".join(FLAGS), version, platform.platform())
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _run(*command: str) -> str:
    """Run the compiler; its first words of complaint become the error."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS_MAX
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ShimUnavailable(f"{command[0]} did not run ({error}); {REMEDY}") from error
    if done.returncode != 0:
        lines = [line for line in done.stderr.splitlines() if "error" in line] or ["no message"]
        raise ShimUnavailable(f"{command[0]} failed ({lines[0].strip()}); {REMEDY}")
    return done.stdout
