"""Suites with mistakes in them: a sample of the validation, and that it finds what it looks for."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.spec import Case
from proving_ground.training import typed
from tests.validations import suites
from tests.validations.suite_rules import wrong
from tests.validations.suites import SHIPPED, block, main, mutant, outcome, places, toml

SAMPLE = 200
GOOD = """
title = "T"
nodes = [1, 2]
[[case]]
name = "a"
workload = "digits"
steps = 10
estimated_step_s = 0.1
batch_per_node = 8
"""


def test_a_sample_of_mutants_is_accepted_rightly_or_refused_in_a_line() -> None:
    found = block((0, SAMPLE))
    assert found.bad == []
    assert sum(found.outcomes.values()) == 2 * SAMPLE
    assert found.outcomes["bench refused"] > SAMPLE / 2
    assert found.outcomes["bench accepted"] > SAMPLE / 50, "else nothing is learnt of what is accepted"


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_the_rules_allow_every_suite_that_ships(file: Path) -> None:
    document = tomllib.loads(file.read_text())
    assert list(wrong(document, faults=any(case.get("faults") for case in document.get("case", [])))) == []
    assert tomllib.loads("".join(f"{toml(key)} = {toml(it)}\n" for key, it in document.items())) == document


def test_a_reader_that_looks_at_no_item_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(GOOD + "twins = [99]\n")
    assert outcome("bench", file)[0] == "refused"

    def unread(kinds: tuple[Any, ...], rule: typed.Rule, value: Any, where: str, name: str) -> tuple[Any, ...]:
        return typed.items(kinds, rule, value, where, name) if kinds[0] is Case else tuple(value)

    monkeypatch.setitem(typed.GENERICS, tuple, unread)
    assert outcome("bench", file) == ("accepted though wrong", "case: twins")
    file.write_text(GOOD + 'twins = ["a"]\n')
    assert outcome("bench", file)[0] == "traceback"


def test_a_plan_that_takes_for_ever_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def spin(words: list[str]) -> int:
        while words:
            pass
        return 0

    monkeypatch.setitem(suites.PLANS, "bench", spin)
    assert outcome("bench", tmp_path, limit_s=0.05) == ("hang", "more than 0.05 s")


def test_a_message_that_fills_a_screen_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(typed, "shortened", lambda text, most=0: text or most)
    file = tmp_path / "own.toml"
    file.write_text(GOOD + f'twins = ["{"x" * 5000}"]\n')
    assert outcome("bench", file)[0] == "long message"


def test_a_mutant_is_the_same_again_and_others_differ() -> None:
    assert mutant(7) == mutant(7)
    assert len({mutant(seed)[1] for seed in range(100)}) > 80
    assert list(places({"a": [1, {"b": 2}]})) == [("a",), ("a", 0), ("a", 1), ("a", 1, "b")]


def test_sittings_accumulate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suites, "FILE", tmp_path / "suites.json")
    assert main(["--count", "3", "--jobs", "1"]) == 0
    assert main(["--count", "5", "--jobs", "1"]) == 0
    assert "5 mutants" in capsys.readouterr().out.splitlines()[-1]
    assert main(["--seed", "3"]) == 0
