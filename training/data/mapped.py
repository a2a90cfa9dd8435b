"""Training data: columns of memory-mapped shards, described by a manifest and read row by row where they lie.

Called by the tasks in `training.models`. A data set is a folder with `manifest.json` (README.md, "Data") and `.npy`
files. Opening reads the files' headers only; rows come into memory when a batch asks for them, so a set may be larger
than memory.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from proving_ground.training.data.order import Rows

FORMAT = 1
MANIFEST = "manifest.json"
SHIPPED = Path(__file__).parents[1] / "data_sets"


OpenPiece = Callable[[dict[str, Any], int, dict[str, Any]], "Piece"]
"""Opens a file: its entry in the manifest, the rows of its shard, and what the manifest says of its column."""


class DataError(ValueError):
    """A data set that cannot be used, in one line: which file, what is wrong, what is expected. Exit status 2."""


class Piece(Protocol):
    """One shard's part of a column: an array in memory, on the disk, or elsewhere."""

    def __getitem__(self, rows: Rows, /) -> NDArray[Any]:
        """The given rows."""


@dataclass(frozen=True)
class Column:
    """One column over all shards of a split: memory-mapped pieces one after another."""

    pieces: tuple[Piece, ...]
    ends: tuple[int, ...]  # rows up to the end of each piece

    def __len__(self) -> int:
        return self.ends[-1]

    def rows(self, rows: Rows) -> NDArray[Any]:
        """The given rows, in the given order, as an array in memory of shape (len(rows), *row_shape)."""
        if len(self.pieces) == 1 or not len(rows):
            return np.asarray(self.pieces[0][rows])
        which = np.searchsorted(self.ends, rows, side="right")
        found: NDArray[Any] | None = None
        for number in np.unique(which):  # each piece once: one may have to be fetched
            mine = which == number
            part = np.asarray(self.pieces[number][rows[mine] - (self.ends[number - 1] if number else 0)])
            found = np.empty((len(rows), *part.shape[1:]), part.dtype) if found is None else found
            found[mine] = part
        assert found is not None  # noqa: S101 - there are rows
        return found


@dataclass(frozen=True)
class DataSet:
    """An open data set: its manifest and, by split and name, its columns."""

    path: Path | str  # a folder, or a URL
    manifest: dict[str, Any]
    splits: dict[str, dict[str, Column]]

    def column(self, split: str, name: str) -> Column:
        """One column of one split.

        Raises:
            DataError: there is none; names what there is.
        """
        if split not in self.splits:
            raise DataError(f"{self.path}: no split {split!r}; it has {', '.join(self.splits)}")
        if name not in self.splits[split]:
            raise DataError(f"{self.path}: no column {name!r}; it has {', '.join(self.splits[split])}")
        return self.splits[split][name]

    def expect(self, **columns: tuple[str, tuple[int, ...]]) -> None:
        """Refuse the set unless these columns have this dtype and row shape.

        Raises:
            DataError: which column differs, and how.
        """
        for name, (dtype, shape) in columns.items():
            described = self.manifest["columns"].get(name)
            if described is None:
                raise DataError(f"{self.path}: no column {name!r}, which this model learns from")
            if (described["dtype"], tuple(described["shape"])) != (dtype, shape):
                found = f"{described['dtype']} {tuple(described['shape'])}"
                raise DataError(f"{self.path}: column {name!r} is {found}; this model needs {dtype} {shape}")


def find(name: str) -> Path:
    """The folder that a person means: a path, or the name of a shipped data set.

    Raises:
        DataError: neither; names the shipped ones.
    """
    for path in (Path(name), SHIPPED / name):
        if path.is_dir():
            return path
    shipped = ", ".join(sorted(path.name for path in SHIPPED.iterdir() if path.is_dir()))
    raise DataError(f"data = {name!r}: no such folder; shipped data sets: {shipped}")


def open_data(path: Path) -> DataSet:
    """Open every shard of a data set without reading its rows.

    Raises:
        DataError: a folder without manifest, another format, a file missing, truncated or not as described.
    """
    return assembled(path, _read_manifest(path), partial(_open_piece, path))


