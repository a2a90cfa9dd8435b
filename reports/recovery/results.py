"""From a chaos run's directory to `results.json`. Called by `reports.cli` when the plan has faults.

The same directory always gives the same document.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proving_ground.bench.rundir import RunDir
from proving_ground.reports import allocation, verdicts
from proving_ground.reports.agreement import agreement
from proving_ground.reports.attempts import Attempts
from proving_ground.reports.document import Listed, cores_of, document, mixed, read_document, read_records, seal_state
from proving_ground.reports.figures import Figure
from proving_ground.reports.recovery import (
    alerts,
    checks,
    clocks,
    custody,
    figures,
    first_steps,
    gaps,
    healthy,
    injection,
    ledger,
    planned,
    rates,
    replaced,
    sameness,
)
from proving_ground.reports.recovery.checks import Evidence
from proving_ground.reports.recovery.incidents import Incident, as_one, counted, split
from proving_ground.reports.recovery.jobs import Job, Recorded, collect
from proving_ground.reports.recovery.steps import changed_at, full_world, in_lineage, job_steps, lineage
from proving_ground.reports.recovery.timeline import with_moments
from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN, Verdict, verdict

CHECKS: dict[str, checks.Check] = {
    "happened": injection.happened,
    "healed": checks.healed,
    "trained_on": checks.trained_on,
    "full_speed": checks.full_speed,
    "same_training": checks.same_training,
    "ranks_agree": checks.ranks_agree,
    "exactly_once": checks.exactly_once,
    "intact_only": custody.intact_only,
    "one_writer": custody.one_writer,
    "no_orphan": custody.no_orphan,
    "nothing_else_broke": custody.nothing_else_broke,
}
RECOVERED, WRONG, STUCK, INVALID = "recovered", "wrong", "stuck", "invalid"
UNPROVEN = "unproven"
"""Training went on after the fault, and nothing is wrong, but a proof is missing: of the same training, or of calm."""
SLOW = "slow"
"""Training went on at full strength, and nothing is wrong, but it never was as fast again."""
ORDER = (RECOVERED, UNPROVEN, INVALID, SLOW, STUCK, WRONG)
"""The worst last."""
NOT_THE_TRAINING = ("healed", "trained_on", "full_speed")
"""Checks that may fail though what was trained is right: others say what came of the job then."""
ASKED = {"same_training": "fingerprint_every", "exactly_once": "ledger"}
"""Check → the trainer's setting that gives it its evidence; not asked for is no reason to call a trial invalid."""


@dataclass(frozen=True)
class Analysis(Listed):
    """Everything that the terminal and the page show."""

    run: RunDir
    spec: Mapping[str, Any]
    plan: Mapping[str, Any]
    provenance: Mapping[str, Any]
    recorded: Recorded
    jobs: Sequence[Evidence]  # those with faults
    twins: Sequence[Evidence]
    results: Mapping[str, Any]
    complete: bool
    alerts: alerts.Alerts = field(default_factory=alerts.Alerts)

    @property
    def trials(self) -> list[dict[str, Any]]:
        """The trials of `results.json`."""
        return list(self.results["trials"])

    @property
    def own_trials(self) -> list[dict[str, Any]]:
        """The trials that the run is judged by: not those of peers."""
        return [trial for trial in self.trials if not trial.get("peer")]

    @property
    def own_figures(self) -> list[Figure]:
        """The figures of the same jobs."""
        beside = peers_of(self.plan)
        return [found for found in self.figures if not is_of(found["where"], beside)]

    @property
    def incidents(self) -> list[Incident]:
        """The incidents, in the order of `trials`."""
        return [one for evidence in self.jobs for one in evidence.incidents]

    @property
    def recoveries(self) -> list[tuple[Incident, dict[str, Any]]]:
        """One for each disturbance, with its trial: faults that overlap are one, with the worst of their outcomes."""
        trials = dict(zip(self.incidents, self.trials, strict=True))
        return [
            (as_one(group), {**trials[group[0]], "outcome": worst([str(trials[one]["outcome"]) for one in group])})
            for evidence in self.jobs
            for group in counted(evidence.incidents)
        ]


