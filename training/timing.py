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
        self._bucket_bytes: list[int] = []
        self.begin()

    def begin(self) -> None:
        """A step begins now."""
        self._parts: list[str] = []
        self._stamps = [self._stamp()]  # the beginning, then two for each part
        self._ready: list[Any] = []
        self._done: list[Any] = []
        self._sizes: list[int] = []
        self._begin_t = time.monotonic()

    @contextlib.contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what happens inside as a part of the step; a part may come several times (micro-batches)."""
        self._stamps.append(self._stamp())
        yield
        self._stamps.append(self._stamp())
        self._parts.append(name)

    def bucket_ready(self, size: int) -> None:
        """A bucket of `size` bytes has its last local gradient and goes on its way."""
        self._sizes.append(size)
        self._ready.append(self._stamp())

    def bucket_done(self) -> None:
        """A bucket is reduced over all ranks."""
        self._done.append(self._stamp())

    def finish(self) -> dict[str, Any]:
        """The step's fields for its event: `begin_t`, and for each part its seconds and the moment it ended."""
        end = self._stamp()
        times = self._read(self._begin_t, [*self._stamps, *self._ready, *self._done, end])
        begin, spans, buckets = times[0], times[1 : len(self._stamps)], times[len(self._stamps) : -1]
        seconds, marks = dict.fromkeys(PARTS, 0.0), dict.fromkeys(PARTS, begin)
        for name, opened, closed in zip(self._parts, spans[::2], spans[1::2], strict=True):
            seconds[name] += closed - opened
            marks[name] = closed
        ready, done = buckets[: len(self._ready)], buckets[len(self._ready) :]
        if ready and len(done) == len(ready):  # the call to backward() lasts until the last bucket: take that apart
            seconds["backward"] -= marks["backward"] - max(ready)
            seconds["comm"] = max(done) - max(ready)
            marks["backward"], marks["comm"] = max(ready), max(done)
        return {
            "step_s": round(times[-1] - begin, 6),
            "begin_t": begin,
            **{f"{name}_t": marks[name] for name in PARTS if name != "checkpoint"},
            **{f"{name}_s": round(value, 6) for name, value in seconds.items()},
            **self._buckets(ready, done),
        }

    def _buckets(self, ready: list[float], done: list[float]) -> dict[str, Any]:
        fields: dict[str, Any] = {"allreduce_s": round(busy(ready, done), 6)}
        if self._sizes != self._bucket_bytes:  # DDP makes its buckets again after the first step, then never
            self._bucket_bytes = fields["bucket_bytes"] = self._sizes
        return fields


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

    def bucket_ready(self, size: int) -> None:
        """Do nothing."""

    def bucket_done(self) -> None:
        """Do nothing."""

    def finish(self) -> dict[str, Any]:
        """No fields."""
        return {}


def busy(begins: Sequence[float], ends: Sequence[float]) -> float:
    """Seconds in which at least one of the intervals was open; begins and ends are each in any order."""
    changes = sorted([(moment, 1) for moment in begins] + [(moment, -1) for moment in ends])
    total, open_now, since = 0.0, 0, 0.0
    for moment, change in changes:
        total += moment - since if open_now else 0.0
        open_now, since = open_now + change, moment
    return total


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
