"""Environments of their own for other people's queues, made at run time and kept in a cache.

Judge and bench run queues that nobody here depends on. Each gets a virtual environment with the
Python it needs, or a folder of Node packages, with pinned versions; nothing of it is importable
from our own process. An environment is known by what it is made of, so a changed pin makes a new
one, and the second use asks no network.

Invariant: an environment is used only when its mark is there, and the mark is written last. A
builder holds a kernel lock on the environment's name, so of two processes one builds and the other
finds the result; a builder that dies leaves the lock to the kernel and a folder without a mark,
which the next one removes. It is built in place, not built aside and renamed: a virtual environment
has its own path written into its scripts.
"""

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

#: Overrides where the environments lie.
FOLDER_VARIABLE = "KILLPROOF_PEERS"
#: Written last, into a finished environment: the versions of all that it holds.
MARK = "installed.json"
#: A slow index or a compiler behind an install; what takes longer hangs.
INSTALL_SECONDS = 600.0
#: `python -c` of a working interpreter answers within this on a very busy machine.
PROBE_SECONDS = 60.0

_PROBE = "import json, sys; print(json.dumps([sys.version_info[:2], sys.executable, sys.version]))"
_SQLITE = "import sqlite3; print(sqlite3.sqlite_version)"
_SQLITE_NODE = (
    "const Database = require('module').createRequire({})('better-sqlite3');"
    "const asked = new Database(':memory:').prepare('SELECT sqlite_version()');"
    "console.log(asked.pluck().get())"
)
_HAS_PIP = "import importlib.util as u, sys; sys.exit(u.find_spec('pip') is None)"
#: Without metadata of our own process: what the environment's own interpreter sees.
_VERSIONS = (
    "import importlib.metadata as m, json;"
    "print(json.dumps({d.metadata['Name']: d.version for d in m.distributions()}))"
)


class NotInstalled(RuntimeError):
    """An environment cannot be made here: one line that says why, and what would help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """One pinned package of an index or of a folder."""

    name: str
    version: str
    #: Of the files that may be taken. Used only where each package of an environment has some.
    sha256: tuple[str, ...] = ()

    def requirement(self, *, hashed: bool) -> str:
        """Return the line of a requirements file."""
        hashes = "".join(f" --hash=sha256:{digest}" for digest in self.sha256 if hashed)
        return f"{self.name}=={self.version}{hashes}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonPeer:
    """A Python environment that is wanted."""

    name: str  #: Begins the folder's name.
    python: str  #: "3.13": exactly this minor version.
    packages: tuple[Package, ...]  #: All of them, dependencies too: nothing else is installed.
    pip_options: tuple[str, ...] = ()  #: Such as --no-index, --find-links=FOLDER.


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePeer:
    """A folder of Node packages that is wanted."""

    name: str
    packages: tuple[Package, ...]
    npm_options: tuple[str, ...] = ()
    #: Packages whose install script may run: a native module is built or fetched by its own.
    scripts_of: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """An environment that is ready."""

    folder: Path
    program: Path  #: The interpreter: run it with `-I`, or Node with `folder` as its root.
    runtime: str  #: "Python 3.13.0", "Node v20.20.2".
    versions: Mapping[str, str]  #: By package.


def default_folder() -> Path:
    """Return where environments are kept: $KILLPROOF_PEERS, or a folder of the user's cache."""
    if chosen := os.environ.get(FOLDER_VARIABLE):
        return Path(chosen)
    # XDG Base Directory Specification 0.8: a relative path is to be ignored.
    cache = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(cache) if os.path.isabs(cache) else Path.home() / ".cache"
    return root / "killproof" / "peers"


def ensure(peer: PythonPeer | NodePeer, *, folder: Path | None = None) -> Installed:
    """Return the environment of either kind, as `ensure_python` does."""
    if isinstance(peer, NodePeer):
        return ensure_node(peer, folder=folder)
    return ensure_python(peer, folder=folder)


