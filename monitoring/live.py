"""A run in progress on one page of the terminal; plain lines where it cannot be redrawn.

Called by `pg monitoring live`. Needs nothing but the run's event files. Ends with the run, with Ctrl-C, or when
nothing has been recorded for so long that the harness must be gone.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from proving_ground.bench import loglines
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.terminal import Terminal
from proving_ground.monitoring.follow import Follower
from proving_ground.monitoring.present import GONE_S, LiveTrial, LiveWorker, Present, gone

EVERY_S = 0.5
PLAIN_EVERY_S = 10.0
GAP = "–"


def watch(run: RunDir, console: Terminal, sleep: Callable[[float], None] = time.sleep, gone_s: float = GONE_S) -> int:
    """Show a run until it ends; the exit status: 1 if the run failed or its harness is gone."""
    clock = loglines.clock(run)
    present = Present({str(it["id"]): it for it in run.read("plan")["trials"]})
    moving = console.is_terminal and os.environ.get("TERM") != "dumb"
    follower, over = Follower(run), ""
    with ExitStack() as stack:
        stack.callback(follower.close)
        live = stack.enter_context(Live(console=console, auto_refresh=False)) if moving else None
        shown_t = -PLAIN_EVERY_S
        while not over:
            for record in follower.new():
                present.take(record)
            now = clock.t + time.time() - clock.wall_s
            if over := ending(present, now, gone_s):
                now = present.newest_t or now
            if live:
                live.update(page(run, present, now), refresh=True)
            elif over or time.monotonic() - shown_t >= PLAIN_EVERY_S:
                shown_t = time.monotonic()
                console.print(line(present, now), soft_wrap=True)
            if not over:
                sleep(EVERY_S)
    console.print(over, soft_wrap=True)
    return int(present.end is None or not present.end.get("ok", True))


def ending(present: Present, now: float, gone_s: float) -> str:
    """Why there is nothing more to see; empty while there is."""
    if present.end is not None:
        why = "" if present.end.get("ok", True) else f": {present.end.get('why') or 'failed'}"
        return f"the run has ended{why}"
    if not gone(present.newest_t, now, gone_s):
        return ""
    return f"nothing recorded for {now - (present.newest_t or now):.0f} s: the harness is gone"


def page(run: RunDir, present: Present, now: float) -> RenderableType:
    """The whole page."""
    head = Text(f"{run.suite} · {run.run_id} · {duration(now - (present.begin_t or now))}", style="bold")
    if present.trial is None:
        return Group(head, Text("the cluster comes up"))
    return Group(
        head, about(present, present.trial, now), *numbers(present.trial, now), workers(present.trial, now),
        *troubles(present, present.trial, now),
    )  # fmt: skip


def about(present: Present, trial: LiveTrial, now: float) -> Text:
    """Which trial, and how far."""
    plan = trial.plan
    named = " ".join(dict.fromkeys(str(plan[key]) for key in ("case", "workload") if plan.get(key)))
    nodes, steps = plan.get("nodes"), plan.get("steps")
    far = f"step {count(trial.step)} of {count(steps)}" if steps else f"step {count(trial.step)}"
    return Text(
        f"trial {trial.id} ({present.done} of {len(present.plans)} done) · {named} · {nodes or '?'} nodes · {far} · "
        f"{duration(now - trial.begin_t)}"
    )


def numbers(trial: LiveTrial, now: float) -> Iterator[Text]:
    """Loss, throughput, checkpoint; where the time goes."""
    saved = trial.checkpoint
    age = f"step {saved.step}, {duration(now - saved.t)} ago" if saved else "none yet"
    yield Text(f"loss {significant(trial.loss)} · {significant(trial.rate)} samples/s · newest checkpoint: {age}")
    if trial.shares:
        parts = "  ".join(f"{part} {share:.0%}" for part, share in trial.shares.items())
        yield Text(f"time: {parts}  other {max(0.0, 1 - sum(trial.shares.values())):.0%}")


def workers(trial: LiveTrial, now: float) -> Table:
    """A row for each process."""
    table = Table("node", "rank", "state", "step", "samples/s", "step time", box=None, padding=(0, 2, 0, 0))
    for name, it in sorted(trial.workers.items(), key=lambda pair: by_number(pair[0])):
        state = state_of(trial, name, it, now)
        style = "" if state in ("trains", "ready", "starts", "ended") else "bold red"
        step_s = GAP if it.step_s is None else f"{1000 * it.step_s:,.0f} ms"
        table.add_row(name, count(it.life.rank), state, count(it.step), significant(it.rate), step_s, style=style)
    return table


def state_of(trial: LiveTrial, name: str, worker: LiveWorker, now: float) -> str:
    """What a process does, in a word."""
    if name.partition(".")[0] in trial.down:
        return "node down"
    silent = worker.silent_s(now)
    return f"silent {silent:.0f} s" if silent is not None else worker.state


def troubles(present: Present, trial: LiveTrial, now: float) -> Iterator[Text]:
    """Faults, recovery, alerts, and the last things that happened."""
    for it in trial.faults:
        held = f"{', '.join(it.target)}, {duration(now - it.begin_t)}"
        yield Text(f"fault {it.id}: {it.kind} {held}", style="yellow")
    if trial.state.symptom_t is not None:
        yield Text(f"recovering for {duration(now - trial.state.symptom_t)}", style="bold yellow")
    for name, alert in present.alerts.items():
        yield Text(f"alert {name}, {duration(now - alert['t'])}: {alert.get('summary', '')}", style="bold red")
    for t, words in present.said:
        yield Text(f"{duration(now - t):>8} ago  {words}", style="dim", no_wrap=True, overflow="ellipsis")


def line(present: Present, now: float) -> str:
    """All of it in one line, for a log."""
    trial = present.trial
    if trial is None:
        return "the cluster comes up"
    told = [f"trial {trial.id}", f"step {count(trial.step)}", f"loss {significant(trial.loss)}",
            f"{significant(trial.rate)} samples/s", f"{len(trial.present)} ranks"]  # fmt: skip
    told += [f"{name} {state}" for name, it in trial.workers.items()
             if (state := state_of(trial, name, it, now)).startswith(("silent", "node", "failed"))]  # fmt: skip
    told += [f"fault {it.id} {it.kind}" for it in trial.faults]
    told += [f"alert {name}" for name in present.alerts]
    return " · ".join(told)


def by_number(name: str) -> tuple[int, str]:
    """n2 before n10."""
    return int("".join(filter(str.isdigit, name.partition(".")[0])) or 0), name


def count(value: int | None) -> str:
    """A whole number, or a gap."""
    return GAP if value is None else f"{value:,}"


def significant(value: float | None) -> str:
    """Three digits, or a gap."""
    if value is None:
        return GAP
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def duration(seconds: float) -> str:
    """`4.2 s`, `3 m 05 s`."""
    seconds = max(0.0, seconds)
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} m {rest:02} s" if minutes else f"{seconds:.1f} s"
