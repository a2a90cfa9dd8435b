"""Data of eight times the memory: a limit that the kernel enforces, and a training that reads every sample once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from proving_ground.bench.clusters.local import groups, memory
from proving_ground.training.events import EVENTS_VARIABLE

from . import wide
from .ranks import sets

ROOT = Path(__file__).parents[2]
MIB = 2**20
LIMIT = 48 * MIB
ROWS = 8 * LIMIT // wide.SIDE**2
READS_WHOLE = """
import os, pathlib, sys
pathlib.Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
kept = [file.read_bytes() for file in pathlib.Path(sys.argv[2]).glob("*.npy")]
"""


@dataclass(frozen=True)
class Limited:
    """A control group with a limit."""

    folder: Path
    version: int

    @property
    def peak(self) -> int:
        """The most bytes that were in use."""
        return int((self.folder / ("memory.max_usage_in_bytes" if self.version == 1 else "memory.peak")).read_text())

    @property
    def kills(self) -> int:
        """How often the kernel killed because of the limit."""
        return groups.read_counters(self.folder / memory.FILES[self.version][2]).get("oom_kill", 0)


@pytest.fixture
def limited() -> Iterator[Limited]:
    """A group of our own that may use `LIMIT` bytes."""
    try:
        place = memory.place()
    except OSError as why:
        pytest.skip(f"a limit of memory needs a control group that this process can make: {why}")
    folder = place.parent / f"training-limit-{os.getpid()}"
    folder.mkdir()
    try:
        memory.write_limit(place.version, folder, LIMIT)
        yield Limited(folder, place.version)
    finally:
        folder.rmdir()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight times as many bytes as the limit."""
    folder = tmp_path_factory.mktemp("wide") / "set"
    wide.write(folder, ROWS)
    assert sum(file.stat().st_size for file in folder.glob("*-image.npy")) >= 8 * LIMIT
    return folder


def trained(folder: Path, shards: Path, limited: Limited) -> tuple[int, list[int], str]:
    """One epoch under the limit: exit status, the samples that were learned from, and what was said."""
    events = folder / "events.jsonl"
    keys = {"data": shards, "epochs": 1, "global_batch": 8, "ledger": True, "prefetch": 2}
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.wide", str(limited.folder), "run", *sets(**keys)],
        cwd=ROOT, env={**os.environ, EVENTS_VARIABLE: str(events)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    records = [json.loads(line) for line in events.read_text().splitlines()]
    learned = [row for it in records if it["event"] == "step" for row in it["rows"]]
    return done.returncode, learned, done.stderr


def test_eight_times_the_memory_is_read_and_every_sample_is_learned_from_once(
    tmp_path: Path, shards: Path, limited: Limited
) -> None:
    status, learned, said = trained(tmp_path, shards, limited)
    assert (status, limited.kills) == (0, 0), said
    assert sorted(learned) == list(range(ROWS))
    assert LIMIT * 0.9 < limited.peak <= LIMIT


def test_who_reads_the_shards_whole_is_killed_by_the_kernel(shards: Path, limited: Limited) -> None:
    """The limit is one. Not by a trainer: with torch in memory the kernel drops and reads its pages for minutes."""
    done = subprocess.run([sys.executable, "-c", READS_WHOLE, str(limited.folder), str(shards)], check=False)
    assert (done.returncode, limited.kills) == (-9, 1)
