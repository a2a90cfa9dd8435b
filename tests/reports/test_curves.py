"""Curves over time: what was recorded, with gaps where nothing was, and none where a trainer tells nothing."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from proving_ground.bench.rundir import RunDir
from proving_ground.reports.scaling import curves, page, results
from tests.reports.synthetic import Knobs, make

KNOBS = Knobs(nodes=(1, 2), scalings=("weak",), steps=30)


def losses_of(file: Path, *losses: object) -> tuple[list[float], list[float]]:
    """A loss a second from 10 s on."""
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [{"t": 10 + i, "event": "step", "step": i + 1, "samples": 1, "loss": it} for i, it in enumerate(losses)]
    file.write_text("".join(json.dumps(it) + "\n" for it in rows))
    times, values = curves.losses([file], 10.0)
    return list(times), list(values)


def test_loss_is_read_as_recorded(tmp_path: Path) -> None:
    assert losses_of(tmp_path / "a.jsonl", 3.0, 2.0, 1) == ([0, 1, 2], [3, 2, 1])


def test_what_is_no_loss_is_left_out(tmp_path: Path) -> None:
    assert losses_of(tmp_path / "a.jsonl", 3.0, None, math.nan, [], "x", 1.0) == ([0, 5], [3, 1])
    (tmp_path / "b.jsonl").write_text('{"t": 1, "loss": 2.0}\n{"t": 2, "lo')
    assert curves.losses([tmp_path / "b.jsonl"], 0.0) == ([1.0], [2.0])
    assert curves.losses([], 0.0) == ([], [])


def test_a_long_file_is_thinned_and_keeps_its_range(tmp_path: Path) -> None:
    times, _ = losses_of(tmp_path / "a.jsonl", *(float(it) for it in range(5 * curves.POINTS)))
    assert curves.POINTS / 2 <= len(times) <= curves.POINTS
    assert times[0] == 0
    assert times[-1] == pytest.approx(5 * curves.POINTS, rel=0.01)


def test_an_interruption_is_a_gap_not_a_line() -> None:
    times, values = curves.interrupted([0, 1, 2, 3, 30, 31], [6, 5, 4, 3, 2, 1])
    assert list(times) == [0, 1, 2, 3, 30, 30, 31]
    assert [math.isnan(it) for it in values] == [False] * 4 + [True] + [False] * 2


def test_throughput_is_that_of_all_ranks() -> None:
    times = np.repeat(np.arange(1.0, 101.0), 2)  # two ranks, a step a second
    _, rates = curves.rates(times, np.full(200, 8), 100)
    assert np.median(rates) == pytest.approx(16, rel=0.05)
    assert curves.rates(times[:4], np.full(4, 8), 2) == ([], [])


def test_the_page_has_the_curves(tmp_path: Path) -> None:
    run = make(tmp_path, KNOBS)
    analysis = results.analyse(run)
    found = curves.curves(analysis)
    assert found is not None
    assert "samples/s" in found.wide
    assert "Over time" in page.html(analysis)


def test_a_case_whose_trainer_tells_a_loss_has_its_curve(tmp_path: Path) -> None:
    run = make(tmp_path, KNOBS)
    for file in run.events.glob("t*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        told = [it | {"loss": 1 / it["step"]} if it["event"] == "step" else it for it in rows]
        file.write_text("".join(json.dumps(it) + "\n" for it in told))
    panels = curves.of_case(results.analyse(run), "digits")
    assert [it.title for it in panels] == ["digits, 2 nodes: loss", "digits, 2 nodes: samples/s"]
    assert panels[0].points[1][0] == 1.0


def test_few_steps_make_no_curve(tmp_path: Path) -> None:
    short = dataclasses.replace(KNOBS, steps=6)
    assert curves.curves(results.analyse(make(tmp_path, short))) is None


def test_a_job_without_a_loss_has_none(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    losses_of(run.events / "t001.n1.0.jsonl", None, None)
    assert curves.of_job(run, "t001", 0.0) is None
    losses_of(run.events / "t001.n1.0.jsonl", 2.0, 1.0)
    (run.events / "t001.n1.launch.jsonl").write_text("x" * 9999)
    found = curves.of_job(run, "t001", 10.0)
    assert found is not None
    assert found.title == "Loss of job t001"
