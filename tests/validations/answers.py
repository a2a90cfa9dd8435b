"""The answer of each validation: the figure that stands for it, what was asked, and the verdict. Called by `pages`.

Where a validation judges itself, its own functions do it here too; where it only has a table, the rule stands here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, median, quantiles
from typing import Any

from scipy import special

from proving_ground.reports.intervals import Interval, constant_draws, plain_interval, ratio_interval
from proving_ground.reports.recovery.forecast import CLOSE_POINTS
from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN
from tests.benchmarks import checkpoint_speed, digits_accuracy, step_cost
from tests.validations import (
    aa,
    alerts,
    attribution,
    checkpoints,
    clones,
    connections,
    effective,
    gpu,
    headline,
    inputs,
    pulumi,
    restart,
    same_training,
    scaling,
    searches,
    shootout,
    simulation,
    suites,
    tables,
    tampering,
    trainers,
)
from tests.validations.chaos_runs import BAD
from tests.validations.headline import Size, cells_of
from tests.validations.recovery import LIVE
from tests.validations.restart import RESTART
from tests.validations.sitting import State, cut_off, runs_of

Document = Mapping[str, Any]
STRATEGIES = ("restart", "live")
SOAKED = 5000  # faults of each strategy: of the validation `soak`, which goes on as long as it is let
HOUR_MIN = 60.0  # that nothing may be said in, of the validation `healthy`


@dataclass(frozen=True)
class Answer:
    """The figure that stands for a validation, and what is asked."""

    number: str
    unit: str
    about: str  # what the number is
    n: str  # of what, and how many
    ends: str  # its 95 % interval, or why there is none
    asked: str
    measured: str  # the same as asked, as it came
    verdict: str
    why: str = ""  # of no pass


def interval(ends: Interval | None, form: str = "{:.1f}", unit: str = "") -> str:
    """`91.0–93.6 % (95 % CI)`."""
    if ends is None:
        return "no interval"
    low, high = (form.format(it) for it in ends)
    return f"{low}{' to ' if '-' in low + high else '–'}{high}{unit} (95 % CI)"


def of_times(middle: float, values: Sequence[float]) -> Interval | None:
    """The interval of a median of times, which are above zero, as reports make it."""
    return ratio_interval(middle, constant_draws(values))


def of_jobs(jobs: Sequence[Sequence[float]]) -> Interval | None:
    """The interval of the median of all trials; a job is one value: its trials have a machine's state in common."""
    each = [median(it) for it in jobs if it]
    return of_times(median(chain.from_iterable(jobs)), each) if all(map(math.isfinite, each)) else None


def share(count: int, of: int, decimals: int = 1) -> str:
    """The interval of a share, as a count alone does not show how little it may say."""
    return f"{tables.proportion(count, of, decimals)} (95 % CI)" if of else "no interval"


def of_state(state: State) -> dict[str, str]:
    """Verdict and reason of a validation that knows how far it is."""
    verdict, _, far = str(state).partition(": ")
    return {"verdict": verdict, "why": "" if verdict == PASS else f"{far} so far"}


def at_once(good: bool, why: str) -> dict[str, str]:  # noqa: FBT001 - what it is made of
    """Verdict and reason where all was measured that was decided."""
    return {"verdict": PASS if good else FAIL, "why": "" if good else why}


def of_scaling(document: Document) -> Answer:
    """The largest size of the last case."""
    rows = [it.split(" | ") for it in scaling.table(document).splitlines()[2:]]
    verdicts = [row[-1].removesuffix(" |") for row in rows]
    worst = FAIL if FAIL in verdicts else PASS if set(verdicts) == {PASS} else UNKNOWN
    case, nodes, rounds, _, middle, _, bar, _ = rows[-1]
    name = case.removeprefix("| ")
    values = Size(name, {}, nodes, runs_of(document, name)).values("efficiency_percent")
    passed = verdicts.count(PASS)
    return Answer(
        middle.removesuffix(" %"), "%", f"efficiency of {name} on {nodes} nodes, weak scaling", f"{rounds} rounds",
        interval(plain_interval(median(values), values), unit=" %"),
        f"this size ≥{bar}; each of {len(rows)} sizes at or above its own", f"{passed} of {len(rows)} decided so",
        worst, {PASS: "", FAIL: "a size is below its threshold"}.get(worst, f"{rounds} rounds are there so far"),
    )  # fmt: skip


