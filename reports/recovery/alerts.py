"""Did the right alert come for each fault, how late, and what else came? Called by `reports.recovery.results`.

Judged by what the monitoring beside the run recorded (`monitoring/README.md`): who was told of what, and what was to be
expected of the rules in use. Says nothing about recovery: a job may recover and nobody be told, or the reverse.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proving_ground.reports.figures import Figure
from proving_ground.reports.recovery import proof
from proving_ground.reports.recovery.checks import Answer, Evidence
from proving_ground.reports.recovery.figures import figure, label_of
from proving_ground.reports.recovery.incidents import Incident
from proving_ground.reports.recovery.jobs import Job, Record
from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN, Verdict, verdict

NOT_MONITORED = "the run is not monitored"  # how the harness' warning begins (`bench.monitor`)
HOUR = 3600.0
CAUSES: dict[str, Callable[[Record], bool]] = {
    "CheckpointDamaged": lambda it: it["event"] == "quarantine",
    "CheckpointFailed": lambda it: it["event"] == "error" and it.get("fatal") is False,
    "CoordinatorUnreachable": lambda it: it["event"] == "detected" and it.get("why") == "no_coordinator",
    "Evicted": lambda it: it["event"] == "asked_to_leave",
    "RecoverySlow": lambda it: it["event"] == "detected" or (it["event"] == "error" and it.get("fatal") is not False),
    "WorkersRestarted": lambda it: it["event"] == "workers_start",
}
"""Alert → the record of what it is about, where that follows from a fault only after a while; else it is the fault."""


@dataclass(frozen=True)
class Row:
    """One fault and its alerts; times are seconds from the injection to the moment when somebody was told."""

    incident: Incident
    must: Sequence[str]
    fired: Mapping[str, float]  # of those that must come
    stated: Mapping[str, float]  # what their rules promise, as they ran
    consequences: Mapping[str, float]  # that may come too
    unexpected: Mapping[str, float]
    before: Sequence[str]  # of those that must come: they had been firing already
    took: Mapping[str, float] = field(default_factory=dict)  # of those that must come: since what each is about
    interval_s: float = 0.0  # between two scrapes

    @property
    def missing(self) -> list[str]:
        """Those that must come and did not."""
        return [name for name in self.must if name not in self.fired]

    @property
    def late(self) -> list[str]:
        """Those that came later after what they are about than their rules say, and a scrape."""
        known = [name for name in self.took if name in self.stated]
        return [name for name in known if self.took[name] > self.stated[name] + self.interval_s]


@dataclass(frozen=True)
class Alerts:
    """All of a run. `why_not`: why there is nothing to judge; empty where there is."""

    rows: Sequence[Row] = ()
    healthy_s: float = 0.0  # undisturbed jobs
    false_alarms: Sequence[tuple[str, str]] = ()  # (trial, alert) in them
    why_not: str = ""
    factor: float = 1.0
    verdicts: Sequence[Verdict] = field(default_factory=tuple)

    @property
    def recall(self) -> float:
        """Share of the alerts that had to come which came; NaN where none had to."""
        asked = sum(len(row.must) - len(row.before) for row in self.rows)
        return sum(len(row.fired) for row in self.rows) / asked if asked else math.nan

    @property
    def precision(self) -> float:
        """Share of the alerts that came which had to or were right to; NaN where none came."""
        right = sum(len(row.fired) + len(row.consequences) for row in self.rows)
        every = right + sum(len(row.unexpected) for row in self.rows)
        return right / every if every else math.nan


def judge(
    spec: Mapping[str, Any], broken: Sequence[Evidence], twins: Sequence[Evidence], notes: Sequence[str]
) -> Alerts:
    """The alerts of a run that asked for monitoring; of others an empty answer without verdicts."""
    if not spec.get("monitor"):
        return Alerts(why_not="not asked for")
    injected = [(evidence.job, one) for evidence in broken for one in evidence.incidents if one.injected]
    watched = {evidence.job.id: up(evidence.job) for evidence in (*broken, *twins)}
    if not any(watched.values()):
        said = next((note for note in notes if note.startswith(NOT_MONITORED)), "the monitoring left no record")
        return Alerts(why_not=said, verdicts=[told(one, (UNKNOWN, said)) for _, one in injected])
    rows, verdicts = [], []
    for job, one in injected:
        if (about := watched[job.id]) is None:
            verdicts.append(told(one, (UNKNOWN, "the monitoring was not up during this job")))
            continue
        if one.among:
            verdicts.append(
                told(one, (UNKNOWN, "it overlaps with others: nobody can tell which of them an alert is of"))
            )
            continue
        rows.append(row_of(job, one, about))
        verdicts.append(told(one, answer(rows[-1])))
    control = [evidence.job for evidence in twins if watched[evidence.job.id]]
    false = [(job.id, str(record["alert"])) for job in control for record in firing(job)]
    healthy_s = sum(job.end_t - job.start_t for job in control if job.end_t > job.start_t)
    factor = max(float(about["factor"]) for about in watched.values() if about)
    return Alerts(rows, healthy_s, false, "", factor, verdicts)


def up(job: Job) -> Mapping[str, Any] | None:
    """What was said when the monitoring began to watch a job."""
    return next(iter(job.of("monitoring_up")), None)


def told(one: Incident, found: Answer) -> Verdict:
    """A fault's verdict."""
    return verdict("alerted", *found, one.where)


def firing(job: Job) -> Iterator[Mapping[str, Any]]:
    """The messages that an alert has begun."""
    return (record for record in job.of("alert") if record["state"] == "firing")


