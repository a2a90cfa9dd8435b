"""What a search's directory says, its checks with a mutant of each, and the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN
from proving_ground.search import cli, ledger, page
from proving_ground.search.report import main
from proving_ground.search.results import Analysis, analyse
from proving_ground.search.store import SearchDir
from proving_ground.search.times import spent, trainer
from tests.search.recorded import ANSWER_S, ASKED, STEP_S, Records, three, trial, write

POPULATION = {**ASKED, "algorithm": "pbt", "trials": 2}


def figure(analysis: Analysis, name: str) -> float:
    return float(next(it["median"] for it in analysis.figures if it["name"] == name))


def verdicts(run_dir: SearchDir) -> dict[str, str]:
    return {it["check"]: it["verdict"] for it in analyse(run_dir).verdicts}


def test_best_and_steps_are_those_of_the_ledger(tmp_path: Path) -> None:
    analysis = analyse(write(tmp_path, three()))
    assert analysis.best is not None
    assert (analysis.best.id, figure(analysis, "best")) == ("t001", 0.9)
    assert figure(analysis, "steps_made") == 50
    assert figure(analysis, "steps_saved") == 30
    assert figure(analysis, "steps_of_stopped") == 10
    assert figure(analysis, "steps_saved_share") == pytest.approx(100 * 30 / 120)
    assert set(verdicts(analysis.run).values()) == {PASS}


def test_seconds_of_the_slots_add_up_and_no_answer_counts_as_training(tmp_path: Path) -> None:
    analysis = analyse(write(tmp_path, three()))
    times = analysis.times
    assert sum(times.parts.values()) == pytest.approx(times.slots_s)
    assert times.trials["t001"].seconds == pytest.approx(40 * STEP_S - 3 * ANSWER_S)
    assert times.parts["answers"] == pytest.approx(3 * ANSWER_S)  # after the last one there is no slot to wait in
    assert all(seconds >= 0 for seconds in times.parts.values())


def test_what_a_trainer_did_after_its_driver_was_killed_is_in_no_slot(tmp_path: Path) -> None:
    file = write(tmp_path, three()).of_trial("t001")
    assert trainer(file, [12.2]).seconds == pytest.approx(2.0 - ANSWER_S)
    assert trainer(file, [12.2]).steps == 40


def test_a_search_that_minimises_takes_the_lowest(tmp_path: Path) -> None:
    analysis = analyse(write(tmp_path, three(), {**ASKED, "metric": "loss", "mode": "min"}))
    assert analysis.best is not None
    assert analysis.best.id == "t002"


def changed(run_dir: SearchDir) -> None:
    run_dir.ledger.write_text(run_dir.ledger.read_text().replace("0.9", "0.99"))


def cut_off(run_dir: SearchDir) -> None:
    lines = run_dir.ledger.read_text().splitlines()
    kept = [it for it in lines if '"over"' not in it and '"finished"' not in it]
    run_dir.ledger.write_text("\n".join(kept) + "\n")


def run_again(run_dir: SearchDir) -> None:
    started = next(it for it in run_dir.ledger.read_text().splitlines() if '"started"' in it)
    run_dir.ledger.write_text(run_dir.ledger.read_text() + started + "\n")


def sealed(run_dir: SearchDir, document: object) -> None:
    run_dir.write("seal", document)


MUTANTS: Mapping[str, tuple[Callable[[SearchDir], object], str, str]] = {
    "a value was changed": (changed, "sealed", UNKNOWN),
    "a file was added": (lambda it: (it.events / "t999.n1.0.jsonl").touch(), "sealed", UNKNOWN),
    "the seal's files are gone": (lambda it: sealed(it, {"complete": True, "files": {}}), "sealed", UNKNOWN),
    "the seal is of an incomplete search": (
        lambda it: sealed(it, {**it.read("seal"), "complete": False}),
        "sealed",
        UNKNOWN,
    ),
    "the seal is no table": (lambda it: sealed(it, []), "sealed", UNKNOWN),
    "a trial has not ended": (cut_off, "completed", UNKNOWN),
    "a trial was run again": (run_again, "once", FAIL),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_check_sees_its_mutant(name: str, tmp_path: Path) -> None:
    mutate, check, expected = MUTANTS[name]
    run_dir = write(tmp_path, three())
    assert verdicts(run_dir)[check] == PASS
    mutate(run_dir)
    assert verdicts(run_dir)[check] == expected


def test_a_search_of_which_every_trial_failed_fails_and_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = [trial(f"t00{it}", 0.9, [], ledger.FAILED, 10.0, why="accuracy is nan at step 10") for it in (1, 2, 3)]
    assert main([str(write(tmp_path, lost).path)]) == 1
    assert "all 3 trials failed; the first: accuracy is nan at step 10" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("key", "value", "expected"),
    [("budget_steps", 40, PASS), ("budget_steps", 20, FAIL), ("budget_s", 40, PASS), ("budget_s", 1, FAIL)],
)  # two slots may make 20 steps more, and what runs has 30 s to end
def test_a_budget_that_was_not_kept_is_seen(key: str, value: float, expected: str, tmp_path: Path) -> None:
    long = [trial("t001", 0.1, [0.5] * 4, ledger.FINISHED, 10.0), trial("t002", 0.1, [0.5], ledger.STOPPED, 60.0)]
    run_dir = write(tmp_path, long, {**ASKED, key: value}, why="budget: used up")
    assert verdicts(run_dir)["budget"] == expected


@pytest.mark.parametrize("why", [ledger.BUDGET, "random"])  # the second is what older ledgers say
def test_what_the_budget_cut_off_is_not_saved_by_early_stopping(why: str, tmp_path: Path) -> None:
    made = [
        trial("t001", 0.1, [0.3, 0.5, 0.8, 0.9], ledger.FINISHED, 10.0),
        trial("t002", 0.2, [0.3], ledger.STOPPED, 10.0, why=why),
    ]
    asked = {**ASKED, "algorithm": "random", "trials": 10, "budget_steps": 50}
    analysis = analyse(write(tmp_path, made, asked, why="budget: 50 steps were made"))
    assert (figure(analysis, "steps_saved"), figure(analysis, "steps_of_stopped")) == (0, 0)
    assert figure(analysis, "steps_in_full") == 400
    html = page.html(analysis)
    assert "cut off by the budget" in html
    assert "stopped early" not in html


def test_a_budget_counts_the_steps_that_were_made_again(tmp_path: Path) -> None:
    made = [trial("t001", 0.1, [0.5] * 4, ledger.FINISHED, 10.0)]
    run_dir = write(tmp_path, made, {**ASKED, "trials": 1, "budget_steps": 40})
    assert verdicts(run_dir)["budget"] == PASS
    file = run_dir.of_trial("t001")
    file.write_text(file.read_text() * 2)
    assert verdicts(run_dir)["budget"] == FAIL


def test_a_killed_sitting_lasts_until_its_trainers_last_event(tmp_path: Path) -> None:
    run_dir = write(tmp_path, [trial("t001", 0.1, [0.5] * 4, ledger.FINISHED, 10.0)])
    records = ledger.read(run_dir.ledger)
    killed = [*records[:3], {**records[0], "t": 20.0, "sitting": 2}]
    steps, seconds = spent(run_dir, killed)
    assert steps == 40
    assert seconds == pytest.approx(10.2 + 40 * STEP_S + ANSWER_S - 1)  # begun at 1; its ledger ends at 11
    assert spent(run_dir, records)[1] == pytest.approx(records[-1]["t"] - 1)


def copying(digest: str) -> list[Records]:
    """A trial that says it went on from another one's checkpoint."""
    donor, taker = (trial(f"t00{it}", 0.1 * it, [0.5, 0.6], ledger.FINISHED, 10.0) for it in (1, 2))
    copy = {
        "t": 11.5, "event": ledger.COPIED, "sitting": 1, "trial": "t002", "donor": "t001", "step": 10,
        "sha256": digest, "params": {"lr": 0.12},
    }  # fmt: skip
    return [donor, [*taker[:2], copy, *taker[2:]]]