def ensure_python(peer: PythonPeer, *, folder: Path | None = None) -> Installed:
    """Return the environment, made now if it is not there yet.

    Two processes may ask at once. Asking for one that is there starts no process and uses no
    network.

    Args:
        peer: What it is to hold.
        folder: Where environments are kept; None is `default_folder()`.

    Raises:
        NotInstalled: There is no such Python here, or the packages cannot be had.
    """
    place = _place(folder, peer.name, repr(peer))
    if (ready := _ready(place)) is not None:
        return ready
    python = find_python(peer.python)
    with _alone(place) as lock:
        if (ready := _ready(place)) is not None:
            return ready
        # Without pip: it takes seconds to copy, and the found Python's own can fill any other.
        _run([str(python), "-m", "venv", "--without-pip", str(place)], f"venv of {peer.name}", lock)
        program = place / "bin" / "python"
        requirements = place / "requirements.txt"
        # pip wants the hashes of all or of none.
        hashed = all(package.sha256 for package in peer.packages)
        requirements.write_text(
            "".join(f"{package.requirement(hashed=hashed)}\n" for package in peer.packages)
        )
        _run(
            [
                *_pip(python),
                f"--python={program}",
                "install",
                "--quiet",
                "--no-input",
                "--no-deps",
                "--disable-pip-version-check",
                *(["--require-hashes"] if hashed else []),
                *peer.pip_options,
                f"--requirement={requirements}",
            ],
            f"pip install of {peer.name}",
            lock,
        )
        versions = json.loads(_run([str(program), "-I", "-c", _VERSIONS], peer.name))
        runtime = _run([str(program), "--version"], peer.name).strip()
        return _finish(place, Path("bin/python"), runtime, versions)


def ensure_node(peer: NodePeer, *, folder: Path | None = None) -> Installed:
    """Return the folder of Node packages, made now if it is not there yet.

    As `ensure_python`. The program is the `node` on PATH; a script finds the packages when it is
    run from a file inside `Installed.folder`, or with `createRequire` of a path in it.
    """
    place = _place(folder, peer.name, repr(peer))
    if (ready := _ready(place)) is not None:
        return ready
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        missing = "node" if node is None else "npm"
        raise NotInstalled(f"{peer.name} needs {missing}, which is not on PATH: install Node.js")
    with _alone(place) as lock:
        if (ready := _ready(place)) is not None:
            return ready
        place.mkdir(parents=True)
        (place / "package.json").write_text(
            json.dumps(
                {
                    "name": "killproof-peer",
                    "private": True,
                    "dependencies": {p.name: p.version for p in peer.packages},
                }
            )
        )
        quiet = ["--no-audit", "--no-fund", "--loglevel=error", "--ignore-scripts"]
        _run(
            [npm, "install", "--prefix", str(place), *quiet, *peer.npm_options],
            f"npm install of {peer.name}",
            lock,
        )
        for package in peer.scripts_of:
            _run(
                [npm, "rebuild", "--prefix", str(place), "--loglevel=error", package],
                f"npm rebuild of {package}",
                lock,
            )
        versions = {p.name: _node_version(place, p.name) for p in peer.packages}
        runtime = f"Node {_run([node, '--version'], peer.name).strip()}"
        return _finish(place, Path(node), runtime, versions)


def sqlite_of(made: Installed) -> str:
    """Return the version of the SQLite library that a queue of this environment runs on.

    It is asked where the queue is, as an interpreter and a native module each bring their own.

    Raises:
        NotInstalled: it cannot be asked.
    """
    words = ["-I", "-c", _SQLITE]
    if not made.runtime.startswith("Python"):
        words = ["-e", _SQLITE_NODE.format(json.dumps(str(made.folder / "package.json")))]
    return _run([str(made.program), *words], "the question for SQLite's version").strip()


def find_python(version: str) -> Path:
    """Return an interpreter of this minor version: this one, one on PATH, or one of pyenv's.

    A name on PATH may be a shim that leads nowhere, so each candidate is asked who it is.

    Raises:
        NotInstalled: There is none.
    """
    wanted = [int(part) for part in version.split(".")]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [
        # The base of a virtual environment, not the environment: it may be removed under us.
        getattr(sys, "_base_executable", sys.executable),
        *(str(Path(part, f"python{version}")) for part in os.get_exec_path()),
        *(str(path / "bin" / "python") for path in sorted(pyenv.glob(f"{version}.*"))[::-1]),
    ]
    for candidate in candidates:
        told = _ask(candidate)
        if told is not None and told[0] == wanted:
            return Path(str(told[1]))
    raise NotInstalled(
        f"Python {version} is not here: there is no python{version} on PATH and none under "
        f"{pyenv}; install it, for example with `pyenv install {version}`"
    )


