"""The run's life cycle on the fake cluster: what is recorded when all goes well, and when it does not."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proving_ground.bench import rundir
from proving_ground.bench.cli import main
from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.company import Company, progress
from proving_ground.bench.contract import SCHEMA
from proving_ground.bench.drive import Scene, any_rank_tells, first_death, keep_company, refuse_silence
from proving_ground.bench.jobstate import RANK_0
from proving_ground.bench.jobview import JobView
from proving_ground.bench.plan import make_plan
from proving_ground.bench.protocols import (
    Ability,
    Cluster,
    ClusterError,
    ClusterRequest,
    Emit,
    Node,
    Operation,
    ProcessExit,
    ProcessSpec,
    TrialFiles,
)
from proving_ground.bench.run import Parts, TrialFailed, TrialMistaken, run
from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.bench.runner import MISTAKES
from proving_ground.bench.spec import SpecError, Suite, Trial
from proving_ground.bench.tail import LIBRARY, WORDS_MAX, last_line
from proving_ground.bench.workloads import Command
from proving_ground.reports.scaling.results import analyse
from proving_ground.training.events import MISTAKE


class KillAt:
    """A schedule that kills one node at a step of one trial."""

    def __init__(self, trial: str, step: int, node: str) -> None:
        self._at, self._node, self._done = (trial, step), node, False

    def due(self, trial: Trial, view: JobView) -> Iterable[Operation]:
        assert view.elapsed_s >= 0
        if self._done or trial.id != self._at[0] or view.step < self._at[1]:
            return []
        self._done = True
        return [Operation("kill", {"node": self._node})]

    def share(self, trial: Trial, view: JobView) -> float:
        return view.step / trial.steps

    def waits_for(self, trial: Trial, view: JobView) -> str:
        del trial, view
        return ""

    def over(self, trial: Trial, view: JobView) -> bool:
        return view.step > trial.steps  # never


class Killer:
    """A nemesis that can only kill."""

    healed = calmed = False
    down: tuple[str, ...] = ()

    def needs(self, fault: Mapping[str, Any]) -> Collection[str]:
        return ("kill",) if fault else ()

    def traits(self, fault: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"of": fault["kind"]}

    def setup(self, cluster: Cluster, emit: Emit) -> None:
        assert isinstance(cluster, FakeCluster)
        self._cluster, self._emit = cluster, emit

    def invoke(self, operation: Operation, view: JobView) -> None:
        assert view.trial.id
        pids = self._cluster.kill(operation.args["node"], None, signal.SIGKILL)
        self._emit("fault", name=operation.name, pids=list(pids))

    def calm(self) -> None:
        self.calmed = True

    def teardown(self) -> None:
        self.healed = True


class Stubborn(FakeCluster):
    """Its third process does not start."""

    def start(self, process: ProcessSpec) -> int:
        if process.node == "n2":
            raise RuntimeError("n2 is on fire")
        return super().start(process)


class Unshared(FakeCluster):
    """Nodes with cores of their own."""

    def abilities(self) -> Sequence[Ability]:
        return [it for it in super().abilities() if it.name != "cpu_shares"]


class Scribbler(FakeCluster):
    """One of its trainers leaves half a line behind."""

    def start(self, process: ProcessSpec) -> int:
        if process.events and process.node == "n2":
            process.events.with_suffix(".torn.jsonl").write_text('{"t": 1, "ev')
        return super().start(process)


class Interrupted(FakeCluster):
    """Somebody presses Ctrl-C after three tenths of a second."""

    torn_down = False

    def sleep(self, seconds: float) -> None:
        if self.now() > 1000.3:
            raise KeyboardInterrupt
        super().sleep(seconds)

    def teardown(self) -> None:
        self.torn_down = True
        super().teardown()


def names(store: RunDir) -> list[str]:
    return [record["event"] for record in rundir.read_history(store)]


def newest(runs: Path) -> RunDir:
    return rundir.find(runs)


def test_a_run_is_recorded_and_sealed(recorded: RunDir) -> None:
    assert recorded.read("seal")["complete"]
    assert rundir.verify(recorded) == []
    events = names(recorded)
    assert events[0] == "run_start"
    assert events[-1] == "run_end"
    planned = recorded.read("plan")["trials"]
    assert events.count("trial_end") == len(planned)
    assert events.count("step") == sum(trial["nodes"] * trial["steps"] for trial in planned)
    assert not recorded.scratch.exists()


def test_the_history_is_in_order_and_says_where_from(recorded: RunDir) -> None:
    records = list(rundir.read_history(recorded))
    assert [it["t"] for it in records] == sorted(it["t"] for it in records)
    assert {it["source"] for it in records} == {"harness", "n1.0", "n2.0", "n3.0", "n4.0"}
    assert all("trial" in it for it in records if it["event"] == "step")


def test_the_same_suite_gives_the_same_trials(recorded: RunDir, suite: Suite, parts: Parts, runs: Path) -> None:
    again = run(suite, FakeCluster(), runs, parts)
    assert again.read("plan") == recorded.read("plan")


def test_provenance_is_kept(recorded: RunDir) -> None:
    found = recorded.read("provenance")
    assert found["packages"]["torch"] == "2.13.0"
    assert {"argv", "git", "host", "python", "seed", "wall_s", "t"} <= set(found)


def test_a_worker_that_dies_fails_the_run(small_suite: Suite, parts: Parts, runs: Path) -> None:
    killer = Killer()
    faulty = replace(parts, schedule=KillAt("t001", 2, "n2"), nemesis=killer)
    slow = replace(small_suite, cases=(replace(small_suite.cases[0], steps=400, batch_per_node=50),))
    with pytest.raises(TrialFailed, match=r"trial t001 \(sleepy, 2 nodes\): n2.0 was killed by signal 9"):
        run(slow, FakeCluster(), runs, faulty)
    store = newest(runs)
    assert not store.read("seal")["complete"]
    ends = [it for it in rundir.read_history(store) if it["event"] == "trial_end"]
    assert [(it["ok"], it["why"]) for it in ends] == [(False, "n2.0 was killed by signal 9")]
    assert [len(it["pids"]) for it in rundir.read_history(store) if it["event"] == "fault"] == [1]
    assert killer.healed
    assert killer.calmed


class Told(FakeCluster):
    """What runs on some nodes is told what cannot be, from a moment on, and says so; behind torchrun by an event."""

    def __init__(self, *nodes: str, after_s: float = 0.0, hidden: bool = False) -> None:
        super().__init__()
        self._nodes, self._from_t, self._hidden = nodes, self.now() + after_s, hidden
        self._here: dict[int, ProcessSpec] = {}

    def start(self, process: ProcessSpec) -> int:
        never = process.node in self._nodes and self.now() >= self._from_t  # it makes no step
        self._here[pid := self._pid() if never else super().start(process)] = process
        return pid

    def exits(self) -> Sequence[ProcessExit]:
        wrong = {pid: it for pid, it in self._here.items() if it.node in self._nodes and not it.serves}
        ended = []
        for pid, it in wrong.items() if self.now() >= self._from_t else ():
            del self._here[pid]
            assert it.log
            assert it.events
            it.log.write_text("train: --lr soon: must be a number\nE1126 04:44:32.582000 2 api.py:836] failed\n")
            if self._hidden:
                with it.events.open("a") as events:
                    events.write(f'{{"t":{self.now()},"event":"error","message":"x","status":{MISTAKE}}}\n')
            else:
                self.kill(it.node, it.slot, signal.SIGKILL)
                ended.append(ProcessExit(it.node, it.slot, pid, MISTAKE, self.now()))
        told = {it.pid for it in ended}
        return [*(it for it in super().exits() if it.pid not in told), *ended]


@pytest.mark.parametrize("mechanism", ["", "restart", "relaunch", "torchrun"])
def test_a_mistake_ends_the_trial_at_once(small_suite: Suite, parts: Parts, runs: Path, mechanism: str) -> None:
    case = replace(small_suite.cases[0], mechanism=mechanism)
    cluster = Told("n1", "n2", hidden=mechanism == "torchrun")
    says = r"trial t001 \(sleepy, 2 nodes\): n1.0 exited with status 2: train: --lr soon: must be a number$"
    with pytest.raises(TrialMistaken, match=says):
        run(replace(small_suite, cases=(case,)), cluster, runs, parts)
    told = names(newest(runs))
    assert told.count("process_start") == {"": 2, "restart": 3, "relaunch": 2, "torchrun": 2}[mechanism]
    assert "by_hand" not in told
    assert issubclass(TrialMistaken, MISTAKES)


@pytest.mark.parametrize("hidden", [False, True])
def test_a_stranger_ends_no_job_that_others_carry_on(
    small_suite: Suite, parts: Parts, runs: Path, *, hidden: bool
) -> None:
    case = replace(small_suite.cases[0], mechanism="restart", min_nodes=1, steps=400, batch_per_node=50)
    cluster = Told("n2", after_s=5.0, hidden=hidden)
    suite = replace(small_suite, cases=(case,))
    with contextlib.nullcontext() if hidden else pytest.raises(TrialMistaken, match=r"n2.0 exited with status 2"):
        run(suite, cluster, runs, parts)
    steps = [it["step"] for it in rundir.read_history(newest(runs)) if it["event"] == "step" and it["source"] == "n1.0"]
    assert steps[-1] == 400, "it is told once nobody is left that carries on"


def test_last_words_are_the_trainer_s_and_leave_room_for_others(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("no\nx = 'soon'\nE1126 04:44:32.582000 2 api.py:836] failed\n\n")
    assert (last_line(log, LIBRARY), last_line(log)[:5]) == ("x = 'soon'", "E1126")
    log.write_text("x" * 5000)
    assert last_line(log) == "x" * WORDS_MAX + " …"


class Tangled(FakeCluster):
    """The survivor ends of its peer's death, and is noticed a while before the one that was killed."""

    def exits(self) -> Sequence[ProcessExit]:
        ended = list(super().exits())
        self._late, late = [it for it in ended if it.code == -signal.SIGKILL], getattr(self, "_late", [])
        return [ProcessExit("n1", 0, it.pid, 1, self.now()) for it in self._late] + late


