"""Every verdict has mutants that it must catch: a right history goes wrong in one way, and must not pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench import rundir
from proving_ground.reports.recovery import checks, custody, results
from proving_ground.reports.recovery.results import CHECKS, Analysis
from proving_ground.reports.verdicts import overall
from tests.reports.recovery.synthetic import FAULTS, Fault, Knobs, Record, make
from tests.reports.rewritten import rewrite

SHRINK = Fault("f01", "node_kill", 53, "n3", how="shrink")


def judged(folder: Path, **knobs: Any) -> Analysis:
    return results.analyse(make(folder, Knobs(**knobs)))


def changed(run: rundir.RunDir, change: Callable[[Record], None]) -> Analysis:
    """The run with each record changed where it was recorded, sealed again."""

    def each(records: list[Record]) -> list[Record]:
        for record in records:
            change(record)
        return records

    return results.analyse(rewrite(run, each))


def of(analysis: Analysis, check: str, fault: str | None = None) -> list[tuple[str, str]]:
    return [
        (v["verdict"], v["why"]) for v in analysis.verdicts if v["check"] == check and v["where"].get("fault") == fault
    ]


def outcomes(analysis: Analysis) -> dict[str, str]:
    return {trial["fault"]: trial["outcome"] for trial in analysis.trials}


def test_right_history_passes_everything(tmp_path: Path) -> None:
    analysis = judged(tmp_path)
    assert {v["check"] for v in analysis.verdicts} == {*CHECKS, "sealed", "completed", "recorded"}
    assert overall(analysis.verdicts) == "pass"
    assert set(outcomes(analysis).values()) == {"recovered"}


MUTANTS = [
    # (mutant, fault, check that must fail, outcome, words of the reason)
    ("no_recovery", "f01", "trained_on", "stuck", "no step beyond step 26"),
    ("stale_lr", "f01", "same_training", "wrong", "learning rate: not as in twin t002 at step 21"),
    ("data_ahead", "f01", "same_training", "wrong", "at step 25, the first that differs"),
    ("data_ahead", "f01", "exactly_once", "wrong", "step 21 lacks samples"),
    ("drop_samples", "f01", "exactly_once", "wrong", "step 21 lacks samples"),
    ("lost_optimizer", "f01", "same_training", "wrong", "parameters, optimizer"),
    ("fresh_random", "f01", "same_training", "wrong", "random states: not as in twin"),
    ("load_corrupt", "f04", "intact_only", "wrong", "loaded step-00000090, which was known to be bad"),
    ("load_corrupt", "f04", "same_training", "wrong", "parameters: not as in twin t002 at step 95"),
    ("other_checksum", "f01", "intact_only", "wrong", "with another checksum"),
    ("idle", "f01", "happened", "invalid", "the evidence denies it: something was killed? begin.killed is []"),
    ("lying", "f02", "happened", "invalid", "n3.0 went on training after it was said to be killed"),
    ("second_writer", "f01", "one_writer", "wrong", "of generation 1 committed step 30 after generation 2"),
    ("orphan", "f01", "no_orphan", "wrong", "n2.1 made step 27 of generation 1"),
    ("leftover", "f01", "no_orphan", "wrong", "left running: [4711]"),
    ("bystander", "f01", "nothing_else_broke", "wrong", "n1.0, not aimed at, ended with status 1"),
    ("again", "f01", "nothing_else_broke", "wrong", "training was interrupted again"),
    ("stays_slow", "f01", "full_speed", "slow", "took 6.70 times as long as those before the fault"),
    ("not_healed", "f01", "healed", "invalid", "could not heal it"),
]


@pytest.mark.parametrize(("mutant", "fault", "check", "outcome", "why"), MUTANTS)
def test_mutant_is_caught(tmp_path: Path, mutant: str, fault: str, check: str, outcome: str, why: str) -> None:
    analysis = judged(tmp_path, mutant=mutant, at=fault)
    verdict, said = of(analysis, check, fault)[0]
    assert verdict == "fail"
    assert why in said
    assert outcomes(analysis)[fault] == outcome
    assert overall(analysis.verdicts) == "fail"


def stalled(
    records: list[Record], gap_s: float, *, busy: bool = False, again: float = 0.0, sign: str = ""
) -> list[Record]:  # fmt: skip
    """Nothing happens for so long before the second interruption.

    Or healing took so long, or one more follows; or there is a record of this name in between.
    """
    (end,) = [it for it in records if it["event"] == "fault_end" and it["fault"] == "f01"]
    detected = [it for it in records if it["event"] == "detected" and it["t"] > end["t"]][2]  # two tell of the fault
    since = detected["t"] - 0.01
    signs = [{**it, "t": since + gap_s / 2 - 0.2} for it in records if it["event"] == sign and it["t"] < since][-1:]
    for it in records:
        late = {key: it[key] + gap_s for key in ("t", "begin_t", "inject_t") if it.get(key, 0.0) >= since}
        it.update(late if it["t"] >= since else {})
    if busy:
        end |= {"begun_t": since, "t": detected["t"] + 0.05}
    return [*records, *signs, *[{**detected, "t": detected["t"] + again}] * (again > 0)]


@pytest.mark.parametrize(
    ("gap_s", "busy", "verdict"), [(1.0, False, "fail"), (3.0, False, "unknown"), (3.0, True, "fail")]
)
def test_an_interruption_on_a_machine_that_stood_still_is_nobodys_fault(
    tmp_path: Path, gap_s: float, *, busy: bool, verdict: str
) -> None:
    """Heartbeats were late because nothing ran at all: no step ended, and no sample of the machine was taken either.

    While it heals something the harness takes none: that is no sign.
    """
    run = make(tmp_path, Knobs(mutant="again", at="f01"))
    analysis = results.analyse(rewrite(run, lambda records: stalled(records, gap_s, busy=busy)))
    ((found, why),) = of(analysis, "nothing_else_broke", "f01")
    assert (found, "nothing at all ran" in why) == (verdict, verdict == "unknown"), why
    assert outcomes(analysis)["f01"] == {"fail": "wrong", "unknown": "unproven"}[verdict]


@pytest.mark.parametrize("sign", ["machine", "step", "checkpoint"])
def test_any_sign_of_life_says_that_something_ran(tmp_path: Path, sign: str) -> None:
    """A terminal that takes no words keeps the harness from its samples; a job that stands still makes no steps."""
    run = make(tmp_path, Knobs(mutant="again", at="f01"))
    analysis = results.analyse(rewrite(run, lambda records: stalled(records, 3.0, sign=sign)))
    assert of(analysis, "nothing_else_broke", "f01")[0][0] == "fail"


def test_an_interruption_that_is_nobodys_fault_hides_none_that_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(custody, "BLAMED_S", 0.5)
    run = make(tmp_path, Knobs(mutant="again", at="f01"))
    analysis = results.analyse(rewrite(run, lambda records: stalled(records, 3.0, again=2.0)))
    assert of(analysis, "nothing_else_broke", "f01")[0][0] == "fail"


def test_a_step_of_who_had_not_left_yet_is_no_training_on(tmp_path: Path) -> None:
    """Nobody makes a step, and the harness gives up: the first to leave lets the other go on, alone.

    The fault whose turn came then was refused: it is no excuse.
    """
    run = make(tmp_path, Knobs(mutant="no_recovery", at="f01"))

    def left(records: list[Record]) -> list[Record]:
        newest = [it for it in records if it["event"] == "step" and it["source"] == "n1.0" and it["trial"] == "t001"][
            -1
        ]
        (over,) = [it for it in records if it["event"] == "trial_end" and it["trial"] == "t001"]
        t, about = over["t"] - 2.0, {"source": "n1.0", "trial": "t001", "generation": 2}
        refused = {"t": t - 0.1, "source": "harness", "trial": "t001", "fault": "f02", "kind": "node_kill"}
        alone = {**newest, **about, "t": t + 0.3, "begin_t": t + 0.2, "step": newest["step"] + 1, "world_size": 1}
        return [
            *records, {**refused, "event": "fault_due"}, {**refused, "event": "fault_refused", "why": "not steady"},
            {"t": t, "event": "job_over", "source": "harness", "trial": "t001"},
            {**about, "t": t + 0.1, "event": "ready"}, alone, {**alone, "t": t + 0.4, "step": newest["step"] + 2},
        ]  # fmt: skip

    analysis = results.analyse(rewrite(run, left))
    assert {fault: outcomes(analysis)[fault] for fault in ("f01", "f02")} == {"f01": "stuck", "f02": "stuck"}


def test_a_fault_before_the_wrong_one_is_not_blamed(tmp_path: Path) -> None:
    found = outcomes(judged(tmp_path, mutant="stale_lr", at="f02"))
    assert found == {"f01": "recovered", "f02": "wrong", "f03": "unproven", "f04": "unproven"}


@pytest.mark.parametrize(
    "mutant", ["in_hand", "in_signal"]
)  # begun before the fault, or while the signal was on its way
def test_a_step_in_hand_is_no_orphan(tmp_path: Path, mutant: str) -> None:
    analysis = judged(tmp_path, mutant=mutant, at="f01")
    assert of(analysis, "no_orphan", "f01")[0][0] == "pass"


@pytest.mark.parametrize("part", ["parameters", "optimizer", "learning rate", "random states"])
def test_each_part_of_the_state_is_named(tmp_path: Path, part: str) -> None:
    mutant = {"learning rate": "stale_lr", "random states": "fresh_random"}.get(part, "lost_optimizer")
    analysis = judged(tmp_path, mutant=mutant)
    rows = {v["where"]["part"]: v for v in analysis.verdicts if "part" in v["where"]}
    assert rows[part]["verdict"] == "fail"
    step = 21 if part == "learning rate" else 25  # every step has its rate, every fifth a fingerprint
    assert rows[part]["why"].startswith(f"first differs from twin t002 at step {step}")


@pytest.mark.parametrize(("why", "told"), [("no step for 60 s", "t001: no step for 60 s"), (None, "cut off")])
def test_an_attempt_that_failed_before_the_job_was_run_again_is_told(
    tmp_path: Path, why: str | None, told: str
) -> None:
    """A resumed run: the last attempt of a job counts, and nothing of the one before is taken for its own."""

    def tried_before(records: list[Record]) -> list[Record]:
        begun = next(it for it in records if it["event"] == "trial_start" and it["trial"] == "t001")
        first = {**begun, "t": begun["t"] - 0.05}
        step = {**next(it for it in records if it["event"] == "step" and it["trial"] == "t001"), "t": begun["t"] - 0.04}
        end = {**begun, "t": begun["t"] - 0.03, "event": "trial_end", "ok": False, "why": why, "evidence": {}}
        return [*records, first, {**step, "step": 7777}, *([end] if why else [])]

    analysis = results.analyse(rewrite(make(tmp_path, Knobs()), tried_before))
    (completed,) = of(analysis, "completed")
    assert completed[0] == "pass"
    assert "1 earlier attempt did not: t001: " in completed[1]
    assert told in completed[1]
    assert set(outcomes(analysis).values()) == {"recovered"}


# --- no evidence is unknown, never a pass -----------------------------------------------------------------------------


def test_no_evidence_is_invalid(tmp_path: Path) -> None:
    analysis = judged(tmp_path, mutant="no_evidence")
    assert of(analysis, "happened", "f01") == [("unknown", "not recorded: begin.killed (something was killed)")]
    assert outcomes(analysis)["f01"] == "invalid"


def test_truncated_event_file_is_unknown(tmp_path: Path) -> None:
    analysis = judged(tmp_path, mutant="truncated")
    assert of(analysis, "trained_on", "f02") == [("unknown", "steps beyond 42 lack the record of a rank")]
    assert outcomes(analysis)["f02"] == outcomes(analysis)["f04"] == "invalid"
    assert overall(analysis.verdicts) == "unknown"


def test_healing_that_nobody_recorded_is_unknown(tmp_path: Path) -> None:
    analysis = judged(tmp_path, mutant="never_healed")
    assert of(analysis, "healed", "f01") == [("unknown", "nobody recorded the healing")]


def test_without_a_twin_sameness_is_unknown_and_no_trial_recovered(tmp_path: Path) -> None:
    analysis = judged(tmp_path, twins=())
    assert of(analysis, "same_training", "f01") == [("unknown", "no undisturbed twin was run to compare with")]
    assert set(outcomes(analysis).values()) == {"unproven"}


def test_a_trainer_that_records_no_state_can_recover_but_not_pass(tmp_path: Path) -> None:
    analysis = judged(tmp_path, ledger=False, fingerprints=False)
    assert set(outcomes(analysis).values()) == {"recovered"}
    assert {value for value, _ in of(analysis, "same_training", "f01") + of(analysis, "exactly_once", "f01")} == {
        "unknown"
    }
    assert overall(analysis.verdicts) == "unknown"


def test_a_trainer_of_ones_own_that_records_steps_only(tmp_path: Path) -> None:
    unknown = {"step": ("generation", "world_size", "rows", "begin_t"), "ready": ("generation",)}

    def steps_only(records: list[Record]) -> list[Record]:
        return [
            {key: value for key, value in record.items() if key not in unknown.get(record["event"], ())}
            for record in records
            if record["event"] not in ("resume", "checkpoint")
        ]

    run = make(tmp_path, Knobs(ledger=False, fingerprints=False, faults=FAULTS[:3]))
    analysis = results.analyse(rewrite(run, steps_only))
    assert set(outcomes(analysis).values()) == {"recovered"}
    assert [one.since for one in analysis.incidents] == [20, 50, 77]
    assert of(analysis, "intact_only", "f01") == [("unknown", "nobody recorded what the new generation loaded")]
    assert overall(analysis.verdicts) == "unknown"


def test_changed_file_makes_everything_unknown(tmp_path: Path) -> None:
    run = make(tmp_path)
    run.history.write_text(run.history.read_text().replace('"step":60', '"step":61', 1))
    analysis = results.analyse(run)
    assert {v["verdict"] for v in analysis.verdicts if v["check"] in CHECKS} == {"unknown"}
    assert set(outcomes(analysis).values()) == {"invalid"}


def test_refused_fault_is_invalid_and_says_why(tmp_path: Path) -> None:
    faults = (FAULTS[0], replace(FAULTS[1], refused="n3: no worker is running there"), *FAULTS[2:])
    analysis = judged(tmp_path, faults=faults)
    assert outcomes(analysis) == {"f01": "recovered", "f02": "invalid", "f03": "recovered", "f04": "recovered"}
    assert analysis.trials[1]["why"] == "not injected: n3: no worker is running there"


def test_a_step_that_ends_while_the_fault_is_put_in_is_no_recovery(tmp_path: Path) -> None:
    def took_a_while(record: Record) -> None:
        if record["event"] == "fault_begin":  # the last step ended meanwhile
            record["inject_t"] = record["evidence"]["t"] = record["inject_t"] - 0.1

    run = make(tmp_path, Knobs(faults=FAULTS[:1], mutant="no_recovery"))
    assert outcomes(changed(run, took_a_while)) == {"f01": "stuck"}


def test_a_job_that_had_not_begun_is_not_stuck(tmp_path: Path) -> None:
    analysis = judged(tmp_path, faults=(replace(FAULTS[0], refused="the job was not steady for 270 s"),))
    (evidence,), (one,) = analysis.jobs, analysis.incidents
    early = replace(one, inject_t=evidence.job.start_t + 0.1)
    assert checks.refused_while(evidence, early) == (
        "unknown", "the job had not made its first step when its turn came",
    )  # fmt: skip
    late = replace(one, inject_t=evidence.job.end_t + 60)
    assert checks.refused_while(evidence, late)[0] == "fail"


def test_crashed_check_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> Any:
        raise ZeroDivisionError("by design")

    monkeypatch.setitem(CHECKS, "one_writer", crash)
    analysis = judged(tmp_path)
    assert of(analysis, "one_writer", "f01") == [("unknown", "the check itself failed: ZeroDivisionError: by design")]


# --- worlds of another size -------------------------------------------------------------------------------------------


def test_a_smaller_world_meanwhile_is_judged_by_the_replay_bit_by_bit(tmp_path: Path) -> None:
    analysis = judged(tmp_path, faults=(SHRINK,))
    value, why = of(analysis, "same_training", "f01")[0]
    assert (value, outcomes(analysis)) == ("pass", {"f01": "recovered"})
    assert "replay t004" in why
    assert "up to step 120: bitwise equal" in why


@pytest.mark.parametrize("mutant", ["stale_lr", "data_ahead", "drop_samples", "lost_optimizer"])
def test_mutants_are_caught_in_a_smaller_world_too(tmp_path: Path, mutant: str) -> None:
    analysis = judged(tmp_path, faults=(SHRINK,), mutant=mutant)
    assert of(analysis, "same_training", "f01")[0][0] == "fail"
    assert outcomes(analysis) == {"f01": "wrong"}


def test_exact_mode_is_bitwise_in_worlds_of_all_sizes(tmp_path: Path) -> None:
    analysis = judged(tmp_path, faults=(SHRINK,), exact=True, twins=(2, 1))
    assert of(analysis, "same_training", "f01")[0][0] == "pass"
    whole = [v for v in analysis.verdicts if v["check"] == "same_training" and "part" in v["where"]]
    assert {v["verdict"] for v in whole} == {"pass"}
    assert outcomes(analysis) == {"f01": "recovered"}


@pytest.mark.parametrize(
    ("mutant", "part"),
    [("float_sums", "parameters"), ("lost_optimizer", "parameters"), ("fresh_random", "random states")],
)
def test_in_exact_mode_near_is_not_enough(tmp_path: Path, mutant: str, part: str) -> None:
    analysis = judged(tmp_path, faults=(SHRINK,), exact=True, mutant=mutant)
    value, why = of(analysis, "same_training", "f01")[0]
    assert (value, outcomes(analysis)) == ("fail", {"f01": "wrong"})
    assert part in why
    assert "from the twin" not in why


def test_in_exact_mode_every_twin_counts(tmp_path: Path) -> None:
    def second_twin(record: Record) -> None:  # of another size
        if (record["event"], record.get("trial"), record.get("step")) == ("fingerprint", "t003", 50):
            record["parameters_sha256"] = "0" * 64

    analysis = changed(make(tmp_path, Knobs(exact=True)), second_twin)
    assert "fail" in {v["verdict"] for v in analysis.verdicts if v["check"] == "same_training"}


def test_a_job_that_is_never_whole_again_is_stuck(tmp_path: Path) -> None:
    analysis = judged(tmp_path, faults=(SHRINK,), mutant="never_whole")
    assert of(analysis, "full_speed", "f01") == [("fail", "the job never came back to full strength")]
    assert outcomes(analysis) == {"f01": "stuck"}


ROLLED_BACK = (
    Fault("f01", "link_rate", 92, "n1", how="none"),
    Fault("f02", "checkpoint_bitflip", 108, "n1"),
)


def test_what_a_later_fault_took_back_is_judged_all_the_same(tmp_path: Path) -> None:
    analysis = judged(tmp_path, faults=ROLLED_BACK)
    assert of(analysis, "same_training", "f01") == [
        ("pass", "like twin t002 at 3 fingerprints, until a later fault took training back")
    ]
    assert of(analysis, "exactly_once", "f01")[0][0] == "pass"
    assert outcomes(analysis) == {"f01": "recovered", "f02": "recovered"}


def test_what_a_later_fault_took_back_can_have_been_wrong(tmp_path: Path) -> None:
    def before_it(records: list[Record]) -> list[Record]:
        at_95 = [r for r in records if (r["event"], r.get("trial"), r.get("step")) == ("fingerprint", "t001", 95)]
        for record in at_95[:3]:  # those of the three ranks before training was taken back
            record["parameters_sha256"] = "0" * 64
        return records

    run = rewrite(make(tmp_path, Knobs(faults=ROLLED_BACK)), before_it)
    assert outcomes(results.analyse(run)) == {"f01": "wrong", "f02": "recovered"}


def test_a_job_that_gave_up_says_so(tmp_path: Path) -> None:
    about = {"event": "gave_up", "source": "n1.launch", "trial": "t001", "message": "no step after 3"}

    def gave_up(records: list[Record]) -> list[Record]:
        begin = next(record for record in records if record["event"] == "fault_begin")
        return [*records, {"t": begin["t"] + 9, **about}]

    run = rewrite(make(tmp_path, Knobs(mutant="no_recovery")), gave_up, complete=False)
    assert of(results.analyse(run), "trained_on", "f01")[0][1].endswith("it gave up: no step after 3")


def test_after_a_change_of_size_without_a_replay_it_trained_on_and_nothing_is_proven(tmp_path: Path) -> None:
    analysis = judged(tmp_path, faults=(SHRINK,), replays=False)
    why = "the world changed its size: no replay of it was run"
    assert of(analysis, "same_training", "f01") == [("unknown", why)]
    assert outcomes(analysis) == {"f01": "unproven"}
    assert overall(analysis.verdicts) == "unknown"
    assert analysis.trials[0]["timeline"]["first_committed_step"] is not None


def test_steps_that_cannot_be_judged_void_only_the_fault_that_they_answer_for(tmp_path: Path) -> None:
    """From the shrinking on nothing can be compared; the first fault's own fingerprints all can."""
    analysis = judged(tmp_path, faults=(FAULTS[0], replace(SHRINK, id="f02")), replays=False)
    value, why = of(analysis, "same_training", "f01")[0]
    assert (value, why) == ("pass", "like twin t002 at 6 fingerprints up to step 50: bitwise equal")
    assert of(analysis, "same_training", "f02")[0][0] == "unknown"
    assert outcomes(analysis) == {"f01": "recovered", "f02": "unproven"}