def worst(outcomes: Sequence[str]) -> str:
    """The worst of several outcomes."""
    return max(outcomes, key=ORDER.index)


def is_chaos(plan: Mapping[str, Any]) -> bool:
    """Whether a plan has faults."""
    return any(trial.get("faults") for trial in plan.get("trials", ()))


def peers_of(plan: Mapping[str, Any]) -> frozenset[str]:
    """Names of the trials and cases that are set beside the others; none where there is nothing else to judge."""
    broken = [trial for trial in plan["trials"] if trial.get("faults")]
    if all(trial.get("peer") for trial in broken):
        return frozenset()
    return frozenset(str(trial[key]) for trial in plan["trials"] if trial.get("peer") for key in ("id", "case"))


def is_of(where: Mapping[str, Any], names: frozenset[str]) -> bool:
    """Whether something is about one of these trials or cases."""
    return not names.isdisjoint((where.get("trial"), where.get("case")))


def marked(found: Verdict, peers: frozenset[str]) -> Verdict:
    """The verdict, with `peer` where it is about one."""
    return {**found, "where": {**found["where"], "peer": True}} if is_of(found["where"], peers) else found


def analyse(run: RunDir, node_hour: float | None = None) -> Analysis:
    """Read, split into incidents, judge; `node_hour` is what a node costs, where that is known. Nothing is written.

    Raises:
        RunDirError: not a run directory, or a document in it cannot be read.
    """
    plan, spec, provenance = (read_document(run, name) for name in ("plan", "spec", "provenance"))
    complete, problems = seal_state(run)
    notes: list[str] = []
    recorded = collect(read_records(run, problems, notes), plan["trials"])
    recorded.warnings += [*notes, *mixed(provenance)]
    problems += planned.differences(spec, plan, {name: it.traits for name, it in recorded.jobs.items()})
    for job in recorded.jobs.values():
        job.cores = cores_of(provenance)
    every = gather(plan["trials"], recorded)
    broken = [evidence for evidence in every if evidence.job.plan.get("faults")]
    undisturbed = [evidence for evidence in every if not evidence.job.plan.get("faults")]
    twins = [one for one in undisturbed if one.job.plan.get("role", "twin") in ("", "twin")]
    verdicts = judge(broken, unsealed=bool(problems))
    peers = peers_of(plan)
    trials = [
        row(run, evidence, one, verdicts[one], alone=len(broken) == 1)
        | ({"peer": True} if evidence.job.id in peers else {})
        | ({"replaced": found} if (found := replaced.rows(evidence, one, recorded.engine)) else {})
        for evidence in broken
        for one in evidence.incidents
    ]
    came = dict(zip(verdicts, (str(trial["outcome"]) for trial in trials), strict=True))
    groups = [group for evidence in broken for group in counted(evidence.incidents)]
    outcomes = [(as_one(group), worst([came[one] for one in group])) for group in groups]
    whole = [*of_run(every, recorded, (complete, problems)), *of_jobs(broken, unsealed=bool(problems))]
    whole += clocks.judge(recorded.clocks, broken)
    whole += [doubted(v) if problems else v for v in of_undisturbed(undisturbed)]
    tried, nothing = Attempts(), list[Figure]()
    nobody = alerts.Alerts(why_not="they could not be judged")
    told = tried.made("alerts", lambda: alerts.judge(spec, broken, twins, recorded.warnings), nobody)
    whole += [doubted(v) if problems else v for v in told.verdicts]
    rows = [*whole, *(found for listed in verdicts.values() for found in listed)]
    measured = [
        *figures.all_figures(broken, outcomes, node_hour, clocks.worst_s(recorded.clocks)),
        *clocks.measured(recorded.clocks, broken),
        *tried.made("steps of undisturbed jobs", lambda: list(healthy.step_times(twins)), nothing),
        *tried.made("how machines were had", lambda: list(allocation.figures(recorded.allocation, plan)), nothing),
        *tried.made("times of alerts", lambda: list(alerts.figures(told, broken)), nothing),
    ]
    rows += tried.verdicts
    rows = [marked(found, peers) for found in rows]
    results = document(run, plan["cluster"]["name"], measured, rows, trials)
    return Analysis(run, spec, plan, provenance, recorded, broken, twins, results, complete, told)


