"""From the clock of the events to Unix time, and how wrong the nodes' wall clocks are. Used by `monitoring.intake`.

A run of the harness has one clock: `t` of every event, also of those of other machines, which come with `t` set to it
(and with their own time in `node_t`, which means nothing here). Its Unix time is in provenance.json. Trainers alone,
without the harness, have no common clock: events are placed by the wall time that a node's trainer told when it
started, and no wall clock can be called wrong, because there is none to compare it with.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from proving_ground.bench.rundir import Record
from proving_ground.training.events import is_moment, sensible


@dataclass
class Clocks:
    """The clocks of one run; `harness_ahead_s` is Unix time less the harness' clock, None without a harness."""

    harness_ahead_s: float | None
    _ahead_s: dict[tuple[str, str], float] = field(default_factory=dict)  # (job, node) → Unix time less its clock
    _wall_ahead_s: dict[str, float] = field(default_factory=dict)  # node → its wall clock less the harness' wall clock

    @classmethod
    def of(cls, provenance: Mapping[str, float] | None) -> Clocks:
        """By the two clocks that the harness read together."""
        return cls(provenance["wall_s"] - provenance["t"] if provenance else None)

    def placed(self, record: Record) -> Record:
        """The event with its moments on a clock that all processes share: the harness', else Unix time where known."""
        if self.harness_ahead_s is not None:
            return record
        place, wall_s = place_of(record), number(record.get("wall_s"))
        if wall_s is not None and (record["event"] == "start" or place not in self._ahead_s):
            self._ahead_s[place] = wall_s - record["t"]
        if (ahead_s := self._ahead_s.get(place)) is None:
            return record
        return {name: value + ahead_s if is_moment(name, value) else value for name, value in record.items()}

    def unix(self, record: Record) -> float | None:
        """Unix time of an event that was placed; None where nobody told."""
        if self.harness_ahead_s is not None:
            return float(record["t"] + self.harness_ahead_s)
        return float(record["t"]) if place_of(record) in self._ahead_s else None

    def measured(self, record: Record) -> str:
        """Take in a `node_clock`: what the harness measured of a node, whose newest incarnation counts; the node."""
        node = str(record["node"])
        self._wall_ahead_s[node] = float(record["wall_ahead_s"])
        return node

    def wall_ahead_s(self, node: str, record: Record) -> float | None:
        """Seconds that a node's wall clock is ahead of the harness', as of one of its events; None: not known."""
        if node in self._wall_ahead_s or self.harness_ahead_s is None:
            return self._wall_ahead_s.get(node)
        wall_s = number(record.get("wall_s"))
        return None if wall_s is None else wall_s - record["t"] - self.harness_ahead_s


def place_of(record: Record) -> tuple[str, str]:
    """(job, node): the processes of a node share its clock."""
    return str(record.get("trial")), str(record.get("source")).partition(".")[0]


def number(value: object) -> float | None:
    """The number that a field holds, if it holds one."""
    return float(value) if isinstance(value, int | float) and sensible(value) else None
