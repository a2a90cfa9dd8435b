"""The figures of a chaos run for `results.json`. Called by `reports.recovery.results`.

Recovery times are grouped by kind of fault, phase and mechanism; every value is kept, one an incident. Those of a fault
without evidence, and of a job that went wrong, are shown in its trial and count in no figure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from proving_ground.reports import intervals
from proving_ground.reports.figures import DECIMALS, Figure
from proving_ground.reports.recovery import effective
from proving_ground.reports.recovery.checks import Evidence
from proving_ground.reports.recovery.incidents import Incident
from proving_ground.reports.recovery.steps import between

RESUMED = ("recovered", "unproven")
"""Outcomes after which training was back: how long that took is one question, whether it is the same is another."""
WENT_ON = (*RESUMED, "slow")
"""Outcomes with a time to recovery: it ends with the first committed step, at whatever speed."""
MANY = 200  # values: from here on a bootstrap costs much and tells no more than their ranks
GROUP = ("kind", "phase", "mechanism", "case")  # what recovery figures are grouped by
TIMES = (
    ("time_to_detect", "detected"),
    ("resume", "first_committed_step"),
    ("made_up_s", "work_made_up"),
)
CHECKPOINT = (("checkpoint_block", "block_s"), ("checkpoint_durable", "durable_s"))

Judged = tuple[Incident, str]
"""An incident and its outcome."""


def label_of(evidence: Sequence[Evidence]) -> str:
    """Real only if every job is."""
    labels = {str(one.job.plan.get("label", "emulated")) for one in evidence}
    return "real" if labels == {"real"} else "emulated"


def figure(name: str, unit: str, label: str, values: Sequence[float], where: Mapping[str, Any]) -> Figure:
    """One row of the contract."""
    ends = interval(values)
    return {
        "name": name,
        "unit": unit,
        "label": label,
        "where": dict(where),
        "n": len(values),
        "median": round(median(values), DECIMALS),
        "ci95": [round(end, DECIMALS) for end in ends] if ends else None,
        "values": [round(value, DECIMALS) for value in values],
    }


def interval(values: Sequence[float]) -> intervals.Interval | None:
    """Of the median; in the logarithm where all values are positive, by order statistics where there are many of them.

    None for one value. With n values the true median lies between the values of rank n/2 ± 1.96 sqrt(n)/2 with 95 %
    confidence (the number of values below it is binomial).
    """
    if len(values) > MANY:
        half = 1.96 * math.sqrt(len(values)) / 2
        ranked = sorted(values)
        return ranked[math.floor(len(values) / 2 - half)], ranked[math.ceil(len(values) / 2 + half)]
    if min(values) > 0:
        return intervals.ratio_interval(median(values), intervals.constant_draws(values))
    return intervals.plain_interval(median(values), values)


def groups(judged: Sequence[Judged]) -> dict[tuple[str, ...], list[Incident]]:
    """Values of `GROUP` → the incidents after which training went on."""
    found: dict[tuple[str, ...], list[Incident]] = {}
    for one, outcome in judged:
        if outcome in WENT_ON:
            found.setdefault((one.kind, one.setting, one.mechanism, one.case), []).append(one)
    return found


def all_figures(
    every: Sequence[Evidence], judged: Sequence[Judged], node_hour: float | None = None, clock_error_s: float = 0.0
) -> list[Figure]:
    """All figures of a run; `node_hour` is what a node costs for an hour, where somebody says so.

    Those of recovery are made of moments of different nodes, which are right to `clock_error_s` by their clocks.
    """
    label = label_of(every)
    steps = {evidence.job.id: evidence for evidence in every}
    made: list[Figure] = []
    for key, incidents in groups(judged).items():
        found = recovery(incidents, steps, label, dict(zip(GROUP, key, strict=True)), node_hour)
        made += [{**it, "clock_error_s": round(clock_error_s, DECIMALS)} for it in found]
    for evidence in every:
        made += of_job(evidence, label)
    return made


def recovery(
    incidents: Sequence[Incident],
    jobs: Mapping[str, Evidence],
    label: str,
    where: Mapping[str, Any],
    node_hour: float | None,
) -> Iterator[Figure]:
    """Times in seconds, losses, and what a fault costs, of one group."""
    for name, moment in TIMES:
        if values := [seconds for one in incidents if (seconds := one.took(moment)) is not None]:
            yield figure(name, "s", label, values, where)
    back = [seconds for one in incidents if (seconds := effective.recovery_s(one)) is not None]
    for name, values in ({"time_to_recovery": back} | full_speed(incidents)).items():
        if values:
            yield figure(name, "s", label, values, where)
    again = [one for one in incidents if one.new is not None]
    if again:
        yield figure("lost_steps", "steps", label, [lost_steps(one) for one in again], where)
        lost = [lost_seconds(jobs[one.job.id], one) for one in again]
        yield figure("lost_work_s", "s", label, lost, where)
        down = [one.took("first_committed_step") or 0.0 for one in again]
        used = [one.job.nodes * (a + b) for one, a, b in zip(again, down, lost, strict=True)]
        yield figure("lost_node_s", "node·s", label, used, where)
        if node_hour is not None:
            yield figure("fault_cost", "", label, [node_hour * seconds / 3600 for seconds in used], where)


def full_speed(incidents: Sequence[Incident]) -> dict[str, list[float]]:
    """Seconds to full speed: since the fault, or where it had to be lifted first, how long it was held and since then.

    One number would be mostly the time for which the suite held the fault.
    """
    apart = [(held, full - held) for one in incidents
             if (held := one.held_s) is not None and (full := one.took("full_speed")) is not None]  # fmt: skip
    at_once = [full for one in incidents if one.held_s is None and (full := one.took("full_speed")) is not None]
    return {
        "full_speed_s": at_once, "held_s": [held for held, _ in apart], "after_held_s": [after for _, after in apart],
    }  # fmt: skip


def lost_steps(one: Incident) -> float:
    """Steps that had been made and had to be made again (none where a last checkpoint was saved after the fault)."""
    return float(max(0, one.newest - one.since))


def lost_seconds(evidence: Evidence, one: Incident) -> float:
    """Seconds that went into steps which this fault threw away: before it, and in generations that came to nothing."""
    own = evidence.thrown_by_generation.get(one.old, evidence.thrown_away.iloc[:0])
    before = between(own, -math.inf, one.inject_t)
    before = before[before["step"] > one.since]
    after = between(evidence.thrown_away, one.inject_t, one.until_t)
    after = after[after["step"] <= one.until]
    return float(before["seconds"].sum() + after["seconds"].sum())


def of_job(evidence: Evidence, label: str) -> Iterator[Figure]:
    """Checkpoints and effective training time of one job."""
    where = {"trial": evidence.job.id, "case": str(evidence.job.plan.get("case", "")), "nodes": evidence.job.nodes}
    for name, key in CHECKPOINT:
        values = [1000 * float(record[key]) for record in evidence.job.of("checkpoint") if record.get(key) is not None]
        if values:
            yield figure(name, "ms", label, values, where)
    reads = [1000 * float(record["read_s"]) for record in evidence.job.of("resume") if record.get("read_s") is not None]
    if reads:
        yield figure("checkpoint_load", "ms", label, reads, where)
    found = effective.costs(evidence)
    if found is None or not evidence.incidents:
        return
    if math.isfinite(found.measured):
        yield figure("ettr", "%", label, [100 * found.measured], {**where, "by": "measured"})
    if math.isfinite(found.formula()):
        yield figure("ettr", "%", "predicted", [100 * found.formula()], {**where, "by": "formula"})
    for what, gain in effective.advice(found, effective.lost_by_phase(evidence)):
        if gain > 0:
            yield figure("gain", "points", "predicted", [gain], {**where, "advice": what})
