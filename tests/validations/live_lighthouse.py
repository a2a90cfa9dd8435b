"""torchft's coordinator in memory, and what a member has of it. Called by `live_jobs`.

It follows the rules of torchft's lighthouse (its `quorum_compute`): a quorum is there when all members of the last one
have asked, or all that send heartbeats, or when a straggler's time is over.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from greenlet import GreenletExit

from proving_ground.training.recovery.lighthouse import EXPIRY_S, HEARTBEAT_S, STRAGGLE_S, TICK_S
from proving_ground.training.recovery.lines import PROBE_S
from proving_ground.training.recovery.members import QUORUM_S, Member, Place, Seat
from tests.validations.live_room import AGAIN_S, Pool, Process, Room, here
from tests.validations.virtual import Stage

LATE_S = 8.0  # until a kernel tries again once packets pass, at most


@dataclass(eq=False)
class Pulse:
    """Heartbeats of one life at the coordinator: reckoned when somebody asks, since they are many."""

    room: Room
    process: Process
    born_t: float
    phase_s: float
    shut_t: float = math.inf
    seen_t: float = -math.inf

    def last(self) -> float:
        """When the newest arrived."""
        room, process = self.room, self.process
        until = min(room.now, self.shut_t, process.ended_t)
        if process.stopped[1] > room.now:
            until = min(until, process.stopped[0])
        if room.cuts:
            until = min(until, room.cuts.get(frozenset((process.node, "c")), until))
        beats = math.floor((until - self.born_t - self.phase_s) / HEARTBEAT_S)
        self.seen_t = max(self.seen_t, self.born_t + self.phase_s + beats * HEARTBEAT_S)
        return self.seen_t

    @property
    def over(self) -> bool:
        """Whether no more come."""
        return min(self.shut_t, self.process.ended_t) < math.inf

    def shutdown(self) -> None:
        """The server's: no more, and no store."""
        self.shut_t, self.process.port = self.room.now, 0


@dataclass(eq=False)
class Asked:
    """A question to the coordinator."""

    name: str
    step: int
    failures: int
    where: str  # its store is
    joined_t: float = 0.0
    answer: tuple[int, tuple[Asked, ...]] | None = None
    those: list[list[Any]] = field(default_factory=list)


class Lighthouse:
    """The coordinator of live jobs."""

    def __init__(self, room: Room, least: int) -> None:
        self.room, self._least, self.life = room, least, 0
        self.pulses: dict[str, Pulse] = {}
        self.start()

    def start(self) -> None:
        """It comes back and remembers nothing."""
        self.up, self.life, self._up_t, self._number = True, self.life + 1, self.room.now, 0
        self._asked: dict[str, Asked] = {}
        self._waiting: list[Asked] = []
        self._heard: dict[str, float] = {}
        self._last: tuple[Asked, ...] | None = None
        self._ticks = False
        self.pulses = {name: pulse for name, pulse in self.pulses.items() if not pulse.over}

    def end(self) -> None:
        """Its process ends: whoever waits hears of it."""
        self.up = False
        for one in self._waiting:
            self.room.wake(one.those)

    def ask(self, one: Asked, seconds: float) -> tuple[int, tuple[Asked, ...]]:
        """The quorum that somebody is in.

        Raises:
            TimeoutError: none for so long.
            RuntimeError: the coordinator ended.
        """
        room, life, until = self.room, self.life, self.room.now + seconds
        self._waiting.append(one)
        self.heard(one)
        while one.answer is None:
            if not self.up or self.life != life:
                raise RuntimeError("connection reset")
            if room.now >= until:
                self._waiting.remove(one)
                raise TimeoutError("deadline exceeded")
            room.wait(one.those, until - room.now)
        return one.answer

    def heard(self, one: Asked) -> None:
        """A question has arrived."""
        room, life = self.room, self.life
        self._heard[one.name] = one.joined_t = room.now
        self._asked[one.name] = one
        self._tick()
        if not self._ticks and self._asked:
            self._ticks = True
            room.spawn(lambda: self._tick_on(life), TICK_S)

    def _tick_on(self, life: int) -> None:
        while self._asked and self.up and self.life == life:
            self._tick()
            self.room.sleep(TICK_S)
        if self.life == life:
            self._ticks = False

    def _tick(self) -> None:
        """Form a quorum, if there is one."""
        members = self._quorum()
        if members is None:
            return
        known = None if self._last is None else [it.name for it in self._last]
        if known != [it.name for it in members] or any(it.failures for it in members):
            self._number += 1
        self._last = members
        self._asked = {}
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if one in members:
                one.answer = (self._number, members)
                self.room.wake(one.those)
            else:
                one.joined_t = self.room.now
                self._asked[one.name] = one
                self._waiting.append(one)

    def _quorum(self) -> tuple[Asked, ...] | None:
        now = self.room.now
        self._forget(now - EXPIRY_S)
        healthy = {name for name, t in self._heard.items() if now - t < EXPIRY_S}
        there = tuple(self._asked[name] for name in sorted(self._asked) if name in healthy)
        if self._last is not None and {it.name for it in self._last} <= {it.name for it in there}:
            return there
        if len(there) < self._least or len(there) <= len(healthy) // 2:
            return None
        first_t = min((it.joined_t for it in there), default=now)
        return there if len(there) == len(healthy) or now - first_t >= STRAGGLE_S else None

    def _forget(self, before_t: float) -> None:
        """Listen to those who may live, and forget lives that are over."""
        for name, pulse in [*self.pulses.items()]:
            t = pulse.last()
            if t >= self._up_t:
                self._heard[name] = max(t, self._heard.get(name, t))
            if t < before_t and pulse.over:
                del self.pulses[name]
        self._heard = {name: t for name, t in self._heard.items() if t >= before_t}


