"""One sealed run, fed to everything that follows a job: all say the same of every recovery, of ranks and of steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from proving_ground.bench import jobstate, rundir
from proving_ground.bench.jobstate import JobState, News
from proving_ground.bench.jobview import JobView
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import Trial
from proving_ground.chaos.cli import main
from proving_ground.monitoring.availability import jobs_of
from proving_ground.monitoring.board import Board
from proving_ground.monitoring.intake import Intake, Job
from proving_ground.monitoring.present import Present
from proving_ground.monitoring.tracking import Points, Reading
from proving_ground.reports.recovery.results import analyse
from tests.chaos.conftest import JOB_OF_THREE
from tests.chaos.test_fake_suites import TIMED
from tests.reports.recovery import synthetic

NEAR_S = 0.001
SHOWN_S = 0.005  # the live view and its reader see hundredths


@dataclass
class Told:
    """What one of them says of a trial: time to recovery of each disturbance, by its first fault, and its end."""

    recovered_s: dict[str, float] = field(default_factory=dict)
    generation: int = 0
    world_size: int = 0
    step: int = 0
    ranks: dict[str, int] = field(default_factory=dict)  # process → rank; of whom it is not asked: empty

    @classmethod
    def by(cls, recovered_s: dict[str, float], state: JobState) -> Told:
        ranks = {name: it.rank for name, it in state.members.items() if it.rank is not None}
        return cls(recovered_s, state.generation, state.world_size, state.step, ranks)


Said = dict[str, Told]
"""Trial → what is said of it."""


def truth(run: RunDir) -> Said:
    """By the definition, written down once more and slowly: no state, every record looked at again for every fault."""
    found: Said = {}
    for trial in (str(it["id"]) for it in run.read("plan")["trials"] if it.get("faults")):
        records = [it for it in rundir.read_history(run) if it.get("trial") == trial]
        steps = [it for it in stamped(records) if it["event"] == "step"]
        made: dict[tuple[int, int], list[float]] = {}
        worlds = {it["generation"]: it["world_size"] for it in steps}
        for it in steps:
            made.setdefault((it["generation"], it["step"]), []).append(it["t"])
        committed = sorted((max(ts), *key) for key, ts in made.items() if len(ts) == worlds[key[0]])
        _, generation, step = committed[-1]
        told = found[trial] = Told({}, generation, worlds[generation], step)
        told.ranks = {it["source"]: it["rank"] for it in steps if it["generation"] == generation}
        told.recovered_s = recoveries(plans_of(run, trial), records, committed, worlds)
    return found


def plans_of(run: RunDir, trial: str) -> dict[str, dict[str, Any]]:
    """Fault → its plan."""
    return {it["id"]: it for plan in run.read("plan")["trials"] if plan["id"] == trial for it in plan["faults"]}


def recoveries(
    plans: dict[str, dict[str, Any]],
    records: list[dict[str, Any]],
    committed: list[tuple[float, int, int]],
    worlds: dict[int, int],
) -> dict[str, float]:
    """First fault of each disturbance → from its injection to the last of the first committed steps of its faults."""
    found: dict[str, float] = {}
    begun = [it for it in records if it["event"] == "fault_begin"]
    chained = {
        it["fault"] for at, it in enumerate(begun)
        if plans[it["fault"]].get("after_s") is not None
        or (at and plans[it["fault"]].get("at_s") is not None and disturbed(it["inject_t"], records, committed, worlds))
    }  # fmt: skip
    first = begun[0]
    for one in begun:
        t, first = one["inject_t"], first if one["fault"] in chained else one
        after = [it["inject_t"] for it in begun
                 if it["inject_t"] > t and it["phase"] != "recovery" and it["fault"] not in chained]  # fmt: skip
        met = [it["generation"] for it in records if it["event"] == "ready" and it["t"] < t]
        ends = [end for end, its, _ in committed if t <= end <= min(after, default=math.inf) and its > max(met)]
        if ends:
            found[first["fault"]] = max(found.get(first["fault"], 0.0), ends[0] - first["inject_t"])
    return found


def disturbed(
    t: float, records: list[dict[str, Any]], committed: list[tuple[float, int, int]], worlds: dict[int, int]
) -> bool:
    """Whether at a moment the job had not made fifteen whole steps since the faults before were healed."""
    done = [it for it in records if it["event"] in ("fault_begin", "fault_end") and it.get("inject_t", it["t"]) < t]
    begun = [it for it in done if it["event"] == "fault_begin"]
    since = [it for it in committed if done[-1]["t"] < it[0] <= t and worlds[it[1]] == max(worlds.values())]
    reached = max(step for end, _, step in committed if end <= begun[-1]["t"])
    return len(done) < 2 * len(begun) or len(since) < 15 or since[-1][2] <= reached


def stamped(records: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Each record of a worker with its generation, rank and world size."""
    lives: dict[str, dict[str, Any]] = {}
    for it in records:
        known = lives.setdefault(it["source"], {})
        if it["event"] in ("start", "ready"):
            known.update({key: it[key] for key in ("generation", "rank", "world_size") if key in it})
        yield {**known, **it}