def gather(plans: Sequence[Mapping[str, Any]], recorded: Recorded) -> list[Evidence]:
    """The evidence of each planned job; twins first, because the others are compared with them."""
    jobs = {str(plan["id"]): recorded.jobs.get(str(plan["id"]), Job(str(plan["id"]), plan)) for plan in plans}
    bare = {name: bare_evidence(job) for name, job in jobs.items()}
    references = [one for one in bare.values() if one.job.plan.get("role") == "reference"]
    checked = {
        name: one if one in references else dataclasses.replace(one, absolute=configured(one, references))
        for name, one in bare.items()
    }
    return [
        compared(evidence, twins_of(name, checked), replay_of(name, checked))
        if evidence.job.plan.get("faults")
        else evidence
        for name, evidence in checked.items()
    ]


def bare_evidence(job: Job) -> Evidence:
    """A job's steps, lineage and incidents with their moments; nothing is compared yet."""
    rows = job.rows()
    steps = job_steps(job, rows)
    stretches = lineage(job, steps)
    committed = steps[steps["committed"]]
    incidents = [with_moments(one, committed) for one in split(job, steps, stretches)]
    nothing = sameness.Sameness(why_not="an undisturbed job"), ledger.Ledger(why_not="an undisturbed job")
    training = job.plan.get("training") or {}
    return Evidence(job, rows, steps, stretches, incidents, *nothing, agreement=agreement(job.fingerprints, training))


def twins_of(name: str, every: Mapping[str, Evidence]) -> list[Evidence]:
    """The undisturbed jobs of the same case (or trial) that ran to their end; that of the same size first."""
    own = every[name].job
    found = []
    for other in every.values():
        of = other.job.plan.get("twin_of") or None
        undisturbed = of in (name, own.plan.get("case")) and other.job.plan.get("role", "twin") in ("", "twin")
        if undisturbed and other.job.ok and len(other.steps):
            found.append(other)
    return sorted(found, key=lambda twin: twin.job.nodes != own.nodes)


def replay_of(name: str, every: Mapping[str, Evidence]) -> sameness.Replay:
    """The undisturbed job that made a job's steps again in worlds of the same sizes; or why there is none."""
    again = next((other for other in every.values() if other.job.plan.get("replays") == name), None)
    if again is None:
        return sameness.Replay()
    if refused := again.job.of("no_replay"):
        return sameness.Replay(why_not=f"no replay was made: {refused[-1].get('why')}")
    if not again.job.ok or again.steps.empty:
        return sameness.Replay(why_not=f"its replay {again.job.id} did not end well: {again.job.why or 'no step'}")
    return sameness.Replay(as_twin(again))


def as_twin(evidence: Evidence) -> sameness.Twin:
    """An undisturbed job to compare with."""
    world = full_world(evidence.job, evidence.steps)
    return sameness.Twin(evidence.job, world, sameness.marks_of(evidence.job, evidence.stretches), evidence.stretches)


