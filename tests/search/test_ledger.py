"""The ledger: what a killed driver leaves, what follows from it, and a trial that was run twice."""

from __future__ import annotations

from pathlib import Path

from search import ledger
from search.drive import LABEL, Left, asha, left, searcher, within
from search.ledger import Ledger, Trial
from search.points import points
from search.spec import search_from
from search.watch import is_up
from tests.search.recorded import ASKED, three


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
    assert ledger.repeated([*cut_off, sound[0]]) == []


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
    planned = points(search)
    assert left(search, known) == Left(("t002", "t003", "t005"), ({"lr": 0.7}, planned[2], planned[4]))


def test_optuna_goes_on_with_what_others_have_learned() -> None:
    search = search_from({**ASKED, "algorithm": "optuna", "trials": 4}, "made")
    known = ledger.trials(it for made in three() for it in made)
    todo = left(search, known)
    assert todo == Left(("t004",), ())
    study = searcher(search, known, todo).searcher._ot_study
    assert [it.value for it in study.trials] == [0.9, 0.1, None]
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
