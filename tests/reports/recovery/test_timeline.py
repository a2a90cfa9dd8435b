"""The moments of a recovery, against histories whose truth is known."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proving_ground.reports.recovery import effective, page, results, terminal
from proving_ground.reports.recovery.injection import digest
from proving_ground.reports.recovery.results import Analysis
from tests.reports.recovery.synthetic import FAULTS, Fault, Knobs, Record, cases, make
from tests.reports.rewritten import rewrite


def since(analysis: Analysis, fault: str) -> dict[str, float | None]:
    at = next(trial["timeline"] for trial in analysis.trials if trial["fault"] == fault)
    return {name: None if t is None else round(t - at["inject"], 3) for name, t in at.items()}


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return results.analyse(make(tmp_path_factory.mktemp("runs")))


def test_restart_has_every_moment(right: Analysis) -> None:
    assert since(right, "f01") == {
        "inject": 0.0,
        "first_symptom": 0.37,  # the step that is late by three others: 0.03 before the fault, 0.1 due, 0.3 late
        "detected": 0.4,
        "survivors_stopped": 0.51,
        "membership_agreed": 0.9,
        "state_loaded": 1.2,
        "first_step": 1.3,
        "first_committed_step": 1.4,
        "healed": 0.02,
        "full_speed": 1.8,
        "work_made_up": 2.0,  # seven steps after the first begin, one with a checkpoint is 0.02 longer; 21 … 27
    }


def test_a_death_is_a_symptom(right: Analysis) -> None:
    assert since(right, "f02")["first_symptom"] == 0.02


def test_training_that_never_stopped_has_only_symptom_and_full_speed(right: Analysis) -> None:
    found = since(right, "f03")
    have = {name for name, t in found.items() if t is not None}
    assert have == {"inject", "first_symptom", "healed", "full_speed"}
    healed = next(one.end for one in right.incidents if one.fault == "f03")
    full = next(one.moments["full_speed"] for one in right.incidents if one.fault == "f03")
    assert healed is not None
    assert full is not None
    assert full > healed["t"]


HELD = [("f03", "link_rate", "none"), ("f01", "node_kill", "shrink")]


@pytest.mark.parametrize(("name", "kind", "how"), HELD)
def test_the_time_for_which_a_fault_was_held_is_in_no_time_of_the_job(
    tmp_path: Path, name: str, kind: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    figures = []
    for hold_s in (3.0, 6.0):
        fault = Fault(name, kind, 53, "n3", how=how, hold_s=hold_s, slow=2.0)
        analysis = results.analyse(make(tmp_path / str(hold_s), Knobs(faults=(fault,), steps=240)))
        found = {it["name"]: it["median"] for it in analysis.figures if it["where"].get("kind") == kind}
        assert found["held_s"] == pytest.approx(analysis.incidents[0].took("healed"))
        assert found["held_s"] >= hold_s - 0.05
        assert "full_speed_s" not in found  # it would be mostly what the suite held
        phases = dict(effective.phases_of(analysis.incidents[0]))
        assert phases["getting up to speed"] == pytest.approx(found["after_held_s"], abs=1.5)
        figures.append(found)
        made = page.html(analysis).replace("\N{NO-BREAK SPACE}", " ")
        terminal.show(analysis, "")
        mixed = found["held_s"] + found["after_held_s"]
        assert f"{found['after_held_s']:.2f}" in made
        for text in (capsys.readouterr().out, made):
            assert f"{found['held_s']:.2f}" in text
            assert not re.search(rf"\b{mixed:.2f} ?s\b|>{mixed:.2f}<", text)
    assert figures[0]["after_held_s"] == pytest.approx(figures[1]["after_held_s"], abs=0.35)


def test_a_fault_that_nobody_held_has_one_time(right: Analysis) -> None:
    kinds = {it["where"]["kind"]: it["name"] for it in right.figures if it["name"] in ("full_speed_s", "held_s")}
    assert kinds == {"worker_kill": "full_speed_s", "node_kill": "full_speed_s", "checkpoint_bitflip": "full_speed_s",
                     "link_rate": "held_s"}  # fmt: skip


def test_smaller_world_goes_on_first_and_is_whole_later(tmp_path: Path) -> None:
    shrink = Fault("f01", "node_kill", 53, "n3", how="shrink")
    analysis = results.analyse(make(tmp_path, Knobs(faults=(shrink,))))
    found = since(analysis, "f01")
    assert found["first_committed_step"] == 1.4
    assert found["full_speed"] == pytest.approx(3.0 + 1.3 + 0.5, abs=0.15)  # held, met again, five steps


def double(tmp_path: Path, *more: dict[str, Any]) -> results.Analysis:
    """A node kill on n3, and half a second later, during its recovery, a worker kill on n2; `more` is recorded, too."""
    second = Fault("f02", "worker_kill", 53, "n2", phase="recovery")
    run = make(tmp_path, Knobs(faults=(replace(FAULTS[1], id="f01"),)))
    plan = run.read("plan")
    planned = {"id": "f02", "kind": "worker_kill", "phase": "recovery", "seed": 1, "traits": second.traits}
    plan["trials"][0]["faults"].append(planned)
    run.write("plan", plan)
    run.write("spec", {**run.read("spec"), "cases": cases(plan["trials"])})

    def struck_again(records: list[Record]) -> list[Record]:
        begin = next(record for record in records if record["event"] == "fault_begin")
        worker = next(it for it in begin["evidence"]["killed"] if it["pid"] > 100)
        evidence = {"t": begin["inject_t"] + 0.45, "killed": [{**worker, "node": "n2"}], "left": []}
        about = {"inject_t": evidence["t"], "fault": "f02", "phase": second.phase, "evidence": evidence}
        about["traits_sha256"] = digest(second.traits)
        extra = {**begin, "t": begin["t"] + 0.5, **about, "kind": "worker_kill", "target": ["n2"]}
        due = {**extra, "event": "fault_due", "t": evidence["t"]}
        told = [{**begin, **it, "t": begin["t"] + it["t"]} for it in more]
        return [*records, due, extra, {**extra, "event": "fault_end", "healed": True, "evidence": {}}, *told]

    return results.analyse(rewrite(run, struck_again))


def test_a_fault_in_the_recovery_from_another_shares_its_end(tmp_path: Path) -> None:
    analysis = double(tmp_path)
    first, other = (one.moments for one in analysis.incidents)
    assert first["first_committed_step"] == other["first_committed_step"] is not None
    assert {trial["outcome"] for trial in analysis.trials} == {"recovered"}


@pytest.mark.parametrize(("node", "t", "said"), [("n2", 0.52, "pass"), ("n2", 0.2, "fail"), ("n1", 0.52, "fail")])
@pytest.mark.parametrize("what", [{"event": "process_exit", "slot": 0, "code": -9}, {"event": "node_down"}])
def test_what_a_fault_in_the_recovery_ended_was_aimed_at_from_its_beginning(
    tmp_path: Path, what: dict[str, Any], node: str, t: float, said: str
) -> None:
    analysis = double(tmp_path, {**what, "node": node, "t": t})
    assert analysis.trials[0]["verdicts"]["nothing_else_broke"] == said


def test_what_launchers_say_at_the_end_of_the_job_is_no_detection(tmp_path: Path) -> None:
    def at_the_end(records: list[Record]) -> list[Record]:
        begun = next(record["t"] for record in records if record["event"] == "fault_begin")
        late = next(record for record in records if record["event"] == "detected")
        return [record for record in records if record["event"] != "detected"] + [{**late, "t": begun + 2.5}]

    run = make(tmp_path, Knobs(faults=(replace(FAULTS[1], id="f01"),)))
    found = since(results.analyse(rewrite(run, at_the_end)), "f01")
    assert found["detected"] is None
    assert found["first_committed_step"] == 1.4


def test_without_begin_times_only_the_first_step_is_not_known(tmp_path: Path) -> None:
    def bare(records: list[Record]) -> list[Record]:
        return [{key: value for key, value in record.items() if key != "begin_t"} for record in records]

    found = since(results.analyse(rewrite(make(tmp_path), bare)), "f01")
    assert found["first_step"] is None
    assert found["first_committed_step"] == 1.4


def test_lineage_follows_what_was_loaded(right: Analysis) -> None:
    assert [(part.generation, part.first, part.last) for part in right.jobs[0].stretches] == [
        (1, 1, 20), (2, 21, 50), (3, 51, 80), (4, 81, 120),
    ]  # fmt: skip
