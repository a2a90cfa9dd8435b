"""Live recovery: what a meeting decides, when members meet, and what is refused."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from proving_ground.training.__main__ import main
from proving_ground.training.config import Config, ConfigError, from_dict
from proving_ground.training.exchange.updates import EveryStep
from proving_ground.training.recovery import live
from proving_ground.training.recovery.elastic import PORT, endpoint
from proving_ground.training.recovery.live import GaveUpError, Live, WaitError, refuse, settings
from proving_ground.training.recovery.members import BrokenError, Member, Place

pytest.importorskip("torchft", reason="live recovery needs torchft (extra `live`; Linux, x86-64)")

PLACE = Place("127.0.0.1:1", "127.0.0.1", 0, (1, 3))
NAMES = tuple(f"{Member(number, 'a', 1, 'abc').name}:life" for number in range(3))


class Said:
    """Stands in for the members of a group: what each of them tells is written down before."""

    def __init__(self, *tables: list[tuple[int, ...]], rank: int = 1, names: tuple[str, ...] = NAMES) -> None:
        self.tables, self.rank, self.size, self.names = list(tables), rank, len(names), names
        self.settings, self.newest_step, self.asked = "abc", 0, 0

    def gather(self, _mine: tuple[int, ...]) -> list[tuple[int, ...]]:
        self.asked += 1
        return self.tables.pop(0)


def meeting(said: Said, step: int = 0, **of_config: object) -> tuple[Live, list[tuple[str, dict[str, Any]]]]:
    """A member in the middle of a meeting, and what it told."""
    told: list[tuple[str, dict[str, Any]]] = []
    events = SimpleNamespace(emit=lambda event, **fields: told.append((event, fields)))
    module = torch.nn.Linear(1, 1)
    job: Any = SimpleNamespace(
        config=from_dict({"resume": False, **of_config}, "test"), step=step, generation=3, best=None, metrics={},
        epoch=0, updates=EveryStep(), world=SimpleNamespace(rank=1, size=3), events=events, exchange=SimpleNamespace(),
        precision=SimpleNamespace(scales=False),
        model=SimpleNamespace(module=module), optimizer=torch.optim.SGD(module.parameters(), 0.1),
    )  # fmt: skip
    found = Live(job, PLACE, threading.Event(), lambda: None)
    vars(found)["_members"] = said
    return found, told


def test_a_job_that_begins_waits_for_all_its_nodes() -> None:
    two = Said([(0, 0, 0, 3, 0), (0, 0, 0, 3, 0)], names=NAMES[:2])
    with pytest.raises(WaitError):
        meeting(two)[0]._agree()
    assert two.asked == 1


def test_survivors_do_not_wait_for_what_a_newcomer_expects() -> None:
    two = Said([(9, 4, 4, 0, 0), (0, 0, 0, 3, 0)], rank=1, names=NAMES[:2])
    found, _ = meeting(two)
    with pytest.raises(IndexError):  # it went on to the next question
        found._agree()
    assert two.asked == 2


def test_the_first_rank_decides_that_the_wait_was_long_enough() -> None:
    impatient = Said([(0, 0, 0, 3, 1), (0, 0, 0, 3, 0)], names=NAMES[:2])
    with pytest.raises(IndexError):
        meeting(impatient)[0]._agree()
    patient = Said([(0, 0, 0, 3, 0), (0, 0, 0, 3, 1)], names=NAMES[:2])
    with pytest.raises(WaitError):
        meeting(patient)[0]._agree()


def test_a_generation_is_newer_than_any_that_a_member_knows() -> None:
    found, _ = meeting(Said([(8,), (0,), (0,)], rank=0))
    assert found._next_generation(7) == 8


@pytest.mark.parametrize("mine", [(5, 2), (4, 3), (0, 0)], ids=["same step of a lost generation", "behind", "new"])
def test_who_is_not_at_the_newest_step_of_the_newest_generation_takes_the_state_of_one_who_is(
    mine: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    found, told = meeting(Said([(5, 3), mine, (5, 3)]), step=mine[0])
    vars(found)["_made_in"] = mine[1]
    sent = {"weight": torch.full((1, 1), 7.0), "bias": torch.zeros(1)}
    about = {"step": 5, "best": 0.5, "metrics": {}, "made_in": 3}

    def receive(giver: int, value: dict[str, Any]) -> dict[str, Any]:
        assert giver == 0
        return {**value, "model": sent, "about": about}

    monkeypatch.setattr(found, "_from", receive)
    found._bring_up_to_date((5, 3))
    assert found._job.step == 5
    assert found._job.model.module.state_dict()["weight"].item() == 7.0
    ((event, fields),) = told
    assert (event, fields["step"], fields["of_generation"], fields["peer"]) == ("resume", 5, 3, 0)


def test_nobody_sends_anything_when_all_are_at_the_same_step() -> None:
    found, told = meeting(Said([(5, 3)] * 3), step=5)
    found._bring_up_to_date((5, 3))
    assert not told


def strangers(*hashes: str) -> tuple[str, ...]:
    return tuple(f"{Member(number, 'a', 1, one).name}:life" for number, one in enumerate(hashes))


@pytest.mark.parametrize(
    ("hashes", "newest", "step", "expected"),
    [
        (("abc", "abc", "xyz"), 0, 0, BrokenError),
        (("xyz", "abc", "xyz"), 0, 0, ConfigError),
        (("xyz", "abc"), 0, 0, ConfigError),
        (("abc", "xyz"), 0, 0, BrokenError),
        (("xyz", "abc"), 9, 9, BrokenError),
        (("xyz", "abc", "abc"), 9, 0, ConfigError),
    ],
)
def test_a_node_of_another_configuration_goes_and_those_with_a_state_stay(
    hashes: tuple[str, ...], newest: int, step: int, expected: type[Exception]
) -> None:
    said = Said(names=strangers(*hashes))
    said.newest_step = newest
    with pytest.raises(expected):
        meeting(said, step=step)[0]._refuse_strangers()
    said.names = strangers("abc", "abc")
    meeting(said, step=step)[0]._refuse_strangers()


def test_what_must_be_the_same_everywhere_and_what_need_not() -> None:
    plain = settings(Config())
    assert settings(from_dict({"global_batch": 48}, "test")) != plain
    assert settings(from_dict({"lr": 0.1}, "test")) != plain
    same_batch = {"global_batch": 48}
    exact, plain_48 = from_dict({"reduction": "exact", **same_batch}, "test"), from_dict(same_batch, "test")
    assert settings(exact) != settings(plain_48)
    assert settings(from_dict({"checkpoint_dir": "there", "threads": 2, "ledger": True}, "test")) == plain


@pytest.mark.parametrize(
    ("config", "nodes", "says"),
    [
        ({}, (1, 1), "two nodes at least"),
        ({"norm": "batch"}, (1, 2), "norm = 'batch'"),
        ({"model": "paced", "profile": "resnet18-cpu"}, (1, 2), "model = 'paced'"),
        ({"reduction": "exact", "shards": 3, "global_batch": 12}, (1, 4), "shards = 3"),
    ],
)
def test_what_cannot_be_live_is_refused(config: dict[str, object], nodes: tuple[int, int], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        refuse(from_dict(config, "test"), Place("c:1", "a", 0, nodes))


def test_without_torchft_it_says_where_it_is_to_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchft", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[live\]'"):
        refuse(Config(), PLACE)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--nodes", "3:2", "--number", "0", "run"], "--nodes 3:2: must be a count, or MIN:MAX"),
        (["--nodes", "2", "--number", "2", "run"], "--number 2: must be from 0 to 1"),
        (["--nodes", "1", "--number", "0", "run"], "two nodes at least"),
        (["--nodes", "2", "--number", "0"], "add what to train"),
        (["--nodes", "2", "--number", "0", "run", "--set", "lr=-1"], "lr"),
    ],
)
def test_a_mistake_of_the_caller_s_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["live", "--lighthouse", "127.0.0.1:9", *words]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert len(error.splitlines()) == 1


def test_no_step_for_too_long_ends_in_a_clean_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "GIVE_UP_S", 0.0)
    found, told = meeting(Said())
    members: Any = SimpleNamespace(
        meet=lambda _step: (_ for _ in ()).throw(BrokenError("no_quorum", "too few")),
        give_up_attempt=lambda _error: None,
    )
    vars(found)["_members"] = members
    vars(found._job)["exchange"] = SimpleNamespace(forget=lambda: None)
    with pytest.raises(GaveUpError, match="no step for"):
        found.step(lambda **_: ({}, False), wish=False)
    assert [fields["why"] for _, fields in told] == ["no_quorum"], "told once, however often it is tried"


def test_who_is_brought_to_the_last_step_makes_no_further_one(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = meeting(Said())
    vars(found._job)["steps"] = 5
    monkeypatch.setattr(found, "_meet", lambda: vars(found._job).update(step=5))
    assert found.step(lambda **_: pytest.fail("a step beyond the last"), wish=False) is None


class Steps:
    """A member that makes steps of some length by a clock of its own, and at which of them it met the others."""

    def __init__(self, step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.step_s, self.now, self.met = step_s, 0.0, list[int]()
        self.found, _ = meeting(Said())
        self.job: Any = self.found._job
        vars(self.job).update(
            steps=99, exchange=SimpleNamespace(forget=lambda: None), watch=SimpleNamespace(begin=lambda: None),
            patience=SimpleNamespace(seconds=lambda: 2.0),
        )  # fmt: skip
        members = SimpleNamespace(meet=self.meet, committed=lambda *_, **__: None, give_up_attempt=lambda _error: None)
        vars(self.found).update(_members=members, _agreed=True)
        monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=lambda _s: None))

    def meet(self, step: int) -> bool:
        vars(self.found)["_agreed"] = True
        self.met.append(step)
        return False

    def make(self, steps: int, *, others_wish: bool = False) -> None:
        for _ in range(steps):
            self.found.step(lambda *, wish: self.learn(meet=wish or others_wish), wish=False)
            self.job.step += 1

    def learn(self, *, meet: bool) -> tuple[dict[str, Any], bool]:
        self.now += self.step_s
        self.found.commit(meet=meet)
        return {}, False


@pytest.mark.parametrize(
    ("step_s", "met"), [(0.3, [0, 1, 2, 3, 4, 5, 6, 7]), (0.155, [0, 1, 3, 5, 7]), (0.06, [0, 1, 6])]
)
def test_members_are_agreed_on_every_quarter_of_a_second_where_steps_are_shorter(
    step_s: float, met: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Steps(step_s, monkeypatch)
    member.make(8)
    assert member.met == met, "the length of the first step is not known before"


def test_all_meet_where_one_wants_to(monkeypatch: pytest.MonkeyPatch) -> None:
    member = Steps(0.01, monkeypatch)
    member.make(3)
    member.make(2, others_wish=True)
    assert member.met == [0, 1, 4]


def test_after_a_failure_the_members_are_agreed_on_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    member = Steps(0.01, monkeypatch)
    member.make(3)
    failures = [BrokenError("peer_lost", "reset")]

    def once(*, wish: bool) -> tuple[dict[str, Any], bool]:
        if failures:
            raise failures.pop()
        return member.learn(meet=wish)

    member.found.step(once, wish=False)
    assert member.met == [0, 1, 3]


@pytest.mark.parametrize("seconds", ["0", "0.1", "2.5", "nan"])
def test_an_expiry_that_makes_no_sense_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lighthouse", "--expiry", seconds]) == 2
    assert f"--expiry {seconds}: must be from 0.2 to 2" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["lighthouse", "coordinator"])
@pytest.mark.parametrize("port", ["0", "-5", "99999", "x"])
def test_a_port_that_is_none_is_refused(command: str, port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([command, f"--port={port}"])
    assert stopped.value.code == 2
    assert f"{port!r}: must be a whole number from 1 to 65535" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["launch", "--coordinator"], ["live", "--nodes=2:3", "--number=0", "--lighthouse"]])
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("host:x", "'x': must be a whole number from 1 to 65535"), ("host:", "'': must be a whole number"),
        ("host:99999", "'99999': must be a whole number"), (":29400", "':29400': must be HOST[:PORT]"),
        ("", "'': must be HOST[:PORT]"),
    ],
)  # fmt: skip
def test_a_place_to_meet_that_is_none_is_refused(
    words: list[str], place: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*words, place, "run"])
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("typed", "place"), [("n1", f"n1:{PORT}"), ("n1:5", "n1:5"), ("[::1]:7", "[::1]:7")])
def test_a_place_to_meet_has_the_usual_port_unless_told(typed: str, place: str) -> None:
    assert endpoint(typed) == place
