"""From a lost pod to the first step of the one in its place: where an engine told of it. Called by results and page.

Kubernetes' own moments (scheduled, image, started) are whole seconds on a clock of its own, right to `error_s`; the
others are the harness' and the trainer's. An earlier moment is never put after a later one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.recovery.checks import Evidence
from reports.recovery.gaps import end_t, of_node
from reports.recovery.incidents import Incident
from reports.recovery.injection import NODE, nodes_of

Record = Mapping[str, Any]
TOLD = {"scheduled": "Scheduled", "image": "Pulled", "started": "Started"}
"""Moment → Kubernetes' word for it."""
STAGES = {
    "gone": "going",
    "scheduled": "waiting for another",
    "image": "image",
    "started": "starting",
    "joined": "joining",
    "first_step": "its first step",
}
"""Moment → the stage that it ends."""
Row = dict[str, Any]


def rows(evidence: Evidence, one: Incident, engine: Sequence[Record]) -> list[Row]:
    """A row for each node that came back: `moments` in seconds since the injection, and how wrong they may be."""
    if one.traits.get("ends") != NODE or not one.injected:
        return []
    return [found for node in nodes_of(one) if (found := row(evidence, one, engine, node))]


def row(evidence: Evidence, one: Incident, engine: Sequence[Record], node: str) -> Row | None:
    """What is known of one node; None: it did not come back, or the engine told nothing."""
    mine = [it for it in engine if it.get("node") == node]
    back = [float(it["t"]) for it in mine if it["event"] == "agent_back" and not it["same"] and one.within(it["t"])]
    if not back:
        return None
    told = {name: last_before(mine, reason, one.inject_t, back[0]) for name, reason in TOLD.items()}
    known = {name: it for name, it in told.items() if it is not None}
    if "scheduled" not in known:
        return None
    ready = [
        float(it["t"])
        for it in evidence.job.within(back[0], one.until_t, "ready")
        if str(it["source"]).partition(".")[0] == node
    ]
    moments = {"gone": end_t(one), **{name: float(it["at_t"]) for name, it in known.items()}, "back": back[0]}
    if ready:
        steps = of_node(evidence, node)["t"]
        after = steps[(steps > ready[0]) & (steps < one.until_t)]
        moments |= {"joined": ready[0]} | ({"first_step": float(after.min())} if len(after) else {})
    error_s = max(float(it["error_s"]) for it in known.values())
    since = {name: round(at - one.inject_t, 3) for name, at in moments.items()}
    return {"node": node, "moments": since, "error_s": round(error_s, 3)}


def last_before(mine: Sequence[Record], reason: str, since_t: float, until_t: float) -> Record | None:
    """The last that an engine said of a pod with this word in a time, as far as its clock is known."""
    found = [
        it
        for it in mine
        if it["event"] == "engine_event"
        and it["reason"] == reason
        and since_t - it["error_s"] <= it["at_t"] <= until_t + it["error_s"]
    ]
    return max(found, key=lambda it: float(it["at_t"]), default=None)


def parts(found: Mapping[str, Any]) -> list[tuple[str, float]]:
    """(stage, seconds) of one row, in order; they add up to the last moment."""
    made, before = [], 0.0
    for moment, stage in STAGES.items():
        if (at := found["moments"].get(moment)) is not None:
            made.append((stage, max(0.0, at - before)))
            before = max(before, at)
    return made
