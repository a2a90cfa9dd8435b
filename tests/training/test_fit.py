"""Where memory does not suffice, micro-batches get smaller, then activations are computed again: by real limits."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proving_ground.training.config import Config, from_dict
from proving_ground.training.device.fit import OutOfMemoryError, climb, free_in_cgroup, is_out_of_memory, largest
from proving_ground.training.models.task import Blocks

from .own_task import Line
from .ranks import sets

ROOM_MB, EXACT_ROOM_MB = 260, 700  # beyond what the imports take; the whole batches need more to be tried
KEYS: dict[str, Any] = {"model": "vit", "global_batch": 256, "steps": 2, "eval_every": -1, "ledger": "true"}
IMPORTS = """
import proving_ground.training.models.networks, proving_ground.training.warm
from proving_ground.training.device import resident as it
print(it.field("VmData", it.STATUS))
"""


@pytest.fixture(scope="module")
def imports_bytes() -> int:
    return int(subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, check=True, text=True).stdout)


def trained(folder: Path, most_bytes: int | None, **keys: Any) -> tuple[int, list[dict[str, Any]], str]:
    """Exit status, events and last line of a training whose process may hold so much."""
    folder.mkdir()

    def limit() -> None:
        if most_bytes:
            resource.setrlimit(resource.RLIMIT_DATA, (most_bytes, most_bytes))

    done = subprocess.run(
        [sys.executable, "-m", "proving_ground.training", "run", *sets(**KEYS | keys)],
        env={"PROVING_GROUND_EVENTS": str(folder / "events.jsonl"), "PATH": "/usr/bin:/bin"},
        preexec_fn=limit, capture_output=True, text=True, check=False,
    )  # fmt: skip
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    return done.returncode, events, (done.stderr.strip().splitlines() or [""])[-1]


def of(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [it for it in events if it["event"] == name]


def test_a_batch_that_does_not_fit_is_made_in_pieces(tmp_path: Path, imports_bytes: int) -> None:
    """The same samples, and the same losses but for rounding, as with all the memory there is."""
    most = imports_bytes + ROOM_MB * 2**20
    status, events, line = trained(tmp_path / "short", most)
    assert status == 1
    assert line.startswith("training: OutOfMemoryError: ")
    assert of(events, "error")[0]["kind"] == "OutOfMemoryError"
    status, events, line = trained(tmp_path / "fitted", most, fit_memory=True)
    assert (status, of(events, "memory")[0]["rung"]) == (0, "micro_batch"), line
    assert 0 < of(events, "memory")[0]["micro_batch"] < 256
    assert [(it["kind"], it["fatal"]) for it in of(events, "error")] == [("OutOfMemoryError", False)]
    _, free, _ = trained(tmp_path / "free", None, fit_memory=True)
    assert of(free, "memory") == []
    assert [sorted(it["rows"]) for it in of(events, "step")] == [sorted(it["rows"]) for it in of(free, "step")]
    assert [it["loss"] for it in of(events, "step")] == pytest.approx([it["loss"] for it in of(free, "step")], rel=1e-4)


def test_exact_training_is_the_same_to_the_bit(tmp_path: Path, imports_bytes: int) -> None:
    """Activations are computed again, and nobody can tell from the weights."""
    keys = {"reduction": "exact", "shards": 1, "fit_memory": True}
    status, events, line = trained(tmp_path / "fitted", imports_bytes + EXACT_ROOM_MB * 2**20, **keys)
    assert (status, [it["rung"] for it in of(events, "memory")]) == (0, ["activation_checkpointing"]), line
    _, free, _ = trained(tmp_path / "free", None, **keys)
    assert of(free, "memory") == []
    assert of(events, "end")[0]["parameters_sha256"] == of(free, "end")[0]["parameters_sha256"]


def needs(config: Config) -> float:
    """Memory of an imagined model: samples at once, at a quarter with activations computed again."""
    return (config.micro_batch or config.global_batch) * (0.25 if config.activation_checkpointing else 1.0)


@pytest.mark.parametrize(
    ("keys", "most", "rung", "micro"),
    [
        ({}, 100, "", 0),
        ({}, 70, "micro_batch", 70),
        ({}, 1, "micro_batch", 1),
        ({}, 0.5, "activation_checkpointing", 2),
        ({"reduction": "exact", "shards": 1}, 50, "activation_checkpointing", 0),
    ],
)
def test_as_little_as_possible_is_changed(keys: dict[str, Any], most: float, rung: str, micro: int) -> None:
    config = from_dict({"model": "gpt2", "global_batch": 100} | keys)
    found, chosen = climb(config, 100, lambda it: needs(it) <= most, blocks=True)
    assert found == rung
    assert needs(chosen) <= most
    assert 0.9 * micro <= chosen.micro_batch <= micro


def test_what_cannot_fit_is_one_line() -> None:
    config = from_dict({"model": "digits", "global_batch": 8})
    with pytest.raises(OutOfMemoryError, match=r"one piece of a step of model = 'digits': more shards, a smaller"):
        climb(config, 8, lambda _: False, blocks=False)


def test_a_model_without_blocks_computes_nothing_again() -> None:
    """A user's own may have none; then memory is what is missing, and not the method that names them."""
    config = from_dict({"model": "tests.training.own_task:Line", "global_batch": 8})
    with pytest.raises(OutOfMemoryError):
        climb(config, 8, lambda it: it.activation_checkpointing, blocks=isinstance(Line(config), Blocks))


@pytest.mark.parametrize("most", [1, 2, 7, 64, 1000])
def test_the_largest_is_found_within_a_tenth(most: int) -> None:
    for real in {0, 1, most // 3, most - 1}:
        found = largest(most, real.__ge__)
        assert 0.9 * real - 1 <= found <= real


def test_other_errors_are_none_of_memory() -> None:
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"))
    assert not is_out_of_memory(RuntimeError("shape mismatch"))
    assert not is_out_of_memory(ValueError("out of memory"))


def test_the_tightest_control_group_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of files can be dropped, and so are free."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    for folder, most, used, files in ((inner, "max", 5, 0), (inner.parent, "1000", 700, 100)):
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(f"anon 1\nfile {files}\n")
    own = tmp_path / "own"
    own.write_text("0::/a/b\n")
    monkeypatch.setattr("proving_ground.training.device.fit.CGROUPS", tmp_path)
    monkeypatch.setattr("proving_ground.training.device.fit.OWN_CGROUP", own)
    assert free_in_cgroup() == 400
    own.write_text("0::/\n")
    assert free_in_cgroup() is None