def test_a_step_before_a_fault_that_cannot_be_judged_does_not_void_it(tmp_path: Path) -> None:
    def of_a_rank_that_no_twin_has(record: Record) -> None:
        if (record["event"], record.get("trial"), record.get("step")) == ("fingerprint", "t001", 15):
            record["rank"] = 9

    analysis = changed(make(tmp_path), of_a_rank_that_no_twin_has)
    assert analysis.incidents[0].since == 20
    assert {of(analysis, "same_training", fault.id)[0][0] for fault in FAULTS} == {"pass"}


def test_a_replay_in_worlds_of_other_sizes_proves_nothing(tmp_path: Path) -> None:
    def larger(record: Record) -> None:  # the replay went on with three ranks where the job had two
        if record.get("trial") == "t004" and record["event"] in ("ready", "step") and record["world_size"] == 2:
            record["world_size"] = 3

    analysis = changed(make(tmp_path, Knobs(faults=(SHRINK,))), larger)
    assert of(analysis, "same_training", "f01")[0][0] == "unknown"
    assert outcomes(analysis) == {"f01": "unproven"}


def test_what_lies_before_the_first_fault_proves_nothing(tmp_path: Path) -> None:
    run = make(tmp_path, Knobs(faults=FAULTS[:1]))
    analysis = drop(run, lambda r: r["event"] == "fingerprint" and r["step"] > 20 and r.get("trial") == "t001")
    whole = [v for v in analysis.verdicts if v["check"] == "same_training" and "part" in v["where"]]
    assert {v["verdict"] for v in whole} == {"unknown"}
    assert "nothing was recorded after the first fault" in whole[0]["why"]


