"""Who may do what through the page and its API: tokens with roles, in a file beside the database.

A token is 256 random bits, shown once when it is made; the file holds its SHA-256 alone.  No salt
and no slow hash: they protect guessable secrets, and nobody guesses 256 bits.  The file is
`<db>.tokens` unless another is named, and must be its owner's alone (0600): who can write it can
give himself any role.  It is not in the database: a backup, an export or a copy of the queue must
not carry the right to act on it.

The server looks at the file again whenever it has changed, so that a token that is removed ends at
once, in open streams too.
"""

import fcntl
import hashlib
import hmac
import json
import os
import secrets
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from killproof.core import model
from killproof.core.clock import Clock, SystemClock
from killproof.core.errors import FileRefused

#: From the one who may do least to the one who may do most; each may what those before it may.
ROLES: Final = ("viewer", "operator", "admin")
#: What each role adds, in the words of `killproof serve token --help` and of the page.
ROLE_TEXT: Final = {
    "viewer": "reads everything",
    "operator": "also decides about single jobs: replay, cancel, hold, release, priority, urgent",
    "admin": "also decides about many at once: pause and resume a kind, replay all of a state",
}
#: The role that each action asks for.
ACTIONS: Final = {
    "replay": "operator",
    "cancel": "operator",
    "hold": "operator",
    "unhold": "operator",
    "reprioritise": "operator",
    "urgent": "operator",
    "pause": "admin",
    "resume": "admin",
    "replay_all": "admin",
}
#: So that a token is recognised for what it is where it was left behind: in a log, in a commit.
PREFIX: Final = "killproof_"
TOKENS_MAX: Final = 100
NAME_CHARS_MAX: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody with a token."""

    name: str  #: who, in the audit log
    role: str

    def may(self, action: str) -> bool:
        """Whether the role is enough for an action.

        >>> Person(name="ada", role="operator").may("cancel")
        True
        >>> Person(name="ada", role="operator").may("pause")
        False
        """
        return ROLES.index(self.role) >= ROLES.index(ACTIONS[action])


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One line of the file."""

    name: str
    role: str
    sha256: str  #: of the token, 64 hex digits
    created_ms: int
    expires_ms: int | None  #: from then on it is refused; None is never


def file_of(db: str | os.PathLike[str]) -> Path:
    """Return where the tokens of a database lie unless another file is named.

    >>> str(file_of("queue.db"))
    'queue.db.tokens'
    """
    return Path(f"{os.fspath(db)}.tokens")


def add(
    path: Path, name: str, role: str, *, seconds: float | None = None, clock: Clock | None = None
) -> str:
    """Make a token and return it; it can not be shown again.

    Args:
        path: the file of tokens; made if need be.
        name: who it is for; one token each.
        role: `viewer`, `operator` or `admin`.
        seconds: how long it is good for; None is until it is removed.
        clock: when it is made.

    Raises:
        ValueError: the name is taken or no name, or the role is unknown; definite.
        FileRefused: the file is not its owner's alone, or no file of tokens; definite.
    """
    model.check_text(name, "name", NAME_CHARS_MAX)
    if not name.isprintable():
        raise ValueError(f"name {name!a} must be printable text")
    if role not in ROLES:
        raise ValueError(f"role {role!r} is unknown: use one of {', '.join(ROLES)}")
    now_ms = (clock or SystemClock()).now_ms()
    lasts_ms = None if seconds is None else model.to_ms(seconds, "time to live", lowest_ms=1)
    token = PREFIX + secrets.token_urlsafe(32)
    with _alone(path):
        found = entries(path)
        if any(entry.name == name for entry in found):
            raise ValueError(f"{name!r} has a token already: remove it first, or use another name")
        if len(found) >= TOKENS_MAX:
            raise ValueError(f"{path} holds {TOKENS_MAX} tokens already: remove one first")
        entry = Entry(
            name=name,
            role=role,
            sha256=_digest(token),
            created_ms=now_ms,
            expires_ms=None if lasts_ms is None else now_ms + lasts_ms,
        )
        _write(path, [*found, entry])
    return token


def remove(path: Path, name: str) -> bool:
    """Remove the token of this name; False if there is none.

    Raises:
        FileRefused: as for `add`.
    """
    with _alone(path):
        found = entries(path)
        left = [entry for entry in found if entry.name != name]
        if len(left) == len(found):
            return False
        _write(path, left)
    return True


def entries(path: Path) -> list[Entry]:
    """Return what the file holds; nothing if it is not there.

    Raises:
        FileRefused: it is not its owner's alone, or no file of tokens; definite.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if mode & 0o077:
                raise FileRefused(
                    f"{path} can be read or written by others (mode {mode:o}): chmod 600 {path}"
                )
            document = json.loads(file.read())
        return [_checked(Entry(**entry)) for entry in document["killproof_tokens"]]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileRefused(f"{path}: {error.strerror}: check its rights") from error
    except (ValueError, TypeError, KeyError) as error:
        raise FileRefused(
            f"{path} is no file of tokens: move it away and make new ones, "
            "killproof serve token add NAME"
        ) from error


def _checked(entry: Entry) -> Entry:
    """Return the entry if `add` could have made it: what a hand wrote may be anything.

    Raises:
        ValueError: it could not.
    """
    texts = (entry.name, entry.sha256)
    moments = (entry.created_ms, entry.expires_ms or 0)
    if (
        not all(isinstance(text, str) for text in texts)
        or not all(isinstance(moment, int) for moment in moments)
        or entry.role not in ROLES
    ):
        raise ValueError(f"no entry: {entry.name!r}")
    return entry


class Tokens:
    """The file of tokens as a server sees it: read again when it has changed."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        self.path = path
        self._clock = clock or SystemClock()
        self._seen: tuple[int, int, int, int] | None = None
        self._entries: list[Entry] = []

    def exist(self) -> bool:
        """Whether there is any token that is good now.

        Raises:
            FileRefused: as for `entries`.
        """
        return bool(self._good())

    def person(self, token: str) -> Person | None:
        """Return whose token this is, or None.

        Raises:
            FileRefused: as for `entries`.
        """
        digest = _digest(token)
        found = None
        for entry in self._good():  # All of them, so that the time tells nothing.
            if hmac.compare_digest(entry.sha256.encode(), digest.encode()):
                found = Person(name=entry.name, role=entry.role)
        return found

    def _good(self) -> list[Entry]:
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            self._seen, self._entries = None, []
            return []
        except OSError as error:
            raise FileRefused(f"{self.path}: {error.strerror}: check its rights") from error
        mark = (status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode)
        if mark != self._seen:
            self._entries = entries(self.path)
            self._seen = mark
        now_ms = self._clock.now_ms()
        return [one for one in self._entries if one.expires_ms is None or one.expires_ms > now_ms]


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "backslashreplace")).hexdigest()


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep others from changing the file; the lock is on its folder, so that nothing is left."""
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise FileRefused(f"{path.parent}: {error.strerror}: name another file") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def _write(path: Path, new: list[Entry]) -> None:
    """Replace the file in one step: a reader sees the old one or the new one, and so does a crash.

    `mkstemp` makes it with mode 0600 from its first moment.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"killproof_tokens": [asdict(entry) for entry in new]}, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(name)
        raise
