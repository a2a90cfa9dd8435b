"""Groups of processes like Gloo's, in memory. Called by `live_jobs`.

A group meets at a store, sums when all have entered, breaks with the first connection that ends — which some hear at
once and others only when they look — and hangs while packets are dropped.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any, cast

import torch

from tests.validations.live_room import AGAIN_S, Process, Room, here
from tests.validations.virtual import Stage

SKEW_S = 0.01  # between the members at the end of a sum, at most
FLYING = 9  # collectives of a group that may be under way


@dataclass(eq=False)
class End:
    """A process' connections to the others of a circle."""

    circle: Circle
    rank: int
    process: Process
    count: int = 0  # of its collectives
    cut_t: float = math.inf

    def cut(self) -> None:
        """They end, and the others hear of it."""
        if self.cut_t == math.inf and not self.process.silent:
            self.cut_t = self.circle.room.now
            self.circle.wake()


@dataclass(eq=False)
class Circle:
    """Processes that meet at a store under one key."""

    room: Room
    size: int
    ends: dict[int, End] = field(default_factory=dict)
    those: list[list[Any]] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)

    def wake(self) -> None:
        """Something has changed: all look."""
        self.room.wake(self.those)
        for op in self.ops[-FLYING:]:
            self.room.wake(op.those)

    def reaches_all(self, end: End) -> bool:
        """Whether one is connected to all, who must be there."""
        return len(self.ends) == self.size and all(
            self.room.connects(end.process.node, it.process.node) and it.cut_t == math.inf
            for it in self.ends.values()
            if it is not end
        )

    def ended_t(self, end: End) -> float:
        """When the first of the others ended its connections, as far as one can hear it."""
        return min(
            (it.cut_t for it in self.ends.values()
             if it is not end and self.room.connects(end.process.node, it.process.node)),
            default=math.inf,
        )  # fmt: skip

    def look_again(self) -> None:
        """Packets pass again."""
        for op in self.ops[-FLYING:]:
            op.entered(AGAIN_S * self.room.chance.random())
        self.wake()


class Op:
    """One collective of a circle."""

    def __init__(self, circle: Circle, root: int | None) -> None:
        self.circle, self.root, self.parts = circle, root, cast("dict[int, torch.Tensor]", {})
        self.all_t = math.inf
        self.those: list[list[Any]] = []

    def entered(self, after_s: float = 0.0) -> None:
        """Somebody has: if all have, and reach each other, it comes to its end."""
        circle, room = self.circle, self.circle.room
        nodes = [it.process.node for it in circle.ends.values()]
        if len(self.parts) < circle.size or self.all_t < math.inf:
            return
        if room.cuts and any(not room.connects(one, other) for one in nodes for other in nodes if one < other):
            return
        self.all_t = max(room.now, *(it.process.stopped[1] for it in circle.ends.values())) + after_s
        room.wake(self.those)

    @cached_property
    def value(self) -> torch.Tensor:
        """What all get, once all have entered."""
        return torch.stack([*self.parts.values()]).sum(0) if self.root is None else self.parts[self.root]


class Work:
    """A member's part of a collective; stands for `dist.Work`."""

    def __init__(self, op: Op, end: End, into: torch.Tensor, seconds: float) -> None:
        room = op.circle.room
        self._op, self._end, self._into, self._until = op, end, into, room.now + seconds
        self._skew_s = SKEW_S * room.chance.random()
        self._hears = room.chance.random() < 0.5  # of a connection that ended
        self._state = ""

    def _look(self) -> None:
        op, end, now = self._op, self._end, self._op.circle.room.now
        if self._state:
            return
        done_t, broken_t = op.all_t + self._skew_s, min(op.circle.ended_t(end), end.cut_t)
        if done_t <= min(now, broken_t, self._until):
            self._state = "done"
            self._into.copy_(op.value)
        elif end.cut_t <= now:
            self._state = "Connection closed by us"
        elif broken_t <= now and self._hears:
            self._state = "Connection closed by peer"
        elif now >= self._until:
            self._state = "Timed out waiting"
            end.cut()

    def is_completed(self) -> bool:
        """Whether it ended, well or not."""
        self._look()
        return bool(self._state)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Until it has ended.

        Raises:
            RuntimeError: not well, or not in time.
        """
        room = self._op.circle.room
        until = room.now + (timeout.total_seconds() if timeout else math.inf)
        while not self.is_completed():
            if room.now >= until:
                raise RuntimeError("wait timed out")
            done_t = self._op.all_t + self._skew_s
            room.wait(self._op.those, min(until, self._until, done_t if done_t > room.now else math.inf) - room.now)
        if self._state != "done":
            raise RuntimeError(self._state)
        return True


class Group:
    """Stands for torchft's `ProcessGroupGloo`."""

    def __init__(self, timeout: timedelta) -> None:
        self._seconds = timeout.total_seconds()
        self._end: End | None = None

    def configure(self, where: str, _names: object, rank: int, size: int) -> None:
        """Meet the others.

        Raises:
            RuntimeError: they did not all come in time.
        """
        job, process = Stage.job, here()
        room: Room = job.room
        until, (host, _, port) = room.now + self._seconds, where.partition("/")[0].partition(":")
        room.travel()
        while not (room.answers(host) and room.listens(host, int(port))):
            if room.now >= until:
                raise RuntimeError("timed out: no store")
            room.sleep(0.1)
        circle = job.circles.setdefault(where, Circle(room, size))
        if rank in circle.ends:
            room.sleep(until - room.now)
            raise RuntimeError("timed out: keys of a former life")
        end = self._end = process.made = circle.ends[rank] = End(circle, rank, process)
        process.ends = [it for it in process.ends if it.cut_t == math.inf] + [end]
        circle.wake()
        while not circle.reaches_all(end):
            if room.now >= until:
                raise RuntimeError("timed out connecting")
            room.wait(circle.those, min(until - room.now, 0.1))

    def allreduce(self, values: list[torch.Tensor], options: Any) -> Work:
        """Begin to sum."""
        return self._begin(values[0], options, None)

    def broadcast(self, values: list[torch.Tensor], options: Any) -> Work:
        """Begin to send one member's to all."""
        return self._begin(values[0], options, int(options.rootRank))

    def _begin(self, values: torch.Tensor, options: Any, root: int | None) -> Work:
        end = self._end
        assert end is not None
        circle = end.circle
        if end.count == len(circle.ops):
            circle.ops.append(Op(circle, root))
        op = circle.ops[end.count]
        end.count += 1
        op.parts[end.rank] = values.clone()
        op.entered()
        return Work(op, end, values, options.timeout.total_seconds())

    def abort(self) -> None:
        """Its connections were cut before."""


class Lines:
    """Stands for the class of `training.recovery.lines`."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._end: End | None = None

    @contextlib.contextmanager
    def watching(self, _addresses: Sequence[str]) -> Iterator[None]:
        """Remember the connections that are made inside."""
        self.cut()
        self._process.made = None
        try:
            yield
        finally:
            self._end = self._process.made

    def ended(self) -> bool:
        """Whether one of them ended."""
        return self._end is not None and self._end.circle.ended_t(self._end) <= self._end.circle.room.now

    def cut(self) -> None:
        """End them."""
        if self._end is not None:
            self._end.cut()
            self._end = None
