"""Data sets: read where they lie, and refused in one line when something is wrong with them."""

from __future__ import annotations

import json
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from proving_ground.training.data import mapped as data
from proving_ground.training.data.mapped import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

ABOUT = {"name": "toy", "source": "made here", "licence": "none"}


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    """Two shards of training rows, one of test rows."""
    rows = np.arange(20, dtype=np.int64)
    shards = [{"x": rows[:7] * 10.0, "y": rows[:7]}, {"x": rows[7:] * 10.0, "y": rows[7:]}]
    data.write(tmp_path / "toy", ABOUT, {"train": shards, "test": [{"x": rows[:2] * 1.0, "y": rows[:2]}]})
    return tmp_path / "toy"


def edit(folder: Path, **changes: object) -> None:
    manifest = json.loads((folder / "manifest.json").read_text()) | changes
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_rows_come_in_the_order_asked_for_across_shards(toy: Path) -> None:
    opened = data.open_data(toy)
    wanted = np.array([19, 0, 7, 6, 6])
    assert opened.column("train", "y").rows(wanted).tolist() == wanted.tolist()
    assert opened.column("train", "x").rows(wanted).tolist() == (wanted * 10.0).tolist()
    assert len(opened.column("train", "x")) == 20
    assert opened.column("train", "x").rows(np.array([], dtype=np.int64)).shape == (0,)
    assert data.verify(toy) == []


def test_data_larger_than_memory_stay_on_disk(tmp_path: Path) -> None:
    """64 GiB of a sparse file are opened and read from at both ends while memory hardly grows."""
    rows, width = 2**20, 8192
    folder = tmp_path / "big"
    data.write(folder, ABOUT, {"train": [{"x": np.zeros((1, width), dtype=np.float64)}]})
    file = folder / "train-0000-x.npy"
    np.lib.format.open_memmap(file, mode="w+", dtype=np.float64, shape=(rows, width))[-1, -1] = 7.0
    entry = {"file": file.name, "bytes": file.stat().st_size, "sha256": "not looked at when opening"}
    edit(folder, splits={"train": [{"rows": rows, "files": {"x": entry}}]})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    column = data.open_data(folder).column("train", "x")
    assert column.rows(np.array([0, rows - 1]))[1, -1] == 7.0
    grown_mib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert isinstance(column.pieces[0], np.memmap)
    assert column.pieces[0].nbytes == 2**36
    assert grown_mib < 64


def test_a_truncated_file_is_refused(toy: Path) -> None:
    file = toy / "train-0001-x.npy"
    file.write_bytes(file.read_bytes()[:-8])
    with pytest.raises(DataError, match=r"train-0001-x\.npy: 224 bytes, the manifest says 232: truncated or replaced"):
        data.open_data(toy)


def test_a_changed_byte_is_found_by_verify(toy: Path) -> None:
    file = toy / "train-0001-x.npy"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    assert data.verify(toy) == [f"{file}: content changed"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda folder: (folder / "manifest.json").unlink(), "no manifest.json"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "cannot be read as JSON"),
        (lambda folder: (folder / "manifest.json").write_text("[]"), "format None; this version reads format 1"),
        (lambda folder: edit(folder, format=2), "format 2; this version reads format 1"),
        (lambda folder: edit(folder, source=""), "lacks source"),
        (lambda folder: edit(folder, splits={"train": []}), "a split has no shard"),
        (lambda folder: (folder / "test-0000-y.npy").unlink(), "test-0000-y.npy: missing"),
        (lambda folder: edit(folder, columns={"x": {"dtype": "float32", "shape": []}}), "the manifest says float32"),
        (lambda folder: (folder / "test-0000-y.npy").write_bytes(b"x" * 144), "not a .npy file that can be mapped"),
    ],
)
def test_a_damaged_set_is_refused_in_one_line(toy: Path, damage: Callable[[Path], Any], words: str) -> None:
    damage(toy)
    with pytest.raises(DataError) as error:
        data.open_data(toy)
    assert words in str(error.value)
    assert "\n" not in str(error.value)


def test_what_is_not_there_is_named_with_what_is(toy: Path, tmp_path: Path) -> None:
    opened = data.open_data(toy)
    with pytest.raises(DataError, match="no split 'val'; it has train, test"):
        opened.column("val", "x")
    with pytest.raises(DataError, match="no column 'z'; it has x, y"):
        opened.column("train", "z")
    with pytest.raises(DataError, match=r"column 'x' is float64 \(\); this model needs uint8 \(8, 8\)"):
        opened.expect(x=("uint8", (8, 8)))
    with pytest.raises(DataError, match="no column 'image'"):
        opened.expect(image=("uint8", (8, 8)))
    with pytest.raises(DataError, match="no such folder; shipped data sets: digits, moby-dick, sp500"):
        data.find(str(tmp_path / "nothing"))


@pytest.mark.parametrize(("name", "train", "test"), [("digits", 1437, 360), ("sp500", 4025, 1006)])
def test_shipped_sets_are_whole(name: str, train: int, test: int) -> None:
    folder = data.find(name)
    opened = data.open_data(folder)
    column = "label" if name == "digits" else "close"
    assert [len(opened.column(split, column)) for split in ("train", "test")] == [train, test]
    assert data.verify(folder) == []
    assert opened.manifest["licence"]


def test_digits_are_split_evenly_by_class() -> None:
    labels = data.open_data(data.find("digits")).column("test", "label").rows(np.arange(360))
    assert set(np.bincount(labels)) <= {35, 36, 37}


def test_prices_are_split_in_time() -> None:
    opened = data.open_data(data.find("sp500"))
    last, first = (
        opened.column("train", "day").rows(np.array([4024]))[0],
        opened.column("test", "day").rows(np.array([0]))[0],
    )
    assert (last, first) == (20141231, 20150102)