def of_matrix(document: Document) -> Answer:
    """How many sizes are close to what the links allow."""
    found, unknown = headline.judged(document, "above_bound_percent")
    close = sum(abs(value) <= headline.CLOSE_PERCENT for value, _ in found)
    runs, rounds = headline.counted(document), document["plan"]["rounds"]
    whole = runs >= rounds
    return Answer(
        f"{close}", f"of {len(found)}", f"sizes within {headline.CLOSE_PERCENT:g} % of what the links allow",
        f"{len(found)} sizes of {len(cells_of(document))} cells, n = {runs} each; {unknown} cannot tell",
        share(close, len(found)), "every size",
        headline.closeness(document).partition(": ")[2].partition(";")[0],
        *((UNKNOWN, f"{runs} of {rounds} runs of each cell count so far; {unknown} sizes were disturbed") if not whole
          else (FAIL, "not every size is so close") if close < len(found)
          else (UNKNOWN, f"{unknown} sizes were disturbed") if unknown else (PASS, "")),
    )  # fmt: skip


def of_aa(document: Document) -> Answer:
    """False alarms, and whether 5 % is found."""
    alike, slower = (document["cells"][kind]["comparisons"] for kind in tables.AA)
    alarms, found = (sum(it["called"] for it in own) for own in (alike, slower))
    return Answer(
        f"{alarms}", f"of {len(alike)}", "comparisons of two equal runs were called different",
        f"{len(alike)} of {document['rounds']} rounds of three runs", share(alarms, len(alike)),
        f"false alarms {tables.AA['alike'][1]}; 5 % slower found {tables.AA['slower'][1]}",
        f"{alarms} of {len(alike)} false alarms; {found} of {len(slower)} found", **of_state(aa.state(document)),
    )  # fmt: skip


def of_aa_in_turn(document: Document) -> Answer:
    """The same of cases within one run."""
    alike = [it for cell in document["cells"].values() if cell["slowdown"] == 1 for it in cell["comparisons"]]
    slower = [it for cell in document["cells"].values() if cell["slowdown"] != 1 for it in cell["comparisons"]]
    alarms, found = (sum(it["called"] for it in own) for own in (alike, slower))
    few, enough = tables.limits(alarms, len(alike)), tables.limits(found, len(slower))
    good = few[1] <= aa.FALSE_ALARMS_MAX and enough[0] >= aa.FOUND_MIN
    bad = few[0] > aa.FALSE_ALARMS_MAX or enough[1] < aa.FOUND_MIN
    return Answer(
        f"{alarms}", f"of {len(alike)}", "comparisons of two equal cases of one run were called different",
        f"{len(alike)} comparisons", share(alarms, len(alike)), "false alarms ≤5 %; 5 % slower found ≥90 %",
        f"{alarms} of {len(alike)} false alarms; {found} of {len(slower)} found",
        FAIL if bad else PASS if good else UNKNOWN, "" if good else "an interval holds the target",
    )  # fmt: skip


def of_attribution(document: Document) -> Answer:
    """How far off the worst cause was."""
    plants = document["plants"].values()
    off = {it["planted"]: abs(it["booked_points"][it["cause"]] - it["true_points"]) for it in plants}
    worst, found = max(off, key=lambda it: off[it]), sum(it["found"] for it in plants)
    return Answer(
        f"{off[worst]:.1f}", "points", f"largest error of what was booked: {worst}",
        f"{len(plants)} causes, {min(it['repeats'] for it in plants)} repeats each",
        "no interval: medians alone are kept", f"each within {attribution.ENOUGH_POINTS:g} points",
        f"{found} of {len(plants)} found so", **at_once(found == len(plants), "a cause was not found with its size"),
    )  # fmt: skip