@pytest.mark.parametrize("replays", [True, False])
def test_ranks_that_differ_from_each_other_are_noticed_without_a_twin(tmp_path: Path, *, replays: bool) -> None:
    def split(record: dict[str, Any]) -> None:
        if (record["event"], record.get("trial"), record.get("source")) == ("fingerprint", "t001", "n2.0"):
            record["parameters_sha256"] = "0" * 64 if record["step"] > 60 else record["parameters_sha256"]

    analysis = changed(make(tmp_path, Knobs(faults=(SHRINK,), twins=(), replays=replays)), split)
    value, why = of(analysis, "ranks_agree", "f01")[0]
    assert (value, outcomes(analysis)) == ("fail", {"f01": "wrong"})
    assert why == "parameters: ranks 0 and 1 of generation 2 differ after step 65"


def test_a_twin_whose_ranks_differ_is_named(tmp_path: Path) -> None:
    def split(record: dict[str, Any]) -> None:
        if (record["event"], record.get("trial"), record.get("source")) == ("fingerprint", "t003", "n2.0"):
            record["optimizer_sha256"] = "0" * 64

    analysis = changed(make(tmp_path), split)
    assert ("fail", {"trial": "t003"}) in [(v["verdict"], v["where"]) for v in analysis.verdicts]


