"""Clocks: the offset is within the error that is told, whatever the network does; records are put into harness time."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proving_ground.bench.clusters.remote.clock import KEPT, NodeClock

AHEAD_S = 172_800.25
DELAYS = st.lists(st.tuples(st.floats(0, 5), st.floats(0, 5)), min_size=1, max_size=80)


@given(delays=DELAYS)
def test_the_true_offset_is_within_the_error_however_uneven_the_ways_are(delays: list[tuple[float, float]]) -> None:
    clock, t = NodeClock(), 1000.0
    for there_s, back_s in delays:
        node = {"t": t + there_s + AHEAD_S, "wall_s": 50.0 + t + there_s + AHEAD_S}
        clock.heard((t, 50.0 + t), t + there_s + back_s, node)
        t += 10
    assert abs(clock.best.ahead_s - AHEAD_S) <= clock.error_s + 1e-6
    assert clock.error_s == pytest.approx(min(sum(it) for it in delays[-64:]) / 2)


def told(clock: NodeClock, t: float, there_s: float, back_s: float, ahead_s: float) -> float:
    """Ask at a moment, with so long a way there and back."""
    return clock.heard((t, t), t + there_s + back_s, {"t": t + there_s + ahead_s, "wall_s": t})


@given(delays=DELAYS, ahead_s=st.floats(-1e6, 1e6))
def test_ways_of_any_length_are_no_step(delays: list[tuple[float, float]], ahead_s: float) -> None:
    clock = NodeClock()
    assert [told(clock, 1e5 + 10.0 * at, *it, ahead_s) for at, it in enumerate(delays)] == [0.0] * len(delays)
    assert len(clock.readings) == min(len(delays), KEPT)


@given(
    delays=DELAYS,
    now=st.tuples(st.floats(0, 5), st.floats(0, 5)),
    beyond_s=st.floats(1e-3, 1e5),
    sign=st.sampled_from((-1, 1)),
)
def test_a_step_beyond_the_errors_is_known_with_the_next_answer(
    delays: list[tuple[float, float]], now: tuple[float, float], beyond_s: float, sign: int
) -> None:
    clock = NodeClock()
    for at, it in enumerate(delays):
        told(clock, 10.0 * at, *it, AHEAD_S)
    either_s = clock.error_s + sum(now) / 2  # by so much both answers together may be wrong
    step_s = sign * (2 * either_s + beyond_s)
    stepped_s = told(clock, 1e4, *now, AHEAD_S + step_s)
    assert abs(stepped_s - step_s) <= either_s + 1e-6
    assert abs(clock.best.ahead_s - AHEAD_S - step_s) <= clock.error_s + 1e-6
    assert clock.error_s == pytest.approx(sum(now) / 2)


def exact(ahead_s: float) -> NodeClock:
    clock = NodeClock()
    clock.heard((10.0, 10.0), 10.0, {"t": 10.0 + ahead_s, "wall_s": 10.0})
    return clock


def test_every_moment_of_a_record_is_in_harness_time_and_its_own_is_kept() -> None:
    line = b'{"t":172801.0,"event":"step","step":3,"begin_t":172800.5,"comm_s":0.25,"wall_s":5.0}\n'
    record = json.loads(exact(172_800.0).shifted(line))
    assert record == {
        "t": 1.0, "event": "step", "step": 3, "begin_t": 0.5, "comm_s": 0.25, "wall_s": 5.0, "node_t": 172_801.0,
    }  # fmt: skip


@pytest.mark.parametrize("line", [b"not json\n", b"[1]\n", b'{"t":"soon"}\n', b'{"event":"step"}\n', b'{"t":NaN}\n'])
def test_what_is_no_event_stays_as_it_is(line: bytes) -> None:
    assert exact(5.0).shifted(line) == line


def test_a_node_that_started_again_has_another_clock() -> None:
    clock = exact(5.0)
    clock.begin()
    clock.heard((10.0, 10.0), 10.5, {"t": 3.0, "wall_s": 10.0})
    assert clock.best.ahead_s == pytest.approx(-7.25)
