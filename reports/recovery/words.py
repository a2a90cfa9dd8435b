"""The sentences of a chaos run, made from its trials and figures. Used by the terminal and the page alike."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import median
from typing import Any

from proving_ground.reports import numbers, verdicts
from proving_ground.reports.figures import Figure, pick, pick_all
from proving_ground.reports.independence import Jobs, bounded_percentile, effective_n
from proving_ground.reports.looks import elsewhere, shown_path
from proving_ground.reports.recovery import effective
from proving_ground.reports.recovery.figures import GROUP, RESUMED, WENT_ON, figure
from proving_ground.reports.recovery.results import INVALID, RECOVERED, SLOW, STUCK, UNPROVEN, WRONG, Analysis, worst
from proving_ground.reports.recovery.sameness import BITWISE

OUTCOMES = (RECOVERED, UNPROVEN, WRONG, STUCK, SLOW, INVALID)
SIGN = {RECOVERED: "✓", UNPROVEN: "~", WRONG: "✗", STUCK: "■", SLOW: "▾", INVALID: "?"}
VALUE = {
    RECOVERED: verdicts.PASS, UNPROVEN: verdicts.UNKNOWN, WRONG: verdicts.FAIL, STUCK: verdicts.FAIL,
    SLOW: verdicts.FAIL, INVALID: verdicts.UNKNOWN,
}  # fmt: skip
"""Outcome → the verdict whose colour it has."""

VERBS = {
    WRONG: "went wrong", STUCK: "got stuck", SLOW: "stayed slow",
    UNPROVEN: "trained on without proof of being the same training", INVALID: "cannot be judged",
}  # fmt: skip
MOST = 100.0  # % of the wall time that goodput can be
SHORT = 16  # letters of a name in the title
SAME_TITLE = {
    verdicts.PASS: "still the same training", verdicts.FAIL: "the training changed",
    verdicts.UNKNOWN: "same training: not known",
}  # fmt: skip

Trial = Mapping[str, Any]


@dataclass(frozen=True)
class Combination:
    """All trials of one kind of fault at one phase under one mechanism in one case."""

    kind: str
    phase: str
    mechanism: str
    case: str
    trials: Sequence[Trial]

    @property
    def where(self) -> dict[str, str]:
        """What its figures are about."""
        return {"kind": self.kind, "phase": self.phase, "mechanism": self.mechanism, "case": self.case}

    @property
    def outcome(self) -> str:
        """The worst of its trials' outcomes."""
        return worst([str(trial["outcome"]) for trial in self.trials])

    @property
    def counts(self) -> str:
        """`3 of 3`."""
        return f"{sum(trial['outcome'] == RECOVERED for trial in self.trials)} of {len(self.trials)}"

    @property
    def resumed(self) -> str:
        """`3 of 3`: training went on at full speed, whether or not it is proven to be the same."""
        return f"{sum(trial['outcome'] in RESUMED for trial in self.trials)} of {len(self.trials)}"


def cells(analysis: Analysis) -> list[Combination]:
    """Every combination that was tried, in the order in which it was."""
    found: dict[tuple[str, str, str, str], list[Trial]] = {}
    for trial in analysis.trials:
        found.setdefault((trial["kind"], trial["phase"], trial["mechanism"], trial["case"]), []).append(trial)
    return [Combination(*key, trials) for key, trials in found.items()]


def name_of(analysis: Analysis, where: Mapping[str, Any]) -> str:
    """`node_kill`, with mechanism and case where the run has several of that kind."""
    trials = [trial for trial in analysis.trials if trial["kind"] == where["kind"]]
    several = [key for key in ("mechanism", "case") if len({trial[key] for trial in trials}) > 1]
    return " · ".join(dict.fromkeys([str(where["kind"]), *(str(where[key]) for key in several)]))


def counted_time(analysis: Analysis, cell: Combination) -> Figure | None:
    """Until training went on, of every trial after which it did; what the fault was held for is left out.

    Of trials that went wrong too: how long is one question, whether it is the same training another.
    """
    mine = {(trial["trial"], trial["fault"]) for trial in cell.trials}
    own = [one for one, _ in analysis.recoveries if (one.job.id, one.fault) in mine]
    values = [seconds for one in own if (seconds := effective.recovery_s(one)) is not None]
    return figure("recovery", "s", "", values, cell.where) if values else None


def same(cell: Combination) -> str:
    """The verdict on whether it is still the same training: the worst over its trials."""
    return verdicts.worst([str(trial["verdicts"].get("same_training", verdicts.UNKNOWN)) for trial in cell.trials])