def test_a_data_set_of_which_only_a_part_is_read_is_not_every_sample_once(tmp_path: Path) -> None:
    def larger(record: dict[str, Any]) -> None:
        if record["event"] == "ready":
            record["rows"] = 300  # job and twins learn from the same 240 of them

    analysis = changed(make(tmp_path), larger)
    value, why = of(analysis, "exactly_once")[0]
    assert value == "fail"
    assert "for the 2. time; 300 samples make a pass" in why


def test_a_checkpoint_that_was_damaged_before_its_commit_was_told_is_known_to_be_bad(tmp_path: Path) -> None:
    def late(record: Record) -> None:
        if (record["event"], record.get("trial"), record.get("step")) == ("checkpoint", "t001", 90):
            record.update(t=record["t"] + 0.9, durable_s=0.9 + record["durable_s"])

    analysis = changed(make(tmp_path, Knobs(mutant="load_corrupt", at="f04")), late)
    assert of(analysis, "intact_only", "f04")[0][0] == "fail"


def test_a_checkpoint_that_was_damaged_before_a_newer_one_is_known_to_be_bad_too(tmp_path: Path) -> None:
    def two(record: Record) -> None:
        damaged = (record.get("evidence") or {}).get("damaged")
        if record["event"] == "fault_begin" and damaged:
            newer = "step-00000096-g00000001/model.pt"
            record["evidence"] |= {"path": newer, "damaged": {**damaged, newer: record["t"] + 0.3}}

    analysis = changed(make(tmp_path, Knobs(mutant="load_corrupt", at="f04")), two)
    assert of(analysis, "intact_only", "f04")[0][0] == "fail"
    assert analysis.incidents[3].damaged.keys() > {"step-00000096-g00000001/model.pt"}