def of_recoveries(document: Document, kind: restart.Kind) -> Answer:
    """A killed worker: its median, whose interval treats each job as one value, and the largest."""
    runs, goal = runs_of(document, "worker"), kind.goals["worker"]
    jobs = [it for it in restart.times(runs) if it]
    every = list(chain.from_iterable(jobs))
    verdicts = [restart.verdict(it, runs_of(document, case)) for case, it in kind.goals.items()]
    return Answer(
        f"{median(every):.2f}", "s", "time to recovery of a killed worker, median",
        f"{len(every)} kills in {len(jobs)} jobs", interval(of_jobs(jobs), "{:.2f}", " s"),
        f"largest ≤{goal.target_s:g} s; each of {len(verdicts)} faults within its own",
        f"largest {shootout.shown(max(every))}; {verdicts.count(PASS)} of {len(verdicts)} faults so",
        **of_state(restart.state(document, kind)),
    )  # fmt: skip


def of_shootout(document: Document) -> Answer:
    """Live recovery beside torchrun."""
    cells = document["cells"]
    live, torchrun = (shootout.times(cells[it]["trials"]) for it in (shootout.LIVE, shootout.BASELINES[0]))
    ours = shootout.of_ours(document)
    bad = [it for it in ours if it["outcome"] not in ("recovered", "invalid")]
    invalid = sum(it["outcome"] == "invalid" for it in ours)
    rounds, dear = len(document["rounds"]), shootout.is_dear(document)
    why = f"{len(bad)} of ours were not recovered from" if bad else "live recovery costs more" if dear else ""
    good, left = len(shootout.judged(ours)) - len(bad), f"{invalid} of {len(ours)} faults left no evidence"
    return Answer(
        f"{median(live):.2f}", "s", f"time to recovery, live, median; torchrun: {shootout.shown(median(torchrun))}",
        f"{len(live)} faults in {rounds} round", "no interval: one round" if rounds == 1 else "see the table",
        f"ours recover from every fault, live costs ≤{100 * shootout.MOST_COST:g} % of a step",
        f"{good} of {len(ours)}, {invalid} left no evidence",
        FAIL if bad or dear else UNKNOWN if invalid else PASS,
        why or (left if invalid else ""),
    )  # fmt: skip


def of_effective(document: Document) -> Answer:
    """The share of live jobs at about one fault a minute."""
    rounds = {name: cell["rounds"] for name, cell in document["cells"].items()}
    every = [it for own in rounds.values() for it in own]
    known = [it["known"] for it in rounds["live"]]
    off = max(abs(gap) for it in every for name, said in effective.JOBS.items()
              if (gap := effective.error(it[name], said)) is not None)  # fmt: skip
    least = min(it["known"]["share"] for it in every)
    values = [100 * it["share"] for it in known]
    return Answer(
        f"{median(values):.1f}", "%", f"goodput of a live job at {effective.per_minute(known[0]):.1f} faults a minute",
        f"{sum(len(it['outcomes']) for it in known)} faults, {len(known)} round",
        interval(plain_interval(median(values), values), unit=" %") + (": one round" if len(values) < 2 else ""),
        f"≥{100 * effective.LEAST_SHARE:g} %, the formula within {CLOSE_POINTS:g} points",
        f"least {100 * least:.1f} %; at most {off:.1f} points off",
        **at_once(all(map(effective.fine, every)), "a share is too small, or a formula too far off"),
    )  # fmt: skip