SAME = {verdicts.PASS: "yes", verdicts.FAIL: "no", verdicts.UNKNOWN: "not known"}


def title(analysis: Analysis) -> str:
    """The answer in at most two short lines: what recovered, and whether it is the same training."""
    kinds = outcomes_by_kind(analysis)
    if not kinds:
        return "No fault was planned"
    good = [kind for kind, outcomes in kinds.items() if set(outcomes) <= set(RESUMED)]
    every = len(kinds) == len(good) > 1
    begin = all_kinds(kinds) if every else f"{len(good)} of {plural(len(kinds), 'kind')} of fault"
    begin = f"Training went on after {begin[0].lower()}{begin[1:]}" if unproven(analysis) else f"{begin} recovered"
    bad = {
        outcome: [kind for kind, found in kinds.items() if outcome in found]
        for outcome in (WRONG, STUCK, SLOW, INVALID)
    }
    found = {outcome: names for outcome, names in bad.items() if names}
    said = ", ".join(f"{len(names)} {outcome}" for outcome, names in found.items())
    if [len(names) for names in found.values()] == [1]:
        ((outcome, (name,)),) = found.items()
        said = f"{name if len(name) <= SHORT else 'one'} {VERBS[outcome]}"
    return f"{begin}; {said or SAME_TITLE[sameness_of(analysis)]}"


def all_kinds(kinds: Mapping[str, object]) -> str:
    """`Both kinds of fault`, `All 4 kinds of fault`."""
    return "Both kinds of fault" if len(kinds) == 2 else f"All {len(kinds)} kinds of fault"


def unproven(analysis: Analysis) -> bool:
    """Whether there is a trial after which training went on, and nobody knows whether it is the same one."""
    return any(trial["outcome"] == UNPROVEN for trial in analysis.own_trials)


def outcomes_by_kind(analysis: Analysis) -> dict[str, list[str]]:
    """Kind of fault → the outcomes of its trials."""
    kinds: dict[str, list[str]] = {}
    for trial in analysis.own_trials:
        kinds.setdefault(trial["kind"], []).append(trial["outcome"])
    return kinds


def sameness_of(analysis: Analysis) -> str:
    """Whether it stayed the same training after all faults."""
    judged = [str(trial["verdicts"].get("same_training", verdicts.UNKNOWN)) for trial in analysis.own_trials]
    return verdicts.worst(judged) if judged else verdicts.UNKNOWN


def headline(analysis: Analysis) -> str:
    """The answer in a sentence or three."""
    begin = "" if analysis.complete else "This run is incomplete. "
    said = [recovered(analysis), slowest(analysis), sameness(analysis)]
    return begin + " ".join(f"{line[0].upper()}{line[1:]}." for line in said if line)


def recovered(analysis: Analysis) -> str:
    """`3 of 4 kinds of fault recovered; checkpoint_bitflip went wrong`."""
    kinds = outcomes_by_kind(analysis)
    good = [kind for kind, outcomes in kinds.items() if set(outcomes) == {RECOVERED}]
    if not kinds:
        return "no fault was planned"
    bad = []
    for outcome, verb in VERBS.items():
        if named := [kind for kind, outcomes in kinds.items() if outcome in outcomes]:
            shown = ", ".join(named[:4]) + (f" and {len(named) - 4} more" if len(named) > 4 else "")
            bad.append(f"{shown} {verb}")
    every = len(kinds) == len(good) > 1
    count = all_kinds(kinds) if every else f"{len(good)} of {plural(len(kinds), 'kind')} of fault"
    return "; ".join([f"{count} recovered ({plural(len(analysis.own_trials), 'fault')} in all)", *bad])


def slowest(analysis: Analysis) -> str:
    """`slowest typical time to recovery 1.4 s (node_kill), 1.8 s at most in 12 recoveries`."""
    times = stopped_times(analysis)
    if not times:
        return ""
    cell, worst = max(times, key=lambda it: float(it[1]["median"]))
    every = [value for _, found in times for value in found["values"]]
    where = f"{name_of(analysis, cell.where)}{at_phase(cell.phase)}"
    at_most = f", {max(every):.2f} s at most in {len(every)} recoveries" if len(every) > 1 else ""
    stuck = sum(trial["outcome"] == STUCK for trial in analysis.own_trials)
    at_most += f", and {stuck} got stuck" if stuck else ""
    held = [found for found in pick_all(analysis.own_figures, "held_s") if found["median"]]
    without = "; the time for which faults were held is not in it" if held else ""
    return f"slowest typical time to recovery {worst['median']:.2f} s ({where}){at_most}{without}"


