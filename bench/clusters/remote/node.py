"""One node of a cluster elsewhere, as the harness sees it: requests, clock, files, exits, connections lost and again.

Called by `remote.cluster`, which pumps all nodes at once.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proving_ground.bench.clusters.remote import carried
from proving_ground.bench.clusters.remote.clock import NodeClock
from proving_ground.bench.clusters.remote.collect import Collector, trial_of
from proving_ground.bench.clusters.remote.link import Link
from proving_ground.bench.protocols import ClusterError, Emit, ProcessExit

LOST_S = 30.0  # without a connection for so long a node counts as gone, with all that ran there
SILENT_S = 15.0  # once an agent is ready its clock is asked for all the time: no word for so long is no connection
AGAIN_S = 1.0  # from one attempt to connect to the next
BOOT_S = 60.0  # for a login, Python, and an agent that is just starting
ATTEMPTS = 3  # after which a node that never answered cannot be had
ASK_CLOCK_S = 2.0
FIRST_READINGS = 20


@dataclass
class Waiting:
    """A request without an answer yet."""

    frame: dict[str, Any]
    blob: bytes
    asked: tuple[float, float]  # monotonic and wall clock


@dataclass
class RemoteNode:
    """The harness' end of one agent."""

    name: str
    link: Link
    run: Path
    emit: Emit
    closed: Callable[[str], bool] = lambda _why: False  # whether that only says that every way is closed
    clock: NodeClock = field(default_factory=NodeClock)
    about: dict[str, Any] = field(default_factory=dict)  # what its agent says of the machine
    running: dict[int, int] = field(default_factory=dict)  # pid → slot
    exits: list[ProcessExit] = field(default_factory=list)
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    counters: dict[str, Any] = field(default_factory=dict)
    incarnation: str = ""
    ready: bool = False  # whether its present agent has the trainer's code
    why: str = ""  # it cannot be had
    leaving: bool = False  # no connection is made any more
    forgetting: bool = False  # whether files of a trial that is over are still there
    whole: bool = False  # whether its agent has ended and said before that all has been sent
    departing: bool = False  # the engine has said that it takes the node away
    noticed_t: float | None = None  # when it was told so last
    gone: bool = False  # for good, or until it has come back as another incarnation
    _down_t: float | None = None
    _closed_t: float = -math.inf  # when a connection failed last for no reason of the node's
    _heard_t: float = -math.inf
    _tried_t: float = 0.0
    _asked_clock_t: float = 0.0
    _waiting: dict[int, Waiting] = field(default_factory=dict)
    _number: int = 0
    _given_up: set[int] = field(default_factory=set)  # pids that were told to have ended with the node
    _attempts: int = 0  # to connect
    _preparing: bool = False  # whether its agent is importing the trainer's code
    _exits_heard: int = 0
    _missed: set[str] = field(default_factory=set)  # trials of which it was told that the last records are gone

    def __post_init__(self) -> None:
        self.files = Collector(self.run, self.clock, self._gap)

    # --- asking

    def ask(self, verb: str, blob: bytes = b"", **arguments: object) -> int:
        """Send a request; its number, by which the answer is found."""
        if self.gone:
            self._number += 1
            self.answers[self._number] = {"error": "the node is lost"}
            return self._number
        return self._post(verb, arguments, blob, now=self.attached)

    def _post(self, verb: str, arguments: dict[str, object], blob: bytes = b"", *, now: bool) -> int:
        """Have a request wait for its answer, and send it now or with the next connection."""
        self._number += 1
        frame = {"id": self._number, "verb": verb, "args": arguments}
        self._waiting[self._number] = Waiting(frame, blob, (time.monotonic(), time.time()))
        if now:
            self.link.send(frame, blob)
        return self._number

    def answer(self, number: int) -> Any:  # noqa: ANN401 - whatever the verb returns
        """What came back for a request.

        Raises:
            ClusterError: the agent refused; says why.
        """
        found = self.answers.pop(number)
        if "error" in found:
            raise ClusterError(f"{self.name}: {found['error']}")
        return found["ok"]

    def withdraw(self, number: int) -> None:
        """Nobody waits for this answer any more: it is not asked for again by a later connection."""
        self._waiting.pop(number, None)
        self.answers.pop(number, None)

    def forget(self) -> None:
        """Have the files of the trial that is over go from the node, once all of them are here."""
        self.forgetting = True
        self.ask("forget", arrived=dict(self.files.arrived))

    @property
    def attached(self) -> bool:
        """Whether its present agent takes requests."""
        return self.link.state == "up" and bool(self.incarnation)

    def leave(self) -> None:
        """Ask the agent to end, with all that it started; its line closes when that is done."""
        if self.attached:
            self.ask("end")
        self.leaving = True

    # --- what comes

    def hear(self) -> None:
        """Take in what has come by its link."""
        was_up = self.link.state == "up"
        for message, blob in self.link.received():
            self._heard_t = time.monotonic()
            if "file" in message:
                self._take(message, blob)
            elif "notice" in message:
                self.departing, self.noticed_t = True, self.here(float(message["notice"]))
                self.emit("node_notice", node=self.name, noticed_t=self.noticed_t)
            elif "over" in message:
                self.whole = True
            elif "exit" in message:
                self._exited(message["exit"])
            else:
                self._answered(message)
        if self.link.state == "up" and not was_up:
            if self.link.before:
                self._tell_of_another(self.link.before)
            self._attach()
        if self.link.state == "down":
            self._lost_connection()

    def _tell_of_another(self, version: str) -> None:
        """An agent that another harness had left gave way to ours: what it still had is gone."""
        which = (
            "of this version" if version == carried.version() else f"of version {version}, ours is {carried.version()}"
        )
        why = (
            f"{self.name}: an agent {which} was there, left by a harness that is gone: it was ended, and another began"
        )
        self.emit("warning", message=f"{why}; what it had not sent of the trial that it was in is gone")

    def _take(self, message: dict[str, Any], blob: bytes) -> None:
        try:
            self.files.take(str(message["file"]), int(message["offset"]), blob)
        except (OSError, ValueError) as error:  # a name that leads elsewhere, say: it is no agent of ours
            self.link.close(str(error))

    def tend(self) -> None:
        """What is due by now: connect again, ask for the time, give up."""
        now = time.monotonic()
        if self.leaving:
            return
        if self.incarnation and not self.gone and self.away_s(now) > LOST_S:
            self.lose(f"no connection for {LOST_S:g} s: {self.link.why}")
        if self.link.state == "booting" and now - self._tried_t > BOOT_S:
            self.link.close(f"no word from its Python within {BOOT_S:g} s")
        if self.attached and self.ready and now - self._heard_t > SILENT_S:
            self.link.close(f"no word for {SILENT_S:g} s")
        if self.link.state == "down":
            if self._down_t is None:
                self._lost_connection()
            if now - self._tried_t > AGAIN_S:
                self._tried_t = now
                self._attempts += 1
                self.link.open()
                if self.link.state == "down":
                    self._lost_connection()
        elif self.attached and now - self._asked_clock_t > ASK_CLOCK_S:
            self._asked_clock_t = now
            self.ask("clock")

    def away_s(self, now: float) -> float:
        """For how long it could have been reached, and was not."""
        return 0.0 if self._down_t is None else now - max(self._down_t, self._closed_t)

    def _attach(self) -> None:
        """The first request of a connection: how much has arrived; the agent sends the rest."""
        self._heard_t = time.monotonic()
        self._waiting = {number: it for number, it in self._waiting.items() if it.frame["verb"] != "attach"}
        self._post("attach", {"arrived": self.files.arrived, "exits": self._exits_heard}, now=True)

    def _answered(self, message: dict[str, Any]) -> None:
        number = int(message["re"])
        if (waiting := self._waiting.pop(number, None)) is None:
            return
        verb = waiting.frame["verb"]
        if verb == "clock" and "ok" in message:
            self._clock_heard(waiting.asked, message["ok"])
        elif verb == "attach" and "ok" in message:
            self._attached(message["ok"])
        elif verb == "code":
            self.ready, self.why, self._preparing = "ok" in message, str(message.get("error", "")), False
        elif verb == "forget" and "ok" in message:
            self._forgot(waiting.frame["args"]["arrived"], message["ok"])
        elif verb == "sample":
            self.counters = message.get("ok") or {}
        else:
            if verb == "start" and "ok" in message:  # before its exit, which may come with it
                self.running[message["ok"]] = waiting.frame["args"]["slot"]
            self.answers[number] = message

    def _forgot(self, asked: dict[str, int], left: list[str]) -> None:
        """What was whole is gone; the rest is on its way, and asked for again."""
        self.files.drop(set(asked) - set(left))
        self.forgetting = bool(left)
        if left:
            self.ask("forget", arrived={name: self.files.arrived.get(name, 0) for name in left})

    def _attached(self, about: dict[str, Any]) -> None:
        """An agent answers: the one from before, or another, for which nothing runs."""
        before, self.about, self.incarnation = self.incarnation, about, about["incarnation"]
        same = before == self.incarnation
        if before:
            if not same:
                self.lose("its agent has ended, and another is there")
                self.tell_gaps()
                self.files.over()
                self._missed.clear()
            after_s = round(time.monotonic() - self._down_t, 3) if self._down_t else None
            self.emit("agent_back", node=self.name, incarnation=self.incarnation, same=same, after_s=after_s)
        given_up, self._down_t, self.gone = self.gone, None, False
        if same and given_up:  # what it still runs was said to be lost, and others may be in its place
            self.ask("stop", grace_s=0.0)
            self.forget()
        elif same:
            for waiting in self._waiting.values():  # the agent answers from memory what it has done already
                self.link.send(waiting.frame, waiting.blob)
        if same:
            return
        self.clock.begin()
        self.ready = self.departing = self.whole = False
        self._exits_heard = 0
        self._given_up.clear()
        self.ask("clock")

    def _clock_heard(self, asked: tuple[float, float], node: dict[str, float]) -> None:
        """One question at a time: several at once would wait for each other. The agent has no other work before."""
        if stepped_s := self.clock.heard(asked, time.monotonic(), node):
            about = {"node": self.name, "incarnation": self.incarnation, "stepped_s": stepped_s}
            self.emit("node_clock", **about, **self.clock.event())
        if len(self.clock.readings) < FIRST_READINGS:
            self.ask("clock")
        elif not self.ready and not self._preparing:
            self._preparing = True
            self.ask("code", carried.training(), preload=carried.PRELOAD)

    def _exited(self, ended: dict[str, Any]) -> None:
        if ended["n"] <= self._exits_heard:
            return
        self._exits_heard = ended["n"]
        if ended["pid"] in self._given_up:
            self._given_up.discard(ended["pid"])
            return
        self.running.pop(ended["pid"], None)
        t = self.here(ended["t"])
        why = str(ended.get("why", ""))
        self.exits.append(ProcessExit(self.name, ended["slot"], ended["pid"], ended["code"], t, why))

    def here(self, t: float) -> float:
        """A moment of the node's clock on the harness'; now, while nothing is known of that clock yet."""
        return self.clock.here(t) if self.clock.readings else time.monotonic()

    def _lost_connection(self) -> None:
        if not self.incarnation and self._attempts >= ATTEMPTS:
            self.why = self.link.why
        if self.closed(self.link.why):
            self._closed_t = time.monotonic()
        if self._down_t is None:
            self._down_t = time.monotonic()
            if self.incarnation and not self.leaving:
                self.emit("agent_lost", node=self.name, incarnation=self.incarnation, why=self.link.why)

    def lose(self, why: str) -> None:
        """Its agent is gone, and with it all that it had started; safe twice."""
        if self.gone:
            return
        self.gone = True
        self.emit("node_lost", node=self.name, why=why)
        t = self._down_t or time.monotonic()
        self.exits += [ProcessExit(self.name, slot, pid, -signal.SIGKILL, t) for pid, slot in self.running.items()]
        self._given_up |= self.running.keys()
        self.running.clear()
        self._preparing = self.forgetting = False
        for number in self._waiting:  # nobody will answer those
            self.answers[number] = {"error": f"the node was lost: {why}"}
        self._waiting.clear()

    def tell_gaps(self) -> None:
        """What it had not sent when it was lost may never come; told once of each trial."""
        if self.whole:
            return
        for trial, names in self.files.by_trial().items():
            if trial in self._missed:
                continue
            self._missed.add(trial)
            why = "what was not sent before the node was lost is gone"
            self.emit("gap", trial=trial, node=self.name, files=names, why=why)

    def _gap(self, name: str, first: int, up_to: int) -> None:
        about = {"trial": trial_of(name), "node": self.name, "files": [name], "from": first, "to": up_to}
        self.emit("gap", **about, why="these bytes never came")

    def took(self) -> Sequence[ProcessExit]:
        """The processes that ended since the last call."""
        exits, self.exits = self.exits, []
        return exits