def of_checkpoints(document: Document) -> Answer:
    """Bad loads of our own checkpoints."""
    ours = document["writers"][checkpoints.OURS[0]]
    caught = sum(bool(it["bad"]) for it in document["mutants"].values())
    ends = tuple(100 * it for it in ours["bad_rate_ci95"])
    others = {name: it for name, it in document["writers"].items() if name not in checkpoints.OURS}
    beside = ", ".join(f"{name} {it['bad']:,}" for name, it in others.items())
    return Answer(
        f"{ours['bad']}", f"of {ours['points']:,}", f"crash points with a bad load; {beside}",
        f"{ours['points']:,} crash points", interval((ends[0], ends[1]), "{:.2f}", " %"),
        "none of ours, some of each mutant", f"{ours['bad']}; {caught} of {len(document['mutants'])} mutants caught",
        **at_once(not ours["bad"] and caught == len(document["mutants"]), "ours was bad, or a mutant not caught"),
    )  # fmt: skip


def of_checkpoint_speed(document: Document) -> Answer:
    """For how long training is blocked."""
    values = [1000 * it["block_s"] for it in document["rounds"]]
    p95 = {name: quantiles([it[name] for it in document["rounds"]], n=20, method="inclusive")[-1]
           for name in checkpoint_speed.TARGETS}  # fmt: skip
    good = all(p95[name] <= most for name, most in checkpoint_speed.TARGETS.items())
    return Answer(
        f"{median(values):.0f}", "ms", "training is blocked by a save of 500 MB, median", f"{len(values)} rounds",
        interval(of_times(median(values), values), "{:.0f}", " ms"),
        "95 % of saves block ≤60 ms, durable ≤1 s, loaded ≤1 s",
        f"{1000 * p95['block_s']:.0f} ms, {p95['durable_s']:.2f} s, {p95['load_s']:.2f} s",
        **at_once(good, "slower than the target"),
    )  # fmt: skip


def of_simulation(document: Document) -> Answer:
    """Violations over all seeds."""
    cells, mutants = document["cells"].values(), [it for own in document["mutants"].values() for it in own.values()]
    count, wrong = sum(it["count"] for it in cells), sum(len(it.get("wrong", ())) for it in cells)
    found = sum(bool(it["why"]) for it in mutants)
    state = State(count, simulation.RUNS, "runs", wrong + len(mutants) - found)
    return Answer(
        f"{wrong}", f"of {count:,}", "seeded runs broke a rule of the membership logic", f"{count:,} runs",
        share(wrong, count, 4), f"none of {simulation.RUNS:,}; each of {len(mutants)} rules switched off is seen",
        f"{wrong} of {count:,}; {found} of {len(mutants)} seen", **of_state(state),
    )  # fmt: skip


def of_soak(document: Document) -> Answer:
    """Faults that went wrong in the present state of the logic."""
    now, before = (
        sum((Counter(kind) for name, cell in document["cells"].items() if (name == tables.mechanism(name)) == present
             for kind in cell["kinds"].values()), Counter[str]())
        for present in (True, False)
    )  # fmt: skip
    bad, judged = sum(now[it] for it in BAD), now.total() - now["invalid"]
    earlier = sum(before[it] for it in BAD)
    state = State(judged, SOAKED * len(STRATEGIES), "faults", bad)
    return Answer(
        f"{bad}", f"of {judged:,}", "random faults went wrong, got stuck or stayed slow",
        f"{judged:,} judged faults of {now.total():,}", share(bad, judged, 2),
        f"none of {SOAKED:,} a strategy wrong, stuck or slow",
        f"{bad}; {earlier} of {before.total() - before['invalid']:,} before the logic was mended",
        **of_state(state),
    )  # fmt: skip


