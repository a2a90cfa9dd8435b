"""What a person sees of a search while it runs. Called by `search.watch` through `search.commands`."""

from __future__ import annotations

from collections.abc import Mapping

from proving_ground.bench.progress import Line, clock
from proving_ground.bench.terminal import Terminal
from proving_ground.search.ledger import Trial
from proving_ground.search.spec import Search
from proving_ground.search.words import params_words, value_words


class Bar(Line):
    """The terminal's display of a search."""

    def __init__(self, search: Search, console: Terminal | None = None) -> None:
        super().__init__(console)
        self._search = search
        self._begun: tuple[float, float] | None = None  # when the first step of this sitting was seen; done by then

    def tell(self, trials: Mapping[str, Trial], spent_s: float) -> None:
        """Say how far the search is."""
        share = done(self._search, trials)
        self.show(share, self.left(share, spent_s), told(self._search, trials))

    def left(self, share: float, spent_s: float) -> str:
        """The time left, from how far the search got since its first step was seen."""
        if share > 0 and (self._begun is None or spent_s < self._begun[0]):  # a new driver has a clock of its own
            self._begun = spent_s, share
        if self._begun is None or share <= self._begun[1]:
            return "time left not known yet"
        pace = (share - self._begun[1]) / (spent_s - self._begun[0])
        seconds = (1 - share) / pace
        budget_s = self._search.budget_s
        return f"{clock(seconds if budget_s is None else min(seconds, max(0.0, budget_s - spent_s)))} left"


def done(search: Search, trials: Mapping[str, Trial]) -> float:
    """Share of the search that is done, 0 to 1: a trial that has ended early is done with."""
    shares = (1.0 if it.ended else min(1.0, it.steps / search.steps) for it in trials.values())
    return min(1.0, sum(shares) / search.planned)


def told(search: Search, trials: Mapping[str, Trial]) -> str:
    """`7 of 20 trials ended, 2 running; best accuracy 0.944 of t003 (lr 0.12)`."""
    ended = sum(it.ended for it in trials.values())
    counts = f"{ended} of {search.planned} trials ended, {len(trials) - ended} running"
    found = best(search, trials)
    if found is None:
        return counts
    value = found.best(search.mode)
    assert value is not None  # noqa: S101 - the best has one
    params = params_words(found.best_params(search.mode))
    return f"{counts}; best {search.metric} {value_words(value[1])} of {found.id} ({params})"


def best(search: Search, trials: Mapping[str, Trial]) -> Trial | None:
    """The trial with the best value at any evaluation, failed ones left out; the first of equals."""
    sign = 1 if search.mode == "max" else -1
    known = [(found[1], it) for it in trials.values() if it.state != "failed" and (found := it.best(search.mode))]
    return max(known, key=lambda pair: sign * pair[0])[1] if known else None
