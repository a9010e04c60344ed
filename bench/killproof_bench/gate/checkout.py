"""The two sides on the disk: git worktrees at paths of equal length, compiled beforehand.

The base is the merge base of the revision asked for and HEAD, so that what others have put on the
main branch since is not held against a change. The head is the working tree as it is: a worktree of
its HEAD, with every uncommitted change of the queue's source laid over it. Both lie in one scratch
folder, as `base` and `head`; nothing in the repository is changed but git's own list of worktrees,
which is put back.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from killproof_bench.gate.result import Revision

#: What is measured: the root of the queue's source, which needs nothing else.
SOURCE: Final = "queue"
TRAILER: Final = "perf-ok"


class CheckoutError(RuntimeError):
    """git or the compiler failed: the tool failed, exit 3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tree:
    """One side: a revision and the folder that holds its source."""

    revision: Revision
    folder: Path

    @property
    def source(self) -> Path:
        """What goes on PYTHONPATH."""
        return self.folder / SOURCE


@dataclass(frozen=True, slots=True, kw_only=True)
class Patch:
    """A change of one place in a tree, found by its text."""

    file: str  #: Relative to the tree.
    anchor: str  #: Must be there exactly once.
    text: str  #: What takes its place; its further lines are indented like the anchor's own.


@contextmanager
def trees(scratch: Path, base: str, head: Path) -> Iterator[tuple[Tree, Tree]]:
    """Give both sides, and remove their worktrees whatever happens.

    Args:
        scratch: An empty folder; on a RAM file system the source is read from memory.
        base: A revision.
        head: A folder of the working tree.

    Raises:
        ValueError: There is no such checkout or revision; the message shows it.
        CheckoutError: git failed.
    """
    top = _top(head)
    commit, base_commit = commits(top, base)
    sides = []
    try:
        for name, told, revision in (("base", base, base_commit), ("head", str(head), commit)):
            folder = scratch / name
            # Hooks are the user's, and for a checkout of his own.
            arguments = ("-c", "core.hooksPath=/dev/null", "worktree", "add", "--quiet", "--force")
            _git(top, *arguments, "--detach", str(folder), revision)
            changed = _overlay(top, folder) if name == "head" else 0
            if not (folder / SOURCE / "killproof").is_dir():
                raise ValueError(f"{told!r} has no {SOURCE}/killproof: name another revision")
            sides.append(
                Tree(
                    revision=Revision(name=told, commit=revision, changed_files=changed),
                    folder=folder,
                )
            )
        for side in sides:
            compile_source(side)
        yield sides[0], sides[1]
    finally:
        # Each by its path: a prune would also forget the user's own worktrees whose disk is away.
        for name in ("base", "head"):
            if (scratch / name).exists():
                _try(top, "worktree", "remove", "--force", "--force", str(scratch / name))
            shutil.rmtree(scratch / name, ignore_errors=True)


def commits(top: Path, base: str) -> tuple[str, str]:
    """Return HEAD, and the merge base of it and the revision asked for.

    Raises:
        ValueError: There is no such revision.
    """
    head = _git(top, "rev-parse", "HEAD").strip()
    found = _try(top, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}")
    if found is None:
        raise ValueError(f"--base {base!r} is no revision of {top}: fetch it, or name another")
    # A shallow clone may not hold the merge base; then the revision itself is compared.
    return head, (_try(top, "merge-base", found.strip(), head) or found).strip()


def trailers(folder: Path, base: str, head: str) -> tuple[str, ...]:
    """Return what the `perf-ok:` trailers of the commits between the two name."""
    top = _top(folder)
    form = f"--format=%(trailers:key={TRAILER},valueonly=true)"
    return names_in(_git(top, "log", form, f"{base}..{head}"))


def names_in(text: str) -> tuple[str, ...]:
    r"""Return the names in the values of trailers, one or several to a line.

    >>> names_in("claim.frames, ack\n\nclaim.frames\n")
    ('ack', 'claim.frames')
    """
    return tuple(sorted({name.strip() for name in text.replace("\n", ",").split(",")} - {""}))


def is_excused(name: str, named: Sequence[str]) -> bool:
    """Whether a trailer names a counter, `claim.frames`, or its whole operation, `claim`."""
    return name in named or name.rpartition(".")[0] in named


def patched(tree: Tree, patches: Sequence[Patch], folder: Path) -> Tree:
    """Return a compiled copy of a tree, in the folder, with places changed.

    Raises:
        CheckoutError: An anchor is not there exactly once: what it stood for has moved.
    """
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(tree.source, folder / SOURCE)
    for patch in patches:
        path = folder / patch.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text.count(patch.anchor) != 1:
            raise CheckoutError(
                f"{patch.file} has {text.count(patch.anchor)} places that read "
                f"{patch.anchor!r}: mend the anchor of this seeded regression"
            )
        line = text[text.rfind("\n", 0, text.index(patch.anchor)) + 1 :]
        indent = line[: len(line) - len(line.lstrip())]
        instead = patch.text.replace("\n", f"\n{indent}")
        path.write_text(text.replace(patch.anchor, instead), encoding="utf-8")
    changed = Tree(revision=tree.revision, folder=folder)
    compile_source(changed)
    return changed


def compile_source(tree: Tree) -> None:
    """Compile all modules, so that no arm does; the time of a file is never looked at again.

    Raises:
        CheckoutError: A module does not compile.
    """
    mode = ("--invalidation-mode", "unchecked-hash")
    done = subprocess.run(
        [sys.executable, "-m", "compileall", "-q", "-f", *mode, str(tree.source)],
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise CheckoutError(f"{tree.revision.name} does not compile: {done.stdout.strip()}")


def _overlay(top: Path, folder: Path) -> int:
    """Lay the uncommitted changes of the source over the worktree; return how many files."""
    changed = _git(top, "diff", "--name-only", "-z", "--no-renames", "HEAD", "--", SOURCE)
    others = ("ls-files", "-z", "--others", "--exclude-standard", "--", SOURCE)
    names = {name for text in (changed, _git(top, *others)) for name in text.split("\0") if name}
    for name in names:
        source, target = top / name, folder / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        else:
            target.unlink(missing_ok=True)
    return len(names)


def _top(folder: Path) -> Path:
    found = _try(folder, "rev-parse", "--show-toplevel") if folder.is_dir() else None
    if found is None:
        raise ValueError(f"--head {str(folder)!r} is not in a git checkout: name one")
    return Path(found.rstrip("\n"))


def _git(folder: Path, *arguments: str) -> str:
    done = _run(folder, arguments)
    if done.returncode:
        raise CheckoutError(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _try(folder: Path, *arguments: str) -> str | None:
    done = _run(folder, arguments)
    return None if done.returncode else done.stdout


def _run(folder: Path, arguments: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *arguments],
            env=_environment(),
            capture_output=True,
            text=True,
        )
    except FileNotFoundError as error:
        raise CheckoutError("git is not there: install it") from error


def _environment() -> dict[str, str]:
    # Inside a hook git names its own repository and index in these; ours is the folder's.
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
