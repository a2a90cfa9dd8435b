"""Rules of the judgement, switched off one at a time: the test that guards each must then fail.

So a rule cannot get lost, nor a test go blind. Rules whose own tests switch them off stand beside those tests.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any
from unittest.mock import patch

import pytest

from proving_ground.bench import drive, rundir
from proving_ground.bench.protocols import TrialFiles
from proving_ground.chaos import schedule
from proving_ground.reports import verdicts
from proving_ground.reports.agreement import Agreement
from proving_ground.reports.figures import pick, pick_all
from proving_ground.reports.recovery import checks, custody, injection, ledger, page, planned, proof, results, sameness
from proving_ground.reports.recovery.jobs import Job
from proving_ground.reports.scaling import checks as run_checks
from proving_ground.reports.scaling import scoreboard, stalls, words
from proving_ground.reports.stability import Steadiness
from proving_ground.reports.verdicts import PASS
from proving_ground.training import events
from tests.bench import test_run
from tests.bench.conftest import parts, runs, small_suite, suite
from tests.chaos import test_schedule
from tests.reports import test_attribution, test_checks, test_independence, test_results, test_stalls
from tests.reports.recovery import test_ends, test_injection, test_report, test_slow, test_verdicts
from tests.training import test_events
from tests.validations import (
    depends,
    headline,
    matrix,
    restart,
    shootout,
    test_depends,
    test_headline,
    test_matrix,
    test_recovery_rows,
    test_shootout,
)
from tests.validations.sitting import runs_of
from tests.validations.test_depends import root
from tests.validations.test_recovery_rows import chaos

__all__ = ["chaos", "parts", "root", "runs", "small_suite", "suite"]  # fixtures

of_part, against, trial_row = results.of_part, run_checks.against, page.trial_row


@dataclass(frozen=True)
class Off:
    """A rule that is switched off, and the test that sees it."""

    of: Any
    name: str
    instead: Any
    seen_by: Callable[..., None]
    given: Mapping[str, Any] = field(default_factory=dict)


def anything_proves(evidence: Any, part: str) -> Any:
    """As if the first fault lay before the first step."""
    return of_part(replace(evidence, incidents=()), part)


def by_the_middle(ends: Sequence[float], low: float, high: float) -> str:
    """The middle of an interval decides, however wide it is."""
    return against([mean(ends)] * 2, low, high)


def gains_are_fine(ends: Sequence[float], low: float, high: float) -> str:
    """What is unexplained counts only where it was lost."""
    return against(ends, -1e9 if low == -high else low, high)


def all_after(evidence: Any, one: Any) -> Any:
    """Steps made while a fault was held count as well."""
    return tuple(evidence.steps[(evidence.steps["end"] > one.inject_t) == after] for after in (False, True))


def the_worst_again(document: Mapping[str, Any], cells: Sequence[str], rounds: int) -> str:
    """One cell has all its runs before the next has any."""
    return next((it for it in cells if len(runs_of(document, it)) < rounds), "")


def losses_only(analysis: Any, cell: Any) -> list[tuple[str, float]]:
    """What was won is not told."""
    kept = pick(analysis.figures, "efficiency", **cell.where)
    parts = [(it["where"]["part"], it["median"]) for it in pick_all(analysis.figures, "lost", **cell.where)]
    return [it for it in parts if it[1] > 0] if kept else []


def but_the_last(evidence: Any, one: Any) -> Any:
    """The last step that answers for a fault does not count."""
    return checks.exactly_once(evidence, replace(one, until=one.until - 1))


def of_the_last(self: Any, twin: Any) -> int:
    """A twin goes as far as the job that ended last."""
    return int(list(self._ends[twin.twin_of].values())[-1])


def with_all_of_the_batch(scene: Any, workload: Any) -> Any:
    """An idle node does the work of all nodes."""
    for node in scene.nodes[scene.trial.nodes :]:
        other = replace(scene.trial, id=f"{scene.trial.id}-{node.name}", nodes=1, steps=scene.trial.steps * 1000)
        yield from workload.processes(other, [node], TrialFiles(*[scene.store.scratch] * 3))


def dashed(trial: Mapping[str, Any], *rest: Any) -> dict[str, Any]:
    """Of a fault without evidence no moment is shown."""
    row = trial_row(trial, *rest)
    return row | ({"since": dict.fromkeys(row["since"])} if trial["outcome"] == "invalid" else {})


OFF: dict[str, Off] = {
    "ranks are compared with each other": Off(
        results, "agreement", lambda *_: Agreement(),
        test_verdicts.test_ranks_that_differ_from_each_other_are_noticed_without_a_twin, {"replays": False},
    ),
    "worlds of another size are compared with a replay": Off(
        results, "replay_of", lambda *_: sameness.Replay(),
        test_verdicts.test_mutants_are_caught_in_a_smaller_world_too, {"mutant": "lost_optimizer"},
    ),
    "a replay in worlds of other sizes is none": Off(
        sameness, "same_sizes", lambda mine, _: mine[-1].last,
        test_verdicts.test_a_replay_in_worlds_of_other_sizes_proves_nothing,
    ),
    "the rate of every step counts": Off(
        results, "with_rates", lambda found, *_: found,
        test_verdicts.test_a_learning_rate_between_two_fingerprints_counts,
    ),
    "the data set is as large as the trainer says": Off(
        ledger, "data_set", lambda _: (None, ""),
        test_verdicts.test_a_data_set_of_which_only_a_part_is_read_is_not_every_sample_once,
    ),
    "what lies before the first fault proves nothing": Off(
        results, "of_part", anything_proves, test_verdicts.test_what_lies_before_the_first_fault_proves_nothing
    ),
    "evidence proves a fault": Off(
        proof, "answer", lambda _: (PASS, ""), test_injection.test_what_denies_a_fault_is_told,
        {
            "kind": "evidence emptied", "fault": "f01", "value": "unknown",
            "why": "not recorded: begin.killed (something was killed)",
        },
    ),
    "no record contradicts the evidence": Off(
        injection, "CONTRADICTIONS", (), test_injection.test_what_denies_a_fault_is_told,
        {"kind": "inject_t 1 s late", "fault": "f03", "value": "unknown", "why": "and the evidence says at"},
    ),
    "suite, plan and history are of one run": Off(
        planned, "differences", lambda *_: [], test_injection.test_documents_that_do_not_fit_make_everything_unknown,
        {"kind": "plan: fault removed", "said": "plan.json: case digits: the fault worker_kill is not in every job"},
    ),
    "job and twin are the training that was configured": Off(
        results, "configured", lambda *_: [],
        test_verdicts.test_a_defect_that_job_and_twin_share_shows_beside_a_plain_loop,
    ),
    "a step that cannot be judged voids its own fault alone": Off(
        sameness.Sameness, "undecided", lambda self, *_: next((why for _, why in self._undecided), ""),
        test_verdicts.test_steps_that_cannot_be_judged_void_only_the_fault_that_they_answer_for,
    ),
    "full strength comes before full speed": Off(
        checks, "is_whole", lambda *_: True, test_verdicts.test_a_job_that_is_never_whole_again_is_stuck
    ),
    "an attempt that failed is told": Off(
        verdicts, "attempts", lambda _: "",
        test_verdicts.test_an_attempt_that_failed_before_the_job_was_run_again_is_told,
        {"why": "no step for 60 s", "told": "t001: no step for 60 s"},
    ),
    "a disturbed base decides nothing": Off(
        run_checks, "unsteady", lambda *_: "", test_checks.test_a_disturbed_base_decides_nothing
    ),
    "a disturbed size decides nothing": Off(
        run_checks, "unsteady", lambda *_: "", test_checks.test_a_disturbed_size_decides_nothing_either
    ),
    "disturbed sizes predict nothing": Off(
        run_checks, "unsteady_before", lambda _: [], test_checks.test_a_prediction_from_disturbed_sizes_decides_nothing
    ),
    "more than all is odd": Off(
        run_checks, "odd", lambda _: "", test_checks.test_more_than_all_is_said_to_be_odd,
        {"faster": 0.2, "verdict": "unknown"},
    ),
    "the whole interval of what is unexplained decides": Off(
        run_checks, "against", by_the_middle, test_checks.test_the_unexplained_is_judged_with_its_interval,
        {"ends": (-0.5, 2.5), "value": "unknown"},
    ),
    "unexplained gains count as losses do": Off(
        run_checks, "against", gains_are_fine, test_checks.test_the_unexplained_is_judged_with_its_interval,
        {"ends": (-4, -2.1), "value": "fail"},
    ),
    "a prediction is judged with its interval": Off(
        scoreboard, "interval_of", lambda over, scored: (float(over([abs(it["median"]) for it in scored])),) * 3,
        test_checks.test_predictions_are_judged_with_their_intervals, {"values": [[0.5, 6.0, 2.0]], "value": "unknown"},
    ),
    "what was won is shown": Off(
        words, "lost_parts", losses_only, test_results.test_what_is_shown_of_a_loss_adds_up_to_it,
        {"most": 3, "repeats": 3},
    ),
    "one large gap proves nothing": Off(
        run_checks, "REST_MAX", 1e9, test_attribution.test_one_gap_of_a_run_is_named_and_a_large_one_proves_nothing,
        {"seconds": 0.01, "found": "unknown"},
    ),
    "trials of one job are not independent": Off(
        test_independence, "effective_n", lambda jobs: sum(map(len, jobs)),
        test_independence.test_trials_of_one_job_count_as_what_they_say,
    ),
    "the largest is a stuck one if there is any": Off(
        restart, "times", lambda runs: [[it["resume_s"] for it in job["trials"]] for job in runs],
        test_recovery_rows.test_the_largest_is_a_stuck_one_if_there_is_any,
    ),
    "a row needs as many jobs as were decided": Off(
        restart, "JOBS", 1, test_recovery_rows.test_few_jobs_say_nothing_however_many_trials
    ),
    "every cell is run once before any a second time": Off(
        matrix, "turn", the_worst_again,
        test_matrix.test_every_cell_is_run_once_before_any_a_second_time_and_every_value_is_kept,
    ),
    "the first run of a cell counts": Off(
        headline, "counted", lambda _: headline.ENOUGH,
        test_headline.test_the_first_run_counts_however_often_a_cell_was_run_again,
    ),
    "a slow moment is no slow job": Off(
        checks, "MARGIN_S", 0.0, test_slow.test_what_was_seen_for_a_moment_only_is_no_slow_job
    ),
    "a pace of a moment is none": Off(
        checks, "MARGIN_S", 0.0, test_slow.test_a_pace_that_was_seen_for_a_moment_only_is_none
    ),
    "few slow steps at the end are no slow job": Off(
        checks, "MARGIN_S", 0.0, test_slow.test_a_job_that_ends_with_a_few_slow_steps_is_not_slow
    ),
    "steps while a fault is held are not slow": Off(
        checks, "around", all_after, test_slow.test_what_was_slow_while_a_fault_was_held_does_not_count, {"new": 2}
    ),
    "who had made all of its steps is not stuck": Off(
        checks, "undecided", lambda *_: "",
        test_slow.test_a_job_with_nothing_more_to_do_or_without_the_time_is_not_stuck,
        {
            "about": {"plan": {"steps": 30}, "end_t": 1.0}, "value": "unknown",
            "words": "the job had made all of its steps",
        },
    ),
    "half a last fingerprint of a twin is none": Off(
        sameness, "without_its_end", lambda twin: twin,
        test_ends.test_a_last_fingerprint_that_not_every_rank_told_is_left_out,
    ),
    "an interruption by a machine that stood still is nobody's fault": Off(
        custody, "STILL_S", math.inf,
        test_verdicts.test_an_interruption_on_a_machine_that_stood_still_is_nobodys_fault,
        {"gap_s": 3.0, "busy": False, "verdict": "unknown"},
    ),
    "what heals for long is no machine that stood still": Off(
        custody, "at_work", lambda _: [],
        test_verdicts.test_an_interruption_on_a_machine_that_stood_still_is_nobodys_fault,
        {"gap_s": 3.0, "busy": True, "verdict": "fail"},
    ),
    "what begins when the job is over is no training on": Off(
        Job, "over_t", math.inf, test_verdicts.test_a_step_of_who_had_not_left_yet_is_no_training_on
    ),
    "a victim may write until the last signal": Off(
        injection, "last_signal_t", lambda _: math.nan,
        test_injection.test_the_last_of_several_victims_may_write_until_it_is_hit,
    ),
    "what is healed when the job is over is not healed early": Off(
        Job, "over_t", math.inf, test_ends.test_what_is_healed_because_the_job_is_over_is_not_healed_early
    ),
    "a disturbed run of the matrix supports no verdict": Off(
        headline, "is_steady", lambda *_: True,
        test_headline.test_a_disturbed_run_supports_no_verdict_and_the_next_does_not_stand_in_for_it,
    ),
    "a figure that rests on a disturbed size is unknown": Off(
        headline, "RESTS_ON", {}, test_headline.test_a_figure_that_rests_on_a_disturbed_size_is_unknown
    ),
    "a disturbed machine decides nothing of a slow job": Off(
        Job, "steadiness", lambda *_: Steadiness(0.0, 0.5, 1.0, ()), test_slow.test_a_disturbed_machine_decides_nothing,
        {
            "slower": 6.7, "machine": test_slow.samples(1.0), "value": "unknown",
            "words": "the machine was disturbed: all cores were busy (100 %)",
        },
    ),
    "the last step that answers for a fault counts": Off(
        results, "CHECKS", {**results.CHECKS, "exactly_once": but_the_last},
        test_verdicts.test_the_last_step_that_answers_for_a_fault_counts,
    ),
    "a twin goes as far as the farthest of its jobs": Off(
        schedule.Chaos, "_farthest", of_the_last,
        test_schedule.test_a_twin_goes_as_far_as_the_farthest_of_the_jobs_that_it_is_compared_with,
    ),
    "an idle node trains on one node's share": Off(
        drive, "neighbours", with_all_of_the_batch, test_run.test_an_idle_node_trains_on_one_nodes_share_by_itself
    ),
    "who was killed is blamed, and not who survived": Off(
        drive, "first_death", lambda ended: next(it for it in ended.items() if it[1].code),
        test_run.test_who_was_killed_is_blamed_and_not_who_survived,
    ),
    "a reboot between two sittings changes no order": Off(
        rundir, "moment", lambda record: (1, float(record["t"])),
        test_run.test_a_resume_after_a_reboot_keeps_the_order_and_the_failed_attempt,
    ),
    "who stood still alone is named": Off(
        stalls, "MOST", 2.0, test_stalls.test_who_stood_still_is_named,
        {
            "steps": test_stalls.job("n2"), "words": ("step 5: n2.0 stood still for 3.0 s and all waited for it",),
        },
    ),
    "what is no number stays a text": Off(
        events, "finite", float, test_events.test_what_is_no_number_stays_the_text_that_it_was,
        {"text": "1e999", "value": "1e999"},
    ),
    "a step that cannot be computed with is refused": Off(
        events, "sensible", lambda _: True, test_events.test_a_moment_or_step_that_is_none_is_refused_in_a_line,
        {"change": {"t": "NaN"}},
    ),
    "a fault without evidence gives no time": Off(
        shootout, "judged", list, test_shootout.test_a_fault_without_evidence_is_counted_and_gives_no_time
    ),
    "moments are those of an invalid fault too": Off(
        page, "trial_row", dashed, test_report.test_what_is_known_of_an_invalid_fault_is_shown
    ),
    "what is repeated was decided before": Off(
        restart, "decide", lambda document, **plan: document.update(plan=plan),
        test_recovery_rows.test_jobs_are_decided_before_and_no_option_picks_a_row,
    ),
    "a table says that its code has changed": Off(
        depends, "has_changed", lambda *_: False, test_depends.test_a_table_says_by_itself_that_its_code_has_changed
    ),
    "whatever the judge imports is behind its tables": Off(
        depends, "DECIDES_NOTHING", {},
        test_depends.test_whatever_the_judge_imports_is_behind_the_tables_or_decides_nothing,
    ),
}  # fmt: skip
"""What the rule says → how it is switched off, and which test sees that."""


@pytest.mark.parametrize("rule", OFF)
def test_it_is_one_of_the_cases_of_the_test_that_sees_it(rule: str) -> None:
    """So each passes as long as the rule is on: that is seen where the test stands."""
    off, cases = OFF[rule], dict[str, Any]()
    for mark in getattr(off.seen_by, "pytestmark", ()):
        names, values, *_ = mark.args if mark.name == "parametrize" else ((), ())
        names = names.replace(" ", "").split(",") if isinstance(names, str) else names
        given = [off.given[it] for it in names]
        wanted = given[0] if len(given) == 1 else tuple(given)
        assert not names or wanted in [tuple(it) if len(given) > 1 else it for it in values]
        cases |= dict(zip(names, given, strict=True))
    assert cases == off.given


@pytest.mark.parametrize("rule", OFF)
def test_a_rule_that_is_switched_off_is_missed(rule: str, request: pytest.FixtureRequest) -> None:
    off = OFF[rule]
    wanted = [it for it in inspect.signature(off.seen_by).parameters if it not in off.given]
    fixtures = {name: request.getfixturevalue(name) for name in wanted}
    with patch.object(off.of, off.name, off.instead), pytest.raises((AssertionError, pytest.fail.Exception)):
        off.seen_by(**fixtures, **off.given)
