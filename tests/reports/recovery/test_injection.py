"""Did the fault really happen? Each record that denies it, or does not fit, is told with its own reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from proving_ground.bench.rundir import RunDir
from proving_ground.reports.recovery import gaps, injection, proof, results
from proving_ground.reports.recovery.results import Analysis
from tests.reports.recovery.synthetic import FAULTS, Knobs, Record, make
from tests.reports.rewritten import rewrite
from tests.validations.tampering import changed
from tests.validations.tampers import TAMPERS, Scene, Tamper


def told(analysis: Analysis, fault: str, check: str = "happened") -> tuple[str, str]:
    (found,) = [v for v in analysis.verdicts if (v["check"], v["where"].get("fault")) == (check, fault)]
    return found["verdict"], found["why"]


def tampered(run: RunDir, kind: str, fault: str) -> Analysis:
    one = next(one for one in results.analyse(run).incidents if one.fault == fault)
    assert changed(run, kind, one)
    return results.analyse(run)


def no_phase(scene: Scene) -> bool:
    return scene.remove([it for it in scene.of("phase") if it.get("hold") == scene.one.fault])


def started_in_the_dark(scene: Scene) -> bool:
    scene.begin["heal_after_s"] = 0.1
    scene.told("fault_end")[0]["t"] += 0.1
    return True


def detected_before(scene: Scene) -> bool:
    last = max(it["t"] for it in scene.of("step") if it["t"] < scene.one.inject_t)
    for record in (scene.begin, *scene.told("fault_end")):
        record["t"] += 0.5
    scene.begin["inject_t"] = scene.evidence["t"] = scene.one.inject_t + 0.5
    for record in scene.told("fault_due"):
        record["t"] += 0.5
    assert scene.of("detected")[0]["t"] > last
    return True


def ended_long_ago(scene: Scene) -> bool:
    for record in scene.of("process_exit")[:1]:
        record["ended_t"] = scene.one.inject_t - 0.3
    return True


def unknown_exit(scene: Scene) -> bool:
    about = {"source": "harness", "trial": "t001", "node": "n2", "slot": 0, "pid": 999, "code": -9}
    return scene.add({"t": scene.begin["t"] + 0.2, "event": "process_exit", **about})


def left_before(scene: Scene) -> bool:
    about = {"source": "n3.launch", "trial": "t001", "event": "asked_to_leave"}
    return scene.add({"t": scene.one.inject_t - 0.4, **about})


def over_before(scene: Scene) -> bool:
    return scene.add({"t": scene.one.inject_t - 0.2, "event": "job_over", "source": "harness", "trial": "t001"})


def signalled_too_late(scene: Scene) -> bool:
    """The last of its signals was sent after the injection had ended."""
    scene.evidence["sent_t"] = scene.begin["t"] + 0.2
    return True


OWN: dict[str, Tamper] = {
    "signalled too late": signalled_too_late,
    "over before": over_before,
    "left before": left_before,
    "no phase": no_phase, "started in the dark": started_in_the_dark, "detected before": detected_before,
    "ended long ago": ended_long_ago, "unknown exit": unknown_exit,
}  # fmt: skip

WAITED = tuple(replace(it, after_steps=25 if it.id == "f03" else None) for it in FAULTS)

DENIED = [
    ("evidence emptied", "f01", "unknown", "not recorded: begin.killed (something was killed)"),
    ("evidence: happened", "f03", "unknown", "not recorded: begin.during"),
    ("nothing killed or stopped", "f02", "fail", "the evidence denies it: something was killed? begin.killed is []"),
    ("victim left", "f01", "fail", "the evidence denies it: nothing of it was left? begin.left is [{'node': 'n2'"),
    ("effect undone", "f03", "fail", "the rate was lower than before? begin.during.*.mbps.* is None, None"),
    ("effect undone", "f04", "fail", "the bytes are not what they were?"),
    ("node of the victim changed", "f01", "fail", "it was where it was aimed at? begin.killed.*.node is n3"),
    ("orphan step added", "f01", "fail", "n2.0 went on training after it was said to be killed"),
    ("plan: proof removed", "f01", "unknown", "the plan does not say what would prove it"),
    ("plan: a condition removed", "f01", "unknown", "the plan says something else of it than the injection did"),
    ("kind changed", "f01", "unknown", "planned with kind worker_kill, and injected with hang"),
    ("args changed", "f03", "unknown", "planned with args {'mbps': 5.0}, and injected with {'mbps': 11.0}"),
    ("inject_t 1 s late", "f03", "unknown", "and the evidence says at"),
    ("inject_t 1 s early", "f03", "unknown", "and the evidence says at"),
    ("inject_t, evidence 1 s late", "f01", "unknown", "end of the injection 0.990 s before the injection"),
    ("inject_t, evidence 1 s early", "f01", "unknown", "injection 0.995 s before the moment at which it was due"),
    ("inject_t, evidence 1 s early", "f03", "unknown", "injection 0.995 s before the moment at which it was due"),
    ("inject_t, evidence, due 1 s early", "f01", "unknown", "n2.0 recorded something 0.570 s after it was killed"),
    ("inject_t, evidence, due 1 s early", "f03", "unknown", "injected after 18 steps, and it was due after 25"),
    ("fault_due removed", "f03", "unknown", "it was injected once, and its moment came 0 times by the schedule's"),
    ("injection 1 s late", "f01", "unknown", "healing 0.990 s before the end of the injection"),
    ("injection 1 s late", "f03", "unknown", "healed 0.810 s before its time"),
    ("signalled too late", "f01", "unknown", "end of the injection 0.200 s before the last signal"),
    ("begin and end swapped", "f03", "unknown", "healing 3.190 s before the end of the injection"),
    ("fault_end removed", "f03", "unknown", "not recorded: end.at_end"),
    ("pid changed", "f01", "unknown", "n2 pid 1101 is no process that is known to have been running there"),
    ("host pid changed", "f02", "unknown", "n3 host_pid 13 was running there, and is not among what was killed"),
    ("pid changed", "f02", "unknown", "n3 pid 102 was running there, and is not among what was killed"),
    ("process_exit removed", "f02", "unknown", "n3 host_pid 13 was killed, and nobody recorded its end"),
    ("unknown exit", "f01", "unknown", "n2.0 pid 999 ended, and was not running"),
    ("no phase", "f02", "unknown", "aimed at the phase allreduce, and nobody recorded to have stood there"),
    ("started in the dark", "f02", "unknown", "a process was started on n3 while it had no power"),
    ("detected before", "f01", "unknown", "detected 0.100 s before the fault, with no step between"),
    ("over before", "f02", "unknown", "injected 0.200 s after the job was over"),
    ("left before", "f02", "unknown", "n3.launch was leaving 0.400 s before it was hit"),
    ("ended long ago", "f02", "unknown", "n3 pid 13 had ended 0.300 s before it was hit"),
]


@pytest.mark.parametrize(("kind", "fault", "value", "why"), DENIED)
def test_what_denies_a_fault_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, fault: str, value: str, why: str
) -> None:
    for name, tamper in OWN.items():
        monkeypatch.setitem(TAMPERS, name, tamper)
    verdict, said = told(tampered(make(tmp_path, Knobs(faults=WAITED)), kind, fault), fault)
    assert (verdict, why in said) == (value, True), said


def test_a_fault_that_waited_for_its_steps_happened(tmp_path: Path) -> None:
    analysis = results.analyse(make(tmp_path, Knobs(faults=WAITED)))
    assert told(analysis, "f03")[0] == "pass"


def test_the_last_of_several_victims_may_write_until_it_is_hit(tmp_path: Path) -> None:
    """A busy machine sends a signal late: the moments are those of the first and of the last."""

    def struck_late(records: list[Record]) -> list[Record]:
        (begin,) = [it for it in records if it["event"] == "fault_begin" and it["fault"] == "f02"]
        (due,) = [it for it in records if it["event"] == "fault_due" and it["fault"] == "f02"]
        begin["evidence"]["sent_t"] = begin["inject_t"]
        for it in (begin["evidence"], due):
            it["t"] -= 0.8
        begin["inject_t"] -= 0.8
        return records

    faults = tuple(replace(it, phase="") for it in FAULTS)
    assert (
        told(results.analyse(rewrite(make(tmp_path / "late", Knobs(faults=faults)), struck_late)), "f02")[0] == "pass"
    )


def test_a_trial_of_a_fault_that_is_denied_is_invalid(tmp_path: Path) -> None:
    analysis = tampered(make(tmp_path), "inject_t 1 s late", "f01")
    assert {trial["fault"]: trial["outcome"] for trial in analysis.trials}["f01"] == "invalid"


SAID = (
    "planned with", "says at", "it was due after", "before its time", "after the job was over",
    "to have stood there", "with no step between",
    "before it was hit",
    "is no process", "recorded something", "recorded its end", "had no power", "was not running",
)  # fmt: skip
"""Of each contradiction."""


def test_every_contradiction_has_its_case() -> None:
    words = " ".join(why for *_, why in DENIED)
    assert len(injection.CONTRADICTIONS) == len(SAID)
    assert all(said in words for said in SAID)


# --- the whole run ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("plan: fault removed", "plan.json: case digits: the fault worker_kill is not in every job"),
        ("plan: training changed", "plan.json: trial t001: training.lr is 0.15"),
        ("plan: mechanism ends others", "plan.json: trial t001: its mechanism is another than in history.jsonl"),
        ("plan: ledger not asked for", "training.ledger is False, and the suite asks for True"),
        ("plan: twin removed", "history.jsonl has a trial t002, and the plan has none"),
        ("history changed, events not", "history.jsonl is not what the event files say: line"),
        ("events changed, history not", "history.jsonl is not what the event files say: line"),
    ],
)
def test_documents_that_do_not_fit_make_everything_unknown(tmp_path: Path, kind: str, said: str) -> None:
    analysis = tampered(make(tmp_path), kind, "f01")
    (sealed,) = [v for v in analysis.verdicts if v["check"] == "sealed"]
    assert (sealed["verdict"], said in sealed["why"]) == ("unknown", True), sealed["why"]
    assert "recovered" not in {trial["outcome"] for trial in analysis.trials}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("step of a rank removed", "and not the one before"),
        ("step renumbered", "and not the one before"),
        ("world size changed", "had 2 ranks by one record and 3 by another"),
        ("fingerprints removed", "recorded no fingerprint at step"),
        ("resume removed", "n1.0 went on with step 21, and did not say what it had loaded"),
    ],
)
def test_a_record_that_a_living_process_left_out_is_a_gap(tmp_path: Path, kind: str, said: str) -> None:
    analysis = tampered(make(tmp_path), kind, "f01")
    (found,) = [v for v in analysis.verdicts if v["check"] == "recorded"]
    assert (found["verdict"], said in found["why"]) == ("unknown", True), found["why"]


@pytest.mark.parametrize(("local", "said"), [(0, ""), (1, "n2.0 said that its local rank is 1"), (None, "")])
def test_a_process_that_takes_itself_for_another_of_its_node_is_told(
    tmp_path: Path, local: int | None, said: str
) -> None:
    def each(records: list[Record]) -> list[Record]:
        more = {} if local is None else {"local_rank": local}
        return [it | more if (it["source"], it["event"]) == ("n2.0", "start") else it for it in records]

    (found,) = [v for v in results.analyse(rewrite(make(tmp_path), each)).verdicts if v["check"] == "recorded"]
    assert (found["verdict"], said in found["why"]) == ("unknown" if said else "pass", True), found["why"]


@pytest.mark.parametrize(("steps", "gap"), [([1, 3], True), ([1], False)])
def test_a_share_in_a_step_that_its_process_lived_to_record_and_did_not(steps: list[int], gap: bool) -> None:  # noqa: FBT001
    job = SimpleNamespace(shares={"n2.0": [{"step": 2, "generation": 1, "rows": [5]}]}, processes={"n2.0": 0})
    rows = pd.DataFrame({"process": 0.0, "generation": 1.0, "step": steps})
    evidence: Any = SimpleNamespace(job=job)
    assert bool(gaps.unsaid(evidence, rows)) is gap


def test_what_a_death_took_along_is_no_gap(tmp_path: Path) -> None:
    def last_words(records: list[Record]) -> list[Record]:
        lost = ("t001", "n2.0", 26, 1)  # the newest step before the first kill
        return [it for it in records if (it.get("trial"), it["source"], it.get("step"), it.get("generation")) != lost]

    analysis = results.analyse(rewrite(make(tmp_path), last_words))
    assert [v["verdict"] for v in analysis.verdicts if v["check"] == "recorded"] == ["pass"]


def test_a_checkpoint_is_of_the_generation_that_committed_it(tmp_path: Path) -> None:
    analysis = tampered(make(tmp_path), "resume: generation changed", "f01")
    value, why = told(analysis, "f01", "intact_only")
    assert (value, why) == ("fail", "step-00000020 was committed by generation 1 and loaded as generation 51's")


# --- conditions -------------------------------------------------------------------------------------------------------

ABOUT: Record = {
    "begin": {
        "cut": ["n2>n1", "n1>n4"], "hit": [{"node": "n2"}], "left": [], "rate": {"n1": [None, 9.0]},
        "now": {"n1": [5.0, 5.0]}, "was": 3,
    },
    "end": None, "args": {"mbps": 5.0, "seconds": -60.0}, "target": ["n2", "n3"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("condition", "value"),
    [
        ({"at": "begin.hit", "must": "some"}, "pass"),
        ({"at": "begin.left", "must": "some"}, "fail"),
        ({"at": "begin.gone", "must": "empty"}, "unknown"),
        ({"at": "end.was.*", "must": "equal", "value": "T"}, "unknown"),
        ({"at": "begin.hit.*.node", "must": "among", "than": "target"}, "pass"),
        ({"at": "begin.rate", "must": "among", "than": "target"}, "fail"),
        ({"at": "begin.left", "must": "among", "than": "target"}, "fail"),
        ({"at": "begin.cut.*", "must": "touches", "than": "target"}, "fail"),
        ({"at": "begin.cut.0", "must": "touches", "than": "target"}, "unknown"),
        ({"at": "begin.now.*.*", "must": "below", "than": "begin.rate.*.*"}, "pass"),
        ({"at": "begin.rate.*.*", "must": "below", "than": "begin.now.*.*"}, "fail"),
        ({"at": "begin.now.*.*", "must": "near", "than": "args.mbps"}, "pass"),
        ({"at": "begin.rate.*.*", "must": "near", "than": "args.mbps"}, "fail"),
        ({"at": "begin.now.*.+", "must": "above", "than": "begin.was", "times": 3}, "pass"),
        ({"at": "begin.now.*.+", "must": "at_most", "than": "begin.was", "times": 3}, "fail"),
        ({"at": "begin.now.*.*", "must": "above", "than": "begin.hit.*.node"}, "unknown"),
        ({"at": "begin.hit", "must": "above", "than": "begin.was"}, "unknown"),
        ({"at": "begin.was", "must": "dance"}, "unknown"),
        ({"at": "begin.was", "must": "above", "value": 5, "by_the_job": True}, "unknown"),
        ({"at": "begin.was", "must": "above", "value": 5}, "fail"),
        ({"at": "begin.was", "must": "above", "value": 2, "by_the_job": True}, "pass"),
    ],
)
def test_a_condition(condition: dict[str, Any], value: str) -> None:
    assert proof.judged([condition], ABOUT, idle=True)[0] == value
    if condition.get("by_the_job") and value == "unknown":
        assert proof.judged([condition], ABOUT)[0] == "fail", "a job that trains shows it"


def test_a_fault_without_conditions_is_not_proven() -> None:
    assert proof.judged([], ABOUT)[0] == "unknown"


def test_a_skewed_clock_is_near_by_a_second_and_never_by_half_of_what_was_asked() -> None:
    for asked, read, right in ((-60.0, -59.5, True), (-60.0, -58.5, False), (1.0, 0.6, True), (1.0, 0.0, False)):
        assert proof.near(read, asked, 1.0, 1.0) is right
