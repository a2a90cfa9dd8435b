"""What to search, as frozen data read from a suite file (TOML); unknown keys are errors.

Called by `search.commands`, and by the driver and its workers, which read the same again from `search.json`.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, islice, product
from pathlib import Path
from typing import Annotated, Any, Literal

from proving_ground.bench.spec import Line, MetricName, SuiteName, suite_file
from proving_ground.search.points import points
from proving_ground.training import config as trainer
from proving_ground.training import typed
from proving_ground.training.typed import ConfigError, Rule

SUITES = Path(__file__).parent / "suites"
ALGORITHMS = ("random", "grid", "optuna", "asha", "pbt")
NUMBERS = ("uniform", "loguniform", "int")
KINDS = (*NUMBERS, "choice")
"""What a parameter of `[space]` is drawn from."""
OURS = (
    "steps", "epochs", "eval_every", "checkpoint_dir", "checkpoint_every", "checkpoint_interval_s", "checkpoint_async",
    "keep_checkpoints", "mtbf_s", "resume",
)  # fmt: skip
"""Keys of the trainer that the search sets itself."""
MUTABLE = ("lr", "clip_norm", "dropout")
"""What a training that goes on from another's checkpoint takes from its own configuration."""
METRICS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("digits", "resnet50", "resnet152", "vit", "bert", "gpt2"), ("accuracy", "loss")),
    "stocks": ("rmse_log_return",),
    "paced": (),
}
"""Model → what its evaluations tell; of a model of the user's own only its trials can."""
MOST_POINTS = 10_000  # of a grid
TRIED = 100  # points, and combinations of ends and values, that are tried on the trainer's rules beforehand

Params = Mapping[str, Any]


class SearchError(ConfigError):
    """The caller's mistake: one line that says what, where, and what is allowed. Exit status 2."""


Count = Annotated[int, Rule(least=1, most=10_000)]
Steps = Annotated[int, Rule(least=1, most=10_000_000)]