def of_same_training(document: Document) -> Answer:
    """Schedules that ended bitwise the same."""
    rows = document["cells"]["schedules"]
    same, kills = sum(it["outcome"] == same_training.SAME for it in rows), sum(it.get("killed", 0) for it in rows)
    state = State(len(rows), same_training.SCHEDULES, "schedules", len(rows) - same)
    return Answer(
        f"{same}", f"of {len(rows)}", f"schedules with {kills:,} kills end bitwise like an undisturbed training",
        f"{len(rows)} schedules", share(same, len(rows)), f"all of {same_training.SCHEDULES}",
        f"{same} of {len(rows)}", **of_state(state),
    )  # fmt: skip


def of_trainers(document: Document) -> Answer:
    """Effective defects that were called wrong."""
    cells = document["cells"].values()
    planted = [it for it in cells if it["defect"] != trainers.SOUND and it["effective"]]
    sound = [it for it in cells if it["defect"] == trainers.SOUND]
    wrong, good = (sum(it["outcome"] == word for it in own)
                   for own, word in ((planted, "wrong"), (sound, trainers.RECOVERED)))  # fmt: skip
    return Answer(
        f"{wrong}", f"of {len(planted)}", "defects planted in trainers are called wrong",
        f"{len(planted)} defects, {len(sound)} sound trainers", share(wrong, len(planted)),
        "no defect called recovered, each sound trainer",
        f"{sum(it['outcome'] == trainers.RECOVERED for it in planted)} called so; {good} of {len(sound)} sound ones",
        **of_state(trainers.state(document)),
    )  # fmt: skip


def of_tampering(document: Document) -> Answer:
    """Changes of a record that were noticed."""
    found = tampering.summary(dict(document))
    noticed = found[tampering.NAMED] + found[tampering.UNKNOWN]
    counting = noticed + found[tampering.UNNOTICED]
    return Answer(
        f"{noticed}", f"of {counting}", "changes of a sealed record were noticed",
        f"{found['kinds']} kinds, {found['changes']} changes; {found['changes'] - counting} say nothing of training",
        share(noticed, counting), "every change is noticed", f"{found[tampering.UNNOTICED]} unnoticed",
        **of_state(tampering.state(document)),
    )  # fmt: skip


def of_suites(document: Document) -> Answer:
    """Suites with mistakes that were answered badly."""
    cell = document["cells"]["suites"]
    plans, bad = len(suites.PLANS) * cell["count"], len(cell["bad"])
    return Answer(
        f"{bad}", f"of {plans:,}", "suites with mistakes ended in a traceback, a hang, or were let through",
        f"{cell['count']:,} suites, {len(suites.PLANS)} programs", share(bad, plans, 3),
        f"none of {suites.COUNT:,} suites", f"{bad}", **of_state(suites.state(document)),
    )  # fmt: skip


def of_inputs(document: Document) -> Answer:
    """Commands with mistakes that ended badly."""
    cell = document["cells"]["inputs"]
    count, bad = cell["count"], len(cell["bad"])
    return Answer(
        f"{bad}", f"of {count:,}", "commands with mistakes ended in a traceback, a hang or a riddle",
        f"{count:,} commands of {len(inputs.programs(cell))} programs", share(bad, count, 3),
        f"none of {inputs.COUNT:,} commands", f"{bad}", **of_state(inputs.state(document)),
    )  # fmt: skip


def of_connections(document: Document) -> Answer:
    """Records that were lost."""
    runs = runs_of(document, "ssh")
    records, lost = (sum(it[key] for it in runs) for key in ("records", "gaps"))
    good = sum(it["outcomes"].get("recovered", 0) for it in runs)
    return Answer(
        f"{lost}", "gaps", f"in {records:,} records while {sum(it['cuts'] for it in runs)} connections were cut",
        f"{len(runs)} of {connections.JOBS} jobs", share(lost, records, 3), "nothing lost, every fault recovered",
        f"{lost} gaps; {good} of {connections.FAULTS * len(runs)} recovered", **of_state(connections.state(document)),
    )  # fmt: skip