def test_who_was_killed_is_blamed_and_not_who_survived(small_suite: Suite, parts: Parts, runs: Path) -> None:
    faulty = replace(parts, schedule=KillAt("t001", 2, "n2"), nemesis=Killer())
    slow = replace(small_suite, cases=(replace(small_suite.cases[0], steps=400, batch_per_node=50),))
    with pytest.raises(TrialFailed, match=r"n2.0 was killed by signal 9"):
        run(slow, Tangled(), runs, faulty)


class Taken(FakeCluster):
    """A cluster whose engine takes n2 away at its first death, and may say what becomes of it."""

    def __init__(self, fate: str | ClusterError, code: int) -> None:
        super().__init__()
        self._fate, self._code = fate, code

    def exits(self) -> Sequence[ProcessExit]:
        ended = [replace(it, code=self._code) for it in super().exits()]
        self.away = ("n2",) if ended else ()
        return ended

    def fate(self, node: str) -> str:
        assert node == "n2"
        if isinstance(self._fate, ClusterError):
            raise self._fate
        return self._fate


CANCELLED = ClusterError("slurm: job 7 was cancelled (CANCELLED by 0)")


@pytest.mark.parametrize("code", [0, -15])  # a trainer that is told to leave does so well
@pytest.mark.parametrize(
    ("fate", "failure", "says"),
    [
        (CANCELLED, ClusterError, r"^slurm: job 7 was cancelled \(CANCELLED by 0\)$"),
        ("job 7 is pending: BeginTime", TrialFailed, "n2 was taken away: job 7 is pending: BeginTime"),
    ],
)
def test_a_worker_that_leaves_with_its_node_is_told_so_in_the_engine_s_words(
    small_suite: Suite, parts: Parts, runs: Path, code: int, fate: str | ClusterError,
    failure: type[Exception], says: str,
) -> None:  # fmt: skip
    faulty = replace(parts, schedule=KillAt("t001", 2, "n2"), nemesis=Killer())
    slow = replace(small_suite, cases=(replace(small_suite.cases[0], steps=400, batch_per_node=50),))
    with pytest.raises(failure, match=says):
        run(slow, Taken(fate, code), runs, faulty)
    assert not newest(runs).read("seal")["complete"]