def compared(evidence: Evidence, twins: Sequence[Evidence], replay: sameness.Replay) -> Evidence:
    """The evidence with sameness and ledger against its undisturbed jobs, and against what was configured."""
    known = [sameness.without_its_end(as_twin(twin)) for twin in twins]
    job, steps, stretches = evidence.job, evidence.steps, evidence.stretches
    changed = changed_at(job, steps, known[0].world) if known else {}
    found = with_rates(sameness.compare(job, stretches, changed, known, replay), evidence, twins)
    of_twins = [
        (value, f"twin {twin.job.id}: {why}") for twin in twins for value, why in twin.absolute if value == FAIL
    ]
    return dataclasses.replace(
        evidence, ledger=told_by_ledger(evidence, twins), sameness=found, absolute=[*evidence.absolute, *of_twins]
    )


def configured(evidence: Evidence, references: Sequence[Evidence]) -> list[checks.Answer]:
    """Whether a job, disturbed or not, is the training that was configured: its rates, and its first steps."""
    job = evidence.job
    found: list[checks.Answer] = []
    if why := rates.contradicts_plan(job):
        found.append((FAIL, f"the trainer ran with {why}"))
    if job.said_ready("rate") and (wrong := rates.wrong_rates(job, evidence.rows, None)):
        found.append((FAIL, f"learning rate of step {wrong[0].step}: {wrong[0].why}"))
    before = min((one.inject_t for one in evidence.incidents if one.injected), default=math.inf)
    plain = next((it for it in references if comparable(job, it.job) and it.job.ok), None)
    if plain and len(evidence.steps):
        found.append(first_steps.judge(job, plain.job, before))
    return found


def comparable(job: Job, plain: Job) -> bool:
    """Whether a plain loop made the same first steps: random numbers follow from the ranks, but in exact mode."""
    exactly = (job.plan.get("training") or {}).get("reduction") == "exact"
    return plain.plan.get("twin_of") == job.plan.get("case") and (exactly or plain.nodes == job.nodes)


def with_rates(found: sameness.Sameness, evidence: Evidence, twins: Sequence[Evidence]) -> sameness.Sameness:
    """With what is wrong about the learning rates of steps: fingerprints are of a few steps only."""
    final, twin = in_lineage(evidence.rows, evidence.stretches), twins[0].rows if twins else None
    wrong = rates.wrong_rates(evidence.job, evidence.rows[final], twin)
    lost = rates.wrong_rates(evidence.job, evidence.rows[~final], twin)
    if not wrong and not lost:
        return found
    return dataclasses.replace(
        found, judged=[*found.judged, *wrong], thrown_away=[*found.thrown_away, *lost], why_not=""
    )


def told_by_ledger(evidence: Evidence, twins: Sequence[Evidence]) -> ledger.Ledger:
    """What the sample ids say, against those of the first twin that recorded any."""
    every = (ledger.entries(one.job, one.rows, one.stretches) for one in (evidence, *twins))
    sizes = [(size, one.job.id) for one in (*twins, evidence) for size in one.job.every_ready("rows")]
    rows, doubt = ledger.data_set(sizes)
    how = ledger.THEIRS if evidence.job.plan.get("workload") == "command" else ledger.OURS
    found = ledger.judge(next(every), next((found for found in every if len(found.id)), None), rows, how)
    return dataclasses.replace(found, doubt=doubt)


def judge(broken: Sequence[Evidence], *, unsealed: bool) -> dict[Incident, list[Verdict]]:
    """Incident → its verdicts. Files that are not as sealed, or not whole, are no evidence: then all is unknown."""
    found = {}
    for evidence in broken:
        listed, because = checks.judge(evidence, CHECKS), doubt(evidence, unsealed=unsealed)
        for one in evidence.incidents:
            found[one] = [doubted(v, because) if because else v for v in listed[one.fault]]
    return found


def doubted(found: Verdict, because: str = "not as sealed") -> Verdict:
    """The verdict, if the files are not as sealed, or some of them never came."""
    return {**found, "verdict": UNKNOWN, "why": f"{because}; else: {found['why']}"}


