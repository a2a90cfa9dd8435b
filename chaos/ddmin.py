"""The smallest part of a schedule that still fails: delta debugging within a budget. Called by `chaos.shrink`.

A. Zeller, R. Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", IEEE TSE 28 (2), 2002. What it ends with
is minimal in that no single fault can be left out; a smaller part may fail that was not on its way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

Part = tuple[str, ...]
"""Ids of faults, in their order."""


class SpentError(Exception):
    """No run is left."""


@dataclass
class Reduction:
    """What is known of the parts of a schedule; `fails` runs one that was not run before."""

    run: Callable[[Part], bool]
    budget: int  # runs at most
    best: Part  # the smallest that failed
    sensible: Callable[[Part], bool] = lambda _: True  # whether a part can be run by itself
    known: dict[Part, bool] = field(default_factory=dict)
    minimal: bool = False  # whether it was seen that nothing of the best can be left out

    def fails(self, part: Part) -> bool:
        """Whether a part fails; one that cannot be run does not.

        Raises:
            SpentError: it was not run before, and no run is left.
        """
        if not self.sensible(part):
            return False
        if part not in self.known:
            if len(self.known) >= self.budget:
                raise SpentError
            self.known[part] = self.run(part)
            if self.known[part] and len(part) < len(self.best):
                self.best = part
        return self.known[part]


def shrunk(
    whole: Part, guesses: Sequence[Part], budget: int, run: Callable[[Part], bool],
    sensible: Callable[[Part], bool] = lambda _: True,
) -> Reduction:  # fmt: skip
    """The smallest part that fails, of a schedule that did; `guesses` are smaller ones that may well, tried first.

    Parts that are not `sensible` are passed over.
    """
    search = Reduction(run, budget, whole, sensible)
    try:
        begin = next((part for part in guesses if len(part) < len(whole) and search.fails(part)), whole)
        ddmin(begin, search.fails)
        search.minimal = True
    except SpentError:
        pass
    return search


def ddmin(whole: Part, fails: Callable[[Part], bool]) -> Part:
    """A part that fails and of which no single fault can be left out."""
    pieces = 2
    while len(whole) > 1:
        chunks = split(whole, pieces)
        rest = [tuple(it for it in whole if it not in chunk) for chunk in chunks]
        smaller = next((part for part in [*chunks, *(rest if pieces > 2 else ())] if fails(part)), None)
        if smaller is not None:
            pieces = 2 if smaller in chunks else max(pieces - 1, 2)
            whole = smaller
        elif pieces < len(whole):
            pieces = min(2 * pieces, len(whole))
        else:
            break
    return whole


def split(whole: Part, pieces: int) -> list[Part]:
    """The schedule in so many pieces, as even as can be."""
    cuts = [len(whole) * number // pieces for number in range(pieces + 1)]
    return [whole[begin:end] for begin, end in pairwise(cuts)]
