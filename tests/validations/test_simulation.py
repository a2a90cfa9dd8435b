"""The simulation: every mutant is found, a seed is a run, and a sitting goes on where the last one ended."""

from __future__ import annotations

import json
import pickle
import signal
import time
from pathlib import Path
from unittest.mock import patch

import pytest
from torch.distributed.elastic.rendezvous import dynamic_rendezvous as dynamic

from proving_ground.training.recovery import rendezvous
from tests.validations import live_runs, simulation, tables
from tests.validations.rules_off import RESTART, Mutant
from tests.validations.runs import simulate, staged
from tests.validations.simulation import SIMULATIONS, Simulation, block, main, planned, seek, several
from tests.validations.sitting import Pace
from tests.validations.virtual import Stage, World


@pytest.mark.parametrize(("mechanism", "name"), [(it, name) for it in SIMULATIONS for name in SIMULATIONS[it].mutants])
def test_a_rule_that_is_switched_off_is_found(mechanism: str, name: str) -> None:
    mutant = SIMULATIONS[mechanism].mutants[name]
    assert seek(SIMULATIONS[mechanism], mutant).why.startswith(mutant.breaks)


@pytest.mark.parametrize("mechanism", SIMULATIONS)
def test_nothing_is_wrong_with_the_rules_as_they_are(mechanism: str) -> None:
    found = block(mechanism, 0, 60)
    assert (found.seed, found.why) == (None, "")
    assert sum(found.sorts.values()) == 60


@pytest.mark.parametrize("mechanism", SIMULATIONS)
def test_a_run_is_a_function_of_its_seed(mechanism: str) -> None:
    def play() -> tuple[str, float, int]:
        sort = SIMULATIONS[mechanism].simulate(31)
        return sort, Stage.world.now, Stage.job.whole_steps

    with SIMULATIONS[mechanism].staged():
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


@pytest.fixture
def unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of results, and no mutants that would have to be found first."""
    monkeypatch.setattr(simulation, "FILE", tmp_path / "simulation.json")
    for name, it in SIMULATIONS.items():
        monkeypatch.setitem(SIMULATIONS, name, Simulation(it.simulate, it.staged, {}))
    monkeypatch.setattr(simulation, "BLOCK", 3)
    return tmp_path / "simulation.json"


def test_a_sitting_goes_on_where_the_one_before_ended(unknown: Path) -> None:
    assert main(["--runs", "8", "--jobs", "1"]) == 0
    assert main(["--runs", "14", "--jobs", "2", "--mechanism", "restart"]) == 0
    document = json.loads(unknown.read_text())
    counts = {name: cell["count"] for name, cell in document["cells"].items()}
    assert counts == {"restart": 11, "live": 3}
    assert [it["from"] for it in document["cells"]["restart"]["sittings"]] == [0, 5]
    (commit,) = {it["commit"] for it in document["cells"]["restart"]["sittings"]}
    assert f"| restart | {commit or 'no commit'} | 11 |" in tables.simulation(document)


def test_mechanisms_take_turns() -> None:
    assert planned({"restart": 500, "live": 0}, 600) == [
        ("restart", 500, 250), ("live", 0, 250), ("restart", 750, 100),
    ]  # fmt: skip


def test_a_long_count_says_now_and_then_how_much_longer_it_takes() -> None:
    times = iter([0.0, 10.0, 20.0, 25.0, 40.0])
    pace = Pace(1000, lambda: next(times))
    assert [pace.left(done) for done in (50, 100, 150, 200)] == ["", "3 m 00 s left", "", "2 m 40 s left"]


def test_what_is_wrong_stops_it_and_its_seed_plays_it_again(unknown: Path, capsys: pytest.CaptureFixture[str]) -> None:
    of_restart = ["--mechanism", "restart"]
    with RESTART["dead after one late heartbeat"].on():
        assert main(["--runs", "100", "--jobs", "1", *of_restart]) == 1
        seed = json.loads(unknown.read_text())["cells"]["restart"]["wrong"][0]["seed"]
        assert f"simulation --mechanism restart --seed {seed}" in capsys.readouterr().out
        assert main(["--seed", str(seed), *of_restart]) == 1
    assert main(["--seed", str(seed), *of_restart]) == 0
    assert "all as it must be" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--seed", "1"])


def test_a_mutant_that_is_not_found_is_told(
    unknown: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    del unknown
    none = {"none": Mutant(simulation, "BLOCK", 1, "fence")}
    monkeypatch.setitem(SIMULATIONS, "live", Simulation(live_runs.simulate, live_runs.staged, none))
    monkeypatch.setattr(simulation, "seek", lambda it, mutant: seek(it, mutant, 3))
    assert main(["--runs", "1", "--jobs", "1"]) == 1
    assert "none: NOT FOUND" in capsys.readouterr().out


def deaf(file: Path) -> None:
    """Takes the first SIGTERM for its own, as some of the commands do that a worker runs."""
    signal.signal(signal.SIGTERM, lambda *_: signal.signal(signal.SIGTERM, signal.SIG_DFL))
    file.touch()
    time.sleep(600)


def interrupted(folder: Path) -> None:
    """A sitting that a Ctrl-C ends once both workers are at work."""
    files = [folder / "a", folder / "b"]
    with several(2) as each:
        each(deaf, files)
        while not all(it.exists() for it in files):
            time.sleep(0.01)
        raise KeyboardInterrupt


def test_a_sitting_that_is_interrupted_ends_though_a_worker_misses_a_signal(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        interrupted(tmp_path)
