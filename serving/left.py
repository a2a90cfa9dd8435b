"""Folders of this process in the system's place for such; what killed ones left is removed at the next start.

Called by `serving.registry` and `serving.servers`. A folder is locked as long as its process lives.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

PREFIX, LOCK = "proving-ground-", ".lock"


@contextlib.contextmanager
def folder(kind: str) -> Iterator[Path]:
    """A new folder, gone afterwards; before that those of its kind that nobody holds any more."""
    remove_left(kind)
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{kind}-") as made:
        new = Path(made) / f"{LOCK}.new"
        with new.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # not lockf: this process may hold several
            new.rename(Path(made) / LOCK)
            yield Path(made)


def remove_left(kind: str) -> None:
    """Remove folders whose process is dead. One without a lock is about to get it, and stays."""
    for found in Path(tempfile.gettempdir()).glob(f"{PREFIX}{kind}-*"):
        with contextlib.suppress(OSError), (found / LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(found, ignore_errors=True)
