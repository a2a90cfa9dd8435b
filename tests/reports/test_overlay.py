"""Runs over each other on one page: answers, what differs around them, and what cannot be compared."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from proving_ground.bench.rundir import RunDir
from proving_ground.reports.cli import main
from proving_ground.reports.comparing import overlay
from tests.reports.faked import ProfiledCluster, case, faked, suite
from tests.reports.recovery import synthetic
from tests.reports.rewritten import resealed


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunDir]:
    root = tmp_path_factory.mktemp("runs")
    made = [faked(root, suite(case(), nodes=(1, 2)), ProfiledCluster(seed=1, slow=slow)) for slow in (1.0, 1.0, 1.6)]
    origin = made[2].read("provenance")
    origin["packages"] = {**origin["packages"], "torch": "0.0.1"}
    made[2].write("provenance", origin)
    resealed(made[2])
    return made


@pytest.fixture(scope="module")
def text(runs: list[RunDir], tmp_path_factory: pytest.TempPathFactory) -> str:
    place = tmp_path_factory.mktemp("pages") / "compared.html"
    nowhere = str(place.parent)
    assert main(["compare", *(str(run.path) for run in runs), "--runs", nowhere, "--html", str(place)]) == 1
    return place.read_text()


def test_each_run_is_judged_against_the_first(text: str, runs: list[RunDir]) -> None:
    assert "<h1>Against the first run: 1 worse, 1 cannot tell</h1>" in text
    assert f"{runs[0].run_id} → {runs[2].run_id}: worse: " in text


def test_all_runs_are_in_one_chart(text: str, runs: list[RunDir]) -> None:
    drawing = text[text.index('<figure id="overlay-throughput">') :]
    drawing = drawing[: drawing.index("</svg>")]
    assert all(f"<title>{run.run_id}, 2 nodes: " in drawing for run in runs)


def test_what_differs_around_them_stands_first(text: str) -> None:
    part = text[text.index('id="environment"') :]
    differs, alike = part[: part.index("<details>")], part[part.index("<details>") : part.index("</details>")]
    assert "package: torch<" in differs
    assert "0.0.1" in differs
    assert "package: torch<" not in alike
    assert "Python" in alike


def test_the_same_runs_give_the_same_page(runs: list[RunDir], text: str, tmp_path: Path) -> None:
    again = tmp_path / "again.html"
    main(["compare", *(str(run.path) for run in runs), "--runs", str(tmp_path), "--html", str(again)])
    assert again.read_text() == text


def test_recoveries_are_shown_and_not_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = synthetic.make(tmp_path / "a"), synthetic.make(tmp_path / "b", synthetic.Knobs(steps=140))
    place = tmp_path / "c.html"
    assert main(["compare", str(one.path), str(other.path), "--html", str(place)]) == 0
    assert "not judged" in capsys.readouterr().out
    made = place.read_text()
    assert "2 chaos runs side by side; not judged" in made
    assert 'id="overlay-recovery"' in made
    assert made.count("1.40 s</title>") >= 6


@pytest.mark.parametrize("words", [[], ["--html", "x.html"]])
def test_what_cannot_be_compared_is_refused_in_one_line(
    runs: list[RunDir], tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    chaos = synthetic.make(tmp_path)
    assert main(["compare", str(runs[0].path), str(chaos.path), *words]) == 2
    assert "a chaos run and a benchmark cannot be compared" in capsys.readouterr().err
    assert main(["compare", str(chaos.path), str(chaos.path), *words[:0]]) == 2
    assert "add --html FILE" in capsys.readouterr().err
    assert main(["compare", *[str(runs[0].path)] * (overlay.MOST + 1)]) == 2
    assert f"at most {overlay.MOST}" in capsys.readouterr().err


def test_what_was_not_recorded_is_a_gap(runs: list[RunDir]) -> None:
    bare = overlay.RunShown("b", [], "fake", {})
    full = overlay.RunShown("a", [], "fake", json.loads((runs[0].path / "provenance.json").read_text()))
    rows = {row["name"]: row for row in overlay.environments([full, bare])}
    assert rows["package: torch"]["values"][1] == "–"
    assert rows["package: torch"]["differs"]
    assert not rows["cluster"]["differs"]


def test_two_cases_of_one_run_share_their_panels(tmp_path: Path) -> None:
    run = faked(tmp_path, suite(case("one"), case("two"), nodes=(1, 2), repeats=2), ProfiledCluster(seed=1))
    place = tmp_path / "c.html"
    main(["compare", f"{run.path}:one", f"{run.path}:two", "--runs", str(tmp_path), "--html", str(place)])
    text = place.read_text()
    drawing = text[text.index('<figure id="overlay-throughput">') :]
    drawing = drawing[: drawing.index("</svg>")]
    assert drawing.count(">weak</text>") == 1
    assert all(f"<title>{run.run_id}:{name}, 2 nodes: " in drawing for name in ("one", "two"))
