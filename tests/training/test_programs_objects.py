"""Loading and storing against object storage, on real emulators: the same figures as from a disk."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proving_ground.training.device import resident
from proving_ground.training.events import EVENTS_VARIABLE
from tests.training.test_stores import address, azure, s3  # noqa: F401 - fixtures

ROOT = Path(__file__).parent.parent.parent
Event = dict[str, Any]


def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, **keys: object) -> list[Event]:
    """What a program that ended well measured."""
    config, file = tmp_path / "settings.toml", tmp_path / f"{program}.jsonl"
    config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()))
    monkeypatch.setenv(EVENTS_VARIABLE, str(file))
    # In a process of its own: the emulator lives in this one, and has the data in memory.
    subprocess.run(
        [sys.executable, "-m", "proving_ground.training", program, "--config", str(config)], cwd=ROOT, check=True
    )
    events = [json.loads(line) for line in file.read_text().splitlines()]
    return [event for event in events if event["event"] == "measure"]


def test_shards_are_streamed_from_object_storage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    address: str,  # noqa: F811 - the fixture
) -> None:
    keys = {"address": address, "data_mb": 64, "shard_mb": 2, "sample_kb": 64, "prefetch": 2}
    found = told(tmp_path, monkeypatch, "loading", rounds=1, **keys)
    assert [it["value"] for it in found if it["name"] == "load_samples"] == [1024.0]
    assert {it["where"]["address"] for it in found} == {address.partition("://")[0]}
    if resident.resident_bytes() is not None:
        memory = max(it["value"] for it in found if it["name"] == "load_memory")
        assert memory < 50, "the client and a few shards, never the 64 MiB of the data"


def test_checkpoints_are_timed_in_object_storage(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    address: str,  # noqa: F811 - the fixture
) -> None:
    found = told(tmp_path, monkeypatch, "storing", rounds=1, sizes_mb=[1], address=address)
    assert {it["name"] for it in found} == {"checkpoint_block", "checkpoint_save", "checkpoint_load"}
    assert all(it["value"] > 0 for it in found)