def doubt(evidence: Evidence, *, unsealed: bool) -> str:
    """Why nothing that a job's records say is evidence; empty where it is."""
    return "not as sealed" if unsealed else gaps.on_the_way(evidence)


def outcome(evidence: Evidence, one: Incident, verdicts: Sequence[Verdict]) -> tuple[str, str]:
    """(recovered | unproven | wrong | slow | stuck | invalid, why)."""
    told = {v["check"]: v for v in verdicts}
    values = {check: v["verdict"] for check, v in told.items()}
    wrong = went_wrong(evidence, verdicts)
    broken = left_broken(evidence, one)
    if values.get("trained_on") == FAIL and not broken:
        return STUCK, told["trained_on"]["why"]
    if values["happened"] != PASS or (broken and not wrong):
        return INVALID, told["happened"]["why"] if values["happened"] != PASS else broken
    if wrong:
        return WRONG, wrong
    if values.get("full_speed") == FAIL:
        return SLOW if checks.is_whole(evidence, one) else STUCK, told["full_speed"]["why"]
    return proven(evidence, one, told)


def left_broken(evidence: Evidence, one: Incident) -> str:
    """What the nemesis broke by then and could not heal, in words: it is not the job's to get over. Or empty."""
    ends = [(it, it.end) for it in evidence.incidents if it.inject_t < one.until_t]
    name = next((it.fault for it, end in ends if end and not end.get("healed")), "")
    return f"the nemesis could not heal {'it' if name == one.fault else name}" if name else ""


def proven(evidence: Evidence, one: Incident, told: Mapping[str, Verdict]) -> tuple[str, str]:
    """The same where training went on and nothing is wrong: recovered, if what was asked for proves it."""
    asked = evidence.job.plan.get("training") or {}
    needed = ["trained_on", "nothing_else_broke", *(check for check, key in ASKED.items() if asked.get(key))]
    needed += ["same_training"] if evidence.sameness.lacking(one.since) else []
    values = {check: it["verdict"] for check, it in told.items()}
    unknown = next((check for check in needed if values.get(check) == UNKNOWN), "")
    if unknown:
        known = values.get("trained_on") == PASS
        return UNPROVEN if known else INVALID, f"{unknown} cannot be told: {told[unknown]['why']}"
    return RECOVERED, told["full_speed"]["why"] if one.moments.get("full_speed") is None else ""


def went_wrong(evidence: Evidence, verdicts: Sequence[Verdict]) -> str:
    """The first check that failed, and why; that a job is slow afterwards is another matter. Empty: none did."""
    absolute = [verdict("as_configured", *answer, {}) for answer in evidence.absolute]
    failed = (it for it in (*verdicts, *absolute) if it["verdict"] == FAIL and it["check"] not in NOT_THE_TRAINING)
    return next((f"{it['check']}: {it['why']}" for it in failed), "")


def row(run: RunDir, evidence: Evidence, one: Incident, verdicts: Sequence[Verdict], *, alone: bool) -> dict[str, Any]:
    """One row of `trials`; `alone` when no other job of the run has faults."""
    result, why = outcome(evidence, one, verdicts)
    members = next(group for group in counted(evidence.incidents) if one in group)
    name = "..".join(dict.fromkeys((members[0].fault, members[-1].fault)))
    name = name if alone else f"{one.job.id}.{name}"
    return {
        "trial": one.job.id,
        "fault": one.fault,
        "kind": one.kind,
        "target": one.target,
        "phase": one.setting,
        "mechanism": one.mechanism,
        "case": one.case,
        "seed": int(one.plan.get("seed") or one.job.plan.get("seed") or 0),
        "outcome": result,
        "why": why,
        "evidence": one.evidence,
        "timeline": {name: None if t is None else round(t, 6) for name, t in one.moments.items()},
        "verdicts": {found["check"]: found["verdict"] for found in verdicts},
        "command": f"pg chaos replay runs/{run.suite}/{run.run_id} {name}",
    }


