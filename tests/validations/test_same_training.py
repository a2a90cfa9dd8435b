"""The gate itself: a right training passes, and what must be caught is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from proving_ground.training.config import from_dict
from tests.validations import same_training, schedules, tables
from tests.validations.schedules import Change, Schedule

SHORT = Schedule(
    seed=7,
    size=3,
    twin_size=2,
    changes=(
        Change(3, "kill", "allreduce", (0,), noticed=True, size=2),
        Change(6, "join", "", (0, 1), noticed=False, size=4),
    ),
    keys=schedules.draw(7).keys
    | {"steps": 12, "shards": 4, "global_batch": 8, "checkpoint_every": 2, "checkpoint_async": False},
)


def test_a_right_training_is_the_same(tmp_path: Path) -> None:
    row = same_training.played(SHORT, tmp_path)
    assert row["outcome"] == "same", row
    assert row["killed"] == 1 + 2
    assert row["resumed"][0] >= 2
    assert row["resumed"][1] >= row["resumed"][0]
    assert not list(tmp_path.iterdir()), "only what went wrong is kept"


@pytest.mark.parametrize(
    ("mutant", "outcome"),
    [
        ("stale_rate", "different"),
        ("data_ahead", "samples"),
        ("lost_samples", "samples"),
        ("optimizer_lost", "different"),
        ("float_sums", "different"),
        ("dropout_by_rank", "different"),
        ("ahead_one_batch_late", "samples"),
        ("ahead_skips_a_batch", "samples"),
    ],
)
def test_what_must_be_caught_is(tmp_path: Path, mutant: str, outcome: str) -> None:
    """Defects met in the field, put back on purpose; their files are kept."""
    row = same_training.played(SHORT, tmp_path, mutant)
    assert row["outcome"] == outcome, row
    assert "--seed 7 plays it again" in row["why"]
    assert (tmp_path / "7" / "twin" / "0.jsonl").exists()


def test_a_training_that_fails_is_stuck(tmp_path: Path) -> None:
    row = same_training.played(replace(SHORT, keys=SHORT.keys | {"shards": 2}), tmp_path)
    assert row["outcome"] == "stuck"
    assert "must be at least the number of ranks" in row["why"]


def test_schedules_follow_from_their_seeds_and_differ() -> None:
    drawn = [schedules.draw(seed) for seed in range(1, 301)]
    assert drawn[41] == schedules.draw(42)
    assert len({str(schedule.changes) for schedule in drawn}) == len(drawn)
    for schedule in drawn:
        check(schedule)
    changes = [change for schedule in drawn for change in schedule.changes]
    phases = Counter(change.phase for change in changes if change.how != "leave")
    assert set(phases) == {"", *schedules.PHASES}
    assert min(phases.values()) > len(changes) / 20
    assert {change.how for change in changes} == {"kill", "crash", "join", "leave"}
    assert {True, False} == {change.noticed for change in changes if change.how == "kill"}


def check(schedule: Schedule) -> None:
    """What every schedule must be."""
    config = from_dict(schedule.keys | {"checkpoint_dir": "saved"})
    assert config.steps >= 40
    assert (config.optimizer, config.lr_schedule, config.reduction) == ("adamw", "cosine", "exact")
    assert config.dropout > 0
    assert config.clip_norm > 0
    assert len(schedule.changes) >= 3
    assert {(after > before) - (after < before) for before, after in pairwise(schedule.sizes)} >= {1, -1}
    assert all(1 <= size <= config.shards for size in schedule.sizes)
    for size, change in zip(schedule.sizes, schedule.changes, strict=False):
        assert change.ranks
        assert max(change.ranks) < size
        assert 0 < change.step < config.steps


def test_the_command_plays_one_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(schedules, "draw", lambda seed: replace(SHORT, seed=seed))
    monkeypatch.setattr(same_training, "KEPT", tmp_path)
    assert same_training.main(["--seed", "9"]) == 0
    assert capsys.readouterr().out.startswith("seed 9: 3→2→4 ranks, twin 2: same (")


def test_a_sitting_keeps_what_it_measured_and_stops_at_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    good = {"sizes": [2, 1], "twin": 1, "changes": ["kill"], "steps": 40, "killed": 1, "outcome": "same", "wall_s": 0.1}
    monkeypatch.setattr(same_training, "FILE", tmp_path / "same.json")
    monkeypatch.setattr(same_training, "played", lambda schedule, _kept: good | {"seed": schedule.seed})
    assert same_training.main(["--minutes", "5", "--schedules", "3"]) == 0
    assert same_training.main(["--minutes", "5", "--schedules", "4"]) == 0
    assert "4 schedules, 4 changes of membership: 4 same" in capsys.readouterr().out
    bad = good | {"outcome": "different", "why": "at step 3"}
    monkeypatch.setattr(same_training, "played", lambda schedule, _kept: bad | {"seed": schedule.seed})
    assert same_training.main(["--minutes", "5", "--schedules", "9"]) == 1
    assert "seed 5: 2→1 ranks, twin 1: different: at step 3" in capsys.readouterr().out


def test_the_table_counts_what_happened() -> None:
    rows = [
        {"sizes": [2, 1], "changes": ["kill allreduce", "join"], "killed": 3, "outcome": "same"},
        {"sizes": [1, 4], "changes": ["kill"], "killed": 1, "outcome": "different"},
        {"outcome": "stuck"},
    ]
    lines = tables.same_training({"cells": {"schedules": rows}}).splitlines()
    assert lines[2] == "| 3 | 3 | 4 | 1 to 4 | 1 | 1 | 0 | 1 |"
    assert "| allreduce | 1 | 0 | 0 | 0 |" in lines
    assert "| anywhere | 1 | 0 | 1 | 0 |" in lines


def test_the_cost_is_told_as_a_ratio_within_rounds() -> None:
    cells = {
        "float": [[0.010, 0.020]] * 6,
        "live: without": [[0.02]] * 6,
        "live": [[0.0204]] * 6,
        "exact": [[0.011, 0.022]] * 6,
    }
    about: dict[str, Any] = {"ranks": 2, "batch": 96, "label": "real", "gradients": 5_000_000, "conversion_ms": 31.4}
    about |= {"errors": {"exact": 2e-8, "float": 6e-8}, "background_cores": {"live": [0.01, 0.02, 0.03]}}
    lines = tables.step_cost({"cells": cells, **about}).splitlines()
    assert lines[2:6] == [
        "| float | 15.0 ms | – | – | 6 |",
        "| exact | 16.5 ms | float | +10.0 % (+10.0 to +10.0 %) | 6 |",
        "| live: without | 20.0 ms | – | – | 6 |",
        "| live | 20.4 ms | live: without | +2.0 % (+2.0 to +2.0 %) | 6 |",
    ]
    assert "coordinator and 2 ranks: live 2.0 %; " in lines[-1]
    assert "5 million gradients to integers and back: 31 ms." in lines[-1]
    assert lines[-1].endswith("exact 2.0e-08, float 6.0e-08.")
