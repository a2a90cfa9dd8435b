"""Which points of the space a search tries, where that is known beforehand. Called by `search.spec` and `search.drive`.

Point n follows from seed and n alone, so an interrupted search goes on with the points that it has not tried.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proving_ground.search.spec import Params, Search


def points(search: Search) -> Iterator[Params]:
    """The points in their order; for Optuna, which learns from each trial where to look next, only such as it may."""
    return grid(search) if search.algorithm == "grid" else (drawn(search, it) for it in range(search.planned))


def grid(search: Search) -> Iterator[Params]:
    """Every combination."""
    bounds = search.bounds
    return (dict(zip(bounds, values, strict=True)) for values in product(*(it.grid() for it in bounds.values())))


def drawn(search: Search, number: int) -> Params:
    """Point `number`, drawn from the space."""
    chance = random.Random(f"{search.seed} {number}")  # noqa: S311 - an order that can be repeated, no secret
    return {name: it.at(chance.random()) for name, it in search.bounds.items()}