def test_a_worker_that_dies_where_the_engine_says_nothing_is_blamed(
    small_suite: Suite, parts: Parts, runs: Path
) -> None:
    faulty = replace(parts, schedule=KillAt("t001", 2, "n2"), nemesis=Killer())
    slow = replace(small_suite, cases=(replace(small_suite.cases[0], steps=400, batch_per_node=50),))
    with pytest.raises(TrialFailed, match=r"n2.0 was killed by signal 15"):
        run(slow, Taken("", -15), runs, faulty)


@pytest.mark.parametrize(
    ("codes", "first"),
    [
        ({"n1.0": (1, 5.0), "n2.0": (-9, 5.1)}, "n2.0"),
        ({"n1.0": (-6, 5.2), "n2.0": (1, 5.1)}, "n2.0"),  # C++ ends itself by SIGABRT when it loses its peer
        ({"n1.0": (-6, 5.0), "n2.0": (-11, 5.1)}, "n2.0"),
        ({"n1.0": (1, 5.2), "n2.0": (3, 5.1), "n3.0": (0, 5.0)}, "n2.0"),
        ({"n1.0": (-9, 5.2), "n2.0": (-9, 5.1)}, "n2.0"),
    ],
)
def test_the_first_death_is_a_signal_s_else_the_earliest(codes: dict[str, tuple[int, float]], first: str) -> None:
    ended = {name: ProcessExit(name[:2], 0, 1, code, t) for name, (code, t) in codes.items()}
    assert first_death(ended)[0] == first


