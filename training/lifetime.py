"""When this process began, and how it is asked to end. Called by `training.loop`."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

TWICE_S = 1.0  # a second SIGTERM this soon is the same request, from a launcher and from whoever stops its node


@contextlib.contextmanager
def stop_on_sigterm() -> Iterator[threading.Event]:
    """An event that SIGTERM sets: the step in hand is finished first; a second SIGTERM ends the process at once."""
    asked = threading.Event()
    asked_t: list[float] = []
    if threading.current_thread() is not threading.main_thread():  # others cannot listen to signals
        yield asked
        return

    def ask(number: int, _frame: object) -> None:
        if asked.is_set() and time.monotonic() - asked_t[0] > TWICE_S:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        asked_t.append(time.monotonic())
        asked.set()

    before = signal.signal(signal.SIGTERM, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGTERM, before)


def process_start() -> float | None:
    """The moment this process was started or forked, in seconds on the monotonic clock (10 ms fine); Linux only."""
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None
    asleep = time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic()  # the kernel counts time in suspend, we do not
    return ticks / os.sysconf("SC_CLK_TCK") - asleep