def of_report(run: RunDir) -> Said:
    analysis = analyse(run)
    found: Said = {}
    for evidence in analysis.jobs:
        last = evidence.steps[evidence.steps["committed"]].iloc[-1]
        rows = evidence.rows[evidence.rows["generation"] == last["generation"]]
        names = {number: name for name, number in evidence.job.processes.items()}
        ranks = {names[int(it.process)]: int(it.rank) for it in rows.itertuples()}
        found[evidence.job.id] = Told({}, int(last["generation"]), int(last["world"]), int(last["step"]), ranks)
    for one, _ in analysis.recoveries:
        if (seconds := one.took("first_committed_step")) is not None:
            found[one.job.id].recovered_s[one.fault] = seconds
    return found


def of_exporter(run: RunDir) -> Said:
    """What could be scraped before each job ended: then its series go."""
    origin, board, found = run.read("provenance"), Board(), Said()
    intake = Intake(board, "r", run.read("plan"), {"wall_s": origin["wall_s"], "t": origin["t"]}, 0.0)
    for record in rundir.read_history(run):
        if record["event"] == "trial_end":
            job = ("r", str(record["trial"]))
            faults = board.values.get("chaos_time_to_recovery_seconds", {})
            told = found[job[1]] = Told({key[2]: float(v) for key, v in faults.items() if key[:2] == job})
            told.generation = int(board.get("recovery_generation", job) or 0)
            told.world_size = int(board.get("recovery_world_size", job) or 0)
            told.step = int(board.get("training_committed_step", job) or 0)
        intake.take(record)
    return found


def of_availability(run: RunDir) -> Said:
    return {it.trial: Told.by(it.recoveries_s, it.state) for it in jobs_of(run)}


@dataclass
class Page(Present):
    """Keeps every line, not only the last few."""

    lines: list[str] = field(default_factory=list)

    def say(self, t: float, words: str) -> None:
        super().say(t, words)
        self.lines.append(words)


def of_live(run: RunDir) -> Said:
    """What is on its page, line by line."""
    present, found = Page({str(it["id"]): it for it in run.read("plan")["trials"]}), Said()
    for record in rundir.read_history(run):
        present.take(record)
        if record["event"] == "trial_end" and present.trial:
            told = (it.partition(": recovered in ") for it in present.lines)
            shown = {name.split()[0]: float(words.split()[0]) for name, mark, words in told if mark}
            found[present.trial.id] = Told.by(shown, present.trial.state)
            present.lines.clear()
    return found


