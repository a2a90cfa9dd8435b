"""Every check has mutants that it must catch: a healthy run is broken in one way, and must not pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from proving_ground.reports import verdicts
from proving_ground.reports.cli import main
from proving_ground.reports.scaling import checks, results, words
from proving_ground.reports.scaling.results import Analysis
from proving_ground.reports.scaling.scoreboard import Prediction
from tests.reports.rewritten import resealed, rewrite
from tests.reports.synthetic import Knobs, make

SMALL: dict[str, Any] = {
    "nodes": (1, 2),
    "scalings": ("weak",),
    "bars": {2: 0.9},
    "steps": 12,
    "bound": {1: 0.105, 2: 0.106},
}


WHERE_ASKED = ("ranks_agree", "exactly_once", "quality")


def judged(folder: Path, *, complete: bool = True, **knobs: Any) -> Analysis:
    return results.analyse(make(folder, Knobs(**{**SMALL, **knobs}), complete=complete))


def of(analysis: Analysis, check: str) -> list[tuple[str, str]]:
    return [(v["verdict"], v["why"]) for v in analysis.verdicts if v["check"] == check]


def test_healthy_run_passes_every_check(tmp_path: Path) -> None:
    analysis = judged(tmp_path)
    assert {v["check"] for v in analysis.verdicts} == set(checks.CHECKS) - {"predicted", *WHERE_ASKED}
    assert verdicts.overall(analysis.verdicts) == verdicts.PASS
    assert words.verdict_line(analysis) == "pass (digits ≥90 % at 2 nodes)"


def test_ranks_with_the_same_weights_agree(tmp_path: Path) -> None:
    ((verdict, why),) = of(judged(tmp_path, weights={0: "a", 1: "a"}), "ranks_agree")
    assert (verdict, why) == ("pass", "the same weights on all ranks at 3 fingerprints of 3 trials")


@pytest.mark.parametrize(
    ("weights", "verdict", "words"),
    [
        ({0: "a", 1: "b"}, "fail", "parameters: ranks 0 and 1 of generation 0 differ after step 12"),
        ({0: "a"}, "unknown", "no two ranks recorded a fingerprint of the same step"),
    ],
)
def test_ranks_that_do_not_agree_are_no_training(
    tmp_path: Path, weights: dict[int, str], verdict: str, words: str
) -> None:
    analysis = judged(tmp_path, weights=weights)
    assert of(analysis, "ranks_agree")[0][0] == verdict
    assert words in of(analysis, "ranks_agree")[0][1]
    assert verdicts.overall(analysis.verdicts) == verdict


@pytest.mark.parametrize(
    ("accuracy", "verdict", "words"),
    [
        (0.98, "pass", "accuracy (test) 0.98 ≥ 0.97"),
        (0.96, "fail", "accuracy (test) 0.96 < 0.97"),
        (None, "unknown", "accuracy was not evaluated; set eval_every = 0"),
    ],
)
def test_a_trained_model_has_a_bar(tmp_path: Path, accuracy: float | None, verdict: str, words: str) -> None:
    analysis = judged(tmp_path, accuracy=accuracy, accuracy_min=0.97)
    found = of(analysis, "quality")
    assert {value for value, _ in found} == {verdict}
    assert words in found[0][1]
    assert verdicts.overall(analysis.verdicts) == verdict


def test_dead_worker_is_a_failed_run_even_if_the_harness_says_ok(tmp_path: Path) -> None:
    run = make(tmp_path, Knobs(**SMALL, kill="t002"))

    def says_ok(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**it, "ok": True} if (it["event"], it.get("trial")) == ("trial_end", "t002") else it for it in records]

    rewrite(run, says_ok)
    found = of(results.analyse(run), "completed")
    assert found[0] == ("fail", "trial t002: n2.0 ended with exit status -9")


def test_missing_events_of_one_process_fail_the_trial(tmp_path: Path) -> None:
    run = make(tmp_path, Knobs(**SMALL))
    rewrite(run, lambda records: [record for record in records if not silent(record)])
    analysis = results.analyse(run)
    assert of(analysis, "completed") == [("fail", "trial t002: n2.0 recorded 0 of 12 steps")]
    assert verdicts.overall(analysis.verdicts) == verdicts.FAIL


def silent(record: dict[str, Any]) -> bool:
    return bool(record["event"] == "step" and record["trial"] == "t002" and record["source"] == "n2.0")


def test_incomplete_run_is_unknown_and_says_so(tmp_path: Path) -> None:
    analysis = judged(tmp_path, complete=False)
    assert of(analysis, "completed")[0][0] == "unknown"
    assert words.headline(analysis).startswith("This run is incomplete.")


def test_changed_file_makes_everything_unknown(tmp_path: Path) -> None:
    run = make(tmp_path, Knobs(**SMALL))
    run.history.write_text(run.history.read_text().replace('"samples":64.0', '"samples":99.0'))
    analysis = results.analyse(run)
    assert {v["verdict"] for v in analysis.verdicts} == {"unknown"}
    assert all("not as sealed" in v["why"] for v in analysis.verdicts)
    assert "history.jsonl: changed" in of(analysis, "sealed")[0][1]


def test_efficiency_below_the_bar_fails(tmp_path: Path) -> None:
    assert of(judged(tmp_path, comm={2: 0.4}), "efficiency")[0][0] == "fail"


def test_efficiency_on_both_sides_of_the_bar_cannot_be_told(tmp_path: Path) -> None:
    found = of(judged(tmp_path, comm={2: 0.1}, noise=0.06), "efficiency")
    assert found[0][0] == "unknown"
    assert found[0][1].startswith("cannot tell: ")


def test_noise_far_above_the_bar_still_passes(tmp_path: Path) -> None:
    assert of(judged(tmp_path, noise=0.03, bars={2: 0.3}), "efficiency")[0][0] == "pass"


def test_one_repeat_is_no_evidence(tmp_path: Path) -> None:
    assert of(judged(tmp_path, repeats=1), "efficiency")[0][0] == "unknown"


@pytest.mark.parametrize(
    "knobs",
    [
        {"imitated": ("nodes share the cores: this shows contention, not scaling",)},
        {"cpus": None},  # nobody says so, but real compute without shares is contention all the same
    ],
)
def test_shared_cores_are_contention_not_scaling(tmp_path: Path, knobs: dict[str, Any]) -> None:
    analysis = judged(tmp_path, **knobs)
    assert of(analysis, "efficiency") == [("unknown", checks.CONTENTION)]
    assert words.headline(analysis).startswith("Nodes share the cores: this shows contention, not scaling.")


def test_smallest_size_cannot_be_compared_with_itself(tmp_path: Path) -> None:
    found = of(judged(tmp_path, nodes=(2, 4), bars={2: 0.9, 4: 0.85}), "efficiency")
    assert [verdict for verdict, _ in found] == ["unknown", "pass"]


@pytest.mark.parametrize(
    ("bound", "knobs", "verdict", "said"),
    [
        (0.106, {}, "pass", "above the bound, at most 5 % asked"),
        (0.09, {}, "fail", "above the bound, at most 5 % asked"),
        (0.1025, {"noise": 0.02}, "unknown", "on both sides of 5 %"),
        (0.15, {}, "unknown", "faster than the link allows"),
        (0.106, {"repeats": 1}, "unknown", "its noise is not known"),
    ],
)
def test_distance_from_the_bound(tmp_path: Path, bound: float, knobs: dict[str, Any], verdict: str, said: str) -> None:
    found = of(judged(tmp_path, bound={1: 0.106, 2: bound}, **knobs), "near_bound")[1]
    assert found[0] == verdict
    assert said in found[1]


def test_a_size_without_a_bound_is_not_judged_by_it(tmp_path: Path) -> None:
    assert of(judged(tmp_path, bound={2: 0.106}), "near_bound") == []


BASE_UNSTEADY = "cannot tell: the machine was not steady in most repeats on 1 node, which this is compared with"


def test_a_disturbed_base_decides_nothing(tmp_path: Path) -> None:
    analysis = judged(tmp_path, steal=0.1, steal_nodes=(1,))
    assert [verdict for verdict, _ in of(analysis, "stable")] == ["unknown", "pass"]
    assert of(analysis, "efficiency") == [("unknown", BASE_UNSTEADY)]
    assert of(analysis, "explained") == [("unknown", BASE_UNSTEADY)]
    assert [verdict for verdict, _ in of(analysis, "near_bound")] == ["unknown", "pass"]  # a step needs no base


@pytest.mark.parametrize(("bar", "found"), [(0.75, ["unknown"]), (None, [])])
def test_a_threshold_at_a_size_that_was_left_out_is_open(bar: float | None, found: list[str]) -> None:
    left_out = {"case": "digits", "nodes": 8, "why": "8 nodes: as asked the run would take 9 min", "bar": bar}
    rows = list(checks.efficiency(checks.Evidence((), (), (), {}, complete=True, refused=[left_out])))
    assert [it["verdict"] for it in rows] == found
    assert all(it["why"] == "not measured: as asked the run would take 9 min" for it in rows)
    assert all(it["where"] == {"case": "digits", "scaling": "weak", "nodes": 8, "bar": 75.0} for it in rows)


def test_a_report_of_a_run_that_left_out_a_size_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(tmp_path, Knobs(nodes=(1, 2, 4), steps=12))
    left_out = {"case": "digits", "nodes": 8, "why": "8 nodes: as asked the run would take 9 min", "bar": 0.75}
    run.write("plan", run.read("plan") | {"refused": [left_out]})
    found = results.analyse(resealed(run))
    assert verdicts.overall(found.verdicts) == "unknown"
    assert "digits at 8 nodes: not measured: as asked the run would take 9 min" in words.reasons(found, "unknown")
    assert 8 not in {it["where"].get("nodes") for it in checks.undecided(found.verdicts, found.cells)}
    assert main([str(run.path)]) == 0
    assert "could not be made" not in capsys.readouterr().out
    assert main([str(run.path), "--strict", "--no-html"]) == 1


def test_a_disturbed_size_decides_nothing_either(tmp_path: Path) -> None:
    analysis = judged(tmp_path, steal=0.1, steal_nodes=(2,))
    for check in ("efficiency", "explained", "near_bound"):
        assert of(analysis, check)[-1] == ("unknown", "cannot tell: the machine was not steady in most repeats")


def test_a_headline_is_of_what_is_sure(tmp_path: Path) -> None:
    analysis = judged(tmp_path, cases=("one", "two"), scalings=("weak",), nodes=(1, 2))
    assert words.title(analysis).startswith("On 2 nodes, one keeps ")

    def told(it: dict[str, Any], cases: tuple[str, ...]) -> dict[str, Any]:
        hit = it["check"] == "stable" and it["where"]["nodes"] == 2 and it["where"]["case"] in cases
        return {**it, "verdict": "unknown"} if hit else it

    def unsteady(*cases: str) -> Analysis:
        changed = {"verdicts": [told(it, cases) for it in analysis.verdicts]}
        return replace(analysis, results={**analysis.results, **changed})

    assert words.title(unsteady("one")).startswith("On 2 nodes, two keeps ")
    assert words.headline(unsteady("one")).startswith("On 2 emulated nodes, two keeps ")
    assert words.title(unsteady("one", "two")) == "Cannot tell how one scales to 2 nodes"


@pytest.mark.parametrize(("faster", "verdict"), [(0.01, "pass"), (0.2, "unknown")])
def test_more_than_all_is_said_to_be_odd(tmp_path: Path, faster: float, verdict: str) -> None:
    analysis = judged(tmp_path, comm={1: 0.01 + 1.1 * faster, 2: 0.0}, noise=0.0005, jitter=0.0005)
    value, why = of(analysis, "efficiency")[0]
    assert value == verdict
    assert why.endswith("but odd: above 100 %, so what it is compared with, the job on 1 node, was slow")
    assert "This is odd: above 100 %" in words.headline(analysis)


def test_what_is_on_the_way_to_all_is_not_odd(tmp_path: Path) -> None:
    analysis = judged(tmp_path)
    assert "odd" not in of(analysis, "efficiency")[0][1] + words.headline(analysis)


@pytest.mark.parametrize(
    ("ends", "value"), [((-1.9, 1.9), "pass"), ((-0.5, 2.5), "unknown"), ((2.1, 3.0), "fail"), ((-4, -2.1), "fail")]
)
def test_the_unexplained_is_judged_with_its_interval(ends: tuple[float, float], value: str) -> None:
    where = {"case": "digits", "workload": "digits", "scaling": "weak", "nodes": 2, "part": "rest", "base_nodes": 1}
    lost = {"name": "lost", "where": where, "median": sum(ends) / 2, "ci95": ends}
    assert [it["verdict"] for it in checks.explained(evidence(lost))] == [value]
    assert [it["verdict"] for it in checks.explained(evidence({**lost, "ci95": None}))] == ["unknown"]


@pytest.mark.parametrize(
    ("values", "value"),
    [
        ([[1.0, 1.1, 0.9], [2.0, 2.1, 1.9]], "pass"),
        ([[1.0, 1.1, 0.9], [-9.0, -9.1, -8.9]], "fail"),  # the mean is 5 %, and the worst above 8 %
        ([[4.0, 4.1, 3.9]], "fail"),
        ([[0.5, 6.0, 2.0]], "unknown"),  # its median is within what is allowed, its noise is not
        ([[1.0]], "unknown"),
    ],
)
def test_predictions_are_judged_with_their_intervals(values: list[list[float]], value: str) -> None:
    where = {"case": "digits", "workload": "digits", "scaling": "weak"}
    errors = [
        {
            "name": "prediction_error",
            "where": {**where, "nodes": nodes},
            "median": median(it),
            "n": len(it),
            "values": it,
        }
        for nodes, it in enumerate(values, 4)
    ]
    found = list(checks.predicted(evidence(*errors, prediction=Prediction({"predictions": [{}]}))))
    assert [it["verdict"] for it in found] == [value]


def test_a_prediction_from_disturbed_sizes_decides_nothing(tmp_path: Path) -> None:
    trials = [replace(trial, plan={**trial.plan, "block": "a"}, flags=("busy",)) for trial in judged(tmp_path).trials]
    where = {"case": "digits", "workload": "digits", "scaling": "weak", "nodes": 4}
    error = {"name": "prediction_error", "where": where, "median": 1.0, "n": 3, "values": [1.0, 1.1, 0.9]}
    made = Prediction({"predictions": [{}]})
    assert [it["verdict"] for it in checks.predicted(evidence(error, prediction=made))] == ["pass"]
    found = next(checks.predicted(replace(evidence(error, prediction=made), trials=trials)))
    assert (found["verdict"], found["why"].endswith("from which it was predicted")) == ("unknown", True)


def evidence(*found: dict[str, Any], prediction: Prediction | None = None) -> checks.Evidence:
    """Of nothing but figures."""
    return checks.Evidence((), (), found, {}, complete=True, prediction=prediction or Prediction())


def test_stolen_time_in_most_repeats_is_unknown(tmp_path: Path) -> None:
    analysis = judged(tmp_path, steal=0.1)
    assert {verdict for verdict, _ in of(analysis, "stable")} == {"unknown"}
    assert of(analysis, "efficiency")[0] == ("unknown", "cannot tell: the machine was not steady in most repeats")


def test_stolen_time_in_one_repeat_discards_it(tmp_path: Path) -> None:
    analysis = judged(tmp_path, steal=0.1, steal_repeats=(2,), repeats=4)
    assert of(analysis, "stable")[0] == ("pass", "3 of 4 repeats undisturbed")
    assert [f["n"] for f in analysis.figures if f["name"] == "throughput"] == [3, 3]


def test_disturbed_repeat_stays_where_too_few_would_be_left(tmp_path: Path) -> None:
    analysis = judged(tmp_path, steal=0.1, steal_repeats=(2,))
    assert of(analysis, "stable")[0] == ("pass", "2 of 3 repeats undisturbed")
    assert [f["n"] for f in analysis.figures if f["name"] == "throughput"] == [3, 3]


def test_busy_machine_is_noticed(tmp_path: Path) -> None:
    assert of(judged(tmp_path, busy=0.99, steps=40), "stable")[0][0] == "unknown"


def test_unwatched_machine_is_unknown(tmp_path: Path) -> None:
    assert of(judged(tmp_path, machine=False), "stable")[0][0] == "unknown"


def test_real_with_something_imitated_fails(tmp_path: Path) -> None:
    assert of(judged(tmp_path, label="real"), "labels")[0][0] == "fail"


def test_emulated_without_a_word_why_is_unknown(tmp_path: Path) -> None:
    run = make(tmp_path, Knobs(**SMALL, imitated=()))
    plan = run.read("plan")
    plan["cluster"]["imitated"] = []
    run.write("plan", plan)
    resealed(run)
    assert of(results.analyse(run), "labels")[0][0] == "unknown"


def test_crashed_check_is_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(_: checks.Evidence) -> Iterator[verdicts.Verdict]:
        raise ZeroDivisionError("by design")

    monkeypatch.setitem(checks.CHECKS, "stable", crash)
    analysis = judged(tmp_path)
    assert of(analysis, "stable") == [("unknown", "the check itself failed: ZeroDivisionError: by design")]
    assert verdicts.overall(analysis.verdicts) == verdicts.UNKNOWN