def test_a_process_that_does_not_start_ends_the_run(small_suite: Suite, parts: Parts, runs: Path) -> None:
    with pytest.raises(RuntimeError, match="n2 is on fire"):
        run(small_suite, Stubborn(), runs, parts)
    ends = [it for it in rundir.read_history(newest(runs)) if it["event"] == "run_end"]
    assert [(it["ok"], it["why"]) for it in ends] == [(False, "n2 is on fire")]


def test_a_job_in_a_smaller_world_is_not_silent(small_suite: Suite) -> None:
    (trial,) = make_plan(small_suite, FakeCluster(), {"command": Command()}).trials
    assert not any_rank_tells(trial)  # all have to get on
    assert any_rank_tells(replace(trial, role="replay"))
    assert any_rank_tells(replace(trial, mechanism="live"))


def test_silence_fails_a_trial(small_suite: Suite, parts: Parts, runs: Path) -> None:
    stuck = replace(small_suite, cases=(replace(small_suite.cases[0], batch_per_node=10**8),))
    with pytest.raises(TrialFailed, match=r"no first step within 6[01] s; the case's startup_s allows for more"):
        run(stuck, FakeCluster(), runs, parts)


@pytest.mark.parametrize("silence_s", [60.0, 200.0])
def test_silence_on_the_way_fails_a_trial_after_as_long_as_the_suite_says(silence_s: float, small_suite: Suite) -> None:
    (planned,) = make_plan(replace(small_suite, cases=(replace(small_suite.cases[0], silence_s=silence_s),)),
                           FakeCluster(), {"command": Command()}).trials  # fmt: skip
    refuse_silence(planned, 3, silence_s)
    said = f"no step for {silence_s + 1:.0f} s after step 3; the case's silence_s allows for more"
    with pytest.raises(TrialFailed, match=re.escape(said)):
        refuse_silence(planned, 3, silence_s + 1)


def test_the_first_step_may_take_as_long_as_the_suite_says(small_suite: Suite, parts: Parts, runs: Path) -> None:
    slow = replace(small_suite.cases[0], batch_per_node=10**8, startup_s=500.0)
    with pytest.raises(TrialFailed, match=r"no first step within 50[01] s"):
        run(replace(small_suite, cases=(slow,)), FakeCluster(), runs, parts)


def test_two_harnesses_do_not_write_to_one_run(small_suite: Suite, parts: Parts, runs: Path) -> None:
    store = run(small_suite, FakeCluster(), runs, parts)
    with elsewhere(store), pytest.raises(RunDirError, match="in progress"):
        run(small_suite, FakeCluster(), runs, parts, resume=store)
    assert not rundir.in_progress(store)