@dataclass(frozen=True)
class Bounds:
    """What one parameter is drawn from: two ends, or the values of a choice."""

    kind: Literal["uniform", "loguniform", "int", "choice"]
    values: tuple[Any, ...]
    points: int | None = None  # of a grid, between the two ends

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest value, both allowed."""
        return self.values[0], self.values[1]

    @property
    def count(self) -> int:
        """How many values a grid has of it, at most; without making them."""
        if self.kind == "choice":
            return len(self.values)
        return self.points or int(self.values[1] - self.values[0] + 1)

    def at(self, share: float) -> Any:  # noqa: ANN401 - a value of the trainer's
        """The value that lies so far, 0 to 1, between the ends; of a choice the one in whose part it lies."""
        if self.kind == "choice":
            return self.values[min(len(self.values) - 1, int(share * len(self.values)))]
        low, high = self.ends
        if self.kind == "int":
            return min(int(high), int(low + share * (high - low + 1)))
        value = low * (high / low) ** share if self.kind == "loguniform" else low + share * (high - low)
        return min(max(value, low), high)  # rounding may leave the range

    def grid(self) -> tuple[Any, ...]:
        """Every value of a grid, in their order."""
        if self.kind == "choice":
            return self.values
        if self.points is None:
            return tuple(range(self.values[0], self.values[1] + 1))  # whole numbers need no points
        last = max(1, self.points - 1)
        spread = [self.at(it / last) for it in range(self.points)]
        return tuple(dict.fromkeys(spread))


@dataclass(frozen=True)
class Search:
    """A suite file, with the command line's overrides."""

    name: SuiteName
    title: Line
    algorithm: Annotated[str, Rule(ALGORITHMS)]
    steps: Steps  # of a trial in full
    metric: MetricName
    space: Mapping[str, Any]
    trials: Count | None = None  # of a grid: all of its points
    mode: Annotated[str, Rule(("max", "min"))] = "max"
    concurrent: Annotated[int, Rule(least=1, most=256)] = 2
    eval_every: Steps | None = None  # steps between two values of the metric; None: a tenth of a trial
    seed: Annotated[int, Rule(least=0, most=2**31 - 1)] = 1
    budget_steps: Annotated[int, Rule(least=1)] | None = None  # that all trials together may make
    budget_s: Annotated[float, Rule(least=1, most=1e7)] | None = None  # that the search may take
    grace_steps: Steps | None = None  # asha: no trial is stopped before; None: the first evaluation
    factor: Annotated[float, Rule(least=1.1, most=100)] = 3.0  # asha: one in so many goes on from each rung
    quantile: Annotated[float, Rule(above=0, most=0.5)] = 0.25  # pbt: share of the trials that copy the best such share
    training: Mapping[str, Any] = field(default_factory=dict)  # the trainer's other keys

    @property
    def every(self) -> int:
        """Steps from one evaluation to the next."""
        return self.eval_every or max(1, self.steps // 10)

    @property
    def bounds(self) -> dict[str, Bounds]:
        """Parameter → what it is drawn from."""
        return {name: bounds_of(name, table, "space") for name, table in self.space.items()}

    @property
    def planned(self) -> int:
        """How many trials there are to be."""
        return self.trials or math.prod(len(it.grid()) for it in self.bounds.values())

    def config(self, params: Params, **more: Any) -> trainer.Config:  # noqa: ANN401 - values of the trainer's
        """What the trainer is told in a trial.

        Raises:
            ConfigError: there is no such configuration.
        """
        return trainer.from_dict(
            {**self.training, **params, "steps": self.steps, "eval_every": self.every, **more}, "trial"
        )


def suite_names() -> list[str]:
    """The suites that ship with the project."""
    return sorted(path.stem for path in SUITES.glob("*.toml"))


def load(name: str) -> Search:
    """The suite called `name`, or the one in the file `name`.

    Raises:
        ConfigError: no such suite, not TOML, an unknown or missing key, a value of nonsense.
    """
    path, document = suite_file(name, SUITES)
    return search_from({"name": path.stem, **document}, path.name)


def search_from(document: Mapping[str, Any], where: str) -> Search:
    """A checked Search from a TOML or JSON document; `where` names it in errors.

    Raises:
        SearchError: one line with the first thing that is wrong.
    """
    try:
        search = typed.read(Search, document, where)
        check(search, where)
    except SearchError:
        raise
    except ConfigError as error:
        raise SearchError(str(error)) from None
    return search


def check(search: Search, where: str) -> None:
    """What the keys of a search say together.

    Raises:
        ConfigError: one line with the first thing that is wrong.
    """
    trainer.check_keys(search.training, f"{where}: training")
    if not search.space:
        raise SearchError(f"{where}: space is empty: needs at least one parameter, such as lr = {{ uniform = [0, 1] }}")
    for name in [*search.training, *search.space]:
        if name in OURS:
            raise SearchError(f"{where}: {name!r} is set by the search itself; see steps and eval_every of the suite")
    for name, table in search.space.items():
        check_parameter(search, name, bounds_of(name, table, f"{where}: space"), f"{where}: space")
    if "cuda" in values_of(search, "device"):
        raise SearchError(f"{where}: device = 'cuda': trials run on the CPU, a search has no GPUs yet")
    check_metric(search, where)
    check_counts(search, where)
    for point in chain(corners(search), islice(points(search), TRIED)):
        search.config(point)


def check_parameter(search: Search, name: str, bounds: Bounds, where: str) -> None:
    """That the trainer has such a key, nothing else sets it, and every bound is a value of it."""
    if name not in trainer.KEYS:
        raise SearchError(f"{where}: {typed.unknown('parameter', name, trainer.KEYS)}")
    if name in search.training:
        raise SearchError(f"{where}: {name!r} stands in training as well: it is either fixed or searched")
    for value in bounds.values:
        trainer.value_of(name, value, where)
    if bounds.kind in ("uniform", "loguniform") and typed.hints(trainer.Config)[name] is int:
        raise SearchError(f"{where}: {name!r} is a whole number; write {{ int = {typed.shown(list(bounds.values))} }}")
    if search.algorithm == "pbt" and name not in MUTABLE:
        raise SearchError(
            f"{where}: {name!r} cannot change within a training; pbt searches {typed.listed(MUTABLE)} only"
        )
    if search.algorithm == "grid" and bounds.kind in ("uniform", "loguniform") and bounds.points is None:
        raise SearchError(f"{where}: {name!r} needs points for a grid, such as {{ {bounds.kind} = [..], points = 5 }}")


def bounds_of(name: str, table: object, where: str) -> Bounds:
    """The bounds that a parameter's table says.

    Raises:
        SearchError: it has none, or some that make no sense.
    """
    shape = "{ uniform = [low, high] }, { loguniform = … }, { int = … } or { choice = [a, b, …] }"
    if not isinstance(table, Mapping):
        raise SearchError(f"{where}: {name} has no bounds; write {shape}")
    for key in table:
        if key not in (*KINDS, "points"):
            raise SearchError(f"{where}: {name}: {typed.unknown('bound', key, (*KINDS, 'points'))}")
    kinds = [it for it in KINDS if it in table]
    if len(kinds) != 1:
        raise SearchError(f"{where}: {name} has {'several' if kinds else 'no'} bounds; write {shape}")
    values, points = table[kinds[0]], table.get("points")
    if not isinstance(values, list | tuple) or not values:
        raise SearchError(f"{where}: {name}: {kinds[0]} = {typed.shown(values)}: must be {typed.NOT_EMPTY}")
    made = Bounds(kinds[0], tuple(values), points)  # type: ignore[arg-type] # one of KINDS
    if problem := not_bounds(made):
        raise SearchError(f"{where}: {name}: {kinds[0]} = {typed.shown(list(values))}: must be {problem}")
    return made


def not_bounds(bounds: Bounds) -> str:
    """What the values of a parameter must be, where they are not; else an empty text."""
    if bounds.points is not None and (type(bounds.points) is not int or not 1 <= bounds.points <= MOST_POINTS):
        return f"with points from 1 to {MOST_POINTS}"
    if bounds.kind == "choice":
        return "" if len(set(map(repr, bounds.values))) == len(bounds.values) else "values of which none stands twice"
    sort = (int,) if bounds.kind == "int" else (int, float)
    if len(bounds.values) != 2 or not all(type(it) in sort and abs(it) <= typed.LARGEST for it in bounds.values):
        return f"two {'whole ' if bounds.kind == 'int' else ''}numbers, at most {typed.LARGEST:g} in size"
    low, high = bounds.ends
    if low >= high:
        return "the low end before the high one"
    if bounds.kind == "loguniform" and (low <= 0 or not math.isfinite(high / low)):
        return "above 0" if low <= 0 else "ends of which the quotient is finite"
    return ""


def values_of(search: Search, name: str) -> tuple[Any, ...]:
    """What a key that is no number is in the trials."""
    searched = search.bounds.get(name)
    return searched.values if searched else (search.training.get(name, getattr(trainer.Config, name)),)


def check_metric(search: Search, where: str) -> None:
    """That the model's evaluations tell the metric, where that is known before a trial ran."""
    for model in values_of(search, "model"):
        known = METRICS.get(str(model))
        if known is not None and search.metric not in known:
            named = typed.unknown("metric", search.metric, known) if known else "it tells no metric"
            raise SearchError(f"{where}: model {model!r}: {named}")


def check_counts(search: Search, where: str) -> None:
    """Trials, steps and budget."""
    if search.algorithm == "grid":
        most = math.prod(it.count for it in search.bounds.values())
        if most > MOST_POINTS:
            raise SearchError(f"{where}: the grid has {most} points; allowed: 1 to {MOST_POINTS}")
        every = math.prod(len(it.grid()) for it in search.bounds.values())
        if search.trials not in (None, every):
            raise SearchError(f"{where}: trials = {search.trials}: the grid has {every} points, leave trials out")
    elif search.trials is None:
        raise SearchError(f"{where}: key 'trials' is missing")
    if search.every > search.steps:
        raise SearchError(f"{where}: eval_every = {search.every}: a trial has {search.steps} steps")
    if (search.grace_steps or 1) > search.steps:
        raise SearchError(f"{where}: grace_steps = {search.grace_steps}: a trial has {search.steps} steps")


def corners(search: Search) -> Iterator[Params]:
    """Points at which every value of a choice and both ends of each range occur, then the first of all combinations."""
    bounds = search.bounds
    lists = {name: it.values if it.kind == "choice" else it.ends for name, it in bounds.items()}
    for at in range(max(len(it) for it in lists.values())):
        yield {name: values[min(at, len(values) - 1)] for name, values in lists.items()}
    for values in islice(product(*lists.values()), TRIED):
        yield dict(zip(lists, values, strict=True))


def as_document(search: Search) -> dict[str, Any]:
    """The search as plain data, readable again by `search_from`."""
    return dataclasses.asdict(search)
