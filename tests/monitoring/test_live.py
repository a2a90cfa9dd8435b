"""The live page: what it shows of a run in progress, when it ends, and what it does not make up."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.rundir import RunDir
from proving_ground.bench.terminal import Terminal
from proving_ground.monitoring import live
from proving_ground.monitoring.present import Present

PLANS = {"t001": {"id": "t001", "case": "own", "workload": "digits", "nodes": 2, "steps": 40}}


def event(t: float, name: str, source: str = "harness", **more: Any) -> dict[str, Any]:
    return {"t": t, "event": name, "source": source, "trial": "t001", **more}


def start(t: float, source: str, rank: int, generation: int = 1) -> list[dict[str, Any]]:
    return [
        event(t, "start", source, rank=rank, world_size=2, pid=1, wall_s=1.0),
        event(t + 0.1, "ready", source, generation=generation),
    ]


def step(t: float, source: str, number: int, **more: Any) -> dict[str, Any]:
    return event(t, "step", source, step=number, samples=10, loss=1 / number, **more)


def steps(t: float, *numbers: int) -> list[dict[str, Any]]:
    """Of both ranks, 0.1 s each: 0.03 s forward, 0.06 s communication."""
    parts = {"step_s": 0.1, "forward_s": 0.03, "comm_s": 0.06}
    return [step(t + 0.1 * i, source, it, **parts) for i, it in enumerate(numbers) for source in ("n1.0", "n2.0")]


BEGUN = [event(0, "run_start"), event(1, "trial_start"), *start(2, "n1.0", 0), *start(2, "n2.0", 1)]
TRAINING = [*BEGUN, *steps(3, 1, 2, 3, 4, 5)]
KILLED = event(5, "fault_begin", fault="f01", kind="worker_kill", target=["n2"])


def present_of(*records: dict[str, Any]) -> Present:
    found = Present(PLANS)
    for record in records:
        found.take(record)
    return found


def shown(records: list[dict[str, Any]], now: float) -> str:
    out = Terminal(file=io.StringIO(), width=140)
    out.print(live.page(RunDir(Path("runs/suite/id")), present_of(*records), now))
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_the_page_has_trial_step_rate_loss_shares_and_ranks() -> None:
    text = shown([*TRAINING, event(3.3, "checkpoint", "n1.0", step=3, path="p", bytes=1, block_s=0.1)], 3.5)
    assert "trial t001 (0 of 1 done) · own digits · 2 nodes · step 5 of 40 · 2.5 s" in text
    assert "loss 0.2 · 200 samples/s · newest checkpoint: step 3, 0.2 s ago" in text
    assert "time: data 0%  forward 30%  backward 0%  comm 60%" in text
    assert "other 10%" in text
    assert [line.split()[:4] for line in text.splitlines() if line.startswith("n")] == [
        ["node", "rank", "state", "step"], ["n1.0", "0", "trains", "5"], ["n2.0", "1", "trains", "5"],
    ]  # fmt: skip


def test_the_job_is_as_far_as_its_slowest_rank() -> None:
    assert "step 5 of 40" in shown([*TRAINING, step(3.5, "n1.0", 6)], 3.6)


def test_what_is_not_told_is_a_gap() -> None:
    text = shown([*BEGUN, event(3, "step", "n1.0", step=1, samples=10)], 3.1)
    assert "loss – · – samples/s · newest checkpoint: none yet" in text
    assert "time:" not in text


def test_a_worker_that_makes_no_step_is_silent() -> None:
    assert "silent" not in shown(TRAINING, 5.0)
    assert "silent 6 s" in shown(TRAINING, 9.4)


def test_slow_is_not_silent() -> None:
    slow = [*BEGUN, *(step(3 + 4 * i, source, i + 1) for i in range(3) for source in ("n1.0", "n2.0"))]
    assert "silent" not in shown(slow, 11 + 11)
    assert "silent 13 s" in shown(slow, 11 + 13)


def test_a_fault_and_the_recovery_are_shown_while_they_last() -> None:
    failed = event(5.2, "error", "n1.0", message="peer is gone\nmore")
    noticed = event(5.3, "detected", "n1.launch", why="worker_failed")
    text = shown([*TRAINING, KILLED, failed, noticed, event(5.4, "node_down", node="n2")], 5.5)
    assert "fault f01: worker_kill n2, 0.5 s" in text
    assert "recovering for 0.3 s" in text
    assert "n1.0: peer is gone\n" in text
    assert "n1 noticed: worker failed" in text
    assert "node down" in text
    again = [*start(6, "n1.0", 0, 2), *start(6, "n2.0", 1, 2), *steps(7, 4, 5), event(7.5, "fault_end", fault="f01")]
    text = shown([*TRAINING, KILLED, failed, noticed, *again], 8)
    assert "recovering" not in text
    assert "f01 worker_kill: recovered in 2.00 s" in text
    assert "generation 2: 2 ranks have met" in text
    assert "fault f01" not in text


def test_without_a_nemesis_a_recovery_is_counted_from_the_last_committed_step() -> None:
    again = [*start(6, "n1.0", 0, 2), *start(6, "n2.0", 1, 2), *steps(7, 4, 5)]
    assert "training again, 3.60 s after the last committed step" in shown([*TRAINING, *again], 8)


def test_alerts_are_shown_while_they_fire() -> None:
    fires = event(4, "alert", alert="NodeLost", labels={"node": "n2", "run": "r"}, state="firing", summary="gone")
    assert "alert NodeLost n2, 1.0 s: gone" in shown([*TRAINING, fires], 5)
    assert "NodeLost" not in shown([*TRAINING, fires, {**fires, "t": 6.0, "state": "resolved"}], 7)


def test_an_event_that_is_none_is_passed_over() -> None:
    bad = [event(4, "step", "n1.0"), event(4, "error", "n1.0"), event(4, "fault_begin"), event(4, "who", "n1.0")]
    assert "step 5 of 40" in shown([*TRAINING, *bad], 4)


def test_one_line_says_the_same() -> None:
    down = event(5.4, "node_down", node="n2")
    assert live.line(present_of(*TRAINING, KILLED, down), 5.5) == (
        "trial t001 · step 5 · loss 0.2 · 200 samples/s · 2 ranks · n1.0 silent 2 s · n2.0 node down · "
        "fault f01 worker_kill"
    )


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    store = RunDir(tmp_path / "suite" / "id")
    store.events.mkdir(parents=True)
    store.write("plan", {"trials": list(PLANS.values())})
    store.write("provenance", {"t": 0.0, "wall_s": time.time()})
    return store


def tell(store: RunDir, *records: dict[str, Any]) -> None:
    for it in records:
        name = "harness" if it["source"] == "harness" else f"t001.{it['source']}"
        with (store.events / f"{name}.jsonl").open("a") as file:
            file.write(json.dumps({key: it[key] for key in it if key != "source"}) + "\n")


def watched(store: RunDir, sleep: Callable[[float], None], *, terminal: bool = False) -> tuple[int, str]:
    out = io.StringIO()
    console = Terminal(file=out, force_terminal=terminal, width=120)
    return live.watch(store, console, sleep), out.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_it_follows_and_ends_with_the_run(run: RunDir, monkeypatch: pytest.MonkeyPatch, *, terminal: bool) -> None:
    monkeypatch.setenv("TERM", "xterm")
    tell(run, *BEGUN)
    more = iter([steps(3, 1, 2, 3), [event(4, "trial_end", ok=True), event(4, "run_end", ok=True)]])
    status, text = watched(run, lambda _: tell(run, *next(more)), terminal=terminal)
    assert status == 0
    assert text.rstrip().endswith("the run has ended")
    assert ("step 3 of 40" if terminal else "trial t001 · step 3 ·") in text
    assert ("\x1b[" in text) == terminal


def test_a_dumb_terminal_gets_plain_lines(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    tell(run, *BEGUN, event(4, "run_end", ok=True))
    assert "\x1b[2K" not in watched(run, time.sleep, terminal=True)[1]


def test_a_failed_run_is_status_1_and_says_why(run: RunDir) -> None:
    tell(run, *BEGUN, event(4, "run_end", ok=False, why="n2.0 ended with 1"))
    assert watched(run, time.sleep) == (
        1, "trial t001 · step – · loss – · – samples/s · 0 ranks\nthe run has ended: n2.0 ended with 1\n",
    )  # fmt: skip


def test_a_run_that_was_resumed_has_not_ended(run: RunDir) -> None:
    tell(run, *BEGUN, event(4, "run_end", ok=False, why="interrupted"), event(5, "resumed"))
    ended = iter([event(6, "run_end", ok=True)])
    assert watched(run, lambda _: tell(run, next(ended)))[0] == 0


def test_a_harness_that_is_gone_is_told(run: RunDir) -> None:
    run.write("provenance", {"t": 0.0, "wall_s": time.time() - 500})
    tell(run, *BEGUN)
    status, text = watched(run, time.sleep)
    assert status == 1
    assert re.search(r"nothing recorded for (49[89]|5\d\d) s: the harness is gone", text)


def test_ctrl_c_leaves_the_terminal_as_it_was(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    tell(run, *BEGUN)
    out = io.StringIO()

    def interrupted(seconds: float) -> None:
        raise KeyboardInterrupt(seconds)

    with pytest.raises(KeyboardInterrupt):
        live.watch(run, Terminal(file=out, force_terminal=True), interrupted)
    assert out.getvalue().count("\x1b[?25h") == 1, "the cursor is shown again"
