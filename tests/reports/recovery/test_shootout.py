"""Several mechanisms under one schedule, side by side; what nobody can tell is said so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from proving_ground.reports.recovery import page, shootout, terminal
from proving_ground.reports.recovery.figures import figure
from proving_ground.reports.recovery.healthy import FIRST, Healthy, against, undisturbed_s
from proving_ground.reports.recovery.results import Analysis, analyse
from proving_ground.reports.verdicts import overall
from tests.reports.recovery.synthetic import FAULTS, Knobs, Record, make
from tests.reports.rewritten import rewrite

KNOBS = Knobs(steps=60, faults=FAULTS[:2], mechanisms=("relaunch", "restart"), mutant="no_recovery", at="f02")


@pytest.fixture
def compared(tmp_path: Path) -> Analysis:
    return analyse(make(tmp_path, replace(KNOBS, twins=(3, 3))))


def test_a_stuck_fault_has_no_time_and_counts(compared: Analysis) -> None:
    rows = {row["name"]: row for row in shootout.table(compared)["totals"]}
    assert dict(rows["relaunch"]["outcomes"]) == {"recovered": 1, "stuck": 1}
    assert dict(rows["restart"]["outcomes"]) == {"recovered": 2}
    assert rows["restart"]["lost_steps"] == 6
    assert rows["relaunch"]["median"] == rows["relaunch"]["largest"] == pytest.approx(1.4, abs=0.1)


def test_a_row_a_fault_and_a_column_a_mechanism(compared: Analysis) -> None:
    found = shootout.table(compared)
    assert found["names"] == ["relaunch", "restart"]
    assert {name: [cell["said"] for cell in row.values()] for name, row in found["cells"].items()} == {
        "node_kill n3": ["stuck", "1.40 s"],
        "worker_kill n2": ["1.40 s", "1.40 s"],
    }


def test_the_page_and_the_terminal_show_them(compared: Analysis, capsys: pytest.CaptureFixture[str]) -> None:
    text = page.html(compared)
    assert "The recovery strategies side by side" in text
    assert "restart, worker_kill n2: 1.40 s, recovered" in text
    assert "mathdefault" not in text
    assert "relaunch, node_kill n3: stuck, stuck" in text
    terminal.show(compared, "")
    assert "relaunch: 1 of 2 recovered, 1 stuck; time to recovery 1.40 s" in capsys.readouterr().out


def test_the_run_is_not_judged_by_a_peer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    knobs = replace(KNOBS, twins=(3, 3), mutant="drop_samples", at="f01")
    assert overall(analyse(make(tmp_path / "judged", knobs)).verdicts) == "fail"
    beside = analyse(make(tmp_path / "beside", replace(knobs, peers=("relaunch",))))
    assert overall(beside.verdicts) == "pass"
    assert {trial["mechanism"]: trial.get("peer") for trial in beside.trials} == {"relaunch": True, "restart": None}
    terminal.show(beside, "")
    shown = " ".join(capsys.readouterr().out.split())
    assert "Both kinds of fault recovered (2 faults in all)" in shown
    assert "verdict: pass (2 recovered; set beside it: 1 unproven, 1 wrong)" in shown
    assert "relaunch: 0 of 2 recovered" in shown
    rows = page.verdict_rows(beside)["bad"]
    assert {row["about"].partition(" · ")[2] for row in rows} == {"peer, t001"}


def test_a_run_of_peers_alone_is_judged_by_them(tmp_path: Path) -> None:
    alone = analyse(make(tmp_path, replace(KNOBS, peers=("relaunch", "restart"))))
    assert overall(alone.verdicts) == "fail"
    assert not any(trial.get("peer") for trial in alone.trials)


def test_one_of_ours_that_is_stuck_beside_a_peer_fails_the_run(tmp_path: Path) -> None:
    knobs = replace(KNOBS, mechanisms=("restart", "relaunch"), peers=("relaunch",))  # the mutant is in the first
    assert overall(analyse(make(tmp_path, knobs)).verdicts) == "fail"


def test_one_mechanism_is_no_comparison(tmp_path: Path) -> None:
    alone = analyse(make(tmp_path, replace(KNOBS, mechanisms=("restart",), mutant="")))
    assert shootout.lines(alone) == []
    assert "mechanisms side by side" not in page.html(alone)


def test_undisturbed_jobs_of_the_full_size_say_what_a_mechanism_costs(compared: Analysis) -> None:
    found = shootout.costs(compared)
    assert found["relaunch"].words == "–"
    assert found["restart"].figure is not None
    assert found["restart"].figure["n"] == 2
    assert found["restart"].words.startswith("cannot tell: -0.0 to +0.0")


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ((104.0, 104.1, 103.9), "+4.0 % (+3.6 to +4.4 %)"),
        ((101.0, 99.0, 100.5), "cannot tell: -2.5 to +3.6 %"),
        ((104.0,), "cannot tell: one undisturbed job"),
    ],
)
def test_a_cost_is_told_only_where_noise_does_not_hide_it(own: tuple[float, ...], said: str) -> None:
    base, mine = (figure("step_time", "ms", "emulated", values, {}) for values in ((100.0, 100.1, 99.9), own))
    assert against(mine, base).words == said
    assert against(None, base) == Healthy(None)


@pytest.mark.parametrize(
    ("mechanism", "mutant", "said"),
    [
        ("relaunch", "bystander", "pass"),
        ("relaunch", "late_bystander", "fail"),
        ("torchrun", "bystander", "pass"),
        ("restart", "bystander", "fail"),
    ],
)
def test_what_a_mechanism_ends_itself_is_no_defect_until_training_goes_on(
    tmp_path: Path, mechanism: str, mutant: str, said: str
) -> None:
    run = make(tmp_path, Knobs(steps=60, faults=FAULTS[:1], mechanisms=(mechanism,), mutant=mutant))
    assert [it["verdicts"]["nothing_else_broke"] for it in analyse(run).trials] == [said]


def test_a_case_that_is_not_called_like_its_mechanism_is_a_row_of_its_own(compared: Analysis) -> None:
    two = [{"name": "relaunch", "mechanism": "relaunch"}, {"name": "restart", "mechanism": "restart"}]
    named = replace(compared, spec={**compared.spec, "cases": [*two[::-1], {"name": "never", "mechanism": "live"}]})
    assert shootout.ways(named) == {"restart": "restart", "relaunch": "relaunch"}
    assert shootout.named("live-exact", "live") == "live-exact (live)"


@pytest.mark.parametrize(("steps", "expected"), [(100, 0.105), (6, 0.105), (0, float("nan"))])
def test_what_is_done_every_few_steps_counts_in_a_healthy_step(steps: int, expected: float) -> None:
    numbers = range(FIRST + steps)
    seconds = [9.0 if step <= FIRST else 0.12 if step % 4 == 0 else 0.1 for step in numbers]
    told = pd.DataFrame({"step": numbers, "seconds": seconds, "committed": True})
    told.loc[told["step"] == FIRST + 50, "committed"] = False
    evidence: Any = SimpleNamespace(steps=told)  # all that it reads
    assert undisturbed_s(evidence) == pytest.approx(expected, abs=0.004, nan_ok=True)


@pytest.mark.parametrize(
    ("slot", "kind", "said"), [(0, "worker_kill", "pass"), (1, "worker_kill", "fail"), (1, "node_kill", "pass")]
)
def test_a_rank_beside_the_one_that_was_hit_was_not_aimed_at(tmp_path: Path, slot: int, kind: str, said: str) -> None:
    """Of a node whose ranks have no launcher: the one that was killed is the one that the harness had started."""
    run = make(tmp_path, Knobs(steps=60, faults=(replace(FAULTS[0], kind=kind),), mechanisms=("live",)))

    def beside(records: list[Record]) -> list[Record]:
        begin = next(it for it in records if it["event"] == "fault_begin")
        started = next(it for it in records if it["event"] == "process_start" and it["node"] == "n2")
        begin["evidence"]["killed"][0]["host_pid"] = started["pid"]
        about = {"source": "harness", "trial": "t001", "node": "n2", "slot": slot, "pid": 4, "code": 1}
        return [*records, {**about, "event": "process_exit", "t": begin["t"] + 0.3}]

    assert [it["verdicts"]["nothing_else_broke"] for it in analyse(rewrite(run, beside)).trials] == [said]


@pytest.mark.parametrize(
    ("ends", "exits", "said"),
    [(["n1.0"], [0.4], "pass"), (["n1.0"], [0.2], "fail"), (["n3.0"], [0.4], "fail"), (["n1.0"], [0.4, 0.5], "fail")],
)
def test_what_ends_since_it_knows_an_address_that_is_no_more_was_not_broken(
    tmp_path: Path, ends: list[str], exits: list[float], said: str
) -> None:
    """By the harness' word, and once: what ends before that, or again, is another matter."""
    run = make(tmp_path, Knobs(steps=60, faults=FAULTS[:1], mechanisms=("live",)))

    def moved(records: list[Record]) -> list[Record]:
        begin = next(it for it in records if it["event"] == "fault_begin")
        about = {"source": "harness", "trial": "t001"}
        told = {**about, "event": "moved", "nodes": {"n9": "10.0.0.9"}, "ends": ends, "t": begin["t"] + 0.3}
        exit_ = {**about, "event": "process_exit", "node": "n1", "slot": 0, "pid": 4, "code": -9}
        return [*records, told, *({**exit_, "t": begin["t"] + t} for t in exits)]

    assert [it["verdicts"]["nothing_else_broke"] for it in analyse(rewrite(run, moved)).trials] == [said]