def row_of(job: Job, one: Incident, about: Mapping[str, Any]) -> Row:
    """The alerts from a fault to the next one."""
    expected = about["expected"].get(one.kind, {"must": [], "may": []})
    came: dict[str, float] = {}
    for record in firing(job):
        if one.within(float(record["t"])):
            came.setdefault(str(record["alert"]), float(record["t"]) - one.inject_t)
    before = active(job, one.inject_t)
    must, may = expected["must"], set(expected["may"])
    return Row(
        one, must, {name: came[name] for name in must if name in came},
        {name: float(about["within_s"][name]) for name in must if name in about["within_s"]},
        {name: after for name, after in came.items() if name not in must and name in may},
        {name: after for name, after in came.items() if name not in must and name not in may},
        [name for name in must if name in before and name not in came],
        {name: came[name] - cause_t(one, name, came[name]) for name in must if name in came},
        float(about.get("interval_s", 0.0)),
    )  # fmt: skip


def cause_t(one: Incident, name: str, after: float) -> float:
    """When what an alert is about was recorded, in seconds after the fault; the first time, before the alert came."""
    if (cause := CAUSES.get(name)) is None:
        return 0.0
    known = one.recorded("quarantine", "error", "detected", "asked_to_leave", "workers_start")
    times = [float(it["t"]) - one.inject_t for it in known if cause(it)]
    return min((t for t in times if t <= after), default=0.0)


def active(job: Job, t: float) -> set[str]:
    """The alerts that were firing at a moment."""
    held: set[tuple[str, str]] = set()
    for record in job.of("alert"):
        if float(record["t"]) >= t:
            break
        key = str(record["alert"]), str(sorted(record["labels"].items()))
        held = held | {key} if record["state"] == "firing" else held - {key}
    return {name for name, _ in held}


def answer(row: Row) -> Answer:
    """Whether the alerts that must come came."""
    if not row.must:
        return UNKNOWN, f"nobody said which alert {row.incident.kind} must bring"
    if proof.answer(row.incident)[0] == FAIL:
        return UNKNOWN, "the fault did not happen"
    if row.before:
        return UNKNOWN, f"{', '.join(row.before)} had been firing before the fault"
    if row.missing:
        return FAIL, f"{', '.join(row.missing)} did not come" + (f"; {others(row)} did" if others(row) else "")
    said = [f"{name} after {after:.1f} s ({promised(row, name)})" for name, after in row.fired.items()]
    return FAIL if row.late else PASS, ", ".join(said)


def promised(row: Row, name: str) -> str:
    """`its rule: 1.0 s`, from when on if that is not the fault, and that it is late if it is."""
    took, after = row.took[name], row.fired[name]
    since = f" from what it is about, which took {took:.1f} s" if after - took > row.interval_s else ""
    return f"{'late: ' if name in row.late else ''}its rule: {row.stated[name]:.1f} s{since}"


def others(row: Row) -> str:
    """What came beside: `RecoverySlow 2.1 s, GpuHot 4.0 s (!)`; what nobody had expected is marked."""
    listed = [f"{name} {after:.1f} s" for name, after in row.consequences.items()]
    return ", ".join(listed + [f"{name} {after:.1f} s (!)" for name, after in row.unexpected.items()])


def figures(found: Alerts, broken: Sequence[Evidence]) -> Iterator[Figure]:
    """Delays by kind and alert; recall, precision, false alarms in an hour of the healthy control."""
    label = label_of(broken)
    delays: dict[tuple[str, str], list[float]] = {}
    for row in found.rows:
        for name, after in row.fired.items():
            delays.setdefault((row.incident.kind, name), []).append(after)
    for (kind, name), values in delays.items():
        yield figure("alert_delay", "s", label, values, {"kind": kind, "alert": name})
    for name, share in (("alert_recall", found.recall), ("alert_precision", found.precision)):
        if not math.isnan(share):
            yield figure(name, "%", label, [100 * share], {"by": "alerts"})
    if found.healthy_s:
        yield figure(
            "false_alarms", "1/h", label, [len(found.false_alarms) * HOUR / found.healthy_s], {"by": "control"}
        )


def lines(found: Alerts) -> list[str]:
    """The sum of it in words; nothing for a run that asked for no monitoring."""
    if not found.rows:
        return [f"alerts: {found.why_not}"] if found.verdicts else []
    known = {"recall": found.recall, "precision": found.precision}
    shares = ", ".join(f"{name} {100 * share:.0f} %" for name, share in known.items() if not math.isnan(share))
    said = f"alerts: {shares} over {len(found.rows)} faults; all durations of the rules divided by {found.factor:g}"
    if not found.healthy_s:
        return [said, "alerts: no undisturbed job, so nothing is known about false alarms"]
    named = ", ".join(f"{name} in {trial}" for trial, name in dict.fromkeys(found.false_alarms))
    rate = len(found.false_alarms) * HOUR / found.healthy_s
    count = len(found.false_alarms)
    control = f"alerts: {count} false in {found.healthy_s:.0f} s of undisturbed training ({rate:.1f} an hour)"
    return [said, control + (f": {named}" if named else "")]


def table(found: Alerts) -> list[dict[str, Any]]:
    """One line a fault, for terminal and page."""
    values = {(v["where"]["trial"], v["where"]["fault"]): v["verdict"] for v in found.verdicts}
    return [
        {
            "fault": f"{row.incident.fault} {row.incident.kind}",
            "verdict": values[row.incident.job.id, row.incident.fault],
            "came": ", ".join(f"{name} {after:.1f} s" for name, after in row.fired.items()) or "–",
            "missing": ", ".join(name for name in row.missing if name not in row.before) or "–",
            "others": others(row) or "–",
        }
        for row in found.rows
    ]
