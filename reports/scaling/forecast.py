"""`prediction.json`: what the fit on block A says of every other size, written before block B runs.

Called by `pg reports predict` (in a run: by the harness, between the blocks). The fit sees the trials of block A
and nothing else; `scoreboard` sets it beside what block B measured.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Any

import numpy as np

from proving_ground.bench import rundir
from proving_ground.bench.bound import sent
from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.reports import history
from proving_ground.reports.scaling import measure, predict
from proving_ground.reports.scaling.measure import Measured
from proving_ground.reports.scaling.predict import Fitted, LinkDraws, PlannedStep

SCHEMA = "proving-ground/prediction/1"
BEYOND = (16, 32, 128)  # sizes that are predicted whether they are run or not
STEP_NOISE = 0.002  # of a step: least standard deviation of a repeat, where so few repeats agree by luck


@dataclass(frozen=True)
class Source:
    """One case at one kind of scaling: what block A measured of it, by number of nodes."""

    case: str
    workload: str
    scaling: str
    trials: Mapping[int, Sequence[Measured]]

    @property
    def sizes(self) -> list[int]:
        """The sizes with a good repeat, ascending."""
        return sorted(self.trials)

    @property
    def plan(self) -> Mapping[str, Any]:
        """A trial of the smallest size, as planned."""
        return self.trials[self.sizes[0]][0].plan


def write(run: RunDir) -> dict[str, Any]:
    """Fit block A and write `prediction.json`, whole and once; the document.

    Raises:
        RunDirError: it exists, block B has begun, there is no block A, or nothing in it can be fitted.
    """
    if (run.path / "prediction.json").exists():
        raise RunDirError(f"{run.path}: prediction.json exists already, and a prediction is made once")
    plan = run.read("plan")
    refuse_late(run, plan)
    made = document(plan, block_a(run, plan), evidence(run, plan))
    run.write("prediction", made | {"wall_s": time.time()})
    return made


def refuse_late(run: RunDir, plan: Mapping[str, Any]) -> None:
    """A prediction is none once what it predicts has begun.

    Raises:
        RunDirError: block B has begun, or the run is over.
    """
    later = {str(trial["id"]) for trial in plan["trials"] if trial.get("block") == "b"}
    harness = run.events / "harness.jsonl"
    begun = [record for record in rundir.read_events(harness) if record["event"] == "trial_start"]
    if any(record["trial"] in later for record in begun) or (run.path / "seal.json").exists():
        raise RunDirError(f"{run.path}: block b has begun, so there is nothing left to predict; start a new run")


def evidence(run: RunDir, plan: Mapping[str, Any]) -> str:
    """SHA-256 over the event files of block A: all that the fit has seen."""
    seen = {str(trial["id"]) for trial in plan["trials"] if trial.get("block") == "a"}
    digest = hashlib.sha256()
    for file in sorted(run.events.glob("*.jsonl")):
        if file.name.partition(".")[0] in seen:
            digest.update(f"{file.name} {rundir.sha256(file)}\n".encode())
    return digest.hexdigest()


def block_a(run: RunDir, plan: Mapping[str, Any]) -> list[Measured]:
    """The trials of block A, measured; nothing of any other trial is read.

    Raises:
        RunDirError: the plan has none.
    """
    planned = [trial for trial in plan["trials"] if trial.get("block") == "a"]
    if not planned:
        raise RunDirError(f"{run.path}: its plan has no block a to fit; the suite needs `predict_from`")
    names = {str(trial["id"]) for trial in planned}
    notes: list[str] = []
    records = history.records(run, problems=None, notes=notes)
    found = history.collect(record for record in records if record.get("trial") in names)
    return [measure.measure(trial, found.trials.get(str(trial["id"]))) for trial in planned]


def document(plan: Mapping[str, Any], trials: Sequence[Measured], seen: str) -> dict[str, Any]:
    """What is predicted, from what, and what could not be.

    Raises:
        RunDirError: nothing can be fitted; says why for the first case.
    """
    fitted, refused = {}, []
    for source in sources(trials):
        try:
            fitted[source.case, source.scaling] = source, fit(source, plan.get("profiles", {}))
        except RunDirError as error:
            refused.append({"case": source.case, "scaling": source.scaling, "why": str(error)})
    if not fitted:
        raise RunDirError(f"nothing can be predicted: {refused[0]['why']}" if refused else "block a has no trials")
    rng = np.random.default_rng(predict.SEED)
    links = {rate: predict.fit_link([case for _, case in group], rng) for rate, group in by_link(fitted).items()}
    predicted = [row for source, case in fitted.values() for row in rows(source, case, links, plan, rng)]
    return {
        "schema": SCHEMA, "fitted_from": sorted({trial.plan["nodes"] for trial in trials}),
        "trials": [str(trial.plan["id"]) for trial in trials], "events_sha256": seen,
        "links": {f"{rate:g}": link.document() for rate, link in links.items()},
        "predictions": predicted, "refused": refused,
    }  # fmt: skip


def sources(trials: Sequence[Measured]) -> list[Source]:
    """The good trials by case and scaling."""
    found: dict[tuple[str, str, str], dict[int, list[Measured]]] = {}
    for trial in trials:
        for scaling in trial.plan["scaling"]:
            sizes = found.setdefault((trial.plan["case"], trial.plan["workload"], scaling), {})
            if trial.good:
                sizes.setdefault(int(trial.plan["nodes"]), []).append(trial)
    return [Source(*key, sizes) for key, sizes in found.items()]


def by_link(fitted: Mapping[tuple[str, str], tuple[Source, Fitted]]) -> dict[float, list[tuple[Source, Fitted]]]:
    """All that shares a link rate is fitted together."""
    groups: dict[float, list[tuple[Source, Fitted]]] = {}
    for source, case in fitted.values():
        groups.setdefault(float(source.plan["link_mbps"]), []).append((source, case))
    return groups


def fit(source: Source, profiles: Mapping[str, Any]) -> Fitted:
    """What the smallest and the next size measured of a case.

    Raises:
        RunDirError: a size is missing, or nothing is known of the gradients.
    """
    if len(source.sizes) < 2:
        sizes = ", ".join(map(str, source.sizes)) or "none"
        raise RunDirError(
            f"{source.case}, {source.scaling}: a fit needs two sizes, and these ran to their end: {sizes}"
        )
    small, large = source.sizes[:2]
    steps = {nodes: [float(trial.seconds.mean()) for trial in source.trials[nodes]] for nodes in (small, large)}
    wait = mean(trial.parts.get("wait", 0.0) for trial in source.trials[large])
    small_job, large_job = (job(source.trials[nodes][0].plan, nodes, profiles) for nodes in (small, large))
    repeats = min(map(len, steps.values()))
    return Fitted(small_job, average(steps[small]), large_job, average(steps[large]), wait, repeats)


def average(values: Sequence[float]) -> tuple[float, float]:
    """Mean and its standard error, no smaller than `STEP_NOISE` allows."""
    spread = max(stdev(values) if len(values) > 1 else 0.0, STEP_NOISE * mean(values))
    return mean(values), float(spread / len(values) ** 0.5)


def job(plan: Mapping[str, Any], nodes: int, profiles: Mapping[str, Any], **changed: Any) -> PlannedStep:  # noqa: ANN401 - JSON
    """A planned trial at a number of nodes, perhaps with other settings (`bucket_mb`, `compression`, `load` …).

    Raises:
        RunDirError: the trial has no bound, or its profile is not there or another model's.
    """
    profile = profile_of(plan, profiles)
    settings = {**plan["bound"]["settings"], "link_mbps": plan["link_mbps"], **changed}
    micro = settings["pace"] * settings["load"] / settings["accumulate"]  # of the profile's times, a micro-batch
    made = sent(profile, settings)
    backward_s = profile["backward_s"] * micro
    compute_s = (profile["forward_s"] + profile["backward_s"]) * settings["pace"] * settings["load"]
    buckets = tuple(type(it)(it.wire_bytes, it.ready_s * micro) for it in made)
    optimizer_s = profile["optimizer_s"] * settings["pace"]
    return PlannedStep(nodes, compute_s + optimizer_s, backward_s, buckets, settings["link_mbps"] * 1e6 / 8)


def profile_of(plan: Mapping[str, Any], profiles: Mapping[str, Any]) -> Mapping[str, Any]:
    """The profile that paced a trial, as the run's own plan has it.

    Raises:
        RunDirError: there is none, or it is another model's.
    """
    name = f"case {plan['case']}"
    if not plan.get("profile") or not (plan.get("bound") or {}).get("settings"):
        raise RunDirError(f"{name}: nothing is known of its gradients: no profile and link rate in the plan")
    profile: Mapping[str, Any] | None = profiles.get(plan["profile"]["name"])
    if profile is None:
        raise RunDirError(f"{name}: the plan lacks the profile {plan['profile']['name']!r}")
    if plan["workload"] != profile["model"]:
        raise RunDirError(
            f"{name}: profile {plan['profile']['name']!r} is of {profile['model']}, not {plan['workload']}"
        )
    return profile


def rows(
    source: Source, case: Fitted, links: Mapping[float, LinkDraws], plan: Mapping[str, Any], rng: np.random.Generator
) -> Iterator[dict[str, Any]]:
    """The predictions of one case: every size of the plan and beyond that the fit has not seen."""
    planned = {int(it["nodes"]) for it in plan["trials"] if it["case"] == source.case}
    base = source.plan["bound"]["settings"]["load"]
    for nodes in sorted({*planned, *BEYOND} - set(source.sizes)):
        growth = 1.0 if source.scaling == "weak" else source.sizes[0] / nodes
        there = job(source.plan, nodes, plan["profiles"], load=base * growth)
        found = predict.predict(case, links[float(source.plan["link_mbps"])], there, growth, rng)
        yield {
            "case": source.case, "workload": source.workload, "scaling": source.scaling, "nodes": nodes,
            "base_nodes": source.sizes[0], "step_s": found.step_s, "efficiency": found.efficiency,
        }  # fmt: skip


def lines(made: Mapping[str, Any]) -> Iterator[str]:
    """The prediction for people: one line a case and scaling."""
    yield f"predicted from {' and '.join(map(str, made['fitted_from']))} nodes, before any other size runs:"
    for case, scaling in dict.fromkeys((row["case"], row["scaling"]) for row in made["predictions"]):
        own = [row for row in made["predictions"] if (row["case"], row["scaling"]) == (case, scaling)]
        said = ", ".join(f"{100 * row['efficiency'][0]:.1f} % at {row['nodes']}" for row in own)
        yield f"  {case}, {scaling}: {said} nodes"
    for row in made["refused"]:
        yield f"  {row['case']}, {row['scaling']}: not predicted: {row['why']}"
