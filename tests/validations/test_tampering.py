"""A record that was changed and sealed again is noticed, way by way; one that nobody changed is judged as before."""

from __future__ import annotations

import pytest

from tests.reports.recovery.synthetic import Knobs, make
from tests.reports.rewritten import Record, rewrite
from tests.validations.tampering import (
    NAMED,
    NOT_HERE,
    SAYS_NOTHING,
    UNKNOWN,
    UNNOTICED,
    Original,
    Values,
    fine,
    noticed,
    summary,
    table,
    tampered,
    told,
)  # fmt: skip
from tests.validations.tampers import CONTROL, EQUIVALENT, ON_DISK, TAMPERS

ABSENT = ("stopped process runs", "effect before cause")
"""Ways for which the made-up run has nothing to change."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Original:
    """A made-up run of a model with buffers, which are as much the twin's as its parameters are."""

    def with_buffers(records: list[Record]) -> list[Record]:
        marks = (it for it in records if it["event"] == "fingerprint")
        for mark in marks:
            mark["buffers_sha256"] = mark["parameters_sha256"][::-1]
        return records

    return Original.of(rewrite(make(tmp_path_factory.mktemp("runs"), Knobs()), with_buffers))


def test_what_nobody_changed_is_judged_as_before(original: Original) -> None:
    assert set(original.values.values()) == {"pass"}
    assert tampered(original, CONTROL, original.incidents[0]) == UNNOTICED


@pytest.mark.parametrize("kind", [kind for kind in (*TAMPERS, *ON_DISK) if kind not in (*ABSENT, *EQUIVALENT)])
def test_what_was_changed_is_named_or_unknown(original: Original, kind: str) -> None:
    at = iter(original.places.values())
    found = next(outcome for one in at if (outcome := tampered(original, kind, one)) != NOT_HERE)
    assert found in (NAMED, UNKNOWN)


def test_a_change_is_noticed_by_what_does_not_pass_any_more() -> None:
    before: Values = {("a",): "pass", ("b",): "unknown"}
    assert noticed(before, before) == UNNOTICED
    assert noticed(before, {("a",): "pass", ("b",): "fail"}) == UNNOTICED, "it did not pass before"
    assert noticed(before, {("b",): "unknown"}) == UNKNOWN, "nobody says anything of it any more"
    assert noticed(before, {**before, ("c",): "fail"}) == NAMED


def test_one_unnoticed_change_is_one_too_many() -> None:
    kinds = {CONTROL: {"f01": UNNOTICED}, "victim left": {"f01": NAMED, "f02": NOT_HERE, "f03": UNKNOWN}}
    document = {"cells": {"kinds": kinds}}
    assert fine(document)
    assert summary(document) == {"kinds": 1, "changes": 2, NAMED: 1, UNKNOWN: 1, SAYS_NOTHING: 0, UNNOTICED: 0}
    kinds["commit removed"] = {"f01": UNNOTICED, "f02": UNKNOWN}
    assert fine(document)
    assert summary(document) == {"kinds": 2, "changes": 4, NAMED: 1, UNKNOWN: 2, SAYS_NOTHING: 1, UNNOTICED: 0}
    assert "| 2 | 4 | 1 | 2 | 1 | 0 |" in table(document)
    assert "- commit removed (1): what was loaded is proven" in table(document)
    assert "a later fingerprint that equals the twin's" in told(document)
    kinds["pid changed"] = {"f01": UNNOTICED}
    assert not fine(document)
    kinds["pid changed"] = {}
    kinds[CONTROL]["f02"] = NAMED
    assert not fine(document)
