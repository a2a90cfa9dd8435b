"""A virtual machine room: clock, network, coordinator and checkpoint store in memory. Called by `members`.

Real, blocking code runs in greenlets; where it would sleep or call the coordinator, the next one that is due goes on
and the clock jumps there. All that is random comes from one seeded generator, so a run is a function of its seed.
"""

from __future__ import annotations

import heapq
import pickle
import random
from collections.abc import Callable
from datetime import datetime, timedelta, tzinfo
from typing import Any

from greenlet import GreenletExit, getcurrent, greenlet

EPOCH = datetime(2026, 1, 1)  # noqa: DTZ001 - nobody looks at the zone of virtual time
NOT_REACHED_S = 3.0  # until an answer that does not come is an error (`training.recovery.rendezvous.STORE_S`)


class World:
    """The clock, and who goes on when."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.chance = random.Random(seed)  # noqa: S311 - to be repeated, not secret
        self.timers: dict[greenlet, list[greenlet]] = {}  # that end with the process they are of
        self.snapshots: dict[tuple[Any, ...], bytes] = {}
        self.states: dict[bytes, tuple[Any, ...]] = {}
        self._due: list[list[Any]] = []  # when, a number, and who goes on then, if it does not go on before
        self._count = 0
        self._hub = getcurrent()

    def spawn(self, what: Callable[[], object], after_s: float = 0.0) -> greenlet:
        """Let something run by itself."""
        made = greenlet(what, parent=self._hub)
        self._at(self.now + after_s, made)
        return made

    def _at(self, t: float, who: greenlet) -> list[Any]:
        self._count += 1
        entry = [t, self._count, who]
        heapq.heappush(self._due, entry)
        return entry

    def sleep(self, seconds: float) -> None:
        """What `time.sleep` is to the code that runs here."""
        self._at(self.now + max(seconds, 0.0), getcurrent())
        self._hub.switch()

    def delay_s(self, most: float) -> float:
        """Of a message; one in four takes its time, so that others come in between."""
        return most * self.chance.random() if self.chance.random() < 0.25 else 0.0

    def wait(self, those: list[list[Any]], seconds: float) -> None:
        """Let others go on until one of them calls `wake` with the same list, or for so long."""
        those.append(self._at(self.now + max(seconds, 0.0), getcurrent()))
        self._hub.switch()

    def wake(self, those: list[list[Any]]) -> None:
        """Let all go on that wait."""
        for entry in those:
            if entry[2] is not None:
                self._at(self.now, entry[2])
                entry[2] = None
        those.clear()

    def end(self, who: greenlet | None) -> None:
        """End a process and its timers at once, wherever it stands: a SIGKILL."""
        for it in (*self.timers.pop(who, ()), who) if who is not None else ():
            if not it.dead and it is not getcurrent():
                it.parent = getcurrent()  # where to go on when it has ended
                it.throw(GreenletExit)

    def run(self, until: Callable[[], bool], limit_s: float) -> None:
        """Go on until something is so, nothing is left to do, or the time is over."""
        while self._due and self._due[0][0] <= limit_s and not until():
            entry = heapq.heappop(self._due)
            who, entry[2] = entry[2], None
            if who is not None and not who.dead:
                self.now = entry[0]
                who.parent = self._hub
                who.switch()

    def close(self) -> None:
        """End everything."""
        while self._due:
            self.end(heapq.heappop(self._due)[2])


class Stage:
    """The world that is on; what stands for torch's and Python's modules looks it up here."""

    world: World
    job: Any  # of `members`


class Clock:
    """What stands for the module `time`."""

    @staticmethod
    def sleep(seconds: float) -> None:
        """Let others go on."""
        Stage.world.sleep(seconds)

    @staticmethod
    def monotonic() -> float:
        """Seconds."""
        return Stage.world.now


class Randomness:
    """What stands for the module `secrets`."""

    @staticmethod
    def randbelow(most: int) -> int:
        """From the run's seed."""
        return Stage.world.chance.randrange(most)


class Snapshots:
    """What stands for `pickle` in torch's rendezvous and in ours: a state becomes a number, equal states the same one.

    Everything that a state has is copied; pickle does that too, in a third of a run's time.
    """

    PickleError = pickle.PickleError

    @staticmethod
    def dumps(state: Any) -> bytes:
        """What a state is from now on known by."""
        world, kept = Stage.world, vars(state)
        key = tuple(map(hashable, kept.values()))
        known = world.snapshots.get(key)
        if known is None:
            known = world.snapshots[key] = b"%d" % len(world.snapshots)
            world.states[known] = (type(state), copied(kept))
        return known

    @staticmethod
    def loads(known: bytes) -> Any:
        """A state of its own."""
        kind, kept = Stage.world.states[known]
        state = kind.__new__(kind)
        vars(state).update(copied(kept))
        return state


