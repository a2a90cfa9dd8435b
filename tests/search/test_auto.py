"""What `--auto` makes of what trainers told."""

from __future__ import annotations

from typing import Any

import pytest

from proving_ground.search import auto
from proving_ground.search.auto import propose, seen
from proving_ground.search.spec import SearchError

Events = list[dict[str, Any]]


def told(metric: str, *without: str) -> Events:
    steps = [{"t": 0.1 * it, "event": "step", "step": it, "global_samples": 64} for it in range(1, 25)]
    evaluation = {"t": 3.0, "event": "eval", "metric": metric, "value": 0.5}
    return [it for it in [{"t": 0.0, "event": "ready", "rows": 640}, *steps, evaluation] if it["event"] not in without]


@pytest.mark.parametrize(
    ("metric", "mode"), [("accuracy", "max"), ("AUC", "max"), ("f1", "max"), ("r2", "max"), ("loss", "min")]
)
def test_a_metric_is_searched_in_its_own_direction(metric: str, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "probe", lambda _: seen(2, [told(metric)]))
    assert propose({"model": "mine:Task"}, 300.0).search.mode == mode


@pytest.mark.parametrize(
    ("events", "words"),
    [
        (told("elbow"), "is it better high or low"),
        (told("accuracy", "ready"), "does not tell its rows"),
        (told("accuracy", "step"), "does not tell its rows or its steps"),
        (told("accuracy", "eval"), "tells no metric"),
    ],
)
def test_what_no_search_can_be_made_of_is_one_line(events: Events, words: str) -> None:
    with pytest.raises(SearchError, match=words):
        seen(2, [events])


def test_an_epoch_has_the_steps_of_its_rows() -> None:
    found = seen(2, [told("accuracy")])
    assert (found.cores, found.epoch_steps, found.metric) == (2, 10, "accuracy")
    assert found.step_s == pytest.approx(0.1)
