"""Live members' machine room, in memory: processes with threads, that can be stopped and killed, and the network.

Called by `live_jobs`, `live_lighthouse` and `live_groups`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Protocol, Self, cast

from greenlet import GreenletExit, getcurrent, greenlet

from proving_ground.training.recovery.lines import PROBE_S
from tests.validations.virtual import Stage, World

AGAIN_S = 0.5  # until packets that were dropped are sent again after the way is open, at most


class Connections(Protocol):
    """Of one process to others."""

    cut_t: float

    def cut(self) -> None:
        """They end, and the others hear of it."""


@dataclass(eq=False)
class Process:
    """One life of a node's process."""

    node: str
    main: greenlet | None = None
    ended_t: float = math.inf
    stopped: tuple[float, float] = (0.0, 0.0)  # from when to when it stands still
    silent: bool = False  # it lost its power: nobody hears of its end
    port: int = 0  # of its store, which answers
    made: Any = None  # the connections that were made last
    ends: list[Connections] = field(default_factory=list)


def here() -> Process:
    """The process that runs; what is nobody's is that of the room itself."""
    found: Process = vars(getcurrent()).get("process", NOBODY)
    return found


NOBODY = Process("")


class Room(World):
    """The clock for processes that can be stopped, and the network between them; `c` is the coordinator's node."""

    def __init__(self, seed: int, most_s: float) -> None:
        super().__init__(seed)
        self.most_s = most_s  # of a message, one way
        self.cuts: dict[frozenset[str], float] = {}  # between whom packets are dropped, since when
        self.processes: dict[str, Process] = {}  # that run, by node
        self.healed: Callable[[], None] = lambda: None
        self.dark: set[str] = set()  # nodes without power
        self.ports = 0
        self.closing = False

    def sleep(self, seconds: float) -> None:
        """As `time.sleep` in a process that may be stopped meanwhile."""
        self._pass(lambda: super(Room, self).sleep(seconds))

    def wait(self, those: list[list[Any]], seconds: float) -> None:
        """The same."""
        self._pass(lambda: super(Room, self).wait(those, seconds))

    def _pass(self, time_passes: Callable[[], None]) -> None:
        process = here()
        if self.closing or process.ended_t <= self.now:
            raise GreenletExit  # what is left to do of somebody who is ended is not done
        time_passes()
        while process.stopped[1] > self.now:
            super().sleep(process.stopped[1] - self.now)

    def start(self, process: Process, what: Callable[[], object], after_s: float) -> None:
        """Begin a process."""
        self.processes[process.node] = process
        process.main = self.spawn(what, after_s)
        vars(process.main)["process"] = process

    def beside(self, what: Callable[[], object]) -> None:
        """Begin a thread of the process that runs."""
        process = here()
        made = self.spawn(what)
        vars(made)["process"] = process
        timers = self.timers.setdefault(cast("greenlet", process.main), [])
        timers[:] = [*(it for it in timers if not it.dead), made]

    def kill(self, process: Process | None, *, silent: bool = False) -> bool:
        """A SIGKILL, or for a silent end the loss of power, of which nobody hears; whether there was one to end."""
        if process is None or process.ended_t <= self.now:
            return False
        self.gone(process, silent=silent)
        self.end(process.main)
        return True

    def gone(self, process: Process, *, silent: bool = False) -> None:
        """The process is at its end: the kernel closes its connections."""
        process.ended_t, process.silent = self.now, silent
        for end in process.ends:
            end.cut()

    def travel(self) -> None:
        """One way of a message."""
        if delay_s := self.delay_s(self.most_s):
            self.sleep(delay_s)

    def connects(self, one: str, other: str) -> bool:
        """Whether packets pass."""
        return not self.cuts or frozenset((one, other)) not in self.cuts

    def cut(self, pairs: set[frozenset[str]]) -> None:
        """Drop packets from now on."""
        self.cuts |= {pair: self.now for pair in pairs if pair not in self.cuts}

    def heal(self, pairs: set[frozenset[str]]) -> None:
        """Let them pass again."""
        self.cuts = {pair: t for pair, t in self.cuts.items() if pair not in pairs}
        self.healed()

    def answers(self, host: str) -> bool:
        """Whether a kernel answers: it does for a process that is stopped or has ended, and not without power."""
        me = here()
        self.travel()
        if self.connects(me.node, host) and host not in self.dark:
            return True
        self.sleep(PROBE_S)
        return False

    def knock(self, host: str, port: int) -> str:
        """What comes of a connection: `open`, `refused` or `silent`."""
        if not self.answers(host):
            return "silent"
        return "open" if self.listens(host, port) else "refused"

    def listens(self, host: str, port: int) -> bool:
        """Whether a process has its store there."""
        process = self.processes.get(host)
        return process is not None and process.ended_t > self.now and process.port == port

    def close(self) -> None:
        """End everything."""
        self.closing = True
        super().close()


class Future:
    """What a thread of a process comes to."""

    def __init__(self, what: Callable[[], Any]) -> None:
        self._what, self._value, self._error = what, None, cast("Exception | None", None)
        self.done, self.those = False, cast("list[list[Any]]", [])
        cast("Room", Stage.world).beside(self._run)

    def _run(self) -> None:
        try:
            self._value = self._what()
        except Exception as error:  # noqa: BLE001 - told by `result`
            self._error = error
        self.done = True
        Stage.world.wake(self.those)

    def result(self) -> Any:
        """Its value or its error, as soon as there is one."""
        while not self.done:
            Stage.world.wait(self.those, 1e6)
        if self._error is not None:
            raise self._error
        return self._value


class Pool:
    """Stands for `ThreadPoolExecutor`."""

    def __init__(self, *_about: object, **_more: object) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_about: object) -> None:
        pass

    def submit(self, what: Callable[..., Any], *words: Any, **more: Any) -> Future:
        """Begin a thread."""
        return Future(lambda: what(*words, **more))

    def map(self, what: Callable[[Any], Any], each: Sequence[Any]) -> list[Any]:
        """All at once."""
        begun = [self.submit(what, it) for it in each]
        return [it.result() for it in begun]

    def shutdown(self, *, wait: bool) -> None:
        """Nobody waits."""
        del wait


def wait(futures: Sequence[Future], seconds: float) -> SimpleNamespace:
    """Stands for the function of `concurrent.futures`."""
    (one,) = futures
    if not one.done:
        Stage.world.wait(one.those, seconds)
    return SimpleNamespace(done={one} if one.done else set())
