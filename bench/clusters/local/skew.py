"""Wall clocks that are wrong, a node's own: emulated by a library preloaded into its processes. Called by `local`.

The kernel has one wall clock for all. The library is a page of C (`skew.c`), built once a run with the machine's
compiler; which time it tells is read from a file of the node. Nothing else changes: timers and the monotonic clock,
which all events use, stay right.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_suffix(".c")
PRELOAD_VARIABLE = "LD_PRELOAD"
BUILD_S = 60.0


def build(folder: Path) -> Path:
    """The library, built in `folder`.

    Raises:
        OSError: no compiler, or it refuses.
    """
    library = folder / "skew.so"
    if set(str(library)) & set(" :"):
        raise OSError(f"{folder}: a library in a folder with a space or a colon in its name cannot be preloaded")
    command = ["cc", "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=BUILD_S)
    except FileNotFoundError:
        raise OSError("no C compiler (cc) to build the clock's library with") from None
    except subprocess.SubprocessError as error:
        raise OSError(f"cc: {(getattr(error, 'stderr', '') or str(error)).strip().splitlines()[0]}") from None
    return library


def make_clock(file: Path) -> Path:
    """A node's file with its offset, none to begin with."""
    set_ahead(file, 0.0)
    return file


def set_ahead(file: Path, seconds: float) -> None:
    """Have the clock that reads this file ahead by so much; processes that have it see that at once."""
    handle = os.open(file, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(handle, struct.pack("q", round(seconds * 1e9)), 0)
    finally:
        os.close(handle)


def use(library: str, file: str) -> None:
    """Give this process, which has the library, and its children to come the clock of a node.

    Raises:
        OSError: the file cannot be read.
    """
    if ctypes.CDLL(library).proving_ground_clock(file.encode()):
        raise OSError(f"{file}: not a clock")
