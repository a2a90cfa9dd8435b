"""A child process that is asked to end, and made to. Called by `bench.monitor` and `monitoring.servers`."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator


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
