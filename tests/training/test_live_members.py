"""Who takes part in a live job: each trap of the engine that is closed, without processes and without a coordinator."""

from __future__ import annotations

import socket
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from proving_ground.training.recovery import members as live_members
from proving_ground.training.recovery.members import BrokenError, CutOffError, Member, Members, Place

PLACE = Place("127.0.0.1:1", "127.0.0.1", 1, (1, 3))
NAMES = tuple(f"{Member(number, '127.0.0.1', 9000 + number, 'abc').name}:life" for number in range(3))


class Seat:
    """Says what the coordinator would."""

    def __init__(self, *quorums: tuple[int, tuple[str, ...]]) -> None:
        self.quorums, self.left = list(quorums), False
        self.asked: tuple[int, int] | None = None
        self.questions: list[tuple[int, int]] = []

    def ask(self, step: int, failures: int) -> None:
        assert self.asked is None, "one question for each answer"
        self.asked = (step, failures)
        self.questions.append(self.asked)

    def answer(self) -> SimpleNamespace:
        self.asked = None
        number, names = self.quorums.pop(0)
        return SimpleNamespace(
            quorum_id=number, replica_ids=list(names), replica_rank=1, max_step=7, store_address="127.0.0.1:9000"
        )

    def connected(self) -> bool:
        return True

    def leave(self) -> None:
        self.left = True


class Group:
    """A process group that connects to nobody."""

    def __init__(self) -> None:
        self.stores: list[str] = []
        self.aborted = 0

    def configure(self, store: str, *_about: object) -> None:
        self.stores.append(store)

    def abort(self) -> None:
        self.aborted += 1


@pytest.fixture(autouse=True)
def open_doors(monkeypatch: pytest.MonkeyPatch) -> None:
    """All members have their stores open."""
    monkeypatch.setattr(live_members, "knocks", lambda places: ["open"] * len(places))


def doors(monkeypatch: pytest.MonkeyPatch, what: str, *ports: int | None) -> None:
    """What comes of a connection to the stores at some ports; at others they are open."""
    monkeypatch.setattr(live_members, "knocks", lambda places: [what if at in ports else "open" for _, at in places])


def members(*quorums: tuple[int, tuple[str, ...]]) -> tuple[Members, Seat, Group]:
    """Members whose coordinator says these quorums, one after the other."""
    seat, group = Seat(*quorums), Group()
    found = Members(PLACE, "abc")
    vars(found).update(_seat=seat, _group=group)
    return found, seat, group


def test_a_member_s_name_says_where_it_is_and_sorts_by_its_number() -> None:
    assert Member.read(NAMES[2]) == Member(2, "127.0.0.1", 9002, "abc")
    assert sorted(Member(number, "a", 1, "b").name for number in (10, 9)) == [
        Member(9, "a", 1, "b").name, Member(10, "a", 1, "b").name,
    ]  # fmt: skip


def test_the_same_members_keep_their_group() -> None:
    found, _, group = members((4, NAMES), (4, NAMES))
    assert [found.meet(0), found.meet(1)] == [True, False]
    assert len(group.stores) == 1
    assert (found.rank, found.size, found.newest_step) == (1, 3, 7)


def test_fewer_than_the_least_nodes_make_no_group() -> None:
    found, _, group = members((1, NAMES[:1]), (2, NAMES[:2]))
    found.place = Place(PLACE.coordinator, PLACE.address, 1, (2, 3))
    with pytest.raises(BrokenError, match="1 of at least 2 nodes") as told:
        found.meet(0)
    assert told.value.why == "no_quorum"
    assert not group.stores
    assert found.meet(0)


@pytest.mark.usefixtures("pardon")
def test_other_members_under_the_same_number_are_another_group_with_keys_of_its_own() -> None:
    found, _, group = members((1, NAMES), *[(1, NAMES[:2])] * 20)
    assert [found.meet(0), found.meet(1)] == [True, True]
    assert len(set(group.stores)) == 2


@pytest.fixture
def pardon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_members, "ASK_S", 0.005)
    monkeypatch.setattr(live_members, "PARDON_S", 0.05)


@pytest.mark.usefixtures("pardon")
def test_a_member_whose_heartbeats_are_late_is_not_left_behind() -> None:
    found, seat, group = members((1, NAMES), (2, NAMES[:2]), (2, NAMES[:2]), (3, NAMES))
    assert found.meet(0)
    found.committed(1, ask=True)
    assert not found.meet(1), "the same members, and the same group"
    assert len(group.stores) == 1
    assert seat.questions == [(0, 0), (1, 0), (1, 0), (1, 0)]


