"""From a lost node to the first step of what the engine gave in its place. Called by results and page.

An engine's own moments are right to `error_s` only: Kubernetes' are whole seconds on a clock of its own, a change of
Slurm's lies between two answers. The others are the harness' and the trainer's. An earlier moment is never put after a
later one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proving_ground.reports.recovery.checks import Evidence
from proving_ground.reports.recovery.gaps import end_t, of_node
from proving_ground.reports.recovery.incidents import Incident
from proving_ground.reports.recovery.injection import NODE, nodes_of

Record = Mapping[str, Any]
Row = dict[str, Any]
OF_ALL = ("Controller", "Job/")  # what events are about that are no single node's


@dataclass(frozen=True)
class Engine:
    """How one engine tells that it gives a node again, and how that is shown."""

    thing: str  # what it gives
    given: str  # that, of one that was lost
    title: str
    told: Mapping[str, tuple[str, Callable[..., Any]]]  # moment → the engine's word for it, and which of several counts
    needs: str  # the moment without which nothing is known
    stages: Mapping[str, str]  # moment → the stage that it ends
    whose: str  # what is said of the engine's moments


ENGINES: Mapping[str, Engine] = {
    "kubernetes": Engine(
        "pod", "the pod in its place", "What giving another pod takes",
        {"scheduled": ("Scheduled", max), "image": ("Pulled", max), "started": ("Started", max)}, "scheduled",
        {
            "gone": "going", "scheduled": "waiting for another", "image": "image", "started": "starting",
            "joined": "joining", "first_step": "its first step",
        },
        "When a pod was scheduled, had its image and was started is Kubernetes' word, in whole seconds",
    ),
    "slurm": Engine(
        "node", "a node that the engine gave again", "What giving nodes again takes",
        {"queued": ("PENDING", min), "running": ("RUNNING", max)}, "running",
        {
            "gone": "going", "queued": "the rest of the job ending", "running": "in the queue",
            "back": "its agent coming up", "joined": "joining", "first_step": "its first step",
        },
        "When the job stood in the queue and when it ran again each lie between two answers of Slurm's",
    ),
}  # fmt: skip


def rows(evidence: Evidence, one: Incident, engine: Sequence[Record]) -> list[Row]:
    """A row for each node that came back: `moments` in seconds since the injection, and how wrong they may be."""
    if one.traits.get("ends") != NODE or not one.injected:
        return []
    train = {name.partition(".")[0] for name in evidence.job.processes}  # a coordinator makes no first step
    return [found for node in nodes_of(one) if node in train and (found := row(evidence, one, engine, node))]


def row(evidence: Evidence, one: Incident, engine: Sequence[Record], node: str) -> Row | None:
    """What is known of one node; None: it did not come back, or the engine told nothing."""
    mine = [it for it in engine if is_about(it, (node,))]
    back = [float(it["t"]) for it in mine if it["event"] == "agent_back" and not it["same"] and one.within(it["t"])]
    if not back:
        return None
    for name, by in ENGINES.items():
        told = moments_of(by, mine, one.inject_t, back[0])
        if by.needs in told:
            moments = {"gone": end_t(one), **{moment: float(it["at_t"]) for moment, it in told.items()}}
            moments |= {"back": back[0], **trained(evidence, one, node, back[0])}
            error_s = max(float(it["error_s"]) for it in told.values())
            since = {moment: round(at - one.inject_t, 3) for moment, at in moments.items()}
            return {"node": node, "engine": name, "moments": since, "error_s": round(error_s, 3)}
    return None


def is_about(event: Record, nodes: Collection[str]) -> bool:
    """Whether an event is about one of these nodes, or about all there are."""
    return event["node"] in nodes if event.get("node") else str(event.get("about")).startswith(OF_ALL)


def moments_of(by: Engine, mine: Sequence[Record], since_t: float, until_t: float) -> dict[str, Record]:
    """Moment → what the engine said then, of what it said in a time as far as its clock is known."""
    said = [
        it
        for it in mine
        if it["event"] == "engine_event" and since_t - it["error_s"] <= it["at_t"] <= until_t + it["error_s"]
    ]
    found = {}
    for moment, (word, pick) in by.told.items():
        if own := [it for it in said if it["reason"] == word]:
            found[moment] = pick(own, key=lambda it: float(it["at_t"]))
    return found


def trained(evidence: Evidence, one: Incident, node: str, back_t: float) -> dict[str, float]:
    """When the node's trainer had joined, and when it had made its first step; as far as it came to that."""
    ready = [
        float(it["t"])
        for it in evidence.job.within(back_t, one.until_t, "ready")
        if str(it["source"]).partition(".")[0] == node
    ]
    if not ready:
        return {}
    steps = of_node(evidence, node)["t"]
    after = steps[(steps > ready[0]) & (steps < one.until_t)]
    return {"joined": ready[0]} | ({"first_step": float(after.min())} if len(after) else {})


def engine_of(found: Row) -> Engine:
    """Which engine a row is of; those of older runs are Kubernetes'."""
    return ENGINES[str(found.get("engine", "kubernetes"))]


def parts(found: Row) -> list[tuple[str, float]]:
    """(stage, seconds) of one row, in order; they add up to the last moment."""
    made, before = [], 0.0
    for moment, stage in engine_of(found).stages.items():
        if (at := found["moments"].get(moment)) is not None:
            made.append((stage, max(0.0, at - before)))
            before = max(before, at)
    return made
