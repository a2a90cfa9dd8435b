"""Kubernetes' own events about a run, put on the harness' clock. Called by `remote.kubernetes`.

Kubernetes writes most of its moments in whole seconds. How far its clock is from ours is bounded by the Job: it was
created after we asked for it and before we had the answer.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

Event = Mapping[str, Any]
TICK_S = 1.0  # of a moment without a fraction


@dataclass(frozen=True)
class ServerClock:
    """How far the API server's clock is ahead of our wall clock, and by how much that may be wrong; seconds."""

    ahead_s: float
    error_s: float

    @classmethod
    def of_object(cls, created: str, asked_s: float, answered_s: float) -> ServerClock:
        """By the moment at which it says that it made an object, and ours before and after; since 1970."""
        least, most = seconds(created) - answered_s, seconds(created) + TICK_S - asked_s
        return cls((least + most) / 2, (most - least) / 2)


def seconds(moment: str) -> float:
    """A moment as Kubernetes writes it, in seconds since 1970."""
    return datetime.fromisoformat(moment).timestamp()


def when(event: Event) -> str:
    """The moment of an event, whose fields depend on who wrote it; UTC."""
    moments = [event.get(key) for key in ("eventTime", "lastTimestamp", "firstTimestamp")]
    return str(next(filter(None, moments), None) or event["metadata"]["creationTimestamp"])


@dataclass
class Story:
    """What Kubernetes has told of one run so far: events of its Job, of the Job's pods, and of their machines."""

    job: str
    clock: ServerClock
    machines: set[str]
    _told: set[tuple[str, int]] = field(default_factory=set)

    def more(self, events: Iterable[Event]) -> Iterator[dict[str, Any]]:
        """Those that are new, the oldest first: `at_t` is on our monotonic clock, right to `error_s`."""
        ahead_s = time.time() - time.monotonic()
        for event in sorted(events, key=when):
            about, key = event["involvedObject"], (event["metadata"]["uid"], int(event.get("count") or 1))
            if key in self._told or not self._is_ours(about):
                continue
            self._told.add(key)
            half_s = 0.0 if "." in when(event) else TICK_S / 2
            at_t = seconds(when(event)) + half_s - self.clock.ahead_s - ahead_s
            told = {"reason": event.get("reason", ""), "message": " ".join((event.get("message") or "").split())[:200]}
            yield {
                "about": f"{about.get('kind', '')}/{about.get('name', '')}", "node": self._node(about), **told,
                "times": key[1], "at": when(event), "at_t": round(at_t, 3),
                "error_s": round(self.clock.error_s + half_s, 3),
            }  # fmt: skip

    def _is_ours(self, about: Event) -> bool:
        name = str(about.get("name", ""))
        return name in self.machines if about.get("kind") == "Node" else name.startswith(self.job)

    def _node(self, about: Event) -> str:
        """The node whose pod it is about, if it is one."""
        index = str(about.get("name", "")).removeprefix(f"{self.job}-").partition("-")[0]
        return f"n{int(index) + 1}" if about.get("kind") == "Pod" and index.isdigit() else ""
