"""The node agent: what it starts again, when, and when it leaves that to a person."""

from __future__ import annotations

from dataclasses import replace

import pytest

from proving_ground.bench.keeper import AGAIN_S, Keeper
from proving_ground.bench.protocols import ProcessExit, ProcessSpec
from proving_ground.training.events import GAVE_UP, MISTAKE

SPECS = [
    ProcessSpec("n3", 0, ("coordinator",), serves=True),
    ProcessSpec("n1", 0, ("launch",)),
    ProcessSpec("n2", 0, ("launch",)),
]


class Clock:
    """A clock that is set by hand, and what was started when."""

    def __init__(self) -> None:
        self.t = 0.0
        self.started: list[tuple[float, str, int]] = []
        self.keeper = Keeper(SPECS, lambda spec, again: self.started.append((self.t, spec.name, again)), lambda: self.t)

    def end(self, name: str, code: int, down: tuple[str, ...] = ()) -> None:
        """A process ends now."""
        self.keeper.tend({name: ProcessExit(name.split(".", maxsplit=1)[0], 0, 7, code)}, down)

    def wait(self, seconds: float, down: tuple[str, ...] = ()) -> None:
        """Let time pass."""
        self.t += seconds
        self.keeper.tend({}, down)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.mark.parametrize("code", [-9, 1, 75])
def test_what_failed_or_left_is_started_again_after_a_moment(clock: Clock, code: int) -> None:
    clock.end("n1.0", code)
    assert clock.started == []
    clock.wait(AGAIN_S)
    clock.end("n1.0", code)
    clock.wait(AGAIN_S)
    assert clock.started == [(AGAIN_S, "n1.0", 1), (2 * AGAIN_S, "n1.0", 2)]


def test_nothing_is_started_on_a_node_without_power(clock: Clock) -> None:
    clock.end("n1.0", -9, down=("n1",))
    clock.wait(10, down=("n1",))
    assert clock.started == []
    clock.wait(1)
    assert clock.started == [(11, "n1.0", 1)]


def test_the_coordinator_is_started_again_but_not_waited_for(clock: Clock) -> None:
    clock.end("n3.0", -9)
    clock.wait(AGAIN_S)
    assert [name for _, name, _ in clock.started] == ["n3.0"]
    clock.end("n1.0", 0)
    assert not clock.keeper.over
    clock.end("n2.0", 0)
    assert clock.keeper.over
    assert not clock.keeper.stands_still


def test_a_job_that_gave_up_waits_for_a_person(clock: Clock) -> None:
    clock.end("n1.0", GAVE_UP)
    clock.wait(60)
    assert clock.started == []
    assert not clock.keeper.stands_still  # n2 may still go on alone
    clock.end("n2.0", GAVE_UP)
    assert clock.keeper.stands_still
    clock.keeper.start_by_hand()
    assert [name for _, name, _ in clock.started] == ["n1.0", "n2.0"]
    assert not clock.keeper.stands_still


TRAINERS = [ProcessSpec("n1", 0, ("train",)), ProcessSpec("n2", 0, ("train",))]


def test_together_one_end_ends_all_and_they_start_when_all_nodes_have_power() -> None:
    t, started, ended = 0.0, [], []
    keeper = Keeper(
        TRAINERS, lambda spec, again: started.append((spec.name, again)), lambda: t, together=True,
        end=lambda spec: ended.append(spec.name),
    )  # fmt: skip
    keeper.tend({"n1.0": ProcessExit("n1", 0, 7, -9)}, down=("n1",))
    assert (started, ended) == ([], ["n2.0"])
    keeper.tend({"n2.0": ProcessExit("n2", 0, 8, -9)}, down=("n1",))
    t = 5.0
    keeper.tend({}, down=("n1",))
    assert (started, ended) == ([], ["n2.0"])
    keeper.tend({}, down=())
    assert started == [("n1.0", 1), ("n2.0", 1)]
    keeper.tend({"n1.0": ProcessExit("n1", 0, 9, 0), "n2.0": ProcessExit("n2", 0, 9, 0)}, down=())
    assert keeper.over


def test_who_was_told_what_cannot_be_is_not_started_again(clock: Clock) -> None:
    clock.end("n1.0", MISTAKE)
    clock.wait(10 * AGAIN_S)
    assert not clock.started
    assert clock.keeper.mistaken == {"n1.0"}


def test_what_runs_by_a_command_that_has_changed_is_ended_and_starts_by_the_other() -> None:
    t, started, ended = 0.0, list[tuple[str, ...]](), list[str]()
    keeper = Keeper(
        SPECS, lambda spec, _again: started.append(spec.argv), lambda: t, end=lambda spec: ended.append(spec.name)
    )
    keeper.tend({"n3.0": ProcessExit("n3", 0, 7, -9)}, down=("n3", "n2"))
    anew = [replace(spec, argv=(*spec.argv, "elsewhere")) for spec in SPECS]
    keeper.tend({}, down=("n2",), anew=[*anew[:2], SPECS[2]])
    assert ended == ["n1.0"], "the coordinator has ended already, and n2 knows nothing new"
    keeper.tend({}, down=("n2",), anew=anew)
    keeper.tend({"n1.0": ProcessExit("n1", 0, 8, -9)}, down=("n2",))
    assert ended == ["n1.0", "n1.0"], "n2 cannot be reached"
    keeper.tend({}, down=())
    keeper.tend({"n2.0": ProcessExit("n2", 0, 9, -9)}, down=())
    t = 2 * AGAIN_S
    keeper.tend({}, down=())
    assert sorted(started) == sorted(it.argv for it in anew)
    assert ended == ["n1.0", "n1.0", "n2.0"]


def test_what_is_done_is_not_begun_by_another_command() -> None:
    ended = list[str]()
    keeper = Keeper(SPECS, lambda _spec, _again: None, lambda: 0.0, end=lambda spec: ended.append(spec.name))
    keeper.tend({"n1.0": ProcessExit("n1", 0, 7, 0), "n2.0": ProcessExit("n2", 0, 7, GAVE_UP)}, down=())
    keeper.tend({}, down=(), anew=[replace(spec, argv=("elsewhere",)) for spec in SPECS])
    assert ended == ["n3.0"]