@dataclass
class Wire:
    """The connection to the coordinator that says nothing."""

    house: Lighthouse
    node: str
    life: int

    def recv(self, _most: int) -> bytes:
        """The end of it, as far as it is known here.

        Raises:
            BlockingIOError: it stands.
        """
        house = self.house
        if (house.up and house.life == self.life) or not house.room.connects(self.node, "c"):
            raise BlockingIOError
        return b""

    def close(self) -> None:
        """Nobody asks any more."""


class Client:
    """Stands for torchft's `ManagerClient`."""

    def __init__(self, house: Lighthouse, node: str, name: str, where: str) -> None:
        self._house, self._node, self._name, self._where = house, node, name, where

    def _quorum(self, *, step: int, commit_failures: int, timeout: timedelta, **_more: object) -> SimpleNamespace:
        room, until = self._house.room, self._house.room.now + timeout.total_seconds()
        me, life = Asked(self._name, step, commit_failures, self._where), self._house.life
        try:
            self._reach(until)
        except (TimeoutError, GreenletExit):
            if not room.closing:
                room.spawn(lambda: self._arrive(me, life, room.now))
            raise
        if not self._house.up:
            raise RuntimeError("connection refused")
        number, members = self._house.ask(me, until - room.now)
        self._reach(until)
        newest = max(it.step for it in members)
        return SimpleNamespace(
            quorum_id=number, replica_ids=[it.name for it in members], replica_rank=members.index(me),
            max_step=newest, store_address=next(it.where for it in members if it.step == newest),
        )  # fmt: skip

    def _arrive(self, me: Asked, life: int, lost_t: float) -> None:
        """What nobody waits for any more is still with the kernel, which tries again after ever longer times."""
        house, room = self._house, self._house.room
        while self._node not in room.dark and not room.connects(self._node, "c"):
            room.sleep(AGAIN_S)
        room.sleep(min(QUORUM_S + room.now - lost_t, LATE_S) * room.chance.random())
        if room.connects(self._node, "c") and self._node not in room.dark and house.up and house.life == life:
            house.heard(me)

    def _reach(self, until: float) -> None:
        """One way of a message; dropped packets are sent again.

        Raises:
            TimeoutError: for too long.
        """
        room = self._house.room
        room.travel()
        while not room.connects(self._node, "c"):
            if room.now >= until:
                raise TimeoutError("deadline exceeded")
            room.sleep(min(AGAIN_S * room.chance.random(), until - room.now))


def take(place: Place, settings: str) -> Seat:
    """Stands for `Seat.take`.

    Raises:
        OSError: the coordinator does not answer.
    """
    house: Lighthouse = Stage.job.lighthouse
    room, process = house.room, here()
    room.travel()
    if not room.connects(place.address, "c"):
        room.sleep(PROBE_S)
        raise TimeoutError("timed out")
    if not house.up:
        raise ConnectionRefusedError("refused")
    room.ports += 1
    process.port = room.ports
    me = Member(place.number, place.address, process.port, settings)
    name = f"{me.name}:{room.ports:x}"
    pulse = house.pulses[name] = Pulse(room, process, room.now, room.chance.random() * HEARTBEAT_S)
    wire: Any = Wire(house, place.address, house.life)
    pool: Any = Pool()
    return Seat(me, None, pulse, Client(house, place.address, name, f"{place.address}:{process.port}"), wire, pool)
