"""The simulation: every mutant is found, a seed is a run, and a sitting goes on where the last one ended."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from unittest.mock import patch

import pytest
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic

from tests.validations import simulation, tables
from tests.validations.runs import simulate, staged
from tests.validations.simulation import MUTANTS, block, main, seek
from tests.validations.sitting import Pace
from tests.validations.virtual import Stage, World
from training import rendezvous


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_that_is_switched_off_is_found(name: str) -> None:
    assert seek(MUTANTS[name]).why.startswith(MUTANTS[name].breaks)


def test_nothing_is_wrong_with_the_rules_as_they_are() -> None:
    found = block(0, 60)
    assert (found.seed, found.why) == (None, "")
    assert sum(found.sorts.values()) == 60


def test_a_run_is_a_function_of_its_seed() -> None:
    def play() -> tuple[str, float, int]:
        sort = simulate(31)
        return sort, Stage.world.now, Stage.job.whole_steps

    with staged():
        assert play() == play()


def test_copies_that_are_made_without_pickle_change_no_run() -> None:
    def play() -> list[tuple[str, float, int]]:
        return [(simulate(seed), Stage.world.now, Stage.job.whole_steps) for seed in (*range(12), 7_000_202)]

    with staged():
        copied = play()
        with patch.object(rendezvous, "pickle", pickle), patch.object(dynamic, "pickle", pickle):
            assert play() == copied


def test_who_is_ended_does_not_go_on_and_time_jumps_to_what_is_due() -> None:
    world = Stage.world = World(1)
    said: list[object] = []

    def late() -> None:
        world.sleep(5)
        said.append("late")

    def ends_it() -> None:
        world.sleep(2)
        world.end(first)
        said.append(world.now)

    first = world.spawn(late)
    world.spawn(ends_it)
    world.run(lambda: False, 100)
    assert said == [2.0]


def test_a_sitting_goes_on_where_the_one_before_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulation, "FILE", tmp_path / "simulation.json")
    monkeypatch.setattr(simulation, "MUTANTS", {})
    monkeypatch.setattr(simulation, "BLOCK", 3)
    assert main(["--runs", "7", "--jobs", "1"]) == 0
    assert main(["--runs", "12", "--jobs", "2"]) == 0
    document = json.loads((tmp_path / "simulation.json").read_text())
    assert document["cells"]["runs"]["count"] == 12
    assert [it["from"] for it in document["cells"]["runs"]["sittings"]] == [0, 7]
    assert "12 runs" in tables.simulation(document)


def test_a_long_count_says_now_and_then_how_much_longer_it_takes() -> None:
    times = iter([0.0, 10.0, 20.0, 25.0, 40.0])
    pace = Pace(1000, lambda: next(times))
    assert [pace.left(done) for done in (50, 100, 150, 200)] == ["", "3 m 00 s left", "", "2 m 40 s left"]


def test_what_is_wrong_stops_it_and_its_seed_plays_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulation, "FILE", tmp_path / "simulation.json")
    monkeypatch.setattr(simulation, "MUTANTS", {})
    with MUTANTS["dead after one late heartbeat"].on():
        assert main(["--runs", "100", "--jobs", "1"]) == 1
        seed = json.loads((tmp_path / "simulation.json").read_text())["cells"]["runs"]["wrong"][0]["seed"]
        assert f"simulation --seed {seed}" in capsys.readouterr().out
        assert main(["--seed", str(seed)]) == 1
    assert main(["--seed", str(seed)]) == 0
    assert "all as it must be" in capsys.readouterr().out


def test_a_mutant_that_is_not_found_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(simulation, "FILE", tmp_path / "simulation.json")
    monkeypatch.setattr(simulation, "SOUGHT", 3)
    monkeypatch.setattr(simulation, "MUTANTS", {"none": simulation.Mutant(simulation, "BLOCK", 1, "fence")})
    monkeypatch.setattr(simulation, "seek", lambda mutant: seek(mutant, 3))
    assert main(["--runs", "1", "--jobs", "1"]) == 1
    assert "none: NOT FOUND" in capsys.readouterr().out
