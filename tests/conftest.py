"""Fixtures that every folder of tests shares."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# On these a sync is a no-op or locks are missing; level `power` refuses them, as it should.
UNFIT = frozenset({"tmpfs", "ramfs", "nfs", "nfs4", "cifs", "smb3", "9p", "virtiofs", "fuse"})


def file_system(path: Path) -> str | None:
    """The type of the file system that holds `path`; None where the kernel does not say."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return None
    found, kind = "", None
    for mount in mounts:
        fields = mount.split()
        point = fields[4].replace("\\040", " ")
        inside = path.resolve().is_relative_to(point)
        if inside and len(point) >= len(found):  # The later of two mounts on one point hides it.
            found, kind = point, fields[fields.index("-") + 1]
    return kind


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """An empty folder on a real disk, where `fsync` means something.

    pytest's own folder where that is fit, else one below `/var/tmp` or beside the tests.
    """
    for parent in (tmp_path, Path("/var/tmp"), Path(__file__).parent):
        kind = file_system(parent)
        if kind is None or kind.split(".")[0] not in UNFIT:
            break
    else:
        pytest.skip("no folder on a real disk: set TMPDIR to one")
    folder = Path(tempfile.mkdtemp(prefix="place-", dir=parent))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