def test_a_run_in_progress_is_not_pruned(
    small_suite: Suite, parts: Parts, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (run(small_suite, FakeCluster(), runs, parts) for _ in range(2))
    with elsewhere(first):
        assert main(["--runs", str(runs), "list"]) == 0
        assert "in progress" in capsys.readouterr().out
        assert main(["--runs", str(runs), "prune", "--keep", "1"]) == 0
        assert first.path.exists()
    assert main(["--runs", str(runs), "prune", "--keep", "1"]) == 0
    assert not first.path.exists()
    assert second.path.exists()


@contextmanager
def elsewhere(store: RunDir) -> Iterator[None]:
    """Another process has the run."""
    code = """
import sys
from pathlib import Path
from proving_ground.bench import rundir
with rundir.held(rundir.RunDir(Path(sys.argv[1]))):
    print(flush=True)
    sys.stdin.read()
"""
    words = [sys.executable, "-c", code, str(store.path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        yield
        other.communicate()


@pytest.mark.parametrize("text", ["[]", "3", "{}", "null", "{", '{"trials": 3, "verdicts": {}, "t": "x"}', "[" * 9999])
@pytest.mark.parametrize("name", ["seal", "plan", "results", "provenance"])
def test_odd_documents_are_listed_or_refused_in_a_line(
    recorded: RunDir, runs: Path, name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (recorded.path / f"{name}.json").write_text(text)
    assert main(["--runs", str(runs), "list"]) == 0
    assert recorded.run_id in capsys.readouterr().out
    assert main(["--runs", str(runs), "logs"]) in (0, 2)
    assert capsys.readouterr().err.count("\n") <= 1


ODD_FIGURES: list[Any] = [
    {"name": "efficiency", "where": "x", "median": 1.0}, {"name": "efficiency", "where": {"nodes": "two"}, "median": 1},
    {"name": "efficiency", "where": {"nodes": 2}, "median": "x"}, {"name": "time_to_recovery", "median": 10**400}, 3,
]  # fmt: skip
ODD_EVENTS: list[dict[str, Any]] = [
    {"event": "trial_end", "sitting": "two"}, {"event": "process_start"}, {"event": ["fault_begin"]},
    {"event": "fault_begin", "kind": "clock_skew", "target": 3, "inject_t": "x"}, {"event": "fault_begin", "t": "x"},
]  # fmt: skip


def test_odd_values_within_documents_are_no_traceback(
    recorded: RunDir, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded.write("results", {"schema": SCHEMA, "figures": ODD_FIGURES, "trials": [], "verdicts": [{"verdict": []}]})
    with (recorded.events / "harness.jsonl").open("a") as file:
        file.writelines(json.dumps({"t": 1e9, "trial": "t001", **it}) + "\n" for it in ODD_EVENTS)
    with (recorded.logs / "t001.n1.0.log").open("a") as log:
        log.write("[W0230 10:00:00.000000 a day that there is not\n")
    recorded.write("provenance", {**recorded.read("provenance"), "sittings": [1]})
    assert main(["--runs", str(runs), "list"]) == 0
    assert recorded.run_id in capsys.readouterr().out
    for words in (["logs"], ["logs", "--since", "fault"]):
        assert main(["--runs", str(runs), *words]) == 0
    recorded.write("provenance", {**recorded.read("provenance"), "wall_s": 1e14})
    assert main(["--runs", str(runs), "logs"]) == 2
    assert "lacks t or wall_s" in capsys.readouterr().err


def test_a_run_of_a_newer_format_is_refused(recorded: RunDir, runs: Path) -> None:
    assert recorded.read("provenance")["format"] == rundir.FORMAT
    recorded.write("provenance", {**recorded.read("provenance"), "format": 99})
    with pytest.raises(RunDirError, match="format 99; this version reads up to 1"):
        rundir.find(runs)


def test_an_interrupted_run_is_sealed_as_incomplete_and_resumed(suite: Suite, parts: Parts, runs: Path) -> None:
    cluster = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        run(suite, cluster, runs, parts)
    store = newest(runs)
    assert cluster.torn_down
    assert not store.read("seal")["complete"]
    before = {it["trial"] for it in rundir.read_history(store) if it["event"] == "trial_end"}
    assert before
    run(suite, FakeCluster(), runs, parts, resume=store)
    assert store.read("seal")["complete"]
    assert rundir.verify(store) == []
    ends = [it["trial"] for it in rundir.read_history(store) if it["event"] == "trial_end" and it["ok"]]
    assert sorted(ends) == sorted({trial["id"] for trial in store.read("plan")["trials"]})
    steps = [it for it in rundir.read_history(store) if it["event"] == "step"]
    assert len(steps) == sum(trial["nodes"] * trial["steps"] for trial in store.read("plan")["trials"])


class Listening(FakeCluster):
    """Keeps what it was asked for, and what lay in the run's scratch folder by then."""

    def setup(self, request: ClusterRequest, emit: Emit) -> Sequence[Node]:
        self.asked, self.found = request, sorted(it.name for it in request.scratch.iterdir())
        return super().setup(request, emit)


def test_a_resumed_run_finds_nothing_that_the_one_before_left(suite: Suite, parts: Parts, runs: Path) -> None:
    """Of a harness that was killed, scratch folder and volume stay as they are, with checkpoints of the same names."""
    with pytest.raises(KeyboardInterrupt):
        run(suite, Interrupted(), runs, parts)
    store = newest(runs)
    (store.scratch / "volume" / "t001").mkdir(parents=True)
    cluster = Listening()
    run(suite, cluster, runs, parts, resume=store)
    assert (cluster.asked.sitting, cluster.found) == (2, [])


def rebooted() -> FakeCluster:
    """A cluster whose clock began anew."""
    cluster = FakeCluster()
    cluster._now = 5.0
    return cluster


def failed_once(small_suite: Suite, parts: Parts, runs: Path) -> RunDir:
    """A run of two trials whose second failed."""
    two = replace(small_suite, repeats=2, cases=(replace(small_suite.cases[0], steps=400, batch_per_node=50),))
    with pytest.raises(TrialFailed):
        run(two, FakeCluster(), runs, replace(parts, schedule=KillAt("t002", 2, "n2"), nemesis=Killer()))
    return newest(runs)


def resumed(small_suite: Suite, parts: Parts, runs: Path) -> RunDir:
    store = failed_once(small_suite, parts, runs)
    two = replace(small_suite, repeats=2, cases=(replace(small_suite.cases[0], steps=400, batch_per_node=50),))
    return run(two, rebooted(), runs, parts, resume=store)


def test_a_resume_after_a_reboot_keeps_the_order_and_the_failed_attempt(
    small_suite: Suite, parts: Parts, runs: Path
) -> None:
    store = resumed(small_suite, parts, runs)
    records = list(rundir.read_history(store))
    ends = [(it["trial"], it["ok"]) for it in records if it["event"] == "trial_end"]
    assert ends == [("t001", True), ("t002", False), ("t002", True)]
    assert [it["event"] for it in records if it["event"] in ("run_start", "resumed")] == ["run_start", "resumed"]
    assert [it["t"] for it in records] != sorted(it["t"] for it in records), "the clock was set back"
    measured = analyse(store)
    assert all(trial.good for trial in measured.trials)
    (said,) = [v for v in measured.verdicts if v["check"] == "completed"]
    assert said["verdict"] == "pass"
    assert said["why"].endswith("worker alive; 1 earlier attempt did not: t002: n2.0 was killed by signal 9")


def test_what_a_failed_attempt_left_is_sealed(small_suite: Suite, parts: Parts, runs: Path) -> None:
    store = resumed(small_suite, parts, runs)
    assert rundir.verify(store) == []
    file = next((store.path / rundir.INTERRUPTED).iterdir())
    file.write_text("changed")
    assert rundir.verify(store) == [f"{file.relative_to(store.path)}: changed"]
    (file.parent / "more").write_text("")
    assert f"{rundir.INTERRUPTED}/more: not in the seal" in rundir.verify(store)


def test_a_resume_with_other_code_is_told(
    small_suite: Suite, parts: Parts, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = failed_once(small_suite, parts, runs)
    first = store.read("provenance")
    monkeypatch.setattr(
        "proving_ground.bench.provenance.git", lambda *words: "b" * 40 if "HEAD" in words else " M changed.py"
    )
    two = replace(small_suite, repeats=2, cases=(replace(small_suite.cases[0], steps=400, batch_per_node=50),))
    run(two, rebooted(), runs, parts, resume=store)
    origin = store.read("provenance")
    assert origin["git"] == first["git"]
    assert [(it["sitting"], it["git"]) for it in origin["sittings"]] == [(2, {"commit": "b" * 40, "dirty": True})]
    (line,) = [it for it in analyse(store).history.warnings if "other code" in it]
    assert line.endswith(f"then {'b' * 40} with uncommitted changes")


def test_another_plan_is_not_resumed(recorded: RunDir, suite: Suite, parts: Parts, runs: Path) -> None:
    with pytest.raises(SpecError, match="asks for other trials now"):
        run(replace(suite, seed=99), FakeCluster(), runs, parts, resume=recorded)


def test_idle_nodes_keep_busy_but_are_not_measured(recorded: RunDir) -> None:
    planned = {it["id"]: it for it in recorded.read("plan")["trials"]}
    records = list(rundir.read_history(recorded))
    idle = {it: 4 - planned[it]["nodes"] for it in planned}
    for event in ("neighbour_start", "neighbour_pace", "neighbour_exit"):
        seen = [it["trial"] for it in records if it["event"] == event]
        assert {trial: seen.count(trial) for trial in planned} == idle
    measured = [it for it in records if it["event"] == "process_exit"]
    assert {it["code"] for it in measured} == {0}
    assert [it["trial"] for it in records if it["event"] == "neighbours_up"] == [it for it in planned if idle[it]]
    paces = [it for it in records if it["event"] == "neighbour_pace"]
    assert all(len(it["at"]) == len(it["samples"]) > 1 for it in paces)
    assert all(it["at"] == sorted(it["at"]) and it["samples"] == sorted(it["samples"]) for it in paces)


def test_a_spare_node_is_idle_at_the_largest_size_too(suite: Suite, parts: Parts, runs: Path) -> None:
    store = run(replace(suite, spare_nodes=1), FakeCluster(), runs, parts)
    plan = store.read("plan")
    largest = {it["id"] for it in plan["trials"] if it["nodes"] == 4}
    paces = [it for it in rundir.read_history(store) if it["event"] == "neighbour_pace" and it["trial"] in largest]
    assert {(it["trial"], it["node"]) for it in paces} == {(trial, "n5") for trial in largest}
    assert [it["role"] for it in plan["cluster"]["nodes"]] == [*["trains"] * 4, "spare"]


@pytest.mark.parametrize("nodes", [(4,), (1, 4)])
def test_without_idle_nodes_or_another_size_none_is_spare(
    nodes: tuple[int, ...], suite: Suite, parts: Parts, runs: Path
) -> None:
    case = suite.cases[0] if len(nodes) == 1 else replace(suite.cases[0], neighbours=False)
    store = run(replace(suite, nodes=nodes, spare_nodes=1, cases=(case,)), FakeCluster(), runs, parts)
    assert len(store.read("plan")["cluster"]["nodes"]) == 4


class Asked(Command):
    """Remembers for which trials processes were asked for."""

    def __init__(self) -> None:
        self.__dict__["seen"] = []  # frozen otherwise

    def processes(self, trial: Trial, nodes: Sequence[Node], files: TrialFiles) -> Sequence[ProcessSpec]:
        self.__dict__["seen"].append(trial)
        return super().processes(trial, nodes, files)


def test_an_idle_node_trains_on_one_nodes_share_by_itself(suite: Suite, runs: Path) -> None:
    asked = Asked()
    store = run(suite, FakeCluster(), runs, Parts(workloads={"command": asked}))
    planned = {it["id"]: it for it in store.read("plan")["trials"]}
    beside = [it for it in asked.__dict__["seen"] if it.id not in planned]
    assert beside
    assert {(it.nodes, it.global_batch) for it in beside if it.batch_per_node == 8} == {(1, 8)}
    assert all(it.global_batch == planned[it.id.partition("-")[0]]["batch_per_node"] for it in beside)


def test_nodes_with_their_own_cores_need_no_neighbours(suite: Suite, parts: Parts, runs: Path) -> None:
    store = run(replace(suite, cases=(replace(suite.cases[0], link_mbps=100.0),)), Unshared(), runs, parts)
    assert "neighbour_start" not in names(store)


def test_what_was_odd_is_told_in_the_history(small_suite: Suite, parts: Parts, runs: Path) -> None:
    store = run(small_suite, Scribbler(), runs, parts)
    told = [it["message"] for it in rundir.read_history(store) if it["event"] == "warning"]
    assert told == ["t001.n2.0.torn.jsonl: line 1 is half written, left out"]
    assert rundir.verify(store) == []


def test_nothing_is_left_when_the_plan_is_refused(suite: Suite, parts: Parts, runs: Path) -> None:
    bad = replace(suite, cases=(replace(suite.cases[0], workload="none"),))
    with pytest.raises(SpecError):
        run(bad, FakeCluster(), runs, parts)
    assert not runs.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "small"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128k", "none", str(folder)], check=False).returncode:
        pytest.skip("a disk of limited size needs root")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.root
def test_a_full_disk_loses_nothing_and_the_run_can_be_finished(small_disk: Path, suite: Suite, parts: Parts) -> None:
    filler = small_disk / "filler"
    filler.write_bytes(bytes(80_000))
    with pytest.raises(OSError, match="No space left on device; the run is not sealed"):
        run(suite, Unshared(), small_disk, parts)
    store = newest(small_disk)
    kept = {file.name: file.read_bytes() for file in store.events.glob("t*")}
    assert kept
    filler.unlink()
    subprocess.run(["mount", "-o", "remount,size=4m", str(small_disk)], check=True)
    run(suite, Unshared(), small_disk, parts, resume=store)
    assert rundir.verify(store) == []
    assert store.read("seal")["complete"]
    finished = [name for name, data in kept.items() if (store.events / name).read_bytes() == data]
    assert finished, "trials that were done before the disk was full are not done again"


def test_a_neighbour_s_progress_is_told_at_some_moments(tmp_path: Path) -> None:
    file = tmp_path / "t001-n2.n2.0.jsonl"
    assert progress(file) == ([], [])
    steps = [{"t": number / 10, "event": "step", "step": number, "samples": 8} for number in range(1, 951)]
    file.write_text("".join(json.dumps(it) + "\n" for it in [*steps, {"t": 96.0, "event": "step", "step": 951}]) + "{")
    at, samples = progress(file)
    assert (at[:2], samples[:2], len(at)) == ([0.1, 1.1], [8, 88], 95)


def test_of_neighbours_that_never_make_a_step_is_told_at_the_end(tmp_path: Path) -> None:
    told: list[str] = []
    spec = ProcessSpec("n2", 0, ("true",), events=tmp_path / "e.jsonl")
    company = Company("t001", lambda event, **_: told.append(event), [spec])
    company.look()
    assert told == []
    company.end()
    assert told == ["neighbours_up", "neighbour_pace"]
    Company("t001", lambda event, **_: told.append(event), []).end()
    assert len(told) == 2


STEP_TOLD = '{"t":1.0,"event":"step","step":1,"samples":8}\n'


def kept(store: RunDir, specs: Sequence[ProcessSpec], told: list[Any], **command: str) -> Company:
    """The company of a run's first trial, on a cluster that starts nothing."""
    trial = replace(Trial(**store.read("plan")["trials"][0]), command=command)
    cluster: Any = SimpleNamespace(start=lambda _: 1)
    emit = lambda event, **about: told.append((event, about.get("slot")))  # noqa: E731 - one line says it all
    return keep_company(Scene(trial, cluster, Parts(), store, emit, []), specs)


def test_what_neighbours_of_a_cut_off_attempt_told_is_gone(tmp_path: Path, recorded: RunDir) -> None:
    left = tmp_path / "t001-n4.n4.0.jsonl"
    left.write_text(STEP_TOLD)
    told: list[Any] = []
    kept(recorded, [ProcessSpec("n4", 0, ("true",), events=left)], told).look()
    assert (left.exists(), told) == (False, [("neighbour_start", None)])


def test_of_a_trainer_that_tells_on_rank_0_that_rank_is_heard(tmp_path: Path, recorded: RunDir) -> None:
    told: list[Any] = []
    specs = [ProcessSpec("n4", slot, ("true",), events=tmp_path / str(slot)) for slot in (0, 1)]
    company = kept(recorded, specs, told, tells=RANK_0)
    (tmp_path / "0").write_text(STEP_TOLD)
    company.look()
    company.end()
    assert told[-2:] == [("neighbours_up", None), ("neighbour_pace", 0)]