def clock_bound(analysis: Analysis) -> str:
    """`Times between nodes are right to 0.4 ms by their clocks.`; nothing where all share one."""
    worst_s = max((float(it.get("clock_error_s", 0)) for it in analysis.figures), default=0.0)
    return f"Times between nodes are right to {1000 * worst_s:.2g} ms by their clocks." if worst_s else ""


def stopped_times(analysis: Analysis) -> list[tuple[Combination, Figure]]:
    """(combination, its time to recovery) of those that interrupt training, baselines left out."""
    own = [cell for cell in cells(analysis) if not all(trial.get("peer") for trial in cell.trials)]
    stopped = [cell for cell in own if pick(analysis.figures, "resume", **cell.where)]
    return [(cell, found) for cell in stopped if (found := counted_time(analysis, cell))]


PHASES = {
    "step": "at a step",
    "forward": "in forward",
    "allreduce": "in the all-reduce",
    "before_checkpoint": "before a checkpoint",
    "checkpoint_write": "in a checkpoint's write",
    "before_rename": "before its rename",
    "recovery": "in a recovery",
    "overlap": "overlapping with others",
}


def at_phase(phase: str) -> str:
    """` in the all-reduce`, or nothing."""
    return "" if phase == "step" else f" {PHASES.get(phase, phase)}"


def sameness(analysis: Analysis) -> str:
    """What the checks on the state say, over all trials."""
    judged = [trial["verdicts"].get("same_training") for trial in analysis.own_trials]
    told = (v for v in own_verdicts(analysis) if v["check"] == "same_training" and v["where"].get("fault"))
    whys = [(v["why"], v["verdict"]) for v in told]
    if verdicts.FAIL in judged:
        return f"the training was not the same after {plural(judged.count(verdicts.FAIL), 'fault')}"
    good = judged.count(verdicts.PASS)
    if not good:
        return "whether it stayed the same training cannot be told"
    bitwise = all(why.endswith(BITWISE) for why, value in whys if value == verdicts.PASS)
    which = "every one of them" if good == len(judged) else f"the {good} of {len(judged)} faults that can be judged"
    return f"the training stayed {'bitwise ' if bitwise else ''}the same after {which}"


def verdict_line(analysis: Analysis) -> str:
    """The verdict and what it stands for."""
    value = verdicts.overall(analysis.verdicts)
    said, beside = counted(analysis.own_trials), counted([it for it in analysis.trials if it.get("peer")])
    said += f"; set beside it: {beside}" if beside else ""
    more = {verdicts.PASS: "", verdicts.FAIL: "", verdicts.UNKNOWN: "; this run cannot tell all, which is no pass"}[
        value
    ]
    return f"{value} ({said or 'no trials'}{more})"


def counted(trials: Sequence[Trial]) -> str:
    """`20 recovered, 1 stuck`."""
    counts = {outcome: sum(trial["outcome"] == outcome for trial in trials) for outcome in OUTCOMES}
    return ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)


def own_verdicts(analysis: Analysis) -> list[verdicts.Verdict]:
    """Those that the run is judged by."""
    return [v for v in analysis.verdicts if not v["where"].get("peer")]


def reasons(analysis: Analysis, most: int = 6) -> list[str]:
    """Why it is no pass, once each; the first `most` of them."""
    value = verdicts.overall(analysis.verdicts)
    if value == verdicts.PASS:
        return []
    found = [f"{about(v['where'])}{v['check']}: {v['why']}" for v in own_verdicts(analysis) if v["verdict"] == value]
    said = list(dict.fromkeys(found))
    return said[:most] + ([f"and {len(said) - most} more"] if len(said) > most else [])


def about(where: Mapping[str, Any]) -> str:
    """`f02 node_kill: `."""
    words = [str(where[key]) for key in ("fault", "kind", "part") if key in where]
    return f"{' '.join(words) or where.get('trial', '')}: " if where else ""


def largest(analysis: Analysis, found: Figure) -> str:
    """`largest of 59 in 12 jobs: 1.42 s; at 95 % confidence, 88 % of such faults take no longer`."""
    jobs = recovery_times(analysis, found["where"])
    slowest_s = max(chain.from_iterable(jobs))
    said = f"largest of {sum(map(len, jobs))} in {plural(len(jobs), 'job')}: "
    said += f"{slowest_s:.2f} s" if math.isfinite(slowest_s) else "it never recovered"
    share = covered(jobs)
    if share is None:
        return f"{said}; trials of one job are not independent, so no bound follows"
    return f"{said}; at 95 % confidence, {share} % of such faults take no longer"