def test_a_checkpoint_that_was_damaged_after_the_kill_is_known_to_be_bad_too(tmp_path: Path) -> None:
    run = make(tmp_path, Knobs(mutant="load_corrupt", at="f04"))
    killed = results.analyse(run).incidents[3].inject_t

    def written_meanwhile(record: Record) -> None:
        if (record["event"], record.get("trial"), record.get("step")) == ("checkpoint", "t001", 90):
            record.update(t=killed + 0.01, durable_s=0.001)
        if damaged := (record.get("evidence") or {}).get("damaged"):
            record["evidence"]["damaged"] = dict.fromkeys(damaged, killed + 0.02)

    assert of(changed(run, written_meanwhile), "intact_only", "f04")[0][0] == "fail"


def test_a_run_of_before_tells_the_last_damaged_checkpoint_only(tmp_path: Path) -> None:
    one = judged(tmp_path).incidents[3]
    begin = one.begin or {}
    before = replace(one, plan={**one.plan, "traits": {**one.traits, "damages": "path"}})
    assert before.damaged == {begin["evidence"]["path"]: one.inject_t}
    assert replace(one, plan={}).damaged == {}


def test_the_last_step_that_answers_for_a_fault_counts(tmp_path: Path) -> None:
    def swap(record: dict[str, Any]) -> None:
        if (record["event"], record.get("trial"), record.get("step")) == ("step", "t001", 50):
            record["rows"] = [*record["rows"][:-1], 239]

    run = make(tmp_path)
    since, until = next((one.since, one.until) for one in results.analyse(run).incidents)
    assert (since, until) == (20, 50)  # the next fault goes back to step 50
    analysis = changed(run, swap)
    assert of(analysis, "exactly_once", "f01")[0][0] == "fail"
    assert of(analysis, "exactly_once", "f02")[0][0] == "pass"


