"""What early stopping saved, and what became of killed searches: judged from what was kept."""

from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from proving_ground.search import ledger
from tests.search import recorded
from tests.validations import searches
from tests.validations.searches import (
    KILLS,
    SEEDS,
    TURNS,
    VICTIMS,
    begun_again,
    driver_of,
    judged,
    state,
    survived,
    table,
)


def pair(saved: float = 60.0, best: float = 0.9, verdict: str = "pass") -> dict[str, Any]:
    """One seed: the best of all trials in full is 0.9."""
    asha = {"verdict": verdict, "best": best, "trial": "t003", "saved_percent": saved}
    full = {"verdict": "pass", "best": 0.9, "trial": "t003", "saved_percent": 0.0}
    return {"seed": 1, "asha": asha, "random": full, "unlike": []}


def hit(number: int = 0, **more: Any) -> dict[str, Any]:
    """One search that was killed and ended well."""
    made = {"victim": VICTIMS[number % 2], "hit": True, "ended_before": 3, "again": [], "verdict": "pass", "status": 0}
    return {**made, "trials": 10, "trial": "t008", "failed": ["t010"], **more}


def took(long: float | None = 61.0) -> dict[str, Any]:
    """One turn: a minute by itself."""
    return {"short": {"alone_s": 10.0, "searched_s": 14.0}, "long": {"alone_s": 60.0, "searched_s": long}}


def document(
    early: list[dict[str, Any]], killed: list[dict[str, Any]], overhead: list[dict[str, Any]] | None = None
) -> dict[str, Any]:
    overhead = TOOK if overhead is None else overhead
    return {"cells": {"early": {"runs": early}, "killed": {"runs": killed}, "overhead": {"runs": overhead}}}


PAIRS = [pair(60.0 + number) for number in range(SEEDS)]
TOOK = [took(61.0 + number / 10) for number in range(TURNS)]
HITS = [hit(number) for number in range(KILLS)]


def test_all_of_it_passes() -> None:
    found = document(PAIRS, HITS)
    assert str(state(found)) == "pass: 35 of 35 searches"
    assert "| 10 seeds | 64.5 % (62.3 to 66.7), median 64.5, 60.00 to 69.00 | ≥50 % |" in table(found)
    assert "the same best trial in 10 of 10 | each ≤1 point |" in table(found)
    assert table(found).endswith("\nEnded in an error: 0. Begun again since they were cut off: 0.\n")
    assert "| a trial of 30 s takes longer in a search by | 5 turns | 2.0 % (1.7 to 2.3), median" in table(found)
    assert "| command killed by SIGKILL | 10 | 10 of 10; 30 trials had ended before, 0 were run again |" in table(found)


@pytest.mark.parametrize(
    ("early", "killed", "verdict"),
    [
        (PAIRS[1:], HITS, "unknown"),
        ([pair(40.0 + number) for number in range(SEEDS)], HITS, "fail"),  # it saves too little
        ([pair(20.0 + 10 * number) for number in range(SEEDS)], HITS, "unknown"),  # about that much
        ([*PAIRS[1:], pair(60.0, 0.889)], HITS, "fail"),  # at too high a price, once
        ([*PAIRS[1:], pair(60.0, 0.891)], HITS, "pass"),
        ([*PAIRS[1:], {**pair(), "unlike": ["t004"]}], HITS, "fail"),  # not the same trainings
        ([*PAIRS[1:], {"seed": 9, "error": "no run"}], HITS, "fail"),
        ([*PAIRS[1:], pair(verdict="fail")], HITS, "fail"),
        (PAIRS, [*HITS[1:], hit(again=["t003"])], "fail"),
        (PAIRS, [*HITS[1:], hit(trials=9)], "fail"),
        (PAIRS, [*HITS[1:], hit(failed=["t008", "t010"])], "fail"),
        (PAIRS, [*HITS[1:], hit(trial="t003")], "fail"),
        (PAIRS, [*HITS[1:], hit(hit=False)], "unknown"),  # nothing was killed
        (PAIRS, [*HITS[1:], {"seed": 9, "victim": "driver", "error": "no search was begun"}], "fail"),
        (PAIRS, [*HITS[1:], hit(status=1)], "fail"),
        (PAIRS, [*HITS[1:], hit(verdict="unknown")], "fail"),
    ],
)
def test_what_is_missing_or_wrong_is_no_pass(
    early: list[dict[str, Any]], killed: list[dict[str, Any]], verdict: str
) -> None:
    assert state(document(early, killed)).verdict == verdict


def test_nothing_is_told_of_nothing() -> None:
    assert judged(document([], [], [])) == (0, 0)
    assert table(document([], [], [])).count("not measured") == 4


@pytest.mark.parametrize(
    ("overhead", "verdict"),
    [
        (TOOK[1:], "unknown"),
        ([took(64.0 + number / 10) for number in range(TURNS)], "fail"),
        ([took(60.0 + 2 * number) for number in range(TURNS)], "unknown"),
        ([*TOOK[1:], took(None)], "fail"),
        ([*TOOK[1:], {"seed": 5, "error": "it hangs"}], "fail"),
    ],
)
def test_a_long_trial_takes_hardly_longer_in_a_search(overhead: list[dict[str, Any]], verdict: str) -> None:
    assert state(document(PAIRS, HITS, overhead)).verdict == verdict


def test_a_trial_that_had_ended_and_is_begun_again_is_seen() -> None:
    once = recorded.trial("t001", 0.1, [0.3], ledger.FINISHED, 10.0)
    later = [{**it, "sitting": 2} for it in once]
    assert begun_again(once, {"t001"}) == set()
    assert begun_again([*once, *later], {"t001"}) == {"t001"}
    assert begun_again([*once[:-1], *later], set()) == set(), "it had not ended, so it is begun anew"


def test_a_search_counts_what_it_made(tmp_path: Path) -> None:
    found = searches.told(recorded.write(tmp_path, recorded.three()))
    assert (found["trials"], found["best"], found["trial"]) == (3, 0.9, "t001")
    assert found["steps"] == 50
    assert (found["failed"], survived({**found, "status": 0, "again": []})) == (["t003"], False), "three are not ten"


def test_an_error_is_kept_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(_number: int) -> dict[str, Any]:
        raise subprocess.TimeoutExpired("search", 600)

    monkeypatch.setitem(searches.KINDS, "killed", hangs)
    found = searches.tried("killed", 3)
    assert (found["victim"], "timed out after 600 seconds" in found["error"]) == ("driver", True)


def test_a_driver_is_found_by_its_command_line(tmp_path: Path) -> None:
    search = recorded.write(tmp_path, recorded.three())
    assert driver_of(search) is None
    words = ["/bin/sh", "-c", "read it", "proving_ground.search.driver", str(search.path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as stands_for_one:
        for _ in range(100):  # the kernel shows a new program's words a moment after it was started
            if driver_of(search):
                break
            time.sleep(0.05)
        found = driver_of(search)
        stands_for_one.kill()
    assert found == stands_for_one.pid


def test_whatever_happens_meanwhile_no_search_runs_on() -> None:
    with pytest.raises(RuntimeError), searches.started(["sleep", "600"]) as running:
        raise RuntimeError
    assert running.poll() == -signal.SIGKILL