def assembled(path: Path | str, manifest: dict[str, Any], open_piece: OpenPiece) -> DataSet:
    """The data set that a manifest describes; `open_piece` is given a file's entry, its rows and its column.

    Raises:
        DataError: a split without shards, or whatever `open_piece` raises.
    """
    splits = {
        split: {
            name: _open_column(path, name, shards, described, open_piece)
            for name, described in manifest["columns"].items()
        }
        for split, shards in manifest["splits"].items()
    }
    return DataSet(path, manifest, splits)


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    try:
        return checked_manifest(file.read_bytes(), str(file))
    except FileNotFoundError:
        raise DataError(f"{path}: no {MANIFEST}; a data set is a folder with one (training/README.md)") from None
    except OSError as error:
        raise DataError(f"{file}: cannot be read as JSON: {error}") from None


def checked_manifest(content: bytes, file: str) -> dict[str, Any]:
    """The manifest in a file's content.

    Raises:
        DataError: it is none, or of another format.
    """
    try:
        manifest = json.loads(content)
    except ValueError as error:
        raise DataError(f"{file}: cannot be read as JSON: {error}") from None
    found = manifest.get("format") if isinstance(manifest, dict) else None
    if found != FORMAT:
        raise DataError(f"{file}: format {found!r}; this version reads format {FORMAT}")
    if missing := [name for name in ("name", "source", "columns", "splits") if not manifest.get(name)]:
        raise DataError(f"{file}: lacks {', '.join(missing)}")
    return dict(manifest)


def _open_column(
    path: Path | str, name: str, shards: Sequence[dict[str, Any]], described: dict[str, Any], open_piece: OpenPiece
) -> Column:
    if not shards or any("rows" not in shard or name not in shard.get("files", {}) for shard in shards):
        raise DataError(f"{path}/{MANIFEST}: a split has no shard, or a shard lacks `rows` or column {name!r}")
    pieces = tuple(open_piece(shard["files"][name], shard["rows"], described) for shard in shards)
    return Column(pieces, tuple(itertools.accumulate(shard["rows"] for shard in shards)))


def _open_piece(path: Path, entry: dict[str, Any], rows: int, described: dict[str, Any]) -> NDArray[Any]:
    file = path / entry["file"]
    if not file.is_file():
        raise DataError(f"{file}: missing, though the manifest names it")
    if (size := file.stat().st_size) != entry["bytes"]:
        raise DataError(f"{file}: {size} bytes, the manifest says {entry['bytes']}: truncated or replaced")
    return mapped(file, rows, described)


def mapped(file: Path, rows: int, described: dict[str, Any]) -> NDArray[Any]:
    """A file of a shard, mapped.

    Raises:
        DataError: it is not the array that the manifest describes.
    """
    try:
        array: NDArray[Any] = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{file}: not a .npy file that can be mapped: {error}") from None
    expected = (described["dtype"], (rows, *described["shape"]))
    if (str(array.dtype), array.shape) != expected:
        raise DataError(f"{file}: {array.dtype} {array.shape}, the manifest says {expected[0]} {expected[1]}")
    return array


def verify(path: Path) -> list[str]:
    """Compare every file with the manifest's SHA-256, reading all of it; one line for each that differs."""
    manifest = _read_manifest(path)
    entries = [entry for shards in manifest["splits"].values() for shard in shards for entry in shard["files"].values()]
    return [
        f"{path / entry['file']}: content changed"
        for entry in entries
        if sha256(path / entry["file"]) != entry["sha256"]
    ]


def write(path: Path, about: Mapping[str, object], splits: dict[str, list[dict[str, NDArray[Any]]]]) -> None:
    """Write a data set: `about` has name, source, licence and what a task asks for; a split is a list of shards."""
    path.mkdir(parents=True, exist_ok=True)
    first = next(iter(splits.values()))[0]
    columns = {name: {"dtype": str(array.dtype), "shape": list(array.shape[1:])} for name, array in first.items()}
    listed = {
        split: [_write_shard(path, f"{split}-{number:04d}", shard) for number, shard in enumerate(shards)]
        for split, shards in splits.items()
    }
    manifest = {"format": FORMAT, **about, "columns": columns, "splits": listed}
    (path / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")


def _write_shard(path: Path, stem: str, shard: dict[str, NDArray[Any]]) -> dict[str, Any]:
    entries = {}
    for name, array in shard.items():
        file = path / f"{stem}-{name}.npy"
        np.save(file, array, allow_pickle=False)
        entries[name] = {"file": file.name, "bytes": file.stat().st_size, "sha256": sha256(file)}
    return {"rows": len(next(iter(shard.values()))), "files": entries}


def sha256(path: Path) -> str:
    """The file's SHA-256 in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
