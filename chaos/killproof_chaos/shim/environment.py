"""What a process must find in its environment to run under the shim."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from killproof_chaos.shim.build import build
from killproof_chaos.shim.control import Control

CONTROL: Final = "KILLPROOF_SHIM"  #: the control file, read by the shim
NOTES: Final = "KILLPROOF_NOTES"  #: the file of notes, for a client in any language


def preload_environment(
    control: Control,
    *,
    library: Path | None = None,
    base: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """Return the variables that put a process, and all it starts, under this control.

    To be merged into an environment: `os.environ | preload_environment(control)`.

    Args:
        control: the memory to share.
        library: the shim; None builds it if need be.
        base: whose LD_PRELOAD is kept behind the shim; None for this process's environment.

    Raises:
        ShimUnavailable: it cannot be built here.
    """
    others = (os.environ if base is None else base).get("LD_PRELOAD", "")
    shim = str(library or build())
    preload = [shim, *(name for name in others.replace(":", " ").split() if name != shim)]
    variables = {"LD_PRELOAD": ":".join(preload), CONTROL: os.path.realpath(control.path)}
    if control.notes is not None:
        variables[NOTES] = str(control.notes)
    return variables