def of_searches(document: Document) -> Answer:
    """What ASHA saves; whether killed searches came to their end."""
    saved, worse, hit = searches.saved(document), searches.worse(document), runs_of(document, "killed")
    longer = searches.more(document, "long")
    good = sum(map(searches.survived, hit))
    return Answer(
        f"{fmean(saved):.1f}" if saved else "–", "%", "of the steps saved by ASHA, mean", f"{len(saved)} seeds",
        interval(searches.ends(saved), "{:.1f}", " %") if len(saved) > 1 else "no interval",
        f"≥{searches.SAVED_PERCENT:g} %, no best more than {searches.WORSE_POINTS:g} point below; every killed search "
        f"ends well; a long trial takes ≤{searches.OVERHEAD_PERCENT:g} % longer",
        f"best at most {f'{max(worse):.2f}' if worse else '–'} points below; {good} of {len(hit)} killed ended well; "
        f"{f'{fmean(longer):.1f}' if longer else '–'} % longer",
        **of_state(searches.state(document)),
    )  # fmt: skip


def of_pulumi(document: Document) -> Answer:
    """How long a stack takes to stand."""
    rounds = [it["up_s"] for it in runs_of(document, pulumi.WHOLE)]
    runs = [run for cell in (pulumi.WHOLE, *pulumi.KINDS) for run in runs_of(document, cell)]
    whole = pulumi.ROUNDS + pulumi.EACH * len(pulumi.KINDS)
    bad = sum(not it["fine"] for it in runs) + sum(it > pulumi.TARGET_S for it in rounds)
    return Answer(
        f"{median(rounds):.0f}", "s", "`up` from nothing until every pod is ready, median", f"{len(rounds)} rounds",
        interval(of_times(median(rounds), rounds), "{:.0f}", " s"),
        f"largest ≤{pulumi.TARGET_S:g} s; all as it should be",
        f"{max(rounds):.0f} s; {sum(it['fine'] for it in runs)} of {len(runs)} so, {cut_off(document)} begun again",
        **of_state(State(len(runs), whole, "rounds and interruptions", bad)),
    )  # fmt: skip


def of_gpu(document: Document) -> Answer:
    """The trainer beside a plain loop, where the GPU sets the pace."""
    names = gpu.cases(document)
    ratios = [100 * median(gpu.against(document, it)) for it in names]
    verdicts = [gpu.verdict(document, it) for it in names]
    faults = runs_of(document, "faults")
    got_over = sum(it["outcome"] == "recovered" for it in faults)
    bad = verdicts.count("fail") + len(faults) - got_over
    sure = all(it == "pass" for it in verdicts)
    return Answer(
        f"{median(ratios):.1f}", "%", "of a plain loop's rate, median",
        f"{len(names)} networks", "no interval",
        f"each ≥{100 * gpu.TARGET:g} %; every fault recovered",
        f"{min(ratios):.1f}–{max(ratios):.1f} %, {verdicts.count('pass')} of {len(names)} sure; "
        f"{got_over} of {len(faults)} recovered",
        FAIL if bad else PASS if sure else UNKNOWN,
        "" if sure and not bad else f"{bad} not as they must be" if bad else "too few repeats, or too far apart",
    )  # fmt: skip


def of_clones(document: Document) -> Answer:
    """Commands that ended in an answer on an idle machine."""
    plan, cells = document["plan"]["rounds"], {it: runs_of(document, it) for it in clones.CELLS}
    idle = [it for it in clones.CELLS if it.endswith(clones.IDLE)]
    good, of = (
        sum(map(count, idle)) for count in (lambda it: clones.answered(document, it), lambda it: len(cells[it]))
    )
    missed = sum(clones.enough(document, it) is False for it in cells)
    state = State(sum(map(len, cells.values())), plan * len(cells), "commands", missed)
    return Answer(
        f"{good}", f"of {of}", "commands on an idle machine ended in pass or fail", f"{of} commands in fresh clones",
        share(good, of), "each on an idle machine, in time; 8 of 10 with a core taken",
        f"{missed} of {len(cells)} rows missed that", **of_state(state),
    )  # fmt: skip