def of_tracking(run: RunDir) -> Said:
    reading, found = Reading({str(it["id"]): it for it in run.read("plan")["trials"]}, 0.0), Said()
    for record in rundir.read_history(run):
        trial, over = reading.trial, record["event"] == "trial_end"
        state = reading.state
        reading.take(record)
        if over:
            kept = [it for action in reading.todo if isinstance(action, Points) for it in action.points]
            seconds = [it.value for it in kept if it.name == "recovery/time_to_recovery"]
            names = [it.fault.id for it in state.disturbances if it.last]
            found[str(trial)] = Told.by(dict(zip(names, seconds, strict=True)), state)
            reading.todo.clear()
    return found


def of_schedule(run: RunDir) -> Said:
    """Sees the event files of the job alone, so of faults it knows what it did itself."""
    found: Said = {}
    for plan in run.read("plan")["trials"]:
        trial = Trial(plan["id"], "c", "digits", ("strong",), plan["nodes"], 1, 1, 8, 16, 100, 0)
        view = JobView(trial, [], None, run.events, None, None, lambda: 0.0)
        view.refresh()
        found[trial.id] = Told.by({}, view.state)
    return found


FOLDS: dict[str, Callable[[RunDir], Said]] = {
    "report": of_report,
    "exporter": of_exporter,
    "availability": of_availability,
    "live": of_live,
    "tracking": of_tracking,
    "schedule": of_schedule,
}


def disagreements(run: RunDir) -> Iterator[str]:
    """Who says something else than what is true, and of what."""
    said = {name: fold(run) for name, fold in FOLDS.items()}
    for trial, true in truth(run).items():
        for name in FOLDS:
            told = said[name][trial]
            where = {key: (getattr(told, key), getattr(true, key)) for key in ("generation", "world_size", "step")}
            yield from (f"{name} {trial} {key}: {a}, not {b}" for key, (a, b) in where.items() if a != b)
            if name != "exporter" and told.ranks != true.ranks:
                yield f"{name} {trial} ranks: {told.ranks}, not {true.ranks}"
            near = SHOWN_S if name == "live" else NEAR_S
            same = told.recovered_s == pytest.approx(true.recovered_s, abs=near)
            if name != "schedule" and not same:
                yield f"{name} {trial} recoveries: {told.recovered_s}, not {true.recovered_s}"


OVERLAPPING = (
    synthetic.Fault("f01", "link_rate", 22, "n3", how="none", hold_s=1.2),
    synthetic.Fault("f02", "worker_kill", 34, "n2", hold_s=0.0, after_s=1.0),
    synthetic.Fault("f03", "worker_kill", 44, "n1", hold_s=0.0, after_s=0.5),
    synthetic.Fault("f04", "worker_kill", 66, "n3", hold_s=0.0),
    synthetic.Fault("f05", "worker_kill", 92, "n3", hold_s=0.0, at_s=5.0),
    synthetic.Fault("f06", "link_rate", 97, "n1", how="none", hold_s=1.2, at_s=6.0),
)
"""Three that overlap, one that is alone, and two of which only the records tell that they overlap; the last of them
never stops training."""


REAL = (
    JOB_OF_THREE.replace("repeats = 1", "repeats = 1\nvolume_mb = 64").replace("steps = 5000", "steps = 100000")
    + """\
[[case.faults]]
kind = "partition"
target = "n3"
hold_s = 4
[[case.faults]]
kind = "partition_pair"
target = "n2+n3"
hold_s = 4
[[case.faults]]
kind = "coordinator_kill"
[[case.faults]]
kind = "worker_kill"
target = "n1"
"""
)
"""For real nodes and trainers: what becomes of a job whose packets are dropped, or whose coordinator is gone, nobody
makes up. Its ranks get over the last of these without a new generation, or with one."""


ON_NODES = pytest.param("on nodes", marks=pytest.mark.root)


