"""A job's steps again, undisturbed: bit by bit what a job did that changed its size, and defects show in the bits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proving_ground.training.config import ConfigError
from proving_ground.training.judging.replay import read

from .ranks import Ranks, sets, start

EACH = 6  # steps of a stretch
SIZES = (3, 2, 3)
DIGITS = {
    "model": "digits", "global_batch": 24, "dropout": 0.2, "optimizer": "adamw", "lr": 0.002, "clip_norm": 1.0,
    "fingerprint_every": EACH, "ledger": "true", "eval_every": -1,
}  # fmt: skip
LOCAL = {"model": "stocks", "global_batch": 24, "updates": "diloco", "sync_every": 3} | {
    name: DIGITS[name] for name in ("optimizer", "lr", "fingerprint_every", "ledger", "eval_every")
}
PARTS = ("step", "parameters_sha256", "optimizer_sha256", "random_sha256", "lr")


def elastic(folder: Path, keys: dict[str, Any], mutant: str = "") -> dict[tuple[int, int], tuple[Any, ...]]:
    """(step, rank) → fingerprint of a job that goes on from its checkpoint, each time in a world of its size."""
    found: dict[tuple[int, int], tuple[Any, ...]] = {}
    for number, size in enumerate(SIZES, 1):
        own = keys | {"steps": EACH * number, "checkpoint_dir": folder / "checkpoints"}
        job = start(folder / str(number), size, sets(**own), mutant=mutant * (number > 1))
        assert job.wait() == [0] * size, job.printed()
        found |= marks(job, size)
    return found


def marks(job: Ranks, size: int) -> dict[tuple[int, int], tuple[Any, ...]]:
    return {
        (mark["step"], rank): tuple(mark[part] for part in PARTS)
        for rank in range(size)
        for mark in job.events(rank, "fingerprint")
    }


def again(folder: Path, keys: dict[str, Any], *origins: tuple[int, ...]) -> dict[tuple[int, int], tuple[Any, ...]]:
    """The same of a replay; the config is a file, as the harness has it."""
    stretches = [
        {"generation": number, "first": 1 + EACH * (number - 1), "last": EACH * number, "origin": origin}
        for number, origin in enumerate(origins, 1)
    ]
    folder.mkdir()
    (folder / "lineage.json").write_text(json.dumps({"seeded": False, "stretches": stretches}))
    lines = {**keys, "steps": EACH * len(origins), "ledger": True}
    (folder / "config.toml").write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in lines.items()))
    words = ["--config", str(folder / "config.toml"), "--lineage", str(folder / "lineage.json")]
    job = start(folder / "ranks", max(map(len, origins)), words, command="replay")
    assert set(job.wait()) == {0}, job.printed()
    return marks(job, max(map(len, origins)))


@pytest.mark.parametrize("keys", [DIGITS, LOCAL], ids=["digits", "diloco"])
def test_a_job_that_shrinks_and_grows_is_made_again_bit_by_bit(tmp_path: Path, keys: dict[str, Any]) -> None:
    made = elastic(tmp_path / "job", keys)
    assert again(tmp_path / "replay", keys, (0, 1, 2), (0, 1), (0, 1, 0)) == made


def test_a_defect_of_the_recovery_is_not_in_the_replay(tmp_path: Path) -> None:
    made = elastic(tmp_path / "job", DIGITS, mutant="optimizer_lost")
    found = again(tmp_path / "replay", DIGITS, (0, 1, 2), (0, 1), (0, 1, 0))
    assert {step for (step, rank), mark in made.items() if found[step, rank] != mark} == {12, 18}


def test_whose_state_a_rank_goes_on_from_counts_where_ranks_learn_alone(tmp_path: Path) -> None:
    made = elastic(tmp_path / "job", LOCAL)
    assert again(tmp_path / "replay", LOCAL, (0, 1, 2), (1, 0), (0, 1, 0)) != made


@pytest.mark.parametrize(
    "text", ["", "[]", '{"stretches": []}', '{"seeded": false, "stretches": [{"last": 3}]}'],
)  # fmt: skip
def test_what_is_no_lineage_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "lineage.json").write_text(text)
    with pytest.raises(ConfigError, match=r"lineage\.json: not a lineage"):
        read(tmp_path / "lineage.json")
