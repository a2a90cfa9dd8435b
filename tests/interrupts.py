"""A real Ctrl-C so long after a command's first line of our own: for the tests of the command lines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parent.parent


def guarded(call: str) -> str:
    """The first lines of a program that says `begun` once it asks this of `signal`: what is before, it cannot catch."""
    return f"""
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
real = signal.{call}
def told(*words):
    signal.{call} = real
    before = real(*words)
    print("begun", flush=True)
    return before
signal.{call} = told
"""


def interrupted(begin: str, after_s: float, *words: str, **environ: str) -> tuple[int, str]:
    """Status and stderr of a process; `begin` is its program, which prints `begun` before anything of ours."""
    with subprocess.Popen(
        [sys.executable, "-c", begin, *words], cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environ},
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(after_s)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    return process.returncode, err
