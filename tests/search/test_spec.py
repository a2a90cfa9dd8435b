"""What a search's suite may say, and the line that each mistake gets."""

from __future__ import annotations

from typing import Any

import pytest

from proving_ground.search.points import points
from proving_ground.search.spec import SearchError, as_document, load, search_from, suite_names
from tests.search.recorded import ASKED

MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "unknown key": ({"trails": 3}, "did you mean 'trials'"),
    "no bounds": ({"space": {"lr": 0.1}}, "lr has no bounds"),
    "empty bounds": ({"space": {"lr": {}}}, "lr has no bounds"),
    "no space": ({"space": {}}, "space is empty"),
    "two kinds": ({"space": {"lr": {"uniform": [0, 1], "choice": [1]}}}, "several bounds"),
    "odd kind": ({"space": {"lr": {"unifrom": [0.1, 1]}}}, "did you mean 'uniform'"),
    "swapped ends": ({"space": {"lr": {"uniform": [1, 0.1]}}}, "the low end before the high one"),
    "log of nothing": ({"space": {"momentum": {"loguniform": [0, 0.9]}}}, "must be above 0"),
    "infinite": ({"space": {"lr": {"uniform": [0.1, float("inf")]}}}, "two numbers"),
    "no key of the trainer": ({"space": {"lrr": {"uniform": [0.1, 1]}}}, "did you mean 'lr'"),
    "no value of the trainer": ({"space": {"lr": {"uniform": [-1, 1]}}}, "lr = -1"),
    "fixed and searched": ({"training": {"lr": 0.1}}, "either fixed or searched"),
    "set by the search": ({"training": {"steps": 3}}, "set by the search itself"),
    "unknown metric": ({"metric": "acuracy"}, "did you mean 'accuracy'"),
    "model without metric": ({"training": {"model": "paced", "profile": "resnet50-cpu"}}, "tells no metric"),
    "no trials": ({"trials": None}, "'trials' is missing"),
    "late evaluation": ({"eval_every": 41}, "a trial has 40 steps"),
    "grid without points": ({"algorithm": "grid", "trials": None}, "needs points for a grid"),
    "pbt of what cannot change": ({"algorithm": "pbt", "space": {"momentum": {"uniform": [0, 0.9]}}}, "cannot change"),
    "parts of a whole number": ({"space": {"global_batch": {"uniform": [16, 128]}}}, "write { int ="),
    "grid of parts": (
        {"algorithm": "grid", "trials": None, "space": {"lr_warmup_steps": {"uniform": [0, 20], "points": 3}}},
        "a whole number",
    ),
    "wider than numbers": ({"space": {"lr": {"loguniform": [1e-300, 1e15]}}}, "the quotient is finite"),
    "huge end": ({"space": {"lr": {"uniform": [0.1, 10**400]}}}, "two numbers"),
    "huge grid": (
        {"algorithm": "grid", "trials": None, "space": {"lr_warmup_steps": {"int": [0, 10**12]}}},
        "the grid has",
    ),
    "rungs without end": ({"factor": 1.0000001}, "factor = 1.0000001"),
    "a point that the trainer refuses": (
        {"space": {"global_batch": {"int": [24, 48]}}, "training": {"reduction": "exact"}},
        "divides into",
    ),
    "values that do not fit": (
        {"space": {"reduction": {"choice": ["exact", "float"]}, "global_batch": {"choice": [24, 25]}}},
        "divides into",
    ),
    "a searched model with another metric": ({"space": {"model": {"choice": ["digits", "stocks"]}}}, "model 'stocks'"),
    "no GPUs": ({"training": {"device": "cuda"}}, "trials run on the CPU"),
    "GPUs are searched": ({"space": {"device": {"choice": ["cpu", "cuda"]}}}, "trials run on the CPU"),
    "keys that do not fit": ({"training": {"reduction": "exact", "global_batch": 25}}, "divides into"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_line(name: str) -> None:
    changed, words = MISTAKES[name]
    with pytest.raises(SearchError, match=words) as raised:
        search_from({**ASKED, **changed}, "mine.toml")
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) <= 300


def test_the_metric_is_that_of_the_searched_models() -> None:
    search = search_from({**ASKED, "metric": "rmse_log_return", "space": {"model": {"choice": ["stocks"]}}}, "made")
    assert search.metric == "rmse_log_return"


@pytest.mark.parametrize("bounds", [{"loguniform": [0.01, 0.7]}, {"uniform": [0.3, 0.9]}])
def test_no_point_of_a_grid_lies_beyond_its_ends(bounds: dict[str, Any]) -> None:
    (ends,) = bounds.values()
    space = {"lr": {**bounds, "points": 4}}
    values = [
        it["lr"] for it in points(search_from({**ASKED, "algorithm": "grid", "trials": None, "space": space}, "m"))
    ]
    assert (min(values), max(values)) == tuple(ends)


@pytest.mark.parametrize("name", suite_names())
def test_each_suite_that_ships_can_be_read_written_and_read(name: str) -> None:
    search = load(name)
    assert search_from(as_document(search), "again") == search
    assert len(list(points(search))) == search.planned


@pytest.mark.parametrize(
    ("bounds", "ends"),
    [
        ({"lr": {"uniform": [0.1, 0.9]}}, (0.1, 0.9)),
        ({"lr": {"loguniform": [0.001, 0.9]}}, (0.001, 0.9)),
        ({"lr_warmup_steps": {"int": [2, 5]}}, (2, 5)),
        ({"momentum": {"choice": [0.0, 0.5, 0.9]}}, (0.0, 0.9)),
    ],
)
def test_points_lie_within_their_bounds_and_reach_all_of_them(
    bounds: dict[str, Any], ends: tuple[float, float]
) -> None:
    search = search_from({**ASKED, "space": bounds, "trials": 200, "algorithm": "random"}, "made")
    (name,) = bounds
    values = [it[name] for it in points(search)]
    assert ends[0] <= min(values) < max(values) <= ends[1]
    if name != "lr":
        assert {min(values), max(values)} == set(ends)
    assert values == [it[name] for it in points(search)]
    assert len({*values}) == {"lr": 200, "lr_warmup_steps": 4, "momentum": 3}[name]


def test_a_grid_is_every_combination() -> None:
    space = {"lr": {"loguniform": [0.01, 1.0], "points": 3}, "lr_warmup_steps": {"int": [0, 1]}}
    search = search_from({**ASKED, "algorithm": "grid", "trials": None, "space": space}, "made")
    rows = [(round(it["lr"], 6), it["lr_warmup_steps"]) for it in points(search)]
    assert rows == [(0.01, 0), (0.01, 1), (0.1, 0), (0.1, 1), (1.0, 0), (1.0, 1)]