def test_a_sample_that_the_data_set_does_not_have_is_named(tmp_path: Path) -> None:
    def strange(record: dict[str, Any]) -> None:
        record.update({"rows": 200} if record["event"] == "ready" else {})

    why = of(changed(make(tmp_path), strange), "exactly_once")[0][1]
    assert "and the data set has 200" in why


READY_OF = {
    "a later one of the job": lambda record: record["trial"] == "t001" and record.get("generation") == 3,
    "one rank of the job": lambda record: record["trial"] == "t001" and record["source"] == "n3.0",
    "the job, and not its twin": lambda record: record["trial"] == "t001",
    "the twin, and not the job": lambda record: record["trial"] == "t002",
}


@pytest.mark.parametrize("rows", [480, 120, "many", 0])
@pytest.mark.parametrize("which", READY_OF)
def test_a_data_set_that_changes_its_size_proves_nothing(tmp_path: Path, which: str, rows: object) -> None:
    def resized(record: dict[str, Any]) -> None:
        if record["event"] == "ready" and READY_OF[which](record):
            record["rows"] = rows

    analysis = changed(make(tmp_path), resized)
    (value, why), *_ = of(analysis, "exactly_once")
    assert value == "unknown"
    assert f"{rows}" in why
    assert "240" in why
    assert set(outcomes(analysis).values()) == {"unproven"}


