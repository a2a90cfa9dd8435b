"""Folders for keys and settings on the harness's side, which go even when the process that made them is killed.

Called by whatever stands up an engine here or in `tests/infra/testbed`, and by `conftest.py` for the volume.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

GUARD = 'read -r _; until rm -rf "$1"; do sleep 0.1; done'  # again, where a program still writes there


@contextlib.contextmanager
def vanishing(prefix: str) -> Iterator[Path]:
    """A new folder that a process removes when our pipe to it ends."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    with subprocess.Popen(
        ["sh", "-c", GUARD, "sh", str(folder)], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    ):
        yield folder
