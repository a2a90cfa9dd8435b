"""What a run took: node-hours that add up, the alert above the estimate, advice where little was training."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from proving_ground.reports.scaling import page, spending
from proving_ground.reports.scaling.cost import Price
from proving_ground.reports.scaling.results import Analysis, analyse
from proving_ground.reports.scaling.spending import Spent, words
from tests.reports.synthetic import Knobs, make

LARGE = Spent("digits", 4, 3, estimated=1.0, used=1.1, trained=0.9)


def run_of(folder: Path, price: float | None = None) -> Analysis:
    """A made-up run of 1 and 2 nodes, two repeats."""
    return analyse(make(folder, Knobs(nodes=(1, 2), repeats=2, scalings=("weak",))), Price(price))


def test_sizes_and_nodes_add_up_to_the_same(tmp_path: Path) -> None:
    made = run_of(tmp_path)
    sizes = spending.by_size(made.trials, made.history)
    assert [(it.case, it.nodes, it.trials) for it in sizes] == [("digits", 1, 2), ("digits", 2, 2)]
    seconds = {t.plan["id"]: made.history.trials[t.plan["id"]] for t in made.trials}
    truth = sum(t.plan["nodes"] * (seconds[t.plan["id"]].end_t - seconds[t.plan["id"]].start_t) for t in made.trials)
    assert math.fsum(it.used for it in sizes) == pytest.approx(truth / 3600)
    assert math.fsum(spending.by_node(made.trials, made.history).values()) == pytest.approx(truth / 3600)
    assert [it.estimated for it in sizes] == pytest.approx([2 * 5.0 / 3600, 2 * 2 * 5.0 / 3600])


def test_training_is_from_the_last_rank_that_is_ready_to_the_last_step(tmp_path: Path) -> None:
    made = run_of(tmp_path)
    trial = next(it for it in made.trials if it.plan["nodes"] == 2)
    recorded = made.history.trials[trial.plan["id"]]
    assert math.isnan(spending.trained(trial, recorded))  # a trainer that never said when it was ready
    assert {it["share"] for it in spending.rows(spending.by_size(made.trials, made.history), None)} == {None}
    for number, process in enumerate(recorded.processes.values(), 1):
        process.ready_t = recorded.start_t + 0.1 * number
    assert trial.window is not None
    assert spending.trained(trial, recorded) == pytest.approx(trial.window[1] - recorded.start_t - 0.2)


def test_a_trial_that_never_ended_is_not_counted(tmp_path: Path) -> None:
    made = run_of(tmp_path)
    for trial in made.trials:
        made.history.trials[trial.plan["id"]].end_t = math.nan
    assert spending.by_size(made.trials, made.history) == []
    assert spending.by_node(made.trials, made.history) == {}
    assert list(words([], 3.0)) == []


@pytest.mark.parametrize(
    ("spent", "says"),
    [
        (LARGE, []),
        (Spent("digits", 4, 3, estimated=1.0, used=1.25, trained=1.0), ["25% over the estimate"]),
        (Spent("digits", 4, 3, estimated=1.0, used=1.24, trained=1.0), []),
        (Spent("digits", 4, 3, estimated=0.0, used=9.0, trained=8.0), []),  # of a plan without an estimate
        (Spent("digits", 4, 3, estimated=2.0, used=1.0, trained=0.49), ["Only 49% of them"]),
        (Spent("digits", 4, 3, estimated=2.0, used=1.0, trained=math.nan), []),
        (Spent("digits", 4, 3, estimated=0.01, used=0.1, trained=0.0), []),  # six node-minutes: not worth a word
    ],
)
def test_a_quarter_over_and_half_idle_are_said(spent: Spent, says: list[str]) -> None:
    told = list(words([spent], None))
    assert len(told) == 1 + len(says)
    assert all(part in line for part, line in zip(says, told[1:], strict=True))


def test_money_only_at_a_price(tmp_path: Path) -> None:
    assert "which cost 3.3 at the stated price" in next(iter(words([LARGE], 3.0)))
    assert "cost" not in next(iter(words([LARGE], None)))
    assert [it["money"] for it in spending.rows([LARGE], None)] == [None]
    text = page.html(run_of(tmp_path, 3.6)).replace("\N{NO-BREAK SPACE}", " ")
    assert "What this run took" in text
    assert "By node: n1 " in text