def test_a_wrong_step_is_wrong_whatever_the_size_of_the_data_set(tmp_path: Path) -> None:
    def resized(record: dict[str, Any]) -> None:
        if record["event"] == "ready" and READY_OF["one rank of the job"](record):
            record["rows"] = 480

    analysis = changed(make(tmp_path, Knobs(mutant="drop_samples")), resized)
    assert of(analysis, "exactly_once", "f01")[0][0] == "fail"


def test_a_data_set_without_a_sample_is_none(tmp_path: Path) -> None:
    analysis = changed(make(tmp_path), lambda record: record.update({"rows": -3} if record["event"] == "ready" else {}))
    assert of(analysis, "exactly_once")[0] == ("unknown", "trial t002 was ready with a data set of -3 samples")


def test_a_learning_rate_between_two_fingerprints_counts(tmp_path: Path) -> None:
    def faster(record: dict[str, Any]) -> None:
        if (record["event"], record.get("trial"), record.get("step")) == ("step", "t001", 33):
            record["lr"] *= 1.5

    analysis = changed(make(tmp_path), faster)
    value, why = of(analysis, "same_training", "f01")[0]
    assert value == "fail"
    assert "learning rate: not as in twin t002 at step 33, the first that differs" in why
    assert outcomes(analysis)["f01"] == "wrong"


