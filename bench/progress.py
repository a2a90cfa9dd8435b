"""What a person sees during a run: a bar with the time left, or plain lines now and then. Called by `bench.drive`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Protocol, Self

from rich.cells import cell_len
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Column, Table

from proving_ground.bench.plan import Plan
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import Trial
from proving_ground.bench.terminal import Terminal

PLAIN_EVERY_S = 15.0
SURE = 0.25  # of a trial: from there on its own pace says how long it takes, and no longer its estimate
SLOW = 0.8  # of the median rate: such a node is marked
NARROW = 115  # columns of a terminal below which a line says only what changes
BAR, GAP = 18, 2  # columns
FEW = 2  # nodes whose rates fit into a narrow line
LAST = 20  # columns that the last words of a line keep, if others can give way as well


class Watch(Protocol):
    """Is told how the run gets on."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...

    def plan(self, plan: Plan, left: Sequence[Trial], store: RunDir) -> None:
        """The run begins; `left` are the trials to do."""

    def step(self, trial: Trial, step: int, rates: Mapping[str, float], waits: str = "") -> None:
        """About once a second: the step that all ranks reached, samples/s by process, what the next fault waits for."""

    def trial_done(self, trial: Trial, seconds: float) -> None:
        """A trial ended well after so many seconds."""


class Quiet:
    """Says nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        pass

    def plan(self, plan: Plan, left: Sequence[Trial], store: RunDir) -> None:
        """Nothing."""

    def step(self, trial: Trial, step: int, rates: Mapping[str, float], waits: str = "") -> None:
        """Nothing."""

    def trial_done(self, trial: Trial, seconds: float) -> None:
        """Nothing."""


class TimeLeft:
    """Works out the time left from how the trials done so far took against their estimates, and how this one goes."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._trials = list(trials)
        self._whole_s = sum(trial.estimate_s for trial in trials)
        self._spent: dict[str, list[tuple[float, float]]] = {}

    def done(self, trial: Trial, seconds: float) -> None:
        """A trial took so long."""
        self._trials.remove(trial)
        self._spent.setdefault(trial.case, []).append((seconds, trial.estimate_s))

    def seconds(self, trial: Trial | None = None, step: int = 0, spent_s: float | None = None) -> float:
        """Seconds left, with `step` steps of `trial` done in `spent_s` seconds."""
        left = sum(self._corrected(it) for it in self._trials)
        if trial is None or trial not in self._trials:
            return left
        share, whole_s = min(1.0, step / trial.steps), self._corrected(trial)
        pace_s = whole_s if spent_s is None or not share else spent_s / share
        trust = min(1.0, share / SURE)
        return left - whole_s + (1 - share) * ((1 - trust) * whole_s + trust * pace_s)

    def share(self, trial: Trial, step: int) -> float:
        """Share of the run that is done, 0 to 1."""
        left = sum(it.estimate_s for it in self._trials) - trial.estimate_s * step / trial.steps
        return min(1.0, max(0.0, 1 - left / self._whole_s))

    def _corrected(self, trial: Trial) -> float:
        spent = self._spent.get(trial.case) or [pair for pairs in self._spent.values() for pair in pairs]
        asked = sum(estimate for _, estimate in spent)
        return trial.estimate_s * (sum(seconds for seconds, _ in spent) / asked if asked else 1.0)


class Line:
    """One moving line where the terminal can, else plain lines now and then; as a context. Searches have one too."""

    def __init__(self, console: Terminal | None = None) -> None:
        self.console = console or Terminal(file=sys.stderr, soft_wrap=True)
        self._moving = self.console.is_terminal and os.environ.get("TERM") != "dumb"
        self._live = Live(console=self.console, auto_refresh=False, transient=True)
        self._said_t = 0.0

    def __enter__(self) -> Self:
        if self._moving:
            self._live.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._moving:
            self._live.stop()

    def show(self, *cells: str | float) -> None:
        """Show words and shares done (0 to 1) in one line, or now and then print them."""
        if self._moving:
            self._live.update(self._grid(cells), refresh=True)
        elif time.monotonic() - self._said_t > PLAIN_EVERY_S:
            self._said_t = time.monotonic()
            self.console.print("  ".join(it if isinstance(it, str) else f"{it:4.0%}" for it in cells))

    @property
    def narrow(self) -> bool:
        """Whether the terminal has no room for what stays the same."""
        return self._moving and self.console.width < NARROW

    def _grid(self, cells: Sequence[str | float]) -> Table:
        """One line; a narrow one has no bar, and too long words end in an ellipsis."""
        parts: list[str | ProgressBar] = []
        for it in cells:
            if isinstance(it, str):
                parts.append(it)
                continue
            if not self.narrow:
                parts.append(ProgressBar(total=1.0, completed=it, width=BAR))
            parts.append(f"{it:4.0%}")
        widths = fitted([cell_len(it) if isinstance(it, str) else BAR for it in parts], self.console.width)
        grid = Table.grid(*(Column(width=it, no_wrap=True, overflow="ellipsis") for it in widths), padding=(0, GAP))
        grid.add_row(*parts)
        return grid


