"""A real search on a real Ray: it finds what was planted, survives the death of its command, and leaves nothing."""

from __future__ import annotations

import json
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from proving_ground.search import ledger, store
from proving_ground.search.store import SearchDir
from tests.search import running
from tests.search.running import command, ended

ROOT = Path(__file__).parent.parent.parent
PLANTED = {"trial": running.PLANTED, "lr": 0.03}
KILLED_AFTER = 2  # trials that have ended
PATIENCE_S = 400.0  # of a busy machine
pytestmark = pytest.mark.timeout(900)


@dataclass(frozen=True)
class Done:
    """What the killed and resumed search left."""

    run_dir: SearchDir
    ended_before: set[str]
    sittings_before: int  # more than one where workers had died by then
    left_by_kill: list[str]
    left_at_end: list[str]
    status: int
    document: dict[str, Any]


def processes(run_dir: SearchDir) -> list[str]:
    """Command lines on this machine that name the search's directory or its Ray's."""
    marks = (str(run_dir.path).encode(), str(run_dir.ray).encode())
    found = []
    for it in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = it.read_bytes()
        except OSError:
            continue
        if any(mark in line for mark in marks):
            found.append(line.replace(b"\0", b" ").decode(errors="replace")[:100])
    return found


def until(what: str, true: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Done:
    runs = tmp_path_factory.mktemp("search") / "runs"
    with subprocess.Popen(
        command(runs, "run", "--suite", "smoke", "--quiet"), cwd=ROOT, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as first:  # fmt: skip
        until("no search was begun", lambda: store.every(runs) or first.poll() is not None)
        (run_dir,) = store.every(runs)
        until("no trial has ended", lambda: len(ended(run_dir)) >= KILLED_AFTER or first.poll() is not None)
        first.kill()
    until("processes stay", lambda: not processes(run_dir))
    before, left, sittings = ended(run_dir), processes(run_dir), ledger.sittings(ledger.read(run_dir.ledger))
    again = subprocess.run(
        command(runs, "resume", "latest", "--json"), cwd=ROOT, capture_output=True, text=True, check=False
    )
    return Done(run_dir, before, sittings, left, processes(run_dir), again.returncode, json.loads(again.stdout))


def test_ten_trials_find_the_planted_best(done: Done) -> None:
    best = next(it for it in done.document["figures"] if it["name"] == "best")
    assert len(done.document["trials"]) == 10
    assert best["where"]["trial"] == PLANTED["trial"]
    assert best["median"] > 0.6
    others = [it["best"] for it in done.document["trials"] if it["trial"] != PLANTED["trial"] and it["best"]]
    assert max(others) < 0.4


def test_no_trial_that_had_ended_is_run_again(done: Done) -> None:
    records = ledger.read(done.run_dir.ledger)
    later = {it["trial"] for it in records if it["event"] == ledger.STARTED and it["sitting"] > done.sittings_before}
    assert len(done.ended_before) >= KILLED_AFTER
    assert not later & done.ended_before
    assert ledger.repeated(records) == []
    assert ledger.sittings(records) > done.sittings_before


def test_a_trial_that_fails_says_why_and_does_not_end_the_search(done: Done) -> None:
    failed = [it for it in done.document["trials"] if it["state"] == ledger.FAILED]
    assert [it["trial"] for it in failed] == ["t010"]
    assert "nan" in failed[0]["why"]
    assert done.status == 0
    assert done.document["verdict"] == "pass"


def test_nothing_is_left_behind(done: Done) -> None:
    assert done.left_by_kill == done.left_at_end == []
    assert not done.run_dir.ray.exists()
    assert not (done.run_dir.scratch / "tune").exists()


def test_the_page_is_there_and_says_that_it_was_interrupted(done: Done) -> None:
    html = (done.run_dir.path / "report.html").read_text()
    assert "interrupted and resumed" in html
    assert '<figure id="curves">' in html