# --- what a death may take along --------------------------------------------------------------------------------------


def drop(run: rundir.RunDir, unwanted: Any) -> Analysis:
    """The run without some records, sealed again."""
    return results.analyse(rewrite(run, lambda records: [record for record in records if not unwanted(record)]))


def test_a_record_that_died_with_its_rank_is_proven_by_a_later_fingerprint(tmp_path: Path) -> None:
    def last_words(record: dict[str, Any]) -> bool:
        about = (record["event"], record.get("trial"), record.get("source"), record.get("step"))
        return about == ("step", "t001", "n2.0", 20)

    analysis = drop(make(tmp_path), last_words)
    value, why = of(analysis, "exactly_once")[0]
    assert value == "pass"
    assert "equal fingerprints prove them" in why


def test_a_lost_record_without_proof_is_unknown(tmp_path: Path) -> None:
    analysis = drop(
        make(tmp_path),
        lambda r: (
            r.get("trial") == "t001"
            and (r["event"] == "fingerprint" or (r["event"], r.get("source"), r.get("step")) == ("step", "n2.0", 20))
        ),
    )
    assert of(analysis, "exactly_once")[0][0] == "unknown"


def test_a_commit_that_nobody_recorded_is_proven_by_a_later_fingerprint(tmp_path: Path) -> None:
    run = make(tmp_path)
    analysis = drop(run, lambda r: (r["event"], r.get("step"), r.get("trial")) == ("checkpoint", 20, "t001"))
    assert of(analysis, "intact_only", "f01")[0][0] == "pass"
    analysis = drop(run, lambda r: r["event"] == "fingerprint")
    assert of(analysis, "intact_only", "f01")[0] == (
        "unknown", "loaded step-00000020, and nobody recorded that it was committed",
    )  # fmt: skip


# --- the training as such ---------------------------------------------------------------------------------------------


def with_plain_loop(run: rundir.RunDir, loss: float, nodes: int = 3) -> Analysis:
    """The run with a loss at each step, and with a plain loop's first steps, whose losses are multiplied by `loss`."""
    document = run.read("plan")
    about = {"id": "t099", "role": "reference", "twin_of": "digits", "replays": "", "nodes": nodes, "faults": []}
    document["trials"].append({**document["trials"][0], **about, "traits": {}})
    run.write("plan", document)

    def more(records: list[Record]) -> list[Record]:
        for record in records:
            record.update({"loss": 3 / record["step"]} if record["event"] == "step" else {})
        t = records[-1]["t"]
        own = {"source": "n1.0", "trial": "t099"}
        made = [{"t": t, "event": "start", "rank": 0, "world_size": 1, "pid": 1, "wall_s": 0.0, **own}]
        made += [
            {"t": t, "event": "step", "step": step, "samples": 1, "generation": 1, "loss": loss * 3 / step, **own}
            for step in range(1, 4)
        ]
        ends = [
            {"t": t, "event": name, "trial": "t099", "ok": True, "why": ""} for name in ("trial_start", "trial_end")
        ]
        return [*records[:-1], ends[0], *made, ends[1], records[-1]]

    return results.analyse(rewrite(run, more))


def test_first_steps_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    analysis = with_plain_loop(make(tmp_path), 1 + 1e-6)
    found = [v for v in analysis.verdicts if v["check"] == "as_configured"]
    assert {(v["where"]["trial"], v["verdict"]) for v in found} == {("t001", "pass"), ("t002", "pass")}  # of that size
    assert outcomes(analysis)["f01"] == "recovered"


def test_a_defect_that_job_and_twin_share_shows_beside_a_plain_loop(tmp_path: Path) -> None:
    analysis = with_plain_loop(make(tmp_path), 2.0)
    assert set(outcomes(analysis).values()) == {"wrong"}
    assert analysis.trials[0]["why"] == "as_configured: not as in a plain loop: loss of step 1 is 3, there 6"


def test_a_plain_loop_of_another_size_says_nothing(tmp_path: Path) -> None:
    """Its ranks drew other random numbers: only the twin of two nodes is compared with it."""
    analysis = with_plain_loop(make(tmp_path), 2.0, nodes=2)
    found = {v["where"]["trial"]: v["why"] for v in analysis.verdicts if v["check"] == "as_configured"}
    assert found.keys() == {"t001", "t003"}
    assert found["t001"].startswith("twin t003: ")
