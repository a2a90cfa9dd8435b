"""Comparing never cries wolf: false alarms and found slowdowns are counted over many simulated pairs of runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from proving_ground.reports.comparing import compare, comparison

CELLS = 4  # gated figures in one comparison
REPEATS = 3
ENDS = ("worse", "better")
PRIOR = compare.PRIOR_BETWEEN["paced"]


def runs(rng: np.random.Generator, noise: float, between: float, slower: float = 0.0) -> list[np.ndarray[Any, Any]]:
    """The throughputs of one run, cell by cell; what differs between runs is common to the whole run."""
    common = between * rng.standard_normal()
    return [
        100 * (1 - slower) * np.exp(common + noise * rng.standard_normal(REPEATS)) for _ in range(CELLS)
    ]  # fmt: skip


def figure(values: np.ndarray[Any, Any], number: int = 0, name: str = "throughput") -> dict[str, Any]:
    return {"name": name, "unit": "samples/s", "where": {"cell": number}, "median": float(np.median(values))}


def judged(before: list[Any], after: list[Any], earlier: list[list[Any]] | None = None) -> list[compare.Difference]:
    """As `reports compare` does it: cell by cell; without `earlier` in pairs."""
    found = []
    for number, (one, other) in enumerate(zip(before, after, strict=True)):
        if earlier is None:
            effect = compare.paired(one, other)
        else:
            effect = compare.unpaired(one, other, compare.between_runs([run[number] for run in earlier], PRIOR))
        found.append(compare.difference(figure(one, number), effect, compare.MARGIN))
    return compare.judge(found, compare.MARGIN)


def share(between: float, earlier: int, slower: float = 0.0, *, count: int = 300, noise: float = 0.002) -> float:
    """Of simulated pairs of runs, the share that is called better or worse."""
    rng, called = np.random.default_rng((11, earlier, int(1e4 * between))), 0
    for _ in range(count):
        before = [runs(rng, noise, between) for _ in range(earlier + 1)]
        after = runs(rng, noise, between, slower)
        called += compare.overall(judged(before[-1], after, before[:-1])) in ENDS
    return called / count


@pytest.mark.parametrize("earlier", [0, 1, 3, 5, 10])
@pytest.mark.parametrize("between", [0.005, 0.01, 0.02, 0.03])
def test_false_alarms_are_rare_however_far_apart_runs_lie(between: float, earlier: int) -> None:
    assert share(between, earlier) <= 0.05


@pytest.mark.parametrize(("between", "earlier"), [(0.01, 0), (0.03, 3), (0.02, 5), (0.02, 10)])
def test_the_old_assumption_would_have_cried_wolf(
    between: float, earlier: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trust(*_: object) -> compare.Noise:
        return compare.Noise(0.005)

    monkeypatch.setattr(compare, "between_runs", trust)  # the mutant
    assert share(between, earlier) > (0.03 if between == 0.01 else 0.2)


@pytest.mark.parametrize(("between", "earlier", "noise"), [(0.001, 5, 0.002), (0.002, 10, 0.002), (0.005, 10, 0.005)])
def test_five_percent_are_found_with_enough_earlier_runs(between: float, earlier: int, noise: float) -> None:
    assert share(between, earlier, slower=0.05, noise=noise, count=200) >= 0.8


@pytest.mark.parametrize(("between", "earlier"), [(PRIOR, 0), (0.01, 5), (0.01, 10)])
def test_the_smallest_change_told_is_found_four_times_of_five(between: float, earlier: int) -> None:
    known = compare.Noise(between, earlier, earlier - 1, assumed=False) if earlier else compare.Noise(between)
    one = 100 * np.exp(0.002 * np.array([-1.0, 0.0, 1.0]))
    told = compare.difference(figure(one), compare.unpaired(one, one, known), compare.MARGIN)
    slower = -compare.judge([told], compare.MARGIN)[0].smallest / 100
    rng, found, count = np.random.default_rng((12, earlier)), 0, 400
    for _ in range(count):
        before = [runs(rng, 0.002, between)[:1] for _ in range(earlier + 1)]
        found += compare.overall(judged(before[-1], runs(rng, 0.002, between, slower)[:1], before[:-1])) == "worse"
    assert found / count == pytest.approx(0.8, abs=0.07)


def test_with_few_earlier_runs_little_is_seen_and_it_says_how_little() -> None:
    rng = np.random.default_rng(18)
    few, enough = ([runs(rng, 0.002, 0.002) for _ in range(count)] for count in (3, 8))
    before, after = runs(rng, 0.002, 0.002), runs(rng, 0.002, 0.002, slower=0.06)
    for earlier, answer, low, high in ((few, "cannot tell", 10, 20), (enough, "worse", 1, 5)):
        rows = judged(before, after, earlier)
        assert compare.overall(rows) == answer
        assert all(low < -row.smallest < high for row in rows)


def test_a_figure_of_which_less_is_better_is_worse_when_it_grows() -> None:
    values = np.array([100.0, 100.1, 99.9])
    effect = compare.unpaired(values, values, compare.Noise(0.01))
    rows = [compare.difference(figure(values, name=name), effect, 0.01) for name in ("throughput", "resume")]
    shrunk, grown = compare.judge(rows, 0.01)
    assert shrunk.smallest < -3
    assert grown.smallest > 3


@pytest.mark.parametrize("slower", [0.0, 0.05])
def test_pairs_of_one_run_know_no_noise_between_runs(slower: float) -> None:
    rng, called = np.random.default_rng(13), 0
    for _ in range(200):
        before, after = runs(rng, 0.003, 0.0), runs(rng, 0.003, 0.0)
        after[2] = after[2] * (1 - slower)
        called += compare.overall(judged(before, after)) == "worse"
    assert called >= 180 if slower else called <= 10


def test_the_same_is_said_only_of_what_is_known_well() -> None:
    rng = np.random.default_rng(15)
    quiet, loud = ([runs(rng, noise, 0.0) for _ in range(12)] for noise in (0.0005, 0.05))
    assert compare.overall(judged(quiet[0], quiet[1], quiet[2:])) == "same"
    assert compare.overall(judged(loud[0], loud[1], loud[2:])) == "cannot tell"
    assert compare.overall(judged(quiet[0], quiet[1], [])) == "cannot tell"  # two runs alone


def test_what_is_shown_is_what_was_decided_about() -> None:
    before, after = np.array([11.40, 11.44, 11.90]), np.array([11.39, 11.40, 12.10])  # medians fall, means grow
    row = compare.difference(figure(before), compare.unpaired(before, after, compare.Noise(0.01)), 0.01)
    assert row.change == pytest.approx(100 * (row.after / row.before - 1))
    assert row.change > 0
    _, _, shown_before, shown_after, _, shown, *_ = next(comparison.rows([row]))
    assert 100 * (float(shown_after) / float(shown_before) - 1) == pytest.approx(float(shown.rstrip(" %")), abs=0.06)


@pytest.mark.parametrize(("name", "expected"), [("throughput", "worse"), ("checkpoint_block", "better")])
def test_less_is_worse_or_better_by_figure(name: str, expected: str) -> None:
    before, after = np.array([100.0, 100.1, 99.9]), np.array([90.0, 90.1, 89.9])
    effect = compare.unpaired(before, after, compare.Noise(0.001))
    found = compare.difference(figure(before, name=name), effect, compare.MARGIN)
    assert compare.overall(compare.judge([found], compare.MARGIN)) == expected
    assert found.change == pytest.approx(-10, abs=0.1)


def test_figures_that_follow_from_others_never_decide() -> None:
    before, after = np.array([100.0, 100.1, 99.9]), np.array([90.0, 90.1, 89.9])
    effect = compare.unpaired(before, after, compare.Noise(0.001))
    judged = compare.judge([compare.difference(figure(before, name="efficiency"), effect, 0.01)], 0.01)
    assert judged[0].answer == "worse"
    assert compare.overall(judged) == "cannot tell"


def test_what_supports_no_verdict_has_none() -> None:
    before, after = np.array([100.0, 100.1, 99.9]), np.array([90.0, 90.1, 89.9])
    effect = compare.unpaired(before, after, compare.Noise(0.001))
    rows = compare.judge([compare.difference(figure(before), effect, 0.01, "another processor")], 0.01)
    assert compare.overall(rows) == "cannot tell"
    assert rows[0].smallest < -1  # what could have been seen is told all the same


def test_noise_between_runs_is_found_and_a_step_moves_it_little() -> None:
    rng = np.random.default_rng(16)
    levels = 100 * np.exp(0.01 * rng.standard_normal(40))
    levels[20:] *= 0.9
    series = [level * np.exp(0.002 * rng.standard_normal(3)) for level in levels]
    found = compare.between_runs(series, PRIOR)
    assert found.sd == pytest.approx(0.01, rel=0.3)
    assert (found.runs, found.assumed) == (40, False)
    assert compare.between_runs(series[:4], PRIOR) == compare.Noise(PRIOR, 4)


def test_noisier_repeats_than_those_of_earlier_runs_count() -> None:
    quiet, loud = np.array([100.0, 100.1, 99.9]), np.array([100.0, 110.0, 90.0])
    noise = compare.between_runs([quiet] * 6, PRIOR)
    assert compare.unpaired(quiet, loud, noise).error > 10 * compare.unpaired(quiet, quiet, noise).error
