"""What can be seen of the shared volume, and done to it, from a node. Called by `bench.agent.serve`."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def space(volume: Path) -> dict[str, int]:
    """Size and free space, in bytes."""
    found = os.statvfs(volume)
    return {"size": found.f_blocks * found.f_frsize, "free": found.f_bavail * found.f_frsize}


DEEDS: dict[str, Callable[..., Any]] = {"space": space}
