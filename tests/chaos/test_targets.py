"""Targets as data: who is meant by a word, and what is said where nobody is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proving_ground.bench.spec import SpecError
from proving_ground.chaos.targets import TARGETS, View, resolve

FOUR = View(("n1", "n2", "n3", "n4"), rank0="n3", coordinator="n5", joiners=("n2", "n4"))


def workers(count: int) -> View:
    return View(tuple(f"n{number}" for number in range(1, count + 1)), "n1", f"n{count + 1}")


def test_words_and_names() -> None:
    assert resolve("all", FOUR, 1) == FOUR.workers
    assert resolve("rank0", FOUR, 1) == ("n3",)
    assert resolve("coordinator", FOUR, 1) == ("n5",)
    assert resolve("n4, n2", FOUR, 1) == ("n2", "n4"), "in the order of the job's"
    assert resolve("n5", FOUR, 1) == ("n5",)


def test_a_joiner_is_a_node_that_has_not_met_the_others() -> None:
    assert {resolve("joiner", FOUR, seed) for seed in range(20)} == {("n2",), ("n4",)}
    assert resolve("joiner", replace(FOUR, down={"n4"}), 1) == ("n2",)
    with pytest.raises(SpecError, match="joiner is no node of a job of 4"):
        resolve("joiner", replace(FOUR, joiners=()), 1)


def test_several_parts_and_what_is_drawn_is_drawn_among_the_rest() -> None:
    assert resolve("rank0+n1", FOUR, 1) == ("n1", "n3")
    assert resolve("coordinator + n2", FOUR, 1) == ("n2", "n5")
    both = {resolve(target, FOUR, seed) for seed in range(40) for target in ("rank0+one", "one+rank0")}
    assert both == {("n1", "n3"), ("n2", "n3"), ("n3", "n4")}
    assert len(resolve("one+minority", FOUR, 1)) == 2


@given(count=st.integers(1, 20), seed=st.integers())
def test_how_many(count: int, seed: int) -> None:
    view = workers(count)
    assert len(resolve("one", view, seed)) == 1
    majority = len(resolve("majority", view, seed))
    assert majority * 2 > count >= (majority - 1) * 2
    if count > 2:
        minority = len(resolve("minority", view, seed))
        assert minority * 2 < count <= (minority + 1) * 2
    assert "n0" not in resolve("all", view, seed)


@given(seed=st.integers(), word=st.sampled_from(sorted(TARGETS)))
def test_the_same_seed_is_the_same_nodes(seed: int, word: str) -> None:
    assert resolve(word, FOUR, seed) == resolve(word, FOUR, seed)
    assert set(resolve(word, FOUR, seed)) <= set(FOUR.everybody)


def test_seeds_differ() -> None:
    assert {resolve("one", FOUR, seed) for seed in range(40)} == {("n1",), ("n2",), ("n3",), ("n4",)}


def test_nodes_without_power_are_drawn_by_no_word() -> None:
    view = View(("n1", "n2", "n3", "n4"), rank0="n3", coordinator="n5", down={"n1", "n4"})
    assert {resolve("one", view, seed) for seed in range(40)} == {("n2",), ("n3",)}
    assert resolve("all", view, 1) == ("n2", "n3")
    assert resolve("n1", view, 1) == ("n1",), "whoever names a node gets it"


@pytest.mark.parametrize(
    ("target", "view", "message"),
    [
        ("some", FOUR, "unknown target 'some'; allowed: one, minority, majority, all, rank0, coordinator, joiner, n1"),
        ("n2,n9", FOUR, "unknown target 'n9'; allowed: .*, n1, n2, n3, n4, n5"),
        ("", FOUR, "unknown target ''"),
        ("minority", workers(2), "target 'minority': minority is no node of a job of 2; allowed: .*several"),
        ("rank0", View(("n1",)), "target 'rank0': rank0 is no node"),
        ("rank0", View(("n1", "n2"), "n1", None, {"n1"}), "target 'rank0': rank0 is no node"),
        ("coordinator", View(("n1",)), "target 'coordinator': coordinator is no node"),
        ("one", View(()), "target 'one': one is no node of a job of 0"),
        ("n1+one", View(("n1",)), "target 'n1.one': one is no node of a job of 1 but for those that its other parts"),
        ("rank0+rank1", FOUR, "unknown target 'rank1'; allowed: one, .*; did you mean 'rank0'.; several: with ."),
    ],
)  # fmt: skip
def test_nobody_is_meant(target: str, view: View, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        resolve(target, view, 1)


ZONED = View(
    ("n1", "n2", "n3"), rank0="n1", coordinator="n4",
    marks={name: {"zone": zone, "rack": "r1"} for name, zone in zip(("n1", "n2", "n3", "n4"), "abab", strict=True)},
)  # fmt: skip


def test_a_label_means_all_nodes_that_have_it_and_power() -> None:
    assert resolve("zone=a", ZONED, 1) == ("n1", "n3")
    assert resolve("zone=b", ZONED, 1) == ("n2", "n4"), "the coordinator's node fails with its zone"
    assert resolve("zone=b+n1", replace(ZONED, down={"n4"}), 1) == ("n1", "n2")
    assert resolve("rack=r1", ZONED, 1) == ("n1", "n2", "n3", "n4")


def test_a_label_that_no_node_has_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(SpecError, match=r"no node has zone=c; there are rack=r1, zone=a, zone=b$"):
        resolve("zone=c", ZONED, 1)
    with pytest.raises(SpecError, match=r"no node has zone=c; this cluster has no labels$"):
        resolve("zone=c", FOUR, 1)