@pytest.mark.usefixtures("pardon")
def test_a_member_that_does_not_come_back_is_waited_for_no_longer_than_that() -> None:
    found, seat, _ = members((1, NAMES), *[(2, NAMES[:2])] * 100)
    found.meet(0)
    assert found.meet(1)
    assert (found.size, seat.left) == (2, False)
    assert 2 < len(seat.questions) <= 12


@pytest.mark.parametrize("sign", ["a sum that failed", "a connection that ended"])
def test_a_member_that_has_ended_is_not_waited_for(sign: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, seat, _ = members((1, NAMES), (2, NAMES[:2]))
    found.meet(0)
    if sign == "a sum that failed":
        found.give_up_attempt(BrokenError("peer_lost", "reset"))
    else:
        monkeypatch.setattr(found._lines, "ended", lambda: True)
    assert found.meet(1)
    assert len(seat.questions) == 2


GHOST = f"{Member(2, '127.0.0.1', 9999, 'abc').name}:former-life"


@pytest.mark.parametrize("twin", [True, False])
def test_a_life_that_is_over_and_is_told_of_late_changes_nothing(twin: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001 - a case
    doors(monkeypatch, "refused", 9999)
    there = NAMES if twin else NAMES[:2]
    found, seat, group = members((1, there), (2, (*there, GHOST)))
    assert [found.meet(0), found.meet(1)] == [True, False]
    assert (found.names, seat.left, len(group.stores)) == (there, False, 1)


@pytest.mark.usefixtures("pardon")
def test_no_group_is_made_with_a_life_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    doors(monkeypatch, "refused", 9999)
    found, seat, group = members((1, NAMES[:2]), (2, (*NAMES, GHOST)), (2, (*NAMES, GHOST)), (3, NAMES))
    assert [found.meet(0), found.meet(1)] == [True, True], "it is asked again until the coordinator has forgotten it"
    assert (found.names, len(seat.questions), len(group.stores)) == (NAMES, 4, 2)


@pytest.mark.usefixtures("pardon")
def test_who_is_told_of_without_a_store_is_not_doubted_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    doors(monkeypatch, "refused", 9002)
    found, _, _ = members(*[(1, NAMES)] * 100)
    assert found.meet(0)
    assert found.names == NAMES


def test_a_coordinator_that_counts_from_one_again_costs_the_seat() -> None:
    found, seat, group = members((5, NAMES), (1, NAMES))
    found.meet(0)
    with pytest.raises(BrokenError, match="started anew") as told:
        found.meet(1)
    assert told.value.why == "no_coordinator"
    assert seat.left
    assert group.aborted


def test_a_failed_attempt_is_followed_by_a_new_group() -> None:
    found, seat, group = members((1, NAMES), (1, NAMES))
    found.meet(0)
    found.give_up_attempt(BrokenError("peer_lost", "reset"))
    assert found.failures == 1
    assert found.meet(0)
    assert len(group.stores) == 2
    found.committed(1, ask=True)
    assert found.failures == 0
    assert seat.questions == [(0, 0), (0, 1), (1, 0)]


def test_the_members_of_the_next_step_are_asked_for_once_and_ahead() -> None:
    found, seat, _ = members((1, NAMES), (1, NAMES), (1, NAMES))
    found.meet(0)
    found.committed(1, ask=True)
    assert seat.asked == (1, 0)
    found.meet(1)
    assert seat.questions == [(0, 0), (1, 0)]


def test_nobody_is_asked_where_the_members_stay_for_another_step() -> None:
    found, seat, _ = members((1, NAMES), (1, NAMES))
    found.meet(0)
    found.committed(1, ask=False)
    assert seat.asked is None
    assert not found.meet(2)
    assert seat.questions == [(0, 0), (2, 0)]


@pytest.mark.parametrize(("unreachable", "expected"), [(9000, CutOffError), (9002, BrokenError), (None, None)])
def test_of_two_members_that_cannot_reach_each_other_the_later_one_goes(
    unreachable: int | None, expected: type[BrokenError] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    doors(monkeypatch, "silent", unreachable)
    found, _, group = members((1, NAMES), (2, NAMES))
    found.meet(0)
    found.give_up_attempt(BrokenError("peer_silent", "timed out"))
    if expected is None:
        assert found.meet(0)
        return
    with pytest.raises(expected) as told:
        found.meet(0)
    assert type(told.value) is expected
    assert len(group.stores) == 1, "no group is tried that cannot come about"


def test_nobody_is_looked_for_after_a_committed_step(monkeypatch: pytest.MonkeyPatch) -> None:
    doors(monkeypatch, "silent", 9000, 9002)
    found, _, _ = members((1, NAMES), (2, NAMES))
    found.meet(0)
    found.give_up_attempt(BrokenError("peer_silent", "timed out"))
    found.committed(1, ask=True)
    assert found.meet(1)


def test_a_group_that_does_not_come_about_is_cut_and_says_why_itself() -> None:
    def fail(*_arguments: object) -> None:
        raise RuntimeError("Timed out connecting")

    found, _, group = members((1, NAMES), (2, NAMES))
    found.meet(0)
    found.give_up_attempt(BrokenError("peer_lost", "reset"))
    vars(group)["configure"], before = fail, group.aborted
    with pytest.raises(BrokenError, match="Timed out connecting") as told:
        found.meet(0)
    assert (told.value.why, group.aborted - before) == ("peer_silent", 1)


def test_a_sum_that_fails_is_told_when_it_is_waited_for_and_everything_is_cut() -> None:
    class Failing:
        def wait(self, _timeout: timedelta | None = None) -> None:
            raise RuntimeError("[gloo/pair.cc:1] Connection reset by peer")

        def is_completed(self) -> bool:
            return True

    found, _, group = members((1, NAMES))
    found.meet(0)
    vars(group)["allreduce"] = lambda _tensors, _options: Failing()
    first, second = found.start_sum(torch.ones(2)), found.start_sum(torch.ones(2))
    with pytest.raises(BrokenError, match=r"^Connection reset by peer$") as told:
        first.wait()
    assert (told.value.why, group.aborted) == ("peer_lost", 1)
    assert found.broken is not None
    assert found.broken.__traceback__ is None, "it would keep the operations, and so the connections, alive"
    with pytest.raises(BrokenError):
        second.wait()
    third = found.start_sum(torch.ones(2))  # in the middle of backward nothing may fail
    with pytest.raises(BrokenError):
        third.wait()


class Stuck:
    """A sum that Gloo forgot."""

    def __init__(self) -> None:
        self.ended = False

    def wait(self, _timeout: timedelta | None = None) -> None:
        if not self.ended:
            time.sleep(0.001)
            raise RuntimeError("Operation timed out!")

    def is_completed(self) -> bool:
        return self.ended


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_members, "LOOK_S", 0.005)


@pytest.mark.usefixtures("quick")
def test_a_sum_that_outlives_a_connection_is_left_behind_with_its_group(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _, group = members((1, NAMES), (2, NAMES[:2]), (3, NAMES))
    found.meet(0)
    stuck = Stuck()
    vars(group)["allreduce"] = lambda _tensors, _options: stuck
    near, far = socket.socketpair()
    vars(found._lines)["_lines"] = [near]
    far.close()
    with pytest.raises(BrokenError, match="a connection has ended") as told:
        found.start_sum(torch.ones(2)).wait()
    assert told.value.why == "peer_lost"
    assert not group.aborted, "that would wait for its thread"
    others = [Group(), Group()]
    monkeypatch.setattr("torchft.ProcessGroupGloo", lambda **_about: others.pop(0))
    found.give_up_attempt(told.value)
    assert found.meet(0)
    assert len(group.stores) == 1, "its thread still waits in it"
    kept: list[Any] = list(found._behind)
    assert kept == [(group, [stuck])]
    stuck.ended = True
    assert found.meet(0)
    assert not found._behind


@pytest.mark.usefixtures("quick")
def test_a_sum_may_end_after_a_connection_and_may_take_its_time_while_all_are_there() -> None:
    class Late(Stuck):
        waits = 0

        def wait(self, timeout: timedelta | None = None) -> None:
            self.waits += 1
            if self.waits == 3:
                far.close()
            self.ended = self.waits > 3
            super().wait(timeout)

    found, _, group = members((1, NAMES))
    found.meet(0)
    vars(group)["allreduce"] = lambda _tensors, _options: Late()
    near, far = socket.socketpair()
    vars(found._lines)["_lines"] = [near]
    assert found.start_sum(torch.ones(2)).wait()
    near.close()


def test_a_group_that_cannot_begin_a_sum_fails_only_when_it_is_waited_for() -> None:
    def fail(*_arguments: object) -> Any:
        raise RuntimeError("Timed out waiting 2000ms")

    found, _, group = members((1, NAMES))
    found.meet(0)
    vars(group)["allreduce"] = fail
    work = found.start_sum(torch.ones(2))
    with pytest.raises(BrokenError) as told:
        work.wait()
    assert told.value.why == "peer_silent"


def test_no_coordinator_is_told_as_such() -> None:
    found = Members(Place("127.0.0.1:9", "127.0.0.1", 0, (1, 2)), "abc")
    with pytest.raises(BrokenError, match="the coordinator does not answer") as told:
        found.meet(0)
    assert told.value.why == "no_coordinator"