def add_event(run_dir: SearchDir, name: str, **fields: Any) -> None:
    with run_dir.of_trial(name).open("a") as file:
        file.write(json.dumps({"t": 11.0, "step": 10, "path": "x", **fields}) + "\n")


@pytest.mark.parametrize(("loaded", "expected"), [("aa", PASS), ("bb", FAIL)])
def test_copied_weights_are_those_that_the_other_trainer_saved(loaded: str, expected: str, tmp_path: Path) -> None:
    run_dir = write(tmp_path, copying("aa"), POPULATION)
    add_event(run_dir, "t001", event="checkpoint", sha256="aa")
    add_event(run_dir, "t002", event="resume", sha256=loaded)
    assert verdicts(run_dir)["copied"] == expected


def test_a_population_shows_what_made_its_best_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    donor, taker = copying("aa")
    taker = [{**it, "value": 0.99} if it.get("step") == 10 and "value" in it else it for it in taker]
    run_dir = write(tmp_path, [donor, taker], POPULATION)
    main([str(run_dir.path)])
    assert "0.99 at step 10 of t002 (lr 0.2)" in capsys.readouterr().out
    html = page.html(analyse(run_dir))
    assert "trial t002, lr\N{NO-BREAK SPACE}0.2" in html
    assert "The whole schedule" in html
    assert "--set lr" not in html


