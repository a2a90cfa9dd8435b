"""A search in progress on one page of the terminal; plain lines where it cannot be redrawn.

Called by `pg monitoring live`. It shows what the exporter tells of a search, and ends with it, with Ctrl-C, or
when nothing has been recorded for so long that it must have been interrupted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from proving_ground.bench.rundir import RunDir
from proving_ground.bench.terminal import Terminal
from proving_ground.monitoring.board import Board
from proving_ground.monitoring.exporter import name_of, taker_of
from proving_ground.monitoring.follow import Follower
from proving_ground.monitoring.live import EVERY_S, PLAIN_EVERY_S, duration, significant
from proving_ground.monitoring.present import gone

GONE_S = 300.0  # without any event: Ray's start may take minutes


def watch(run: RunDir, console: Terminal, sleep: Callable[[float], None] = time.sleep, gone_s: float = GONE_S) -> int:
    """Show a search until it ends; the exit status: 1 if it was interrupted."""
    board = Board()
    taker, follower = taker_of(run, board, 0.0), Follower(run)
    shown_t = -PLAIN_EVERY_S
    with ExitStack() as stack:
        stack.callback(follower.close)
        live = stack.enter_context(Live(console=console, auto_refresh=False)) if console.is_terminal else None
        while True:
            for record in follower.new():
                taker.take(record)
            newest, now = board.get("exporter_last_event_timestamp_seconds", (name_of(run),)), time.time()
            if taker.over or gone(newest, now, gone_s):
                break
            if live:
                live.update(page(board, run, now), refresh=True)
            elif time.monotonic() - shown_t >= PLAIN_EVERY_S:
                shown_t = time.monotonic()
                console.print(" · ".join(told(board, name_of(run), now)), soft_wrap=True)
            sleep(EVERY_S)
    last = "the search is over" if taker.over else f"nothing recorded for {now - (newest or now):.0f} s: interrupted"
    console.print(last, soft_wrap=True)
    return int(not taker.over)


def page(board: Board, run: RunDir, now: float) -> Group:
    """All of it: the search, then its trials that run."""
    table = Table("trial", "newest value", box=None, padding=(0, 2, 0, 0))
    for (_, trial), value in sorted(board.values.get("search_trial_value", {}).items()):
        table.add_row(trial, significant(value))
    head = Text(f"{run.suite} · {run.run_id}", style="bold")
    return Group(head, *map(Text, told(board, name_of(run), now)), table)


def told(board: Board, name: str, now: float) -> Iterator[str]:
    """What is known of the search, a line each; what is not is left out."""

    def of(metric: str) -> float | None:
        return board.get(metric, (name,))

    states = {state: count for (_, state), count in board.values.get("search_trials", {}).items() if count}
    yield ", ".join(f"{count:g} {state.replace('_', ' ')}" for state, count in states.items()) or "it comes up"
    if (best := of("search_best_value")) is not None:
        about = next(iter(board.values["search_info"]), ("", "", "", ""))
        yield f"best {about[2]} {significant(best)}"
    if (reported := of("search_last_report_timestamp_seconds")) is not None:
        yield f"last value {duration(now - reported)} ago"
    steps, most = of("search_steps_total"), of("search_budget_steps")
    yield f"{steps or 0:,.0f} steps" + (f" of {most:,.0f}" if most else "")
    if (begin := of("search_start_timestamp_seconds")) is not None:
        budget_s = of("search_budget_seconds")
        yield duration(now - begin) + (f" of {duration(budget_s)}" if budget_s else "")