def _ask(candidate: str) -> Sequence[object] | None:
    if not os.access(candidate, os.X_OK):
        return None
    try:
        done = subprocess.run(
            [candidate, "-I", "-c", _PROBE],
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode:
        return None
    told: list[object] = json.loads(done.stdout)
    return told


def _pip(python: Path) -> list[str]:
    """Return a command of a pip that can fill another environment (--python, pip 22.3)."""
    for owner in (str(python), sys.executable):
        # Not by running it: that takes ten times as long as looking whether it is there.
        done = subprocess.run([owner, "-I", "-c", _HAS_PIP], capture_output=True, check=False)
        if done.returncode == 0:
            return [owner, "-I", "-m", "pip"]
    raise NotInstalled(f"neither {python} nor {sys.executable} has pip: python -m ensurepip")


def _run(command: Sequence[str], what: str, lock: int | None = None) -> str:
    """Run one step of an installation and return what it printed.

    Args:
        command: The step.
        what: Its name in an error.
        lock: Handed down: when a builder dies and its pip does not, nobody else begins.

    Raises:
        NotInstalled: With the last line that says something.
    """
    # A caller's own environment and paths would leak into what is meant to be alone.
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    kept.pop("VIRTUAL_ENV", None)
    try:
        done = subprocess.run(
            list(command),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            env=kept,
            check=False,
            pass_fds=() if lock is None else (lock,),
        )
    except subprocess.TimeoutExpired:
        raise NotInstalled(f"{what} took longer than {INSTALL_SECONDS:g} s") from None
    except OSError as error:
        raise NotInstalled(f"{what} failed: {error}") from error
    if done.returncode:
        said = [line.strip() for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        errors = [line for line in said if "error" in line.lower()] or said
        reason = errors[-1] if errors else f"status {done.returncode}"
        shown = shlex.join(str(part) for part in command)
        raise NotInstalled(f"{what} failed: {reason}; to see more, run: {shown}")
    return done.stdout


def _place(folder: Path | None, name: str, made_of: str) -> Path:
    digest = hashlib.sha256(made_of.encode()).hexdigest()[:12]
    # Absolute: the interpreter's path is handed to processes that run elsewhere.
    return (folder or default_folder()).absolute() / f"{name}-{digest}"


def _ready(place: Path) -> Installed | None:
    try:
        mark = json.loads((place / MARK).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        # Not there, or empty after a power cut: nothing syncs it, for it can be made again. A
        # folder that is none is told when something is to be written into it.
        return None
    # An absolute program stays absolute; the interpreter of a venv lies inside.
    program = place / mark["program"]
    if not program.exists():
        # The Python it was made of has been removed: it is made again of another.
        return None
    return Installed(
        folder=place, program=program, runtime=mark["runtime"], versions=mark["versions"]
    )


def _finish(place: Path, program: Path, runtime: str, versions: Mapping[str, str]) -> Installed:
    mark = {"program": str(program), "runtime": runtime, "versions": dict(versions)}
    aside = place / f"{MARK}.new"
    aside.write_text(json.dumps(mark, indent=1), encoding="utf-8")
    aside.replace(place / MARK)
    ready = _ready(place)
    assert ready is not None
    return ready


@contextmanager
def _alone(place: Path) -> Iterator[int]:
    """Hold the name; remove what an interrupted builder left, and what one leaves by an error."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(f"{place}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise NotInstalled(
            f"{place.parent} cannot be written ({error.strerror}): set ${FOLDER_VARIABLE}"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if _ready(place) is None:
            shutil.rmtree(place, ignore_errors=True)
        try:
            yield descriptor
        except BaseException:
            # Ctrl-C too: a folder without a mark is never used, and need not lie about.
            shutil.rmtree(place, ignore_errors=True)
            raise
    finally:
        os.close(descriptor)


def _node_version(place: Path, package: str) -> str:
    manifest = place / "node_modules" / package / "package.json"
    return str(json.loads(manifest.read_text(encoding="utf-8"))["version"])
