"""The judgement's parts go on one after the other, and its verdict is the worst of theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.spec import SpecError
from tests.validations import depends, judgement, pages, tables
from tests.validations.judgement import PARTS, main, validation
from tests.validations.sitting import State


class Measuring:
    """Stands for a part: each sitting does as much as it is told to."""

    def __init__(self, file: Path, each: int, bad: int) -> None:
        self.FILE, self.each, self.bad = file, each, bad
        self.asked: list[list[str]] = []

    def main(self, argv: list[str]) -> int:
        """One sitting."""
        self.asked.append(argv)
        self.FILE.write_text(
            json.dumps({"cells": {}, "done": self.state(judgement.measured(self.FILE.stem)).done + self.each})
        )
        return 0

    def state(self, document: dict[str, Any]) -> State:
        """How far it is."""
        return State(document.get("done", 0), 2, "cells", self.bad)


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Measuring]:
    """Parts that are done after one sitting."""
    made = {name: Measuring(tmp_path / f"{name}.json", 2, 0) for name in PARTS}
    monkeypatch.setattr(judgement, "validation", made.__getitem__)
    monkeypatch.setattr(depends, "has_changed", lambda document: bool(document.get("stale")))
    return made


def test_every_part_has_its_sitting_and_none_a_second_one_when_it_is_complete(
    parts: dict[str, Measuring], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--minutes", "5"]) == 0
    assert "judgement: pass" in capsys.readouterr().out
    assert main(["--minutes", "5"]) == 0
    assert [len(it.asked) for it in parts.values()] == [1] * len(PARTS)
    assert parts["suites"].asked == [[]]
    assert parts["aa"].asked[0][0] == "--minutes"


def test_a_part_that_is_missing_is_unknown_and_no_pass(
    parts: dict[str, Measuring], capsys: pytest.CaptureFixture[str]
) -> None:
    parts["tampering"].each = 1
    assert main(["--minutes", "5"]) == 1
    said = capsys.readouterr().out
    assert "tampering     unknown: 1 of 2 cells" in said
    assert "judgement: unknown; the same command goes on" in said
    assert main(["--minutes", "5"]) == 0


def test_what_was_measured_with_other_code_is_unknown_and_due(parts: dict[str, Measuring]) -> None:
    assert main(["--minutes", "5"]) == 0
    parts["aa"].FILE.write_text(json.dumps({"cells": {}, "done": 2, "stale": True}))
    assert judgement.verdict() == "unknown"
    assert main(["--minutes", "5"]) == 0  # measured anew
    assert [len(it.asked) for name, it in parts.items() if name != "aa"] == [1] * (len(PARTS) - 1)
    assert len(parts["aa"].asked) == 2


def test_one_part_that_is_not_as_it_must_be_fails_all(
    parts: dict[str, Measuring], capsys: pytest.CaptureFixture[str]
) -> None:
    parts["restart"].bad = 1
    assert main(["--minutes", "5"]) == 1
    said = capsys.readouterr().out
    assert "restart       fail: 2 of 2 cells, 1 not as they must be" in said
    assert "judgement: fail" in said


def test_only_some_parts_and_no_time_for_any(parts: dict[str, Measuring]) -> None:
    assert main(["--minutes", "5", "--only", "aa"]) == 1
    assert main(["--minutes", "0.5"]) == 1
    assert [name for name, it in parts.items() if it.asked] == ["aa"]
    with pytest.raises(SpecError, match="--minutes 0: must be above 0"):
        main(["--minutes", "0"])


@pytest.mark.parametrize("cells", [{}, {"worker": {"runs": [], "begun": 1}}, {"alike": {}, "slower": {}}])
def test_a_part_that_has_just_begun_is_not_measured_yet(
    cells: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (tables, pages):
        monkeypatch.setattr(module, "MEASURED", tmp_path)
    for name in PARTS:
        (tmp_path / f"{name.replace('_', '-')}.json").write_text(json.dumps({"command": "it", "cells": cells}))
    text = "".join(f"<!-- measured: {name} -->\n<!-- end -->\n" for name in ("headlines", "aa", "recovery", "scaling"))
    assert tables.rendered(text).count("Not measured yet.") == 3
    assert [file.name for file in pages.write(tmp_path / "pages").parent.iterdir()] == ["index.html"]


@pytest.mark.parametrize("name", PARTS)
def test_each_part_says_how_far_it_is(name: str) -> None:
    nothing = validation(name).state({"cells": {}})
    assert nothing.done == nothing.bad == 0
    assert nothing.whole >= 5
    assert nothing.verdict == "unknown"
    kept = validation(name).state(judgement.measured(name))
    assert kept.verdict == "fail" or not kept.bad, "a miss is published"
