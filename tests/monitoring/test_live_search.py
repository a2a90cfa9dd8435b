"""The live page of a search: what it shows, and when it ends."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.rundir import RunDir
from proving_ground.bench.terminal import Terminal
from proving_ground.monitoring import live_search
from proving_ground.monitoring.cli import main

ASKED = {"algorithm": "asha", "metric": "accuracy", "mode": "max", "budget_steps": 1000}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "digits" / "s1")
    made.events.mkdir(parents=True)
    made.write("search", {"search": ASKED})
    made.write("provenance", {"wall_s": time.time(), "t": time.monotonic()})
    add(made, "sitting", wall_s=time.time(), planned=3)
    for trial in ("t001", "t002"):
        add(made, "started", trial=trial, params={})
    add(made, "reported", trial="t001", step=1, value=0.75)
    return made


def add(run: RunDir, event: str, **fields: object) -> None:
    with (run.path / "trials.jsonl").open("a") as out:
        out.write(json.dumps({"t": time.monotonic(), "event": event, **fields}) + "\n")


def console(**more: Any) -> tuple[Terminal, io.StringIO]:
    out = io.StringIO()
    return Terminal(file=out, width=120, **more), out


@pytest.mark.parametrize("terminal", [True, False])
def test_a_search_is_shown_until_it_is_over(run: RunDir, *, terminal: bool) -> None:
    screen, out = console(force_terminal=terminal)
    assert live_search.watch(run, screen, lambda _: add(run, "over", why="every trial has ended")) == 0
    for words in ("1 waiting, 2 running", "best accuracy 0.75", "0 steps of 1,000", "the search is over"):
        assert words in out.getvalue()
    assert ("t001" in out.getvalue()) is terminal, "a row for each trial where there is room"


def test_one_that_was_interrupted_ends_with_1(run: RunDir) -> None:
    screen, out = console()
    assert live_search.watch(run, screen, lambda _: time.sleep(0.02), gone_s=0.01) == 1
    assert "interrupted" in out.getvalue()


def test_the_command_finds_it_by_its_path(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    add(run, "over", why="every trial has ended")
    assert main(["live", str(run.path)]) == 0
    assert capsys.readouterr().out == "the search is over\n"
