"""How much memory this process has, now and at its peak. Called by `training.measuring`."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

STATUS = Path("/proc/self/status")
KIB = 1024


def resident_bytes() -> int | None:
    """The process' own memory now, without the files that it maps; None where nobody tells."""
    return field("RssAnon", STATUS)


def peak_bytes() -> int:
    """The most memory that the process has had so far, mapped files included."""
    most = field("VmHWM", STATUS)
    if most is not None:
        return most
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return own if sys.platform == "darwin" else own * KIB


def field(name: str, status: Path) -> int | None:
    """A field of /proc/<pid>/status in bytes."""
    try:
        lines = status.read_text().splitlines()
    except OSError:
        return None
    words = next((line.split() for line in lines if line.startswith(f"{name}:")), None)
    return int(words[1]) * KIB if words else None
