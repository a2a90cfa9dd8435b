"""Child processes: programs of ours, and one that is asked to end, and made to. Called by whoever starts one."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""Where the package is found: the clone, or the environment that it is installed in."""


def ours(module: str, *words: str) -> list[str]:
    """The command of a module of ours, such as `reports`, also in a folder where somebody has a `proving_ground.py`.

    To be started in an `environment()`, since the present folder is not looked at.
    """
    return [sys.executable, "-P", "-m", f"proving_ground.{module}", *words]


def environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Where programs of ours are found: those that the caller is of, installed or not."""
    if str(ROOT) == sysconfig.get_path("purelib"):  # they are found there; first, others would hide Python's own
        return dict(given)
    paths = filter(None, (str(ROOT), given.get("PYTHONPATH")))
    return {**given, "PYTHONPATH": os.pathsep.join(paths)}


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
