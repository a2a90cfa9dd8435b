"""Splits a job into incidents, one a fault, each with its window, its generations and its place in the lineage.

Called by `reports.recovery.results`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from proving_ground.bench.jobstate import Recovery, joins
from proving_ground.reports.recovery.jobs import Job, Record
from proving_ground.reports.recovery.steps import Stretch, between, full_world, pace_before, resumes_by_generation

NO_PHASE = "step"  # a fault that was not aimed at a phase
OVERLAPPED = "overlap"  # in place of its phase, for a fault that was not alone


@dataclass(frozen=True, eq=False)
class Incident:
    """One fault and the part of the job that answers for it.

    The window is from `inject_t` to `until_t`, the next fault that neither overlaps with it nor comes during its
    recovery. The steps that answer for it are those of the lineage after `since` and up to `until`. Faults that overlap
    share their end, and the pace that they are measured by; they are one disturbance, called `among` after the first.
    """

    job: Job
    fault: str
    plan: Mapping[str, Any]
    inject_t: float
    until_t: float
    begin: Record | None = None
    end: Record | None = None
    refused: Record | None = None
    pace_s: float = math.nan  # of a step before the fault
    world: int = 0  # ranks at full strength
    newest: int = 0  # committed step before the fault
    old: int = 0  # generation before the fault
    new: int | None = None  # generation of the first step after it, where there was a new one
    resumed_t: float | None = None  # when that step was committed
    went_back: bool = False  # that generation began from a checkpoint or anew, not from a state that was alive
    since: int = 0
    until: int = 0
    among: str = ""  # id of the first of the faults that it overlaps with, itself included; empty: it was alone
    moments: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """The key of the fault, e.g. `node_kill`."""
        return str(self.plan.get("kind", "?"))

    @property
    def phase(self) -> str:
        """The phase that it was aimed at; `step` where it was none."""
        return str(self.plan.get("phase") or NO_PHASE)

    @property
    def setting(self) -> str:
        """What it is grouped by beside its kind: the phase, or that it overlapped with others."""
        return OVERLAPPED if self.among else self.phase

    @property
    def joins(self) -> bool:
        """Whether what follows it is also what follows the one before."""
        seen = self.job.state.faults.get(self.fault)
        return seen.joins if seen else joins(self.plan)

    @property
    def mechanism(self) -> str:
        """How the job recovers."""
        return str(self.job.plan.get("mechanism") or "")

    @property
    def _of_mechanism(self) -> Mapping[str, Any]:
        """What the plan knows of the job's mechanism; nothing where it is older than that."""
        return self.job.plan.get("traits") or {}

    @property
    def is_baseline(self) -> bool:
        """Whether the other mechanisms are compared with its own."""
        return bool(self._of_mechanism.get("baseline"))

    @property
    def ends_others(self) -> bool | None:
        """Whether under its mechanism one failure ends processes elsewhere too; None: the plan is older than that."""
        found = self._of_mechanism.get("ends_others")
        return found if isinstance(found, bool) else None

    @property
    def case(self) -> str:
        """The suite's case that the job is of."""
        return str(self.job.plan.get("case") or "")

    @property
    def target(self) -> list[str]:
        """What was really aimed at: names of nodes or processes."""
        found = (self.begin or {}).get("target") or self.plan.get("target") or []
        return [found] if isinstance(found, str) else [str(name) for name in found]

    @property
    def evidence(self) -> dict[str, Any]:
        """Of the injection and of the healing together."""
        return {**((self.begin or {}).get("evidence") or {}), **((self.end or {}).get("evidence") or {})}

    @property
    def traits(self) -> Mapping[str, Any]:
        """What the plan knows of it beside what was asked: what it ends and damages, and what proves it."""
        return self.plan.get("traits") or {}

    @property
    def damaged(self) -> Mapping[str, float]:
        """Path → when, of the checkpoints that it spoiled. Older runs tell the last one's path only."""
        found = ((self.begin or {}).get("evidence") or {}).get(self.traits.get("damages") or "", {})
        return {found: self.inject_t} if isinstance(found, str) else found

    @property
    def where(self) -> dict[str, Any]:
        """What a verdict on it is about."""
        return {"trial": self.job.id, "fault": self.fault, "kind": self.kind}

    @property
    def injected(self) -> bool:
        """Whether the nemesis says that it did it."""
        return self.begin is not None

    def within(self, t: float) -> bool:
        """Whether a moment lies in the window."""
        return self.inject_t <= t < self.until_t

    def recorded(self, *names: str) -> list[Record]:
        """The job's events of these names in the window."""
        return self.job.within(self.inject_t, self.until_t, *names)

    def took(self, moment: str, since: str = "inject") -> float | None:
        """Seconds from one moment to another; None where one does not exist."""
        begin, end = self.moments.get(since), self.moments.get(moment)
        return None if begin is None or end is None else end - begin

    @property
    def held_s(self) -> float | None:
        """Seconds for which the fault was held, where the job was at full speed only after that; else None.

        They are the suite's, not the job's: no time of the job may hold them.
        """
        held, full = self.took("healed"), self.took("full_speed")
        planned = (self.begin or {}).get("heal_after_s", held)
        return held if held and full is not None and full > held and planned else None