@pytest.fixture(scope="module", params=["fake", "synthetic", "overlapping", "timed", ON_NODES])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """Kills on the `fake` cluster; kills, damage, a slow link, shrinking and growing, made up; faults that overlap.

    And cut links, and a coordinator that is killed, on nodes of this machine.
    """
    folder = tmp_path_factory.mktemp("runs")
    if request.param == "on nodes":
        (folder / "own.toml").write_text(REAL)
        assert main(["--runs", str(folder), "run", "--cluster", "local", "--suite", str(folder / "own.toml")]) == 0
        return rundir.find(folder, "own")
    if request.param == "overlapping":
        return synthetic.make(folder, synthetic.Knobs(faults=OVERLAPPING))
    if request.param == "timed":
        (folder / "own.toml").write_text(TIMED)
        assert main(["--runs", str(folder), "run", "--cluster", "fake", "--suite", str(folder / "own.toml")]) == 0
        return rundir.find(folder, "own")
    if request.param == "synthetic":
        return synthetic.make(folder)
    assert main(["--runs", str(folder), "run", "--cluster", "fake", "--suite", "smoke"]) == 0
    return rundir.find(folder, "smoke")


def test_all_agree(run: RunDir) -> None:
    assert sum(len(told.recovered_s) for told in truth(run).values()) >= 2
    assert list(disagreements(run)) == []


@pytest.mark.parametrize("run", [ON_NODES], indirect=True)
def test_what_they_agree_about_has_cut_links_and_a_lost_coordinator(run: RunDir) -> None:
    hit = {it["kind"]: it["fault"] for it in rundir.read_history(run) if it["event"] == "fault_begin"}
    assert list(hit) == ["partition", "partition_pair", "coordinator_kill", "worker_kill"]
    assert {hit[kind] for kind in hit if kind != "coordinator_kill"} <= truth(run)["t001"].recovered_s.keys()


@pytest.mark.parametrize("run", ["overlapping", "timed"], indirect=True)
def test_faults_that_overlap_have_one_recovery(run: RunDir) -> None:
    recovered_s = truth(run)["t001"].recovered_s
    assert list(recovered_s) == (["f01", "f04", "f05"] if run.suite == "kill" else ["f01", "f03", "f04"])
    lone = min(recovered_s.values())
    assert recovered_s["f01"] > lone + 1.0, "from the first injection to the last step of the last"


def one_by_one(self: Intake, job: Job, news: News) -> None:
    """An exporter that tells the faults of a disturbance one by one."""
    TOLD(self, job, news)
    for group in news.recovered:
        for it in group.recoveries:
            if it.end_t is not None:
                labels = (*job.labels, it.fault.id, it.fault.kind)
                self._board.set("chaos_time_to_recovery_seconds", labels, it.end_t - it.fault.inject_t)


@pytest.mark.parametrize("run", ["overlapping"], indirect=True)
def test_whoever_tells_them_one_by_one_is_named(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Intake, "_told", one_by_one)
    assert {it.split()[0] for it in disagreements(run)} == {"exporter"}


def from_the_last_step(self: Intake, job: Job, news: News) -> None:
    """An exporter that starts from the last step instead of the fault."""
    TOLD(self, job, news)
    for it in news.recovered:
        if news.standstill:
            labels = (*job.labels, it.fault.id, it.fault.kind)
            self._board.set("chaos_time_to_recovery_seconds", labels, news.standstill.seconds)


TOLD = Intake._told

MUTANTS: dict[str, tuple[Any, str, Any]] = {
    "exporter starts from the last step": (Intake, "_told", from_the_last_step),
    "availability forgets a recovery": (jobs_of.__globals__["SubmittedJob"], "recoveries_s", property(lambda _: {})),
    "a fault does not know who had met before": (jobstate.Generation, "known_by", lambda *_: False),
    "a recovery ends when the ranks meet": (
        jobstate.Recovery,
        "end_t",
        property(lambda it: None if it.first is None else it.first.begin_t),
    ),
}


@pytest.mark.parametrize("run", ["synthetic", ON_NODES], indirect=True)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_whoever_means_something_else_is_named(run: RunDir, mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(*MUTANTS[mutant])
    wrong = list(disagreements(run))
    assert wrong
    if mutant.startswith(("exporter", "availability")):
        assert {it.split()[0] for it in wrong} == {mutant.split(maxsplit=1)[0]}