def covered(jobs: Jobs) -> int | None:
    """The percentile of all such faults that the largest of these bounds at 95 % confidence; None: one job only."""
    return bounded_percentile(effective_n(jobs)) if len(jobs) > 1 else None


def recovery_times(analysis: Analysis, where: Mapping[str, Any]) -> list[list[float]]:
    """Seconds to recovery of a cell's faults, job by job; infinite for a stuck one. Invalid and wrong ones are out."""
    jobs: dict[str, list[float]] = {}
    for one, trial in analysis.recoveries:
        if any(trial[key] != where[key] for key in GROUP):
            continue
        back = effective.recovery_s(one) if one.new is not None else None
        took = math.inf if trial["outcome"] == STUCK else back
        if trial["outcome"] in (STUCK, *WENT_ON) and took is not None:
            jobs.setdefault(str(trial["trial"]), []).append(took)
    return list(jobs.values())


def warnings(analysis: Analysis) -> list[str]:
    """What a reader must know before believing a number."""
    notes = [] if analysis.complete else ["this run is incomplete; what was recorded is judged as far as it goes"]
    odd = [
        note for note in analysis.recorded.warnings if not note.endswith("sorted")
    ]  # savers have threads of their own
    return notes + odd[:3]


def left_out(analysis: Analysis) -> list[tuple[str, str]]:
    """(kind, why) of the faults that this machine cannot do, as the plan says."""
    refused = [it for it in analysis.plan.get("refused") or () if "fault" in it]
    return [(kind := str(it["fault"]), without(kind, str(it.get("why", "")))) for it in refused]


def without(kind: str, why: str) -> str:
    """A reason without the name of the ability that is lacking, where that is the fault's."""
    ability, colon, rest = why.partition(": ")
    return rest if colon and ability.replace(" ", "_") == kind else why


def drawn(analysis: Analysis) -> list[str]:
    """With which seed faults were drawn, and among how many kinds; nothing where they were written down."""
    how = {str(it["case"]): it["drawn"] for it in analysis.plan["trials"] if it.get("drawn")}
    return [
        f"the faults of {case} were drawn with seed {it.get('seed')} among {plural(len(it.get('among') or ()), 'kind')}"
        for case, it in how.items()
    ]


def ettr(analysis: Analysis) -> str:
    """`effective training time 87.1 %, by the formula 88.0 %`; empty where it was not measured."""
    measured = [f["median"] for f in pick_all(analysis.own_figures, "ettr", by="measured")]
    formula = [f["median"] for f in pick_all(analysis.own_figures, "ettr", by="formula")]
    if not measured:
        return ""
    said = f"goodput (ETTR) {numbers.percent(median(measured))}{more_than_all(median(measured))}"
    return said + (f", by the formula {numbers.percent(median(formula))} (predicted)" if formula else "")


def more_than_all(goodput: float) -> str:
    """What to say of a goodput in percent that cannot be: it is set beside the pace of undisturbed steps."""
    return ", which is odd: steps beside the faults were quicker than undisturbed ones" if goodput > MOST else ""


def again(analysis: Analysis) -> str:
    """The command that does the whole run again, as it was asked for; a replay's faults are by now its own."""
    argv = [str(word) for word in analysis.provenance.get("argv", ())]
    begin = next((number for number, word in enumerate(argv) if word in ("run", "replay")), None)
    asked = ["run", "--suite", analysis.run.suite] if begin is None else argv[begin:]
    if asked[0] == "replay":
        asked = ["replay", shown_path(analysis.run), *replayed(analysis), *elsewhere(analysis.plan)]
    return shlex.join(["pg", "chaos", *asked])


def replayed(analysis: Analysis) -> Sequence[str]:
    """All faults of a run of one trial, as `chaos replay` takes them."""
    ids = [str(it["id"]) for trial in analysis.plan["trials"] for it in trial["faults"]]
    return ids if len(ids) < 2 else [f"{ids[0]}..{ids[-1]}"]


def to_replay(analysis: Analysis) -> str:
    """The fault to do again: the first that did not recover, or else the first."""
    bad = [trial for trial in analysis.own_trials if trial["outcome"] != RECOVERED]
    return str([*bad, *analysis.own_trials][0]["command"]).rpartition(" ")[2]


def plural(count: int, word: str) -> str:
    """1 fault, 2 faults."""
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