def hashable(value: Any) -> Any:
    """What is equal for values that are equal; items of dictionaries and sets in their order."""
    kind = type(value)
    return tuple(value.items()) if kind is dict else tuple(value) if kind is set else value


def copied(fields: dict[str, Any]) -> dict[str, Any]:
    """The same with dictionaries and sets of its own; what is in them cannot change."""
    return {name: it.copy() if type(it) in (dict, set) else it for name, it in fields.items()}


class WallClock(datetime):
    """What stands for `datetime` in torch's rendezvous and in ours."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> datetime:  # type: ignore[override]
        """Virtual time."""
        del tz
        return EPOCH + timedelta(seconds=Stage.world.now)


class Timer:
    """What stands for torch's timer thread of heartbeats."""

    def __init__(self, interval: timedelta, function: Callable[..., None], *words: object) -> None:
        self._seconds, self._what, self._words = interval.total_seconds(), function, words
        self._loop: greenlet | None = None

    def set_name(self, name: str) -> None:
        """Nobody reads it."""

    def start(self) -> None:
        """Begin, as a part of the process that asks for it."""
        self._loop = Stage.world.spawn(self._run, self._seconds)
        Stage.world.timers.setdefault(getcurrent(), []).append(self._loop)

    def _run(self) -> None:
        while True:
            self._what(*self._words)
            Stage.world.sleep(self._seconds)

    def cancel(self) -> None:
        """No more."""
        Stage.world.end(self._loop)


class Lock:
    """A lock between greenlets."""

    def __init__(self) -> None:
        self._holder: greenlet | None = None

    def __enter__(self) -> None:
        while self._holder is not None and not self._holder.dead:
            Stage.world.sleep(0.03)
        self._holder = getcurrent()

    def __exit__(self, *_about: object) -> None:
        self._holder = None


class Coordinator:
    """The store that nodes meet at: a dictionary that is lost when its process ends."""

    def __init__(self) -> None:
        self.up, self.life = True, 0
        self.values: dict[str, str] = {}

    def end(self) -> None:
        """Its process ends."""
        self.up = False

    def start(self) -> None:
        """It comes back and remembers nothing."""
        self.up, self.life, self.values = True, self.life + 1, {}


class Line:
    """One node's connection to the coordinator; stands for `dist.Store`, with its errors."""

    def __init__(self, to: Coordinator, reaches: Callable[[], bool], delay_s: Callable[[], float]) -> None:
        self._to, self._reaches, self._delay_s, self._life = to, reaches, delay_s, to.life
        self._travel()

    def _travel(self) -> None:
        """One way of a message.

        Raises:
            RuntimeError: refused, reset, or no answer.
        """
        if delay_s := self._delay_s():
            Stage.world.sleep(delay_s)
        if not self._reaches():
            Stage.world.sleep(NOT_REACHED_S)
            raise RuntimeError("no answer")
        if not self._to.up or self._life != self._to.life:
            raise RuntimeError("connection reset")

    def get(self, key: str) -> bytes:
        """The value of a key."""
        self._travel()
        return self._to.values[key].encode()

    def compare_set(self, key: str, expected: str, wanted: str) -> bytes:
        """Set it if it is what is expected; what it is now. The answer may be lost on its way."""
        self._travel()
        if self._to.values.get(key, "") == expected:
            self._to.values[key] = wanted
        answer = self._to.values.get(key, expected).encode()
        self._travel()
        return answer


class Checkpoints:
    """A store of checkpoints, as far as generations go (`checkpoints.stores.Store`); `owner` is who has it open."""

    def __init__(self, shared: dict[int, object], owner: object) -> None:
        self._shared, self._owner = shared, owner

    def where(self, name: str = "") -> str:
        """For messages."""
        return f"memory/{name}"

    def names(self) -> list[str]:
        """Claims tell it all."""
        return []

    def claims(self) -> list[int]:
        """The generations that were claimed."""
        return list(self._shared)

    def claim(self, generation: int) -> bool:
        """The first who asks has it."""
        return self._shared.setdefault(generation, self._owner) is self._owner

    def claimed(self, generation: int) -> bool:
        """Whether this owner has it."""
        return self._shared.get(generation) is self._owner

    def sweep(self, keep: Callable[[str], bool]) -> None:
        """No drafts here."""
