"""The commands around a search: what they refuse, what they record, and how they are interrupted."""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from proving_ground.search import cli, commands, ledger, page, store, watch
from proving_ground.search.results import analyse
from proving_ground.search.store import SearchDir
from tests.search.recorded import three, trial, write

ROOT = Path(__file__).parent.parent.parent
pytestmark = pytest.mark.timeout(300)


def cut_off(run_dir: SearchDir) -> None:
    """As a killed command leaves it."""
    lines = run_dir.ledger.read_text().splitlines(keepends=True)
    run_dir.ledger.write_text("".join(lines[:-2]))


def goes_on(run_dir: SearchDir, _show: object, _place: str) -> None:
    """Stands for a sitting that ends the search."""
    book = ledger.Ledger(run_dir.ledger, 2)
    for event, more in ((ledger.SITTING, {}), (ledger.READY, {}), (ledger.OVER, {"why": "every trial has ended"})):
        book.append(event, **more)


def resume(run_dir: SearchDir) -> int:
    return cli.main(["resume", run_dir.run_id, "--quiet", "--runs", str(run_dir.path.parents[2])])


@pytest.mark.parametrize("words", [["run", "--suite", "smoke"], ["resume", "latest"]])
def test_without_the_extra_nothing_is_begun(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "find_spec", lambda name: None if name == "optuna" else name)
    assert cli.main([*words, "--runs", str(tmp_path / "runs")]) == 2
    assert capsys.readouterr().err == "search: optuna: not installed: pip install '.[search]'\n"
    assert not (tmp_path / "runs").exists()


def test_a_resume_tells_by_what_code_it_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = write(tmp_path, three())
    cut_off(run_dir)
    monkeypatch.setattr(watch, "run", goes_on)
    resume(run_dir)
    origin = run_dir.read("provenance")
    assert [it["sitting"] for it in origin["sittings"]] == [2]
    assert origin["sittings"][0]["git"]["commit"] == origin["git"]["commit"]
    assert "the search was interrupted and resumed: 2 sittings" in page.warnings(analyse(run_dir))


def test_a_search_that_is_over_has_no_other_sitting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = write(tmp_path, three())
    monkeypatch.setattr(watch, "run", lambda *_: pytest.fail("a sitting was begun"))
    before = run_dir.ledger.read_bytes(), run_dir.read("provenance")
    assert resume(run_dir) == 0
    assert (run_dir.ledger.read_bytes(), run_dir.read("provenance")) == before
    assert "interrupted" not in run_dir.report.read_text()


def test_a_search_that_was_killed_before_its_seal_gets_it(tmp_path: Path) -> None:
    run_dir = write(tmp_path, three())
    (run_dir.path / "seal.json").unlink()
    assert resume(run_dir) == 0
    assert {it["verdict"] for it in analyse(run_dir).verdicts} == {"pass"}


def test_a_driver_that_died_is_no_interruption(tmp_path: Path) -> None:
    run_dir = write(tmp_path, three())
    cut_off(run_dir)
    goes_on(run_dir, None, "")
    assert "a driver or a trial's worker died: 2 sittings" in page.warnings(analyse(run_dir))


def test_what_was_interrupted_says_its_own_name() -> None:
    assert "search resume 2026-a" in cli.left(argparse.Namespace(runs=Path("runs"), resume="2026-a"))
    assert "search resume latest" in cli.left(argparse.Namespace(runs=Path("runs")))


def test_latest_leads_to_a_search_from_the_first_moment_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = write(tmp_path, three())

    def killed(_self: SearchDir, _name: str, _document: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("proving_ground.bench.rundir.RunDir.write", killed)
    with pytest.raises(KeyboardInterrupt):
        store.create(tmp_path, store.asked(first))
    assert store.find(tmp_path, "latest").path == first.path


def test_an_interrupted_report_is_one_line(tmp_path: Path) -> None:
    run_dir = write(tmp_path, three())
    words = [sys.executable, "-m", "proving_ground.search", "report", str(run_dir.path)]
    with subprocess.Popen(words, cwd=ROOT, stderr=subprocess.PIPE, text=True, start_new_session=True) as command:
        children = Path(f"/proc/{command.pid}/task/{command.pid}/children")
        while command.poll() is None and not children.read_text():
            time.sleep(0.01)
        time.sleep(0.2)  # its imports
        os.killpg(command.pid, signal.SIGINT)
        _, error = command.communicate()
    assert (command.returncode, error) == (130, "search: interrupted\n")


def test_a_machine_with_gpus_is_told_that_they_are_hidden(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(commands, "GPU", tmp_path)
    monkeypatch.setattr(commands, "carried_out", lambda *_: 0)
    assert cli.main(["run", "--suite", "smoke", "--runs", str(tmp_path)]) == 0
    assert "trials run on the CPU" in capsys.readouterr().out


def test_a_failed_trial_is_not_the_first_of_the_table(tmp_path: Path) -> None:
    made = [
        trial("t001", 0.1, [0.3, 0.5], ledger.FINISHED, 10.0),
        trial("t002", 0.2, [0.99], ledger.FAILED, 10.0, why="its worker died"),
        trial("t003", 0.3, [], ledger.FAILED, 10.0, why="its worker died"),
    ]
    assert [it.id for it in page.ranked(analyse(write(tmp_path, made)))] == ["t001", "t002", "t003"]