def split(job: Job, steps: pd.DataFrame, stretches: Sequence[Stretch]) -> list[Incident]:
    """The incidents of a job in the order of the plan; those that were never reached are there, without moments."""
    world = full_world(job, steps)
    recoveries = {it.fault.id: it for it in job.state.recoveries}
    found = [place(job, steps, world, plan, told, recoveries) for plan, told in told_by_fault(job)]
    found = together(job, found)
    reached = sorted((one for one in found if math.isfinite(one.inject_t)), key=lambda one: one.inject_t)
    windows = {one.fault: one for one in windowed(reached, Left(job, steps, stretches))}
    return [windows.get(one.fault, one) for one in found]


def together(job: Job, found: Sequence[Incident]) -> list[Incident]:
    """The incidents, those with the same disturbance `among` it and measured by the pace before it.

    A fault that was refused disturbed nothing: what is left of a disturbance then may be alone.
    """
    made = {one.fault: one for one in found}
    for group in job.state.disturbances:
        pace_s = made[group.fault.id].pace_s
        for it in group.recoveries if len(group.recoveries) > 1 else ():
            made[it.fault.id] = replace(made[it.fault.id], among=group.fault.id, pace_s=pace_s)
    return list(made.values())


def counted(incidents: Sequence[Incident]) -> list[tuple[Incident, ...]]:
    """The incidents, those that overlap together: each of these counts once."""
    found: dict[str, tuple[Incident, ...]] = {}
    for one in incidents:
        key = one.among or one.fault
        found[key] = (*found.get(key, ()), one)
    return list(found.values())


def as_one(group: Sequence[Incident]) -> Incident:
    """One recovery from a disturbance of several faults: from the first injection, over when the last of it is over."""
    first = group[0]
    if len(group) == 1:
        return first
    new = [one.new for one in group if one.new is not None]
    over = {name: latest([one.moments.get(name) for one in group]) for name in ("healed", "full_speed")}
    on = {name: latest([one.moments.get(name) for one in group if one.new is not None])
          for name in ("first_committed_step", "work_made_up")}  # fmt: skip
    held = {"heal_after_s": max(float((one.begin or {}).get("heal_after_s") or 0) for one in group)}
    return replace(
        first, begin={**(first.begin or {}), **held},
        newest=max(one.newest for one in group), since=min(one.since for one in group),
        until=max(one.until for one in group), new=max(new, default=None), resumed_t=on["first_committed_step"],
        went_back=any(one.went_back for one in group), moments={**first.moments, **over, **on},
    )  # fmt: skip


def latest(moments: Sequence[float | None]) -> float | None:
    """The last of them; None where there is none, or one of them never came."""
    known = [t for t in moments if t is not None]
    return max(known) if known and len(known) == len(moments) else None


def windowed(reached: Sequence[Incident], left: Left) -> Iterator[Incident]:
    """The incidents with the steps that answer for them.

    From the last to the first: what a later fault took training back to bounds all before it.
    """
    until = left.last
    for one in reversed(reached):
        since = left.step(one, one.new)
        back = one.new is not None and left.went_back(one.new)
        yield replace(one, went_back=back, since=since, until=max(until, since))
        if not one.joins:
            until = min(until, since)


class Left:
    """What faults left of a job: the step that each generation began from, and the last of the final weights."""

    def __init__(self, job: Job, steps: pd.DataFrame, stretches: Sequence[Stretch]) -> None:
        self._loaded = resumes_by_generation(job)
        self._from_files = {int(it["generation"]) for it in job.of("resume") if it.get("peer") is None}
        self._begun = steps.groupby("generation")["step"].min()
        self.last = max((part.last for part in stretches), default=0)

    def step(self, one: Incident, new: int | None) -> int:
        """The newest step that a fault left: what was loaded after it, or the newest step before it."""
        if new is None:
            return one.newest
        loaded = self._loaded.get(new)
        return int(loaded["step"]) if loaded else int(self._begun[new]) - 1

    def went_back(self, new: int) -> bool:
        """Whether a generation began from a checkpoint, or anew; in live recovery somebody has the state."""
        return new in self._from_files or int(self._begun[new]) == 1


def told_by_fault(job: Job) -> list[tuple[Mapping[str, Any], dict[str, Record]]]:
    """(planned fault, its events by name), also for faults that only the events know."""
    told: dict[str, dict[str, Record]] = {}
    for record in job.of("fault_begin", "fault_refused", "fault_end"):
        told.setdefault(str(record.get("fault")), {})[str(record["event"])] = record
    planned = {str(plan["id"]): plan for plan in job.plan.get("faults") or ()}
    return [
        ({**next(iter(told.get(fault, {}).values()), {}), **planned.get(fault, {}), "id": fault}, told.get(fault, {}))
        for fault in dict.fromkeys([*planned, *told])
    ]


def place(
    job: Job,
    steps: pd.DataFrame,
    world: int,
    plan: Mapping[str, Any],
    told: Mapping[str, Record],
    recoveries: Mapping[str, Recovery],
) -> Incident:
    """When it was, what the job had done by then, and what came of it."""
    fault, found = str(plan["id"]), recoveries.get(str(plan["id"]))
    about = (told.get("fault_begin"), told.get("fault_end"), told.get("fault_refused"))
    if found is None:
        return Incident(job, fault, plan, math.nan, math.inf, *about, pace_before(steps, math.nan, world), world)
    t = found.fault.inject_t
    before = between(steps, -math.inf, t).tail(1)
    newest = int(before["newest"].iloc[0]) if len(before) else 0
    return Incident(
        job, fault, plan, t, found.until_t, *about, pace_before(steps, t, world), world, newest, found.old, found.new,
        found.end_t,
    )  # fmt: skip
