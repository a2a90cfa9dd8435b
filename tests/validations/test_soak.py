"""The soak: schedules from seeds, what is kept and what stops it, and the shortening of a schedule."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.clusters.fake import FakeCluster
from bench.plan import make_plan
from bench.rundir import RunDir
from bench.spec import SpecError
from chaos import spec
from chaos.faults import FAULTS as KINDS
from tests.validations import soak, tables
from tests.validations.sitting import Sitting
from tests.validations.soak import Unit, draw, flat, main, shortest, suite, units_of


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
    trial, twin = make_plan(made, FakeCluster()).trials
    assert len(trial.faults) >= 20
    assert (trial.seed, twin.twin_of) == (seed, "soak")
    assert (trial.min_nodes, trial.training.get("reduction")) == ((1, "exact") if mechanism == "live" else (3, None))
    assert units_of(made.cases[0].faults) == draw(seed, 20)


class Rounds:
    """Stands for the chaos runs: a schedule goes wrong if it has certain faults in this order."""

    def __init__(self, folder: Path, needed: Sequence[str]) -> None:
        self.folder, self.needed, self.played = folder, needed, 0

    def play(self, seed: int, mechanism: str, faults: Sequence[dict[str, Any]]) -> tuple[RunDir, Path]:
        """A run with results, its suite file beside it."""
        self.played += 1
        file, store = self.folder / f"soak-{mechanism}-{seed}.toml", RunDir(self.folder / "soak" / f"r{self.played}")
        file.write_text(suite(seed, mechanism, faults))
        store.path.mkdir(parents=True)
        kinds = iter([it["kind"] for it in faults])
        wrong = bool(self.needed) and all(kind in kinds for kind in self.needed)
        rows = [{"fault": f"f{number:02}", "kind": it["kind"], "phase": it.get("phase", "step"), "why": "hashes differ",
                 "outcome": "wrong" if wrong and number == len(faults) else "recovered"}
                for number, it in enumerate(faults, 1)]  # fmt: skip
        (store.path / "results.json").write_text(json.dumps({"trials": rows, "verdicts": []}))
        return store, file


@pytest.fixture
def rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rounds:
    made = Rounds(tmp_path, ())
    monkeypatch.setattr(soak, "FILE", tmp_path / "soak.json")
    monkeypatch.setattr(soak, "FAULT_S", 0.0)
    monkeypatch.setattr(soak, "play", made.play)
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
    assert [it.name for it in rounds.folder.rglob("*") if it.is_file()] == ["soak.json"]
    assert f"| restart | {cell['faults']} |" in tables.soak({"cells": {"restart": cell}})


def test_the_first_wrong_one_stops_it_and_is_kept(rounds: Rounds, capsys: pytest.CaptureFixture[str]) -> None:
    rounds.needed = ["worker_kill"]
    assert main(["--minutes", "1"]) == 1
    said = capsys.readouterr().out
    assert "WRONG: f" in said
    assert "--minimise" in said
    assert (rounds.folder / "soak-restart-1.toml").exists()
    assert (rounds.folder / "soak" / "r1" / "results.json").exists()


def test_a_run_that_was_cut_off_by_a_failure_is_wrong(rounds: Rounds) -> None:
    store, _ = rounds.play(1, "restart", flat(draw(1, 3)))
    failed = [{"check": "completed", "verdict": "fail", "why": "trial t001: no step"}]
    (store.path / "results.json").write_text(json.dumps({"trials": [], "verdicts": failed}))
    assert soak.take({"faults": 0, "double": 0, "kinds": {}, "rounds": []}, store, 1) == [
        "completed: trial t001: no step"
    ]


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
    _, file = rounds.play(5, "restart", faults)
    assert main(["--minimise", str(file)]) == 0
    short = spec.load(str(file.with_name("soak-restart-5-short.toml")))
    assert [it["kind"] for it in short.cases[0].faults] == ["worker_kill", "node_kill"]
    assert "2 of 6 faults are enough" in capsys.readouterr().out
    assert file.exists()


def test_what_does_not_fail_again_is_said(rounds: Rounds, capsys: pytest.CaptureFixture[str]) -> None:
    _, file = rounds.play(5, "restart", [{"kind": "hang"}])
    assert main(["--minimise", str(file)]) == 1
    assert "does not fail again" in capsys.readouterr().out


def test_mistakes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="must be at least 1"):
        main(["--faults", "0"])
    with pytest.raises(SpecError, match="no suite"):
        main(["--minimise", str(tmp_path / "none.toml")])
