"""Many cases from one table: every combination of one option of each axis. Called by `bench.spec`.

    [matrix.case]                      what all cells have in common: keys of a case
    steps = 5
    [matrix.axes.model.resnet50]       an axis, an option of it, and the keys that the option sets
    workload = "resnet50"
    [matrix.axes.bucket.4mb]
    training = { bucket_mb = 4 }

A cell is called by its options, in the order of the axes: `resnet50-4mb`.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any

Table = dict[str, Any]

MOST_CELLS = 1000


class MatrixError(ValueError):
    """A matrix that makes no sense: what, where, and what is allowed."""


def expand(matrix: object) -> list[Table]:
    """One table a cell, with the keys of a case.

    Raises:
        MatrixError: a key that is not allowed, no axis, or a key that two tables set.
    """
    parts = tables(matrix, "it")
    for key in parts:
        if key not in ("case", "axes"):
            raise MatrixError(f"unknown key {key!r}; allowed: case, axes")
    axes = {axis: tables(options, f"axes.{axis}") for axis, options in tables(parts.get("axes", {}), "axes").items()}
    count = 1
    for axis, options in axes.items():
        count *= len(options)
        if not options:
            raise MatrixError(f"axes.{axis}: needs at least one option")
    if not axes or count > MOST_CELLS:
        raise MatrixError(f"{count if axes else 0} cells; allowed: at least one axis, and 1 to {MOST_CELLS} cells")
    shared = tables(parts.get("case", {}), "case", of_tables=False)
    return [cell(shared, axes, names) for names in itertools.product(*axes.values())]


def cell(shared: Table, axes: Mapping[str, Table], names: tuple[str, ...]) -> Table:
    """One cell: what is shared, and what each of the named options sets; `training` is put together key by key."""
    made: Table = {"name": "-".join(names)}
    for where, table in [
        ("case", shared),
        *((f"axes.{axis}.{it}", axes[axis][it]) for axis, it in zip(axes, names, strict=True)),
    ]:
        made = merged(made, tables(table, where, of_tables=False), where)
    return made


def merged(first: Table, second: Table, where: str) -> Table:
    """Both tables' keys, tables within them too.

    Raises:
        MatrixError: both set the same one.
    """
    made = dict(first)
    for key, value in second.items():
        if isinstance(value, dict) and isinstance(made.get(key), dict):
            made[key] = merged(made[key], value, f"{where}.{key}")
        elif key in made:
            raise MatrixError(f"{where}: {key!r} is set already, by another axis, by case, or as the cell's name")
        else:
            made[key] = value
    return made


def tables(value: object, where: str, *, of_tables: bool = True) -> Table:
    """The value, if it is a table (of tables)."""
    if not isinstance(value, dict) or (of_tables and not all(isinstance(it, dict) for it in value.values())):
        raise MatrixError(f"{where} must be a table" + (" of tables" if of_tables else ""))
    return value