def of_run(
    every: Sequence[Evidence],
    recorded: Recorded,
    sealed: tuple[bool, Sequence[str]],
) -> Iterator[Verdict]:
    """The verdicts about the run as a whole; `sealed` is whether as complete, and what differs from the seal."""
    complete, problems = sealed
    yield from verdicts.sealed(problems)
    failed = [evidence.job for evidence in every if evidence.job.ok is False]
    for job in failed:
        yield verdict(
            "completed", FAIL, f"trial {job.id}: {job.why or 'the harness gave no reason'}", {"trial": job.id}
        )
    missing = [evidence.job.id for evidence in every if evidence.job.ok is None]
    why = str((recorded.end or {}).get("why") or ("" if recorded.end else "the run did not end by itself"))
    if missing or not complete:
        ended = f"incomplete: {len(every) - len(missing)} of {len(every)} jobs ended" + (f" ({why})" if why else "")
        yield verdict("completed", UNKNOWN, ended)
    elif not failed:
        said = f"all {len(every)} jobs, twins included, trained to their end"
        again = verdicts.attempts({evidence.job.id: evidence.job.earlier for evidence in every})
        yield verdict("completed", PASS, f"{said}; {again}" if again else said)


def of_jobs(broken: Sequence[Evidence], *, unsealed: bool) -> Iterator[Verdict]:
    """The verdicts about the final weights of each job, part by part."""
    for evidence in broken:
        where = {"trial": evidence.job.id}
        steps = sum(part.last - part.first + 1 for part in evidence.stretches)
        answer = (UNKNOWN, evidence.ledger.why_not)
        if not evidence.ledger.why_not:
            answer = checks.about_ledger(evidence, evidence.ledger.problems, steps)
        listed = [verdict("recorded", *gaps.recorded(evidence), where), verdict("exactly_once", *answer, where)]
        listed += [verdict("as_configured", *found, where) for found in evidence.absolute]
        listed += [
            verdict("same_training", *of_part(evidence, part), {**where, "part": part}) for part in parts_of(evidence)
        ]
        because = doubt(evidence, unsealed=unsealed)
        yield from (doubted(found, because) if because else found for found in listed)


def of_undisturbed(jobs: Sequence[Evidence]) -> Iterator[Verdict]:
    """The verdicts about twins and replays: a defect of theirs would be nobody's."""
    for evidence in jobs:
        where = {"trial": evidence.job.id}
        for answer in evidence.absolute:
            yield verdict("as_configured", *answer, where)
        if wrong := evidence.agreement.problems:
            yield verdict("ranks_agree", FAIL, wrong[0].why, where)


def parts_of(evidence: Evidence) -> list[str]:
    """The parts of the state that are judged: many a model has no buffers."""
    has_buffers = any(mark.buffers_sha256 for mark in evidence.job.fingerprints)
    return [part for part in sameness.PARTS if has_buffers or part != "buffers"]


def of_part(evidence: Evidence, part: str) -> checks.Answer:
    """One part of the state over the whole job."""
    found = evidence.sameness
    if found.why_not:
        return UNKNOWN, found.why_not
    if differing := found.differing(part):
        return FAIL, f"first differs from twin {found.twin} at step {differing[0].step}: {differing[0].why}"
    told = [judged for judged in found.judged if judged.part == part]
    since = min((one.since for one in evidence.incidents if one.injected), default=0)
    if lacking := [judged for judged in told if judged.lacking and judged.step > since]:
        return UNKNOWN, f"step {lacking[0].step}: {lacking[0].why}"
    equal = [step for step in found.steps(part) if step > since]  # what lies before the first fault proves nothing
    if not equal:
        late = [judged for judged in told if judged.step > since]
        return UNKNOWN, late[-1].why if late else f"nothing was recorded after the first fault, at step {since}"
    return PASS, f"like {found.names} at {len(equal)} fingerprints up to step {equal[-1]}"