def of_alerts(document: Document) -> Answer:
    """Alerts that came."""
    runs = document["cells"]["runs"]
    faults = [it for run in runs for it in run["faults"]]
    must = sum(len(set(it["must"]) - set(it["before"])) for it in faults)
    missing, late = (sum(len(it[key]) for it in faults) for key in ("missing", "late"))
    false = sum(len(run["false_alarms"]) for run in runs)
    healthy_s = sum(run["healthy_s"] for run in runs)
    return Answer(
        f"{must - missing}", f"of {must}", "alerts came that a fault must bring", f"{len(faults)} faults",
        share(must - missing, must), "each comes, none late, none false",
        f"{missing} missing, {late} late, {false} false in {healthy_s:.0f} s of undisturbed training",
        **at_once(not missing + late + false, "; ".join(alerts.told(dict(document)))),
    )  # fmt: skip


def of_healthy(document: Document) -> Answer:
    """What was said while nothing was wrong."""
    rounds = document["cells"]["live"]
    said = sum(len(it["alarms"]) + it["evictions"] for it in rounds)
    minutes = sum(it["watched_s"] for it in rounds) / 60
    most = float(special.gammaincinv(said + 1, 0.975)) / (minutes / 60)
    least = float(special.gammaincinv(said, 0.025)) / (minutes / 60) if said else 0.0
    state = State(math.floor(minutes), round(HOUR_MIN), "minutes", said)
    return Answer(
        f"{said}", "alarms", f"or evictions that were false, in {minutes:.1f} min under full load",
        f"{len(rounds)} rounds, {minutes:.1f} min", interval((least, most), unit=" an hour"),
        f"none in {HOUR_MIN:g} min", f"{said} in {minutes:.1f} min", **of_state(state),
    )  # fmt: skip


def of_step_cost(document: Document) -> Answer:
    """What live recovery costs a step while nothing fails."""
    found, rounds = step_cost.against(document["cells"], "live"), len(document["cells"]["live"])
    ends, most = found.ends, shootout.MOST_COST
    verdict = UNKNOWN if ends is None else PASS if ends[1] <= most else FAIL if ends[0] > most else UNKNOWN
    exact = step_cost.against(document["cells"], "exact").words
    return Answer(
        "–" if found.cost is None else f"{100 * found.cost:+.1f}", "%",
        f"longer steps by live recovery, nothing fails; exact sums: {exact}", f"{rounds} rounds",
        interval(ends and (100 * ends[0], 100 * ends[1]), "{:+.1f}", " %"),
        f"live recovery ≤{100 * most:g} %", found.words,
        verdict, "" if verdict == PASS else "the interval is not wholly at or below it",
    )  # fmt: skip


def of_accuracy(document: Document) -> Answer:
    """What the digits network learns."""
    runs: Sequence[dict[str, Any]] = document["runs"]
    values = [100 * it["accuracy"] for it in runs]
    good, words = digits_accuracy.verdict(list(runs))
    apart, worst = words.split("; ")[1:]
    return Answer(
        f"{median(values):.1f}", "%", "test accuracy of the digits network, median",
        f"{len(values)} runs: {len(digits_accuracy.SEEDS)} seeds on {', '.join(map(str, digits_accuracy.NODES))} ranks",
        interval(plain_interval(median(values), values), unit=" %"),
        f"each ≥{100 * digits_accuracy.BAR:g} %, means by ranks ≤{100 * digits_accuracy.SPREAD:g} points apart",
        f"{worst}; {apart}", **at_once(good, "a run is below, or ranks differ"),
    )  # fmt: skip


def of_restart(document: Document) -> Answer:
    """By a restart."""
    return of_recoveries(document, RESTART)


def of_recovery(document: Document) -> Answer:
    """By live recovery."""
    return of_recoveries(document, LIVE)
