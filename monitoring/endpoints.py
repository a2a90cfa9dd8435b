"""What the record of `serving load` means for the metrics of its end point. Called by `monitoring.exporter`.

A request has a line when it begins and one when it ends. Answered is here what ended with status 200; whether that is
the model's answer is for the load's own figures. A load that is over has no series.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from proving_ground.bench.rundir import Record
from proving_ground.monitoring.board import Board
from proving_ground.monitoring.taker import Taker

DOCUMENT = "load"
"""`load.json`: what is done to which end point."""
OK = 200
REQUESTS = "request"
"""Label `queue` of what waits."""
SERIES = ("endpoint_", "queue_")
"""What the names of an end point's series begin with."""


class EndPoints(Taker):
    """Takes in the events of one load."""

    def __init__(self, board: Board, run: str, asked: Mapping[str, Any], clock: Mapping[str, float] | None) -> None:
        super().__init__(board, run, clock)
        self._load = asked
        self._levels: list[int] = asked["orders"].get("levels", [])  # users of each; of older loads they are not told
        self._begun: dict[int, Record] = {}  # requests in flight, the oldest first
        self._late_s: float | None = None  # beyond it a request is later than the p99 that was told

    def react(self, record: Record) -> None:
        """One line of the load."""
        react = REACTIONS.get(str(record["event"]))
        if react and not self.over:
            react(self, record)

    def sealed(self) -> None:
        """The load is over, or was cut off."""
        if not self.over:
            self.over = True
            self._board.drop_job(self._run, begins=SERIES)

    def level(self, record: Record) -> None:
        """So many users from now on; behind the last level is the end."""
        board, index = self._board, int(record["index"])
        if index >= len(self._levels):
            self.sealed()
            return
        users = self._levels[index]
        about = (str(self._load.get(it, "")) for it in ("model", "engine"))
        board.set("endpoint_info", (self._run, *about), 1)
        board.set("endpoint_users", (self._run,), users)
        for outcome in ("answered", "failed"):
            board.add("endpoint_requests_total", (self._run, outcome), 0)
        self._tell(users)
        self._flying()

    def _tell(self, users: int) -> None:
        """What a request of this level was told: how long it takes at most, and 99 of 100."""
        board, told = self._board, dict(self._told(users))
        self._late_s = told.get("p99")
        for name, figure, labels in (
            ("endpoint_p99_told_seconds", "p99", (self._run,)),
            ("queue_told_seconds", "longest", (self._run, REQUESTS)),
        ):
            if figure in told:
                board.set(name, labels, told[figure])
            else:
                board.drop(name, labels)
        if self._late_s is not None:
            board.add("endpoint_late_total", (self._run,), 0)

    def _told(self, users: int) -> Iterator[tuple[str, float]]:
        """(figure, seconds) of this level; the strictest last."""
        here = [it for it in self._load.get("told", ()) if it["users"] in (None, users)]
        yield from ((it["figure"], it["seconds"]) for it in sorted(here, key=lambda it: -float(it["seconds"])))

    def begin(self, record: Record) -> None:
        """A request begins."""
        self._begun[int(record["number"])] = record
        self._flying()

    def ended(self, record: Record) -> None:
        """A request has ended."""
        board, seconds = self._board, float(record["seconds"])
        ok = record["status"] == OK and not record["error"]
        self._begun.pop(int(record["number"]), None)
        self._flying()
        board.add("endpoint_requests_total", (self._run, "answered" if ok else "failed"))
        if ok:
            board.observe("endpoint_latency_seconds", (self._run,), seconds)
        if ok and self._late_s is not None:
            board.add("endpoint_late_total", (self._run,), int(seconds > self._late_s))

    def _flying(self) -> None:
        """What is in flight, and since when the oldest."""
        self._board.set("endpoint_in_flight", (self._run,), len(self._begun))
        labels = (self._run, REQUESTS)
        if self._begun:
            self._at("queue_oldest_timestamp_seconds", labels, next(iter(self._begun.values())))
        else:
            self._board.drop("queue_oldest_timestamp_seconds", labels)

    def replicas(self, record: Record) -> None:
        """How many replicas there are to be, and how many answer."""
        self._board.set("endpoint_replicas_planned", (self._run,), record["planned"])
        self._board.set("endpoint_replicas_up", (self._run,), record["up"])


REACTIONS = {
    "level": EndPoints.level,
    "begin": EndPoints.begin,
    "end": EndPoints.ended,
    "replicas": EndPoints.replicas,
}
"""Event → what it does to the board."""
