"""How far a node's clock is from the harness', and its records in harness time. Called by `remote.node`.

The clock is asked for, and the answer lies somewhere between the question and its arrival: the quickest of many answers
says it best, and half its round trip is the error (Cristian 1989, "Probabilistic clock synchronization"). An answer
that cannot be true beside that one is of a clock that has been stepped, or has drifted: only the new one counts then.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from proving_ground.training.events import is_moment, parsed

ROUNDING_S = 1e-6
"""Below this, two answers are the same: moments are numbers of seconds since a boot, perhaps years ago."""
KEPT = 64  # answers; at one every two seconds, two minutes of a clock's drift


@dataclass(frozen=True)
class Reading:
    """One answer: the node's two clocks, less the harness' in the middle of the exchange; seconds."""

    round_s: float
    ahead_s: float
    wall_ahead_s: float

    def contradicts(self, other: Reading) -> bool:
        """Whether no offset is within the errors of both."""
        return abs(self.ahead_s - other.ahead_s) > (self.round_s + other.round_s) / 2 + ROUNDING_S


@dataclass
class NodeClock:
    """What is known of one node's clock; `begin` anew with each incarnation, whose clock may be another."""

    readings: deque[Reading] = field(default_factory=lambda: deque(maxlen=KEPT))

    def begin(self) -> None:
        """Forget everything: the node has started again."""
        self.readings.clear()

    def heard(self, asked: tuple[float, float], answered_t: float, node: dict[str, float]) -> float:
        """An answer to a question asked at `asked` (monotonic and wall clock), in seconds.

        By how many seconds the clock has been stepped since the best answer before: 0, or more than the errors of both.
        """
        asked_t, asked_wall_s = asked
        half_s = (answered_t - asked_t) / 2
        newest = Reading(2 * half_s, node["t"] - asked_t - half_s, node["wall_s"] - asked_wall_s - half_s)
        before = self.best if self.readings else newest
        stepped_s = newest.ahead_s - before.ahead_s if newest.contradicts(before) else 0.0
        if stepped_s:
            self.readings.clear()
        self.readings.append(newest)
        return stepped_s

    @property
    def best(self) -> Reading:
        """The quickest answer of those that are kept."""
        return min(self.readings, key=lambda it: it.round_s)

    @property
    def error_s(self) -> float:
        """By how much a moment may be wrong at most: the way there took between nothing and the whole round trip."""
        return self.best.round_s / 2

    def here(self, t: float) -> float:
        """A moment of the node's clock on the harness'."""
        return t - self.best.ahead_s

    def event(self) -> dict[str, float]:
        """Fields of a `node_clock` event."""
        newest = self.readings[-1]  # of a wall clock that was set a moment ago
        return {"offset_s": self.best.ahead_s, "error_s": self.error_s, "wall_ahead_s": newest.wall_ahead_s}

    def shifted(self, line: bytes) -> bytes:
        """A line of an event file with its moments in harness time and its own in `node_t`; else as it is."""
        try:
            record: dict[str, Any] = parsed(line)
            moments = {key: self.here(value) for key, value in record.items() if is_moment(key, value)}
        except (ValueError, AttributeError, TypeError):
            return line  # no event: told when the files are merged
        if "t" not in moments:
            return line
        return json.dumps({**record, **moments, "node_t": record["t"]}, separators=(",", ":")).encode() + b"\n"
