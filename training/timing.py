"""Where the time of a step goes: every part between its own pair of clock readings. Called by `training.loop`.

On a CPU the clock is the machine's monotonic clock, the one that all events use. On a GPU it is a pair of CUDA events
in the stream that does the work, read after one synchronisation at the end of the step: the times are when the device
did it, not when Python asked for it.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

PARTS = ("data", "forward", "backward", "comm", "optimizer", "checkpoint")


class Watch:
    """Collects the clock readings of one step at a time."""

    def __init__(self, device: torch.device) -> None:
        self._stamp: Callable[[], Any] = cuda_stamp if device.type == "cuda" else time.monotonic
        self._read: Callable[[float, Sequence[Any]], list[float]] = read_cuda if device.type == "cuda" else read_cpu
        self.begin()

    def begin(self) -> None:
        """A step begins now."""
        self._parts: list[str] = []
        self._stamps = [self._stamp()]  # the beginning, then two for each part
        self._begin_t = time.monotonic()

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what happens inside as a part of the step; a part may come several times (micro-batches)."""
        self._stamps.append(self._stamp())
        yield
        self._stamps.append(self._stamp())
        self._parts.append(name)

    def finish(self) -> dict[str, Any]:
        """The step's fields for its event: `begin_t`, and for each part its seconds and the moment it ended."""
        begin, *spans, end = self._read(self._begin_t, [*self._stamps, self._stamp()])
        seconds, marks = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, begin)
        for name, opened, closed in zip(self._parts, spans[::2], spans[1::2], strict=True):
            seconds[name] += closed - opened
            marks[name] = closed
        return {
            "step_s": round(end - begin, 6),
            "begin_t": begin,
            **{f"{name}_t": marks[name] for name in PARTS if name != "checkpoint"},
            **{f"{name}_s": round(value, 6) for name, value in seconds.items()},
        }


class NoWatch(Watch):
    """Times nothing, for runs that nobody listens to."""

    def __init__(self) -> None:
        super().__init__(torch.device("cpu"))

    def begin(self) -> None:
        """Do nothing."""

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:  # noqa: ARG002 - same signature
        """Do nothing."""
        yield

    def finish(self) -> dict[str, Any]:
        """No fields."""
        return {}


class Spans:
    """Adds up the time of short pieces of work on the device's clock."""

    def __init__(self, device: torch.device) -> None:
        self._stamp: Callable[[], Any] = cuda_stamp if device.type == "cuda" else time.monotonic
        self._read: Callable[[float, Sequence[Any]], list[float]] = read_cuda if device.type == "cuda" else read_cpu
        self._stamps: list[Any] = []

    @contextlib.contextmanager
    def span(self) -> Iterator[None]:
        """Time what happens inside."""
        self._stamps.append(self._stamp())
        yield
        self._stamps.append(self._stamp())

    def take(self) -> float:
        """Seconds since the last time this was asked."""
        read = self._read(0.0, self._stamps) if self._stamps else []
        self._stamps = []
        return sum(end - begin for begin, end in zip(read[::2], read[1::2], strict=True))


def read_cpu(_begin_t: float, stamps: Sequence[float]) -> list[float]:
    """Clock readings are their own values."""
    return list(stamps)


def cuda_stamp() -> torch.cuda.Event:
    """A timed event in the current stream."""
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def read_cuda(begin_t: float, stamps: Sequence[torch.cuda.Event]) -> list[float]:
    """Moments of CUDA events on the monotonic clock; the first is taken to be at `begin_t`: the device is idle then."""
    torch.cuda.synchronize()
    return [begin_t + stamps[0].elapsed_time(stamp) / 1000 for stamp in stamps]
