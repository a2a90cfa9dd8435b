"""The page as text: the same bytes every time, nothing from outside, gaps where nothing was measured."""

from __future__ import annotations

import base64
import csv
import io
import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proving_ground.reports import numbers
from proving_ground.reports.scaling import charts, page, results, words
from proving_ground.reports.scaling.results import Analysis
from tests.reports.synthetic import Knobs, make

SMALL = Knobs(nodes=(1, 2), steps=12, bars={2: 0.9}, accuracy=0.08, baseline=0.1)


@pytest.fixture(scope="module")
def analysis(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return results.analyse(make(tmp_path_factory.mktemp("runs"), SMALL))


@pytest.fixture(scope="module")
def text(analysis: Analysis) -> str:
    return page.html(analysis)


def test_same_directory_same_bytes(analysis: Analysis, text: str) -> None:
    assert page.html(results.analyse(analysis.run)) == text


def test_same_bytes_wherever_the_directory_lies(tmp_path: Path, text: str) -> None:
    assert page.html(results.analyse(make(tmp_path / "elsewhere", SMALL))) == text


def test_nothing_is_loaded_from_outside(text: str) -> None:
    used = re.findall(r'(?:src|href)\s*=\s*"([^"]*)"', text) + re.findall(r"url\(([^)]*)\)", text)
    assert all(address.startswith(("#", "data:")) for address in used), used
    assert not re.search(r"<link(?! rel=\"icon\")|<script src|@import|fetch\(|XMLHttp", text)


def test_ids_are_unique_and_references_resolve(text: str) -> None:
    ids = re.findall(r'\sid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    referenced = re.findall(r'href="#([^"]+)"', text) + re.findall(r"url\(#([^)]+)\)", text)
    assert set(referenced) <= set(ids)


def test_every_chart_has_a_title_a_description_and_a_sentence(text: str) -> None:
    drawings = re.findall(r"<svg .*?</svg>", text, re.DOTALL)
    assert len(drawings) == 12  # 6 charts, wide and narrow
    assert all("<title id=" in drawing and "<desc id=" in drawing for drawing in drawings)
    assert "#fe00" not in text  # every stand-in colour became a variable
    assert all(re.search(r"\w+\.", caption) for caption in re.findall(r"<figcaption>(.*?)</figcaption>", text))


def test_answer_stands_first(text: str) -> None:
    heading = re.search(r"<h1>(.*?)</h1>", text)
    assert heading
    assert heading[1].replace("\N{NO-BREAK SPACE}", " ").startswith("On 2 nodes, digits keeps 9")
    assert text.index("<h1>") < text.index('class="chip pass"') < text.index("<svg")


def test_a_model_below_its_baseline_is_said_to_be(text: str) -> None:
    assert "does not beat the baseline (0.1)" in text


def test_values_can_be_taken_from_the_page(analysis: Analysis, text: str) -> None:
    document, figures, trials = (
        base64.b64decode(re.findall(rf'download="{name}" href="data:[^,]*,([^"]*)"', text)[0]).decode()
        for name in ("results.json", "figures.csv", "trials.csv")
    )
    assert json.loads(document) == analysis.results
    rows = list(csv.DictReader(io.StringIO(figures)))
    assert len(rows) == len(analysis.figures)
    assert float(rows[0]["median"]) == analysis.figures[0]["median"]
    assert {row["state"] for row in csv.DictReader(io.StringIO(trials))} == {"counted"}


def test_a_bare_trainer_leaves_gaps_not_zeros(tmp_path: Path) -> None:
    bare = results.analyse(make(tmp_path, Knobs(nodes=(1, 2), steps=12, bare=True, machine=False)))
    made = page.html(bare)
    assert "a gap, not zero" in made
    assert "there is no timeline" in made
    assert not [f for f in bare.figures if f["name"] in ("time_share", "lost")]


def test_a_run_of_which_nothing_is_left_still_has_a_page(tmp_path: Path) -> None:
    run = make(tmp_path, Knobs(nodes=(1, 2), steps=12, kill="t001"))
    made = page.html(results.analyse(run))
    assert "This run failed. This run measured no scaling: trial t001 failed" in made


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    run = make(tmp_path, Knobs(nodes=(1, 2), steps=12, cases=("<script>alert(1)</script>",), imitated=("a <b> & $x$",)))
    made = page.html(results.analyse(run))
    assert "<script>alert" not in made
    assert "A &lt;b&gt; &amp; $x$" in made


def test_page_is_small(text: str) -> None:
    assert len(text.encode()) < 3_000_000


def test_one_reason_for_many_sizes_is_told_once(analysis: Analysis) -> None:
    where = [{"case": "digits", "nodes": nodes} for nodes in (8, 2, 1)]
    verdicts = [{"check": "near_bound", "verdict": "unknown", "why": "one repeat", "where": it} for it in where]
    other = {"check": "completed", "verdict": "unknown", "why": "trials are missing", "where": {}}
    told = words.reasons(replace(analysis, results={**analysis.results, "verdicts": [*verdicts, other]}), "unknown")
    assert told == ["digits at 1, 2 and 8 nodes: one repeat", "trials are missing"]


@pytest.mark.parametrize(
    ("value", "said"),
    [(0.04312, "0.0431"), (12.54, "12.5"), (1253.2, "1,253"), (2.0, "2"), (0.0, "0"), (-3.456, "−3.46"),
     (1e6, "1,000,000"), (float("nan"), "–")],
)  # fmt: skip
def test_short_numbers_have_no_exponent(value: float, said: str) -> None:
    assert numbers.short(value) == said


@given(st.lists(st.floats(-1e3, 1e3), max_size=5), st.floats(1.0, 100.0))
def test_labels_are_moved_apart_and_no_further_than_needed(heights: list[float], gap: float) -> None:
    moved = charts.apart(heights, gap)
    order = sorted(range(len(heights)), key=heights.__getitem__)
    assert all(moved[above] - moved[below] >= gap - 1e-6 for below, above in itertools.pairwise(order))
    assert sum(moved) == pytest.approx(sum(heights), abs=1e-6)  # as much up as down
    if all(heights[above] - heights[below] >= gap for below, above in itertools.pairwise(order)):
        assert moved == pytest.approx(heights)
