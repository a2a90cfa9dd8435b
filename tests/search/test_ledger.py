"""The ledger: what a killed driver leaves, what follows from it, and a trial that was run twice."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proving_ground.bench.rundir import RunDirError
from proving_ground.search import ledger
from proving_ground.search.drive import BEST, LABEL, Left, asha, left, scheduler, searcher, within
from proving_ground.search.ledger import Ledger, Trial
from proving_ground.search.points import points
from proving_ground.search.spec import search_from
from proving_ground.search.watch import is_up
from tests.search.recorded import ASKED, Records, three, trial


def test_half_a_line_is_cut_off_and_the_rest_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    Ledger(path, 1).append(ledger.STARTED, trial="t001", params={"lr": 0.1})
    with path.open("ab") as file:
        file.write(b'{"t":3,"sitting":1,"event":"fini')
    assert [it["event"] for it in ledger.read(path)] == ["started"]
    Ledger(path, 2).append(ledger.FINISHED, trial="t001")
    assert [(it["event"], it["sitting"]) for it in ledger.read(path)] == [("started", 1), ("finished", 2)]


def test_a_trial_that_begins_after_its_end_is_seen() -> None:
    sound = [it for made in three() for it in made]
    assert ledger.repeated(sound) == []
    assert ledger.repeated([*sound, sound[0]]) == ["t001"]
    cut_off = sound[:3]
    assert ledger.repeated([*cut_off, {**sound[0], "sitting": 2}]) == []


TWICE: Mapping[str, Callable[[Records], Records]] = {
    "ended twice": lambda it: [*it, it[-1]],
    "begun twice by one driver": lambda it: [it[0], *it],
    "begun after its end": lambda it: [*it, {**it[0], "sitting": 2}],
}


@pytest.mark.parametrize("how", TWICE)
def test_a_trial_that_ran_twice_is_seen(how: str) -> None:
    first, *_ = three()
    assert ledger.repeated(TWICE[how](first)) == ["t001"]


def test_two_drivers_that_write_at_a_time_are_seen() -> None:
    def sitting(number: int) -> dict[str, Any]:
        return {"t": 1.0, "sitting": number, "event": ledger.SITTING}

    first, *_ = three()
    assert not ledger.interleaved([sitting(1), *first[:3], sitting(2), *({**it, "sitting": 2} for it in first)])
    assert ledger.interleaved([sitting(1), first[0], sitting(2), first[1]])
    assert ledger.interleaved([sitting(1), first[0], sitting(1)])


def test_a_reader_takes_only_what_was_appended(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    book = Ledger(path, 1)
    book.append(ledger.STARTED, trial="t001", params={"lr": 0.1})
    reader = ledger.Reader(path)
    assert len(reader.read()) == 1
    with path.open("r+b") as file:
        file.write(b"x" * 20)  # would be refused, if it were read again
    book.append(ledger.FINISHED, trial="t001")
    assert [it["event"] for it in reader.read()] == ["started", "finished"]
    with pytest.raises(RunDirError, match="line 1: not JSON"):
        ledger.read(path)


def test_a_trial_of_many_values_is_read_in_time_that_grows_with_them() -> None:
    start, told, *_ = three()[0]
    begin = time.process_time()
    found = ledger.trials([start, *({**told, "step": it} for it in range(1, 90_001))])["t001"]
    assert found.steps == 90_000
    assert time.process_time() - begin < 30  # two minutes, where each value copies those before


def test_a_line_that_the_disk_takes_in_parts_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, write = tmp_path / "trials.jsonl", os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:7]))
    Ledger(path, 1).append(ledger.STARTED, trial="t001", params={"lr": 0.1})
    monkeypatch.undo()
    assert ledger.read(path)[0]["params"] == {"lr": 0.1}


DAMAGED: Mapping[str, tuple[str, str]] = {
    "not JSON": ("hello", "line 2: not JSON"),
    "a list": ("[]", "line 2: no record"),
    "no event": ('{"t":1,"sitting":1}', "line 2: no record"),
    "a value of text": (
        '{"t":1,"sitting":1,"event":"reported","trial":"t001","step":1,"value":"x"}', "value = x: must be a number"
    ),
    "no moment": ('{"sitting":1,"event":"ready"}', "t = None: must be a number"),
    "a step in parts": (
        '{"t":1,"sitting":1,"event":"reported","trial":"t001","step":1.5,"value":1}', "must be a whole number"
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", DAMAGED)
def test_a_damaged_line_is_told_with_its_number(how: str, tmp_path: Path) -> None:
    line, words = DAMAGED[how]
    path = tmp_path / "trials.jsonl"
    Ledger(path, 1).append(ledger.SITTING)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(RunDirError, match=words):
        ledger.read(path)


def test_a_value_keeps_the_parameters_that_made_it_and_its_schedule_follows_the_copies() -> None:
    donor = trial("t001", 0.3, [0.2, 0.25], ledger.FINISHED, 10.0)
    first, told, later, end = trial("t002", 0.1, [0.9, 0.3], ledger.FINISHED, 10.0)
    copy = {
        "t": 11.5, "event": ledger.COPIED, "sitting": 1, "trial": "t002", "donor": "t001", "step": 10, "sha256": "aa",
        "params": {"lr": 0.5},
    }  # fmt: skip
    known = ledger.trials([*donor, first, told, copy, later, end])
    assert known["t002"].best("max") == (10, 0.9)
    assert known["t002"].best_params("max") == {"lr": 0.1}
    assert known["t002"].best_params("min") == {"lr": 0.5}
    assert ledger.schedule(known, "t002", 10) == [(0, {"lr": 0.1})]
    assert ledger.schedule(known, "t002", 20) == [(0, {"lr": 0.3}), (10, {"lr": 0.5})]


def test_what_was_made_again_replaces_what_was_told() -> None:
    first, *_ = three()
    again = [first[0], {**first[1], "value": 0.35}]
    found = ledger.trials([*first[:3], *again])["t001"]
    assert found.curve == ((10, 0.35),)
    assert found.starts == 2
    assert not found.ended


def test_trials_that_have_ended_are_not_left_and_those_cut_off_keep_their_parameters() -> None:
    search = search_from({**ASKED, "trials": 5, "algorithm": "random"}, "made")
    known = {
        "t001": Trial("t001", {"lr": 0.5}, "finished"), "t002": Trial("t002", {"lr": 0.7}),
        "t004": Trial("t004", {"lr": 0.2}, "failed"),
    }  # fmt: skip
    planned = list(points(search))
    assert left(search, known) == Left(("t002", "t003", "t005"), ({"lr": 0.7}, planned[2], planned[4]))


def test_optuna_goes_on_with_what_others_have_learned() -> None:
    search = search_from({**ASKED, "algorithm": "optuna", "trials": 4}, "made")
    known = ledger.trials(it for made in three() for it in made)
    todo = left(search, known)
    assert todo == Left(("t004",), ())
    study = searcher(search, known, todo).searcher._ot_study
    assert [it.value for it in study.trials] == [0.9, 0.1, None]
    assert searcher(search, known, todo).searcher.metric == BEST  # as the earlier ones' values are
    found = searcher(search, known, todo).suggest("tune's own id")
    assert found[LABEL] == "t004"
    assert 0.001 <= found["lr"] <= 1


def test_asha_has_the_values_of_earlier_sittings_on_its_rungs() -> None:
    search = search_from(ASKED, "made")
    fresh, resumed = asha(search, {}), asha(search, ledger.trials(it for made in three() for it in made))
    assert [len(recorded) for _, recorded in fresh._brackets[0]._rungs] == [0, 0]
    assert {step: dict(recorded) for step, recorded in resumed._brackets[0]._rungs} == {
        10: {"t001": 0.3, "t002": 0.1}, 30: {"t001": 0.8}
    }  # fmt: skip


def test_a_trial_that_was_cut_off_is_on_no_rung_until_it_tells_again() -> None:
    first, *_ = three()
    made = asha(search_from(ASKED, "made"), ledger.trials(first[:-1]))
    assert [len(recorded) for _, recorded in made._brackets[0]._rungs] == [0, 0]


def test_what_is_perturbed_of_a_choice_is_one_of_its_values() -> None:
    space = {"lr": {"choice": [0.01, 0.1]}, "dropout": {"choice": [0.0, 0.9]}}
    search = search_from({**ASKED, "algorithm": "pbt", "space": space}, "made")
    made: Any = scheduler(search, {})
    random.seed(1)
    for _ in range(20):
        found, _operations = made._get_new_config(None, SimpleNamespace(config={"lr": 0.1, "dropout": 0.9}))
        assert found["lr"] in (0.01, 0.1)
        assert found["dropout"] in (0.0, 0.9)


def test_what_is_perturbed_stays_within_the_bounds() -> None:
    search = search_from({**ASKED, "algorithm": "pbt"}, "made")
    assert within(search, {"lr": 1.2}) == {"lr": 1.0}
    assert within(search, {"lr": 1e-9}) == {"lr": 0.001}


def test_a_raylet_is_looked_for_between_the_first_word_of_its_own_sitting_and_the_last() -> None:
    earlier = [{"sitting": 1, "event": ledger.SITTING}, {"sitting": 1, "event": ledger.READY}]
    begun = [*earlier, {"sitting": 2, "event": ledger.SITTING}]
    ready = [*begun, {"sitting": 2, "event": ledger.READY}, {"sitting": 2, "event": ledger.FINISHED, "trial": "t001"}]
    over = [*ready, {"sitting": 2, "event": ledger.OVER}]
    assert [is_up(it, 2) for it in (earlier, begun, ready, over)] == [False, False, True, False]
