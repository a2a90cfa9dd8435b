"""Child processes: programs of ours, and one that is asked to end, and made to. Called by whoever starts one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator


def ours(module: str, *words: str) -> list[str]:
    """The command of a program of ours, also in a folder where somebody has a `bench.py` or `reports.py` of their own.

    The packages are installed, or the caller says in PYTHONPATH where they are: the present folder is not looked at.
    """
    return [sys.executable, "-P", "-m", module, *words]


@contextlib.contextmanager
def ended_after(process: subprocess.Popen[bytes], patience_s: float) -> Iterator[None]:
    """End it afterwards, whatever happens inside: by SIGTERM, then by SIGKILL if it is there `patience_s` later."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(patience_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
