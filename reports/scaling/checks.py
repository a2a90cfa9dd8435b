"""The checks of a benchmark: each looks at the evidence and says pass, fail or unknown, and why.

Called by `results`. No evidence is unknown, never a pass. A check that crashes is unknown. `CHECKS` is the
whole list.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from proving_ground.reports import verdicts
from proving_ground.reports.figures import Figure, pick, pick_all
from proving_ground.reports.intervals import LEVEL, Interval, at_level, half_width
from proving_ground.reports.numbers import percent, percent_interval, plain, range_of
from proving_ground.reports.recovery.ledger import Ledger
from proving_ground.reports.scaling import scoreboard
from proving_ground.reports.scaling.cells import Cell, mostly_disturbed
from proving_ground.reports.scaling.measure import Measured
from proving_ground.reports.scaling.scoreboard import Prediction
from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN, Verdict, attempts, verdict

CONTENTION = "nodes share the cores: this shows contention, not scaling"
HALF_WIDTH_MAX = 0.03  # of the median throughput
ABOVE_BOUND_MAX = 5.0  # % that a step may take beyond what the link allows
BELOW_BOUND_MIN = -1.0  # % : a step that is shorter than the bound by more shows that something is wrong
REST_MAX = 2.0  # points of efficiency that may stay unexplained, lost or won
LEVELS = {"once": LEVEL, "first of two": 0.98, "second of two": 0.97}
"""How sure an interval must be to decide. Two looks err in at most 2 % + 3 % of cases (Bonferroni's inequality)."""
DECIDABLE = ("efficiency", "near_bound", "explained")
"""Checks that further repeats can decide."""
ONE_REPEAT = "cannot tell: one repeat, and its noise is not known"


@dataclass(frozen=True)
class Evidence:
    """All that a check may look at."""

    trials: Sequence[Measured]
    cells: Sequence[Cell]
    figures: Sequence[Figure]
    cluster: Mapping[str, Any]  # as in plan.json
    complete: bool
    seal_problems: Sequence[str] = ()
    end_why: str = ""  # the harness' own words on how the run ended; empty: well
    notes: Sequence[str] = field(default_factory=tuple)
    prediction: Prediction = field(default_factory=Prediction)
    look: str = "once"  # a key of LEVELS
    refused: Sequence[Mapping[str, Any]] = ()  # as in plan.json: sizes that were not run

    @property
    def level(self) -> float:
        """How sure an interval must be to decide."""
        return LEVELS[self.look]


def sealed(evidence: Evidence) -> Iterator[Verdict]:
    """The files are the ones that the run left."""
    yield from verdicts.sealed(evidence.seal_problems)


def completed(evidence: Evidence) -> Iterator[Verdict]:
    """Every planned trial ran to its end with all of its workers alive."""
    for trial in evidence.trials:
        if trial.failed:
            yield verdict("completed", FAIL, f"trial {trial.plan['id']}: {trial.failed}", trial.where)
    not_run = sum(trial.not_run for trial in evidence.trials)
    if not_run or not evidence.complete:
        because = f" ({evidence.end_why})" if evidence.end_why else ""
        done = len(evidence.trials) - not_run
        yield verdict("completed", UNKNOWN, f"incomplete: {done} of {len(evidence.trials)} trials ended{because}")
    elif not any(trial.failed for trial in evidence.trials):
        again = attempts({str(trial.plan["id"]): trial.earlier for trial in evidence.trials})
        said = f"all {len(evidence.trials)} trials ended well, with every worker alive"
        yield verdict("completed", PASS, f"{said}; {again}" if again else said)


def efficiency(evidence: Evidence) -> Iterator[Verdict]:
    """Each size keeps at least the share of one node's speed that the suite asks for (weak scaling)."""
    for cell in evidence.cells:
        bar = bar_of(cell, evidence.trials)
        if bar is not None:
            yield _efficiency(evidence, cell, 100 * bar)
    for it in evidence.refused:
        if it.get("bar") is not None:
            where = {"case": it["case"], "scaling": "weak", "nodes": it["nodes"], "bar": 100 * it["bar"]}
            why = str(it["why"]).removeprefix(f"{it['nodes']} nodes: ")
            yield verdict("efficiency", UNKNOWN, f"not measured: {why}", where)


def bar_of(cell: Cell, trials: Sequence[Measured]) -> float | None:
    """The suite's bar for a cell, 0 to 1; bars are for weak scaling."""
    bars = [trial.plan.get("efficiency_min") for trial in trials if trial.case_nodes == (cell.case, cell.nodes)]
    known = [bar for bar in bars if bar is not None]
    return float(known[0]) if known and cell.scaling == "weak" else None


def _efficiency(evidence: Evidence, cell: Cell, bar: float) -> Verdict:
    found = pick(evidence.figures, "efficiency", **cell.where)
    ends = at_level(found, evidence.level, ratio=True) if found else None
    slowed = slowed_idle_nodes(evidence, cell)
    value, why = _against_bar(found, ends and (ends[0] * slowed, ends[1]), bar, evidence.level)
    why += f"; idle nodes ran at {percent(100 * slowed)} of their pace beside it" if slowed < 1 else ""
    if found is None and any(trial.failed for trial in cell.discarded):
        why = "no repeat ran to its end"
    if found and found["where"]["base_nodes"] == cell.nodes:
        value, why = UNKNOWN, f"no smaller size than {cell.nodes} nodes was measured to compare with"
    elif found and (shaken := unsteady(evidence, found["where"])):
        value, why = UNKNOWN, shaken
    elif shares_cores(cell, evidence.cluster):
        value, why = UNKNOWN, CONTENTION
    return verdict("efficiency", value, why, {**cell.where, "bar": bar})


def slowed_idle_nodes(evidence: Evidence, cell: Cell) -> float:
    """The share of their pace that the job left to idle nodes, where that is surely below 1.

    They are what it is compared with (`pace`). What it took from them it may lose on machines of its own, so
    the interval of its efficiency may begin as much lower.
    """
    found = pick(evidence.figures, "idle_pace", **cell.where)
    return float(found["median"]) / 100 if found and found["ci95"] and found["ci95"][1] < 100 else 1.0


def _against_bar(found: Figure | None, ends: Interval | None, bar: float, level: float) -> tuple[str, str]:
    """An interval that lies wholly on one side of the bar decides, however wide; one that holds the bar never does.

    More than 100 % is odd: more nodes do not make one faster, so the smallest size was slower than it should be. It is
    said, and beyond what may stay unexplained it supports no pass.
    """
    if found is None:
        return UNKNOWN, "not measured"
    if ends is None:
        return UNKNOWN, f"cannot tell: {percent(found['median'])} is one repeat, and its noise is not known"
    said = f"{percent(found['median'])} ({percent_interval(ends)}{sure(level)})"
    value = against(ends, bar, math.inf)
    if beyond := odd(found):
        return (UNKNOWN if ends[0] > 100 + REST_MAX else value), f"{said} ≥ {bar:g} %, but odd: {beyond}"
    sides = {PASS: f"{said} ≥ {bar:g} %", FAIL: f"{said} < {bar:g} %"}
    return value, sides.get(value, f"cannot tell: {said} lies on both sides of {bar:g} %")


def sure(level: float) -> str:
    """` at 98 %`: the level of an interval that is not of 95 %."""
    return "" if level == LEVEL else f" at {100 * level:g} %"


def against(ends: Sequence[float], low: float, high: float) -> str:
    """Pass where a whole interval lies from `low` to `high`, fail where all of it lies outside, else unknown."""
    if ends[1] < low or ends[0] > high:
        return FAIL
    return PASS if low <= ends[0] and ends[1] <= high else UNKNOWN


def odd(found: Figure) -> str:
    """Why an efficiency cannot be what it seems: all of its interval lies above 100 %; empty where it does not."""
    if found["ci95"] is None or found["ci95"][0] <= 100:
        return ""
    base = found["where"]["base_nodes"]
    return f"above 100 %, so what it is compared with, the job on {base} node{'s' * (base > 1)}, was slow"


def unsteady(evidence: Evidence, where: Mapping[str, Any]) -> str:
    """Why no verdict rests on a figure: its size or that which it is compared with was disturbed; empty where not."""
    at = {cell.nodes: cell for cell in evidence.cells if cell.group == (where["case"], where["scaling"])}
    own, base = at.get(where["nodes"]), at.get(where.get("base_nodes", where["nodes"]))
    if own and own.disturbed:
        return "cannot tell: the machine was not steady in most repeats"
    if base and base.disturbed:
        size = f"{base.nodes} node{'s' * (base.nodes > 1)}"
        return f"cannot tell: the machine was not steady in most repeats on {size}, which this is compared with"
    return ""


def shares_cores(cell: Cell, cluster: Mapping[str, Any]) -> bool:
    """Whether its nodes compete for the same cores without shares, so that more nodes cannot be faster."""
    said = [*cluster.get("imitated", ()), *(text for trial in cell.counted for text in trial.plan.get("imitated", ()))]
    if any("contention" in text for text in said):
        return True
    no_shares = any(not trial.plan.get("cpus_per_node") for trial in cell.counted)
    real_compute = any(trial.plan.get("compute", "real") == "real" for trial in cell.counted)
    return cell.label == "emulated" and real_compute and no_shares


def near_bound(evidence: Evidence) -> Iterator[Verdict]:
    """Under weak scaling, a step takes at most so much longer than the link allows; nor can it be shorter."""
    for found in pick_all(evidence.figures, "above_bound", scaling="weak"):
        ends = at_level(found, evidence.level, ratio=False)
        value, why = _near_bound(found["median"], ends, evidence.level) if ends else (UNKNOWN, ONE_REPEAT)
        if shaken := unsteady(evidence, found["where"]):
            value, why = UNKNOWN, shaken
        yield verdict("near_bound", value, why, {**found["where"], "bar": ABOVE_BOUND_MAX})


def _near_bound(median: float, ends: Sequence[float], level: float) -> tuple[str, str]:
    said = f"{percent(median)} ({percent_interval(ends)}{sure(level)}) above the bound"
    if ends[1] < BELOW_BOUND_MIN:
        return UNKNOWN, f"{said}: faster than the link allows, so link or profile were not what the plan says"
    value = against(ends, -math.inf, ABOVE_BOUND_MAX)
    if value == UNKNOWN:
        return value, f"cannot tell: {said}, on both sides of {ABOVE_BOUND_MAX:g} %"
    return value, f"{said}, at most {ABOVE_BOUND_MAX:g} % asked"


def explained(evidence: Evidence) -> Iterator[Verdict]:
    """Under weak scaling, the measured causes account for what was lost; a trainer without parts claims nothing.

    Gaps in single steps are named, not explained: where they surely cost more, nothing is proven.
    """
    for found in pick_all(evidence.figures, "lost", part="rest", scaling="weak"):
        where = {key: found["where"][key] for key in ("case", "workload", "scaling", "nodes")}
        ends = at_level(found, evidence.level, ratio=False)
        value, why = _explained(found["median"], ends, evidence.level) if ends else (UNKNOWN, ONE_REPEAT)
        gaps = pick(evidence.figures, "lost", **{**found["where"], "part": "stall"})
        lost = at_level(gaps, evidence.level, ratio=False) if gaps else None
        if value == PASS and lost and lost[0] > REST_MAX:
            value, why = (
                UNKNOWN,
                f"gaps in single steps cost {range_of(lost, 1)} points, and nobody knows what lay there",
            )
        if shaken := unsteady(evidence, found["where"]):
            value, why = UNKNOWN, shaken
        yield verdict("explained", value, why, where)


def _explained(median: float, ends: Sequence[float], level: float) -> tuple[str, str]:
    said = f"{plain(median, 1)} points ({range_of(ends, 1)}{sure(level)}) are unexplained"
    value = against(ends, -REST_MAX, REST_MAX)
    if value == UNKNOWN:
        return value, f"cannot tell: {said}, both less and more than ±{REST_MAX:g}"
    return value, f"{said}, {'at most' if value == PASS else 'more than'} ±{REST_MAX:g}"


def predicted(evidence: Evidence) -> Iterator[Verdict]:
    """What was predicted from the smallest sizes is what was measured later."""
    found = scoreboard.judge(evidence.prediction, evidence.figures)
    if found is None:
        return
    scored = pick_all(evidence.figures, "prediction_error", scaling="weak")
    shaken = [why for it in scored if (why := unsteady(evidence, it["where"]))]
    if shaken or (shaken := unsteady_before(evidence)):
        found = UNKNOWN, shaken[0]
    yield verdict("predicted", *found)


def unsteady_before(evidence: Evidence) -> list[str]:
    """Sizes in block a, from which it was predicted, that were disturbed in most repeats; in words."""
    sizes: dict[tuple[str, int], list[Measured]] = {}
    for trial in evidence.trials:
        if trial.plan.get("block") == "a":
            sizes.setdefault(trial.case_nodes, []).append(trial)
    return [
        f"cannot tell: the machine was not steady in most repeats of {case} on {nodes}, from which it was predicted"
        for (case, nodes), trials in sizes.items()
        if mostly_disturbed(trials)
    ]


def stable(evidence: Evidence) -> Iterator[Verdict]:
    """The machine was steady while most repeats of a size were measured."""
    for cell in evidence.cells:
        trials = [trial for trial in (*cell.counted, *cell.discarded) if trial.good]
        if not trials:
            continue
        flagged = [trial for trial in trials if trial.flags]
        if not any(trial.watched for trial in trials):
            yield verdict("stable", UNKNOWN, "the machine's CPU counters were not recorded", cell.where)
        elif cell.disturbed:
            why = f"{len(flagged)} of {len(trials)} repeats disturbed: {flagged[0].flags[0]}"
            yield verdict("stable", UNKNOWN, why, cell.where)
        else:
            yield verdict(
                "stable", PASS, f"{len(trials) - len(flagged)} of {len(trials)} repeats undisturbed", cell.where
            )


def ranks_agree(evidence: Evidence) -> Iterator[Verdict]:
    """All ranks have the same weights after every step of which they recorded a fingerprint; else it is no training."""
    compared = [trial for trial in evidence.trials if trial.agreement.compared]
    for trial in compared:
        if wrong := trial.agreement.problems:
            yield verdict("ranks_agree", FAIL, f"trial {trial.plan['id']}: {wrong[0].why}", trial.where)
    asked = [it for it in evidence.trials if it.good and it.plan["nodes"] > 1 and fingerprints_asked(it)]
    if missing := [it for it in asked if it not in compared]:
        why = missing[0].agreement.why_not
        yield verdict("ranks_agree", UNKNOWN, f"trial {missing[0].plan['id']}: {why}", missing[0].where)
    elif compared and not any(trial.agreement.problems for trial in compared):
        count = sum(len(trial.agreement.compared) for trial in compared)
        said = f"the same weights on all ranks at {count} fingerprints of {len(compared)} trials"
        yield verdict("ranks_agree", PASS, said)


def exactly_once(evidence: Evidence) -> Iterator[Verdict]:
    """Each training that recorded its samples learned from all of them once before any came again."""
    for trial in evidence.trials:
        asked = (trial.plan.get("training") or {}).get("ledger")
        if trial.good and (asked or not trial.ledger.why_not):
            value, why = _exactly_once(trial.ledger)
            yield verdict("exactly_once", value, f"trial {trial.plan['id']}: {why}", trial.where)


def _exactly_once(ledger: Ledger) -> tuple[str, str]:
    wrong = [problem for problem in ledger.problems if not problem.proof_needed]
    if wrong:
        return FAIL, wrong[0].why + (f", and {len(wrong) - 1} steps more" if len(wrong) > 1 else "")
    if unknown := ledger.why_not or ledger.doubt or next((problem.why for problem in ledger.problems), ""):
        return UNKNOWN, unknown
    return PASS, f"{ledger.samples:,} samples learned, none again before all of the data set had come"


def quality(evidence: Evidence) -> Iterator[Verdict]:
    """Each training that ran to its end made a model as good as the suite asks for: speed alone is no training."""
    for trial in evidence.trials:
        bars = (trial.plan.get("quality_min") or {}) if trial.good else {}
        for metric, bar in bars.items():
            value, why = _quality(trial, metric, float(bar))
            yield verdict("quality", value, why, {**trial.where, "metric": metric, "bar": bar})


def _quality(trial: Measured, metric: str, bar: float) -> tuple[str, str]:
    found = {split: it["value"] for (split, name), it in trial.quality.items() if name == metric and "value" in it}
    if not found:
        return UNKNOWN, f"trial {trial.plan['id']}: {metric} was not evaluated; set eval_every = 0"
    split, value = next(iter(found.items()))
    said = f"trial {trial.plan['id']}: {metric} ({split}) {value:.4g}"
    return (PASS, f"{said} ≥ {bar:g}") if value >= bar else (FAIL, f"{said} < {bar:g}")


def fingerprints_asked(trial: Measured) -> bool:
    """Whether the suite has ranks record what their state is."""
    return bool((trial.plan.get("training") or {}).get("fingerprint_every"))


def labels(evidence: Evidence) -> Iterator[Verdict]:
    """What is called real has nothing standing in for anything, and what is called emulated says what is."""
    for trial in evidence.trials:
        label, imitated = (
            trial.plan.get("label"),
            [*trial.plan.get("imitated", ()), *evidence.cluster.get("imitated", ())],
        )
        if label == "real" and (imitated or trial.plan.get("compute") == "paced"):
            why = f"trial {trial.plan['id']} is called real, but {(imitated or ['its compute is paced'])[0]}"
            yield verdict("labels", FAIL, why, trial.where)
            return
        if label != "real" and not imitated:
            yield verdict(
                "labels", UNKNOWN, f"trial {trial.plan['id']} is called {label}, and nothing says why", trial.where
            )
            return
    yield verdict("labels", PASS, "every figure says what it rests on")


CHECKS: dict[str, Callable[[Evidence], Iterator[Verdict]]] = {
    "sealed": sealed,
    "completed": completed,
    "efficiency": efficiency,
    "near_bound": near_bound,
    "explained": explained,
    "predicted": predicted,
    "stable": stable,
    "ranks_agree": ranks_agree,
    "exactly_once": exactly_once,
    "quality": quality,
    "labels": labels,
}


def judge(evidence: Evidence) -> list[Verdict]:
    """All verdicts of all checks. Files that are not as sealed are no evidence: then all is unknown."""
    verdicts: list[Verdict] = []
    for name, check in CHECKS.items():
        try:
            verdicts += list(check(evidence))
        except Exception as error:  # noqa: BLE001 - a crashed check is unknown, whatever it crashed on
            verdicts.append(verdict(name, UNKNOWN, f"the check itself failed: {type(error).__name__}: {error}"))
    if not evidence.seal_problems:
        return verdicts
    return [
        v if v["check"] == "sealed" else {**v, "verdict": UNKNOWN, "why": f"not as sealed; else: {v['why']}"}
        for v in verdicts
    ]


def undecided(verdicts: Sequence[Verdict], cells: Sequence[Cell]) -> list[Verdict]:
    """Verdicts that are open and that further repeats could decide: not where sizes cannot be compared at all."""
    base = {case: min(cell.nodes for cell in cells if cell.case == case) for case in {cell.case for cell in cells}}
    found = [it for it in verdicts if it["check"] in DECIDABLE and it["verdict"] == UNKNOWN]
    run = {(cell.case, cell.nodes) for cell in cells if cell.nodes != base[cell.case]}
    where = ((it, (it["where"].get("case"), it["where"].get("nodes"))) for it in found if it["why"] != CONTENTION)
    return [it for it, place in where if place in run]


def noisy(found: Figure) -> bool:
    """Whether a throughput is too noisy to be quoted without saying so."""
    return half_width(found["median"], found["ci95"]) > HALF_WIDTH_MAX