def test_a_population_in_which_nobody_copied_proves_nothing(tmp_path: Path) -> None:
    made = [trial("t001", 0.1, [0.5], ledger.FINISHED, 10.0), trial("t002", 0.2, [0.6], ledger.FINISHED, 10.0)]
    assert verdicts(write(tmp_path, made, POPULATION))["copied"] == UNKNOWN


def without(file: Path, old: str, new: str) -> None:
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


DAMAGED: Mapping[str, tuple[Callable[[SearchDir], object], str]] = {
    "no JSON in the ledger": (lambda it: without(it.ledger, '{"t": 1.0', "hello"), "trials.jsonl: line 1: not JSON"),
    "a value that is a text": (
        lambda it: without(it.ledger, '"value": 0.9', '"value": "x"'), "value = x: must be a number"
    ),
    "nothing asked": (lambda it: it.spec.write_text("{}"), "search.json: has no table 'search'"),
    "a list asked": (lambda it: it.spec.write_text("[]"), "search.json: has no table 'search'"),
    "a key of another version": (lambda it: without(it.spec, '"quantile"', '"quantil"'), "unknown key 'quantil'"),
}  # fmt: skip


@pytest.mark.parametrize("how", DAMAGED)
def test_what_is_damaged_is_one_line_and_the_list_goes_on(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, words = DAMAGED[how]
    write(tmp_path, three())
    run_dir = write(tmp_path, three())
    damage(run_dir)
    assert main([str(run_dir.path)]) == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    assert cli.main(["list", "--json", "--runs", str(tmp_path)]) == 0
    rows = json.loads(capsys.readouterr().out)["searches"]
    assert [it["state"] for it in rows] == ["over", "cannot be read"]
    assert words in rows[1]["told"]


def test_a_parameter_of_another_name_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = write(tmp_path, three())
    without(run_dir.ledger, '"lr": 0.1', '"lrr": 0.1')
    assert main([str(run_dir.path)]) == 2
    assert "t001 has lrr; the space has lr" in capsys.readouterr().err


def test_an_origin_that_is_no_table_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = write(tmp_path, three())
    run_dir.write("provenance", [])
    assert main([str(run_dir.path)]) == 2
    assert "provenance.json: must be a table" in capsys.readouterr().err


def test_an_event_without_a_moment_is_passed_over(tmp_path: Path) -> None:
    run_dir = write(tmp_path, three())
    run_dir.of_trial("t001").write_text('{"event":"start"}\n')
    assert analyse(run_dir).times.trials["t001"].steps == 0


def test_a_name_with_stars_is_no_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path, three())
    assert cli.main(["report", "a**", "--runs", str(tmp_path)]) == 2
    assert "unknown search 'a**'" in capsys.readouterr().err


def test_the_page_shows_every_trial_and_loads_nothing(tmp_path: Path) -> None:
    analysis = analyse(write(tmp_path, [*three()]))
    html = page.html(analysis)
    for words in ("t001", "t002", "t003", "the loss of step 3 is nan", "stopped early", "--set lr=0.1", "25.0"):
        assert words in html
    for name in ("curves", "parallel", "overhead"):
        assert f'<figure id="{name}">' in html
    assert 'src="http' not in html
    assert html == page.html(analyse(analysis.run))


def test_the_page_of_a_search_without_a_value_can_be_made(tmp_path: Path) -> None:
    lost = [trial("t001", 0.9, [], ledger.FAILED, 10.0, why="its worker died")]
    html = page.html(analyse(write(tmp_path, lost)))
    assert "There is no curve" in html
    assert "its worker died" in html