def fitted(widths: Sequence[int], room: int) -> list[int]:
    """Columns of the cells of one line: the last gives way first, down to `LAST`, then whichever is the longest."""
    found = list(widths)
    over = sum(found) + GAP * (len(found) - 1) - room
    if over > 0:
        given = min(over, max(0, found[-1] - LAST))
        found[-1] -= given
        for _ in range(over - given):
            found[found.index(max(found))] -= 1
    return [max(1, it) for it in found]


class Bar(Line):
    """The terminal's display of a run."""

    def __init__(self, console: Terminal | None = None) -> None:
        from proving_ground.bench.sofar import SoFar  # noqa: PLC0415 - SciPy, which help and a Tab do without

        super().__init__(console)
        self._left = TimeLeft([])
        self._present, self._begun_t, self._until = "", 0.0, "left"
        self._so_far = SoFar()
        self._store: RunDir | None = None

    def plan(self, plan: Plan, left: Sequence[Trial], store: RunDir) -> None:
        """Remember what is to be done, and say where it goes."""
        self._left, self._store = TimeLeft(left), store
        self._so_far.plan(plan.trials)
        first = plan.looks > 1 and plan.further is None and not (store.path / "undecided.json").exists()
        self._until = "to a first look" if first else "left"
        then = ", then a second look at what is still open" if first else ""
        self.console.print(f"{len(left)} of {len(plan.trials)} trials to do{then} → {store.path}")

    def step(self, trial: Trial, step: int, rates: Mapping[str, float], waits: str = "") -> None:
        """Show the line, or now and then print it."""
        words = f"{trial.case:<9} {kind_of(trial):<11} nodes {trial.nodes}  repeat {trial.repeat}"
        if self.narrow:
            job = f"{trial.case} {kind_of(trial)}" if trial.role or trial.faults else trial.case
            words = job if waits else f"{job}  nodes {trial.nodes}  repeat {trial.repeat}"
        if trial.id != self._present:
            self._present, self._begun_t = trial.id, time.monotonic()
        share = self._left.share(trial, step)
        left = clock(self._left.seconds(trial, step, time.monotonic() - self._begun_t))
        self.show(
            words, share, f"{left} {self._until}", waits or (all_rates(rates) if self.narrow else node_rates(rates))
        )

    def trial_done(self, trial: Trial, seconds: float) -> None:
        """Learn from how long it took, and say what can be said of scaling so far."""
        self._left.done(trial, seconds)
        for line in self._so_far.add(self._store, trial) if self._store else ():
            self.console.print(line)


def kind_of(trial: Trial) -> str:
    """`weak+strong` of a benchmark; among jobs that are broken what each is for, as `faults` or `twin`."""
    return trial.role or ("faults" if trial.faults else "+".join(trial.scaling))


def node_rates(rates: Mapping[str, float]) -> str:
    """`n1 412/s n2 268/s ◂ slow`: samples/s of each node."""
    slow = too_slow(rates)
    return " ".join(named_rate(name, rate) + (" ◂ slow" if name in slow else "") for name, rate in rates.items())


def all_rates(rates: Mapping[str, float]) -> str:
    """The same in fewer words where there are many: `n2 268/s ◂ slow, 8 nodes 412/s`, of which that is the median."""
    if len(rates) <= FEW:
        return node_rates(rates)
    slow = (f"{named_rate(name, rates[name])} ◂ slow" for name in too_slow(rates))
    return ", ".join([*slow, named_rate(f"{len(rates)} nodes", middle_of(rates))])


def too_slow(rates: Mapping[str, float]) -> list[str]:
    """The names of those that are, the slowest first."""
    return sorted((name for name in rates if rates[name] < SLOW * middle_of(rates)), key=rates.__getitem__)


def middle_of(rates: Mapping[str, float]) -> float:
    """The median, in samples/s."""
    return sorted(rates.values())[len(rates) // 2] if rates else 0.0


def named_rate(name: str, rate: float) -> str:
    """`n1 412/s`."""
    return f"{name.removesuffix('.0')} {rate:{',.0f' if rate >= 100 else '.3g'}}/s"


def clock(seconds: float) -> str:
    """`1 m 52 s`."""
    minutes, rest = divmod(round(max(0.0, seconds)), 60)
    return f"{minutes} m {rest:02} s" if minutes else f"{rest} s"
