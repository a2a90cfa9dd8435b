"""The progress display: time left that learns, rates by node, plain lines where nothing can move."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from proving_ground.bench.clusters.fake import FakeCluster
from proving_ground.bench.further import Further
from proving_ground.bench.plan import Plan, make_plan
from proving_ground.bench.progress import Bar, Line, TimeLeft, all_rates, clock, kind_of, node_rates
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import Suite
from proving_ground.bench.tail import Tail, last_line
from proving_ground.bench.terminal import Terminal
from proving_ground.bench.workloads import Command


@pytest.fixture
def plan(suite: Suite) -> Plan:
    return make_plan(suite, FakeCluster(), {"command": Command()})


def test_time_left_starts_from_the_estimates(plan: Plan) -> None:
    assert TimeLeft(plan.trials).seconds() == pytest.approx(plan.estimate_s)


def test_time_left_learns_from_trials_that_took_twice_as_long(plan: Plan) -> None:
    left = TimeLeft(plan.trials)
    first, *rest = plan.trials
    left.done(first, 2 * first.estimate_s)
    assert left.seconds() == pytest.approx(2 * sum(trial.estimate_s for trial in rest))


def test_time_left_counts_steps_of_the_present_trial(plan: Plan) -> None:
    left, first = TimeLeft(plan.trials), plan.trials[0]
    assert left.seconds(first, first.steps) == pytest.approx(plan.estimate_s - first.estimate_s)
    assert left.share(first, 0) == pytest.approx(0)
    assert left.share(first, first.steps) == pytest.approx(first.estimate_s / plan.estimate_s)


def test_time_left_follows_the_pace_of_the_present_trial(plan: Plan) -> None:
    left, first = TimeLeft(plan.trials), plan.trials[0]
    rest_s = plan.estimate_s - first.estimate_s
    assert left.seconds(first, 0, 5.0) == pytest.approx(plan.estimate_s)
    assert left.seconds(first, first.steps // 2, 7.0) == pytest.approx(rest_s + 7.0)
    sixth = left.seconds(first, first.steps // 6, 0.0)  # before a quarter is done, the estimate has its say
    assert sixth == pytest.approx(rest_s + 5 / 6 * first.estimate_s / 3)


def test_a_slow_node_is_marked() -> None:
    assert node_rates({"n1.0": 400.0, "n2.0": 410.0, "n3.0": 250.0}) == "n1 400/s n2 410/s n3 250/s ◂ slow"
    assert node_rates({}) == ""


@pytest.mark.parametrize(("seconds", "words"), [(5.2, "5 s"), (-3, "0 s"), (112, "1 m 52 s"), (61, "1 m 01 s")])
def test_clock(seconds: float, words: str) -> None:
    assert clock(seconds) == words


def watch(console: Terminal, plan: Plan, store: RunDir) -> None:
    trial = plan.trials[0]
    with Bar(console) as bar:
        bar.plan(plan, plan.trials, store)
        bar.step(trial, 1, {"n1.0": 10.0})
        bar.step(trial, 2, {"n1.0": 10.0})
        bar.trial_done(trial, 1.0)


def test_a_log_gets_plain_lines_now_and_then(plan: Plan, recorded: RunDir) -> None:
    out = io.StringIO()
    watch(Terminal(file=out, width=200), plan, recorded)
    lines = out.getvalue().splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(f"{len(plan.trials)} of {len(plan.trials)} trials to do")
    assert "left  n1 10/s" in lines[1]
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize(
    ("looks", "added", "then", "until"),
    [
        (1, None, "trials to do →", "s left  "),
        (2, None, "trials to do, then a second look at what is still open →", "s to a first look  "),
        (2, Further({"digits": [2]}, 1), "trials to do →", "s left  "),
    ],
)
def test_a_run_with_two_looks_tells_the_time_until_the_next(
    plan: Plan, recorded: RunDir, looks: int, added: Further | None, then: str, until: str
) -> None:
    out = io.StringIO()
    watch(Terminal(file=out, width=200), replace(plan, looks=looks, further=added), recorded)
    first, second, *_ = out.getvalue().splitlines()
    assert then in first
    assert until in second


def test_a_job_that_is_broken_and_its_twin_are_told_apart(plan: Plan) -> None:
    trial = replace(plan.trials[0], scaling=("weak",))
    told = [trial, replace(trial, faults=({"id": "f01"},)), replace(trial, role="twin")]
    assert [kind_of(it) for it in told] == ["weak", "faults", "twin"]


@pytest.mark.parametrize("width", [80, 130])
def test_a_twin_is_named_on_every_terminal(plan: Plan, recorded: RunDir, width: int) -> None:
    out = io.StringIO()
    trial = replace(plan.trials[0], case="worker", role="twin", nodes=3)
    with Bar(Terminal(file=out, width=width, force_terminal=True, soft_wrap=True)) as bar:
        bar.plan(replace(plan, trials=(trial,)), [trial], recorded)
        bar.step(trial, 1, {"n1.0": 10.0})
    assert re.search(r"worker +twin +nodes 3", CONTROL.sub("", out.getvalue()))


def test_a_terminal_gets_a_bar(plan: Plan, recorded: RunDir) -> None:
    out = io.StringIO()
    watch(Terminal(file=out, width=200, force_terminal=True), plan, recorded)
    assert "left" in out.getvalue()
    assert "━" in out.getvalue()


CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
EIGHT = {f"n{number}.0": 1412.0 for number in range(1, 9)}
WAITS = "slurm_node_drain waits: n1 has told 1 of 15 steps since the fault before, n2 none, n3 4"


def seen(out: io.StringIO, begin: int = 0) -> list[str]:
    """The lines that a terminal shows."""
    return CONTROL.sub("", out.getvalue()[begin:]).replace("\r", "").split("\n")


@pytest.mark.parametrize(("rates", "waits"), [(EIGHT, ""), (EIGHT | {"n8.0": 90.0}, ""), (EIGHT, WAITS)])
@pytest.mark.parametrize("case", ["digits", "a-case-with-a-name-that-tells-a-lot-of-it"])
@pytest.mark.parametrize("width", [40, 80, 99, 100, 130])
def test_a_terminal_shows_one_line_whatever_is_to_be_said(
    plan: Plan, recorded: RunDir, rates: Mapping[str, float], waits: str, case: str, width: int
) -> None:
    out = io.StringIO()
    trial = replace(plan.trials[0], case=case, scaling=("strong", "weak"), nodes=8)
    with Bar(Terminal(file=out, width=width, force_terminal=True, soft_wrap=True)) as bar:
        bar.plan(replace(plan, trials=(trial,)), [trial], recorded)
        begin = len(out.getvalue())
        bar.step(trial, 1, rates, waits)
        shown = seen(out, begin)
    assert len(shown) == 1
    assert len(shown[0]) <= width
    if width >= 80:
        assert re.search(r"  \d+ (m \d\d )?s left  ", shown[0])
        assert case[:18] in shown[0]
        assert (waits[:18] if waits else "n8 90/s ◂ slow" if rates["n8.0"] < 1412 and width < 100 else "/s") in shown[0]


SEARCHED: Sequence[str | float] = (
    0.45, "time left not known yet", "17 of 20 trials ended, 2 running; best accuracy 0.944 of t003 (lr 0.12)",
)  # fmt: skip


@pytest.mark.parametrize("width", [80, 120])
def test_so_does_one_of_a_search(width: int) -> None:
    out = io.StringIO()
    with Line(Terminal(file=out, width=width, force_terminal=True, soft_wrap=True)) as line:
        line.show(*SEARCHED)
        (shown,) = seen(out)
    assert "45%  time left not known yet  17 of 20 trials ended" in shown
    assert ("━" in shown) is (width >= 100)


def test_many_nodes_are_told_by_their_median_and_by_those_that_are_slow() -> None:
    assert all_rates(EIGHT) == "8 nodes 1,412/s"
    slower = EIGHT | {"n3.0": 250.0, "n7.0": 20.0}
    assert all_rates(slower) == "n7 20/s ◂ slow, n3 250/s ◂ slow, 8 nodes 1,412/s"
    assert all_rates({"n1.0": 400.0, "n2.0": 410.0}) == "n1 400/s n2 410/s"


def line(t: float, step: int) -> str:
    return json.dumps({"t": t, "event": "step", "step": step, "samples": 10}) + "\n"


def test_a_tail_reads_what_is_new_and_waits_for_half_lines(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    tail = Tail({"n1.0": one, "n2.0": two})
    assert tail.read() == 0
    one.write_text(line(1, 1) + line(2, 2) + line(3, 3))
    two.write_text(line(1, 1) + line(3, 2)[:-5])
    assert tail.read() == 1
    assert tail.rates() == {"n1.0": 10.0}
    two.write_text(line(1, 1) + line(3, 2))
    assert tail.read() == 2
    assert tail.rates() == {"n1.0": 10.0, "n2.0": 5.0}


def test_where_one_process_tells_for_all_its_step_is_everybody_s(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    two.write_text(line(1, 1) + line(2, 2))
    assert Tail({"n1.0": one, "n2.0": two}).read() == 0
    assert Tail({"n1.0": one, "n2.0": two}, one_tells=True).read() == 2


@pytest.mark.parametrize("text", ['"step" but no JSON\n', '{"event": "step"}\n', '["step"]\n'])
def test_a_tail_passes_over_nonsense(tmp_path: Path, text: str) -> None:
    file = tmp_path / "one"
    file.write_text(text)
    assert Tail({"n1.0": file}).read() == 0


@pytest.mark.parametrize("odd", ["1e999", "7" * 400, '"many"', "true", "NaN"])
@pytest.mark.parametrize("key", ["t", "step", "samples"])
def test_a_number_that_cannot_be_computed_with_is_no_step(tmp_path: Path, key: str, odd: str) -> None:
    known = {"t": "2", "step": "2", "samples": "10", key: odd}
    file, tail = tmp_path / "one", Tail({"n1.0": tmp_path / "one"})
    bad = f'{{"event": "step", "t": {known["t"]}, "step": {known["step"]}, "samples": {known["samples"]}}}\n'
    file.write_text(line(1, 1) + bad + line(3, 3))
    assert tail.read() == 3
    assert tail.rates() == {"n1.0": 5.0}


def test_the_last_line_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_line(log) == ""
    log.write_text("first\n  second: what went wrong \n\n")
    assert last_line(log) == "second: what went wrong"
