"""The soak: schedules from seeds, what is kept and what stops it, and the shortening of a schedule."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from proving_ground.bench import rundir
from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.plan import make_plan
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import SpecError
from proving_ground.chaos import spec
from proving_ground.chaos.faults import FAULTS as KINDS
from tests.validations import soak, tables
from tests.validations.sitting import Sitting
from tests.validations.soak import Round, Table, Unit, draw, flat, main, shortest, suite, units_of


def test_a_schedule_is_a_function_of_its_seed_and_has_all_there_is() -> None:
    assert draw(3, 20) == draw(3, 20) != draw(4, 20)
    many = flat(draw(1, 3000))
    assert {it["kind"] for it in many} == {*soak.KILLS, *soak.LASTING, *soak.DAMAGE}
    assert {it["kind"] for it in many} <= KINDS.keys()
    assert {it.get("phase", "") for it in many} == {*soak.STEP_PHASES, "recovery"}
    assert {it.get("target", "") for it in many} == {"", "one", "rank0"}


@pytest.mark.parametrize("mechanism", ["restart", "live"])
@pytest.mark.parametrize("seed", range(1, 6))
def test_a_schedule_is_a_suite_that_can_be_planned(tmp_path: Path, seed: int, mechanism: str) -> None:
    file = tmp_path / "soak.toml"
    file.write_text(suite(seed, mechanism, flat(draw(seed, 20))))
    made = spec.load(str(file))
    trial, *beside = make_plan(made, FakeCluster()).trials
    twin = next(it for it in beside if it.role == "twin")
    assert sorted(it.role for it in beside) == ["reference", "twin"]
    assert len(trial.faults) >= 20
    assert (trial.seed, twin.twin_of) == (seed, "soak")
    assert (trial.min_nodes, trial.training.get("reduction")) == ((1, "exact") if mechanism == "live" else (3, None))
    assert units_of(made.cases[0].faults) == draw(seed, 20)


class Rounds:
    """Stands for the chaos runs: a schedule goes wrong if it has certain faults in this order."""

    def __init__(self, folder: Path, needed: Sequence[str]) -> None:
        self.folder, self.needed, self.played = folder, needed, 0

    @contextmanager
    def play(self, seed: int, mechanism: str, faults: Sequence[Table], *, alone: bool = True) -> Iterator[Round]:
        """A run with results, its suite file beside it; of two side by side the later one is over first."""
        self.played += 1
        file = self.folder / f"soak-{mechanism}-{seed}.toml"
        file.write_text(suite(seed, mechanism, faults))
        store = RunDir(self.folder / file.stem / f"r{self.played}")
        store.path.mkdir(parents=True)
        rundir.point_latest(store.path.with_name("latest"), Path(store.path.name))
        (store.path / "spec.json").write_text("{}")
        kinds = iter([it["kind"] for it in faults])
        wrong = bool(self.needed) and all(kind in kinds for kind in self.needed)
        rows = [{"fault": f"f{number:02}", "kind": it["kind"], "phase": it.get("phase", "step"), "why": "hashes differ",
                 "timeline": {}, "outcome": "wrong" if wrong and number == len(faults) else "recovered"}
                for number, it in enumerate(faults, 1)]  # fmt: skip
        (store.path / "results.json").write_text(json.dumps({"figures": [], "trials": rows, "verdicts": []}))
        wait_s = 0.0 if alone or seed % 2 == 0 else 0.5
        with subprocess.Popen([sys.executable, "-c", f"import time; time.sleep({wait_s})"]) as process:
            yield Round(seed, file, process)


@pytest.fixture
def rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rounds:
    made = Rounds(tmp_path, ())
    monkeypatch.setattr(soak, "FILE", tmp_path / "soak.json")
    monkeypatch.setattr(soak, "FAULT_S", 0.0)
    monkeypatch.setattr(soak, "RUNS", tmp_path)
    monkeypatch.setattr(soak, "LOOK_S", 0.01)
    monkeypatch.setattr(soak, "played", made.play)
    return made


def test_rounds_add_up_over_sittings_and_fine_ones_leave_nothing(
    rounds: Rounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Short(Sitting):
        def fits(self, estimate_s: float) -> bool:
            del estimate_s
            return rounds.played % 3 != 2

    monkeypatch.setattr(soak, "Sitting", Short)
    assert main(["--faults", "7"]) == 0
    rounds.played += 1
    assert main(["--faults", "7"]) == 0
    cell = json.loads((rounds.folder / "soak.json").read_text())["cells"]["restart"]
    assert [it["seed"] for it in cell["rounds"]] == [1, 2, 3, 4]
    assert cell["faults"] == sum(len(flat(draw(seed, 7))) for seed in (1, 2, 3, 4))
    assert [it.name for it in rounds.folder.rglob("*")] == ["soak.json"]
    assert f"| 4 | {cell['faults']} | 0 | {cell['faults']} |" in tables.soak({"cells": {"restart": cell}})


def test_faults_without_evidence_are_counted_and_not_judged() -> None:
    kinds = {"hang": {"recovered": 7, "invalid": 2, "stuck": 1}, "disk_full": {"wrong": 1, "invalid": 1}}
    rounds = [{"commit": "a1"}, {"commit": "a1"}, {"commit": "b2"}]
    cell = {"faults": 9, "double": 3, "kinds": kinds, "rounds": rounds}
    text = tables.soak({"cells": {"live, before a cure": cell}})
    assert "| live | a1 to b2 | 3 | 12 | 3 | 9 | 3 | 7 | 1 | 1 |" in text


def test_what_was_measured_adds_up() -> None:
    for cell in tables.measured("soak")["cells"].values():
        judged = [count for kind in cell["kinds"].values() for outcome, count in kind.items() if outcome != "invalid"]
        assert sum(judged) == cell["faults"]


def test_the_first_wrong_one_stops_it_and_is_kept(rounds: Rounds, capsys: pytest.CaptureFixture[str]) -> None:
    rounds.needed = ["worker_kill"]
    assert main(["--minutes", "1"]) == 1
    said = capsys.readouterr().out
    assert "WRONG: f" in said
    assert "--minimise" in said
    assert (rounds.folder / "soak-restart-1.toml").exists()
    assert (rounds.folder / "soak-restart-1" / "latest" / "results.json").exists()


def test_rounds_side_by_side_play_every_seed_once(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(Sitting):
        def fits(self, estimate_s: float) -> bool:
            del estimate_s
            return rounds.played < 5

    monkeypatch.setattr(soak, "Sitting", Short)
    assert main(["--faults", "3", "--jobs", "2"]) == 0
    played = json.loads((rounds.folder / "soak.json").read_text())["cells"]["restart"]["rounds"]
    seeds = [it["seed"] for it in played]
    assert sorted(seeds) == [1, 2, 3, 4, 5] != seeds


def test_a_run_that_was_cut_off_is_wrong_and_a_fault_that_left_no_sign_does_not_count(rounds: Rounds) -> None:
    with rounds.play(1, "restart", flat(draw(1, 3))) as one:
        store = one.store()
    for check, bad in (("completed", ["completed: no step"]), (soak.HAPPENED, [])):
        failed = [{"check": check, "verdict": "fail", "why": "no step", "where": {}}]
        (store.path / "results.json").write_text(json.dumps({"figures": [], "trials": [], "verdicts": failed}))
        assert soak.take({"faults": 0, "double": 0, "kinds": {}, "rounds": []}, store, 1) == bad


@pytest.mark.parametrize("seed", range(20))
def test_shortening_finds_what_is_needed_and_nothing_else(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - to be repeated, not secret
    units = draw(seed, 24)
    needed = sorted(chance.sample(range(len(units)), chance.randint(1, 3)))
    tried: list[int] = []

    def fails(some: Sequence[Unit]) -> bool:
        tried.append(len(some))
        return all(any(it is units[at] for it in some) for at in needed)

    assert shortest(units, fails) == [units[at] for at in needed]
    assert len(tried) < len(units) ** 2


def test_the_minimiser_writes_a_shorter_suite_that_still_fails(
    rounds: Rounds, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds.needed = ["worker_kill", "node_kill"]
    faults = [{"kind": kind} for kind in ("hang", "worker_kill", "delay", "loss", "node_kill", "disk_full")]
    with rounds.play(5, "restart", faults) as one:
        file = one.file
    shutil.rmtree(one.store().path)
    assert main(["--minimise", str(file)]) == 0
    short = spec.load(str(file.with_name("soak-restart-5-short.toml")))
    assert [it["kind"] for it in short.cases[0].faults] == ["worker_kill", "node_kill"]
    assert "2 of 6 faults are enough" in capsys.readouterr().out
    assert file.exists()


def test_what_does_not_fail_again_is_said(rounds: Rounds, capsys: pytest.CaptureFixture[str]) -> None:
    with rounds.play(5, "restart", [{"kind": "hang"}]) as one:
        file = one.file
    shutil.rmtree(one.store().path)
    assert main(["--minimise", str(file)]) == 1
    assert "does not fail again" in capsys.readouterr().out


def test_mistakes_are_refused(tmp_path: Path) -> None:
    for wrong in (["--faults", "0"], ["--jobs", "0"]):
        with pytest.raises(SpecError, match="must be at least 1"):
            main(wrong)
    with pytest.raises(SpecError, match="no suite"):
        main(["--minimise", str(tmp_path / "none.toml")])
