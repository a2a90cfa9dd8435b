"""Pages of what was measured: all files, the words of the documents' tables, honest verdicts, in order in a browser."""

from __future__ import annotations

import copy
import html as markup
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proving_ground.reports.verdicts import FAIL, PASS, UNKNOWN
from tests.reports import geometry
from tests.reports.test_browser import browser as browser  # noqa: PLC0414 - the fixture
from tests.reports.test_browser import show
from tests.reports.test_geometry import WINDOWS, answer_and_picture, screenshot, unfolded
from tests.validations import answers, pages, pictures, tables
from tests.validations.markdown import blocks, inline
from tests.validations.sitting import MEASURED

Changed = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("pages")
    assert pages.main(["--out", str(out)]) == 0
    return out


KNOWN = [it for it in pages.PAGES if tables.measured(it)]
"""Those that were measured."""


def words(text: str) -> str:
    """What a reader sees of HTML, without the signs that only keep words together."""
    bare = markup.unescape(re.sub(r"<[^>]+>", " ", text)).replace("\N{WORD JOINER}", "")
    return " ".join(bare.split())


def test_every_measured_file_has_its_page_and_its_values_beside_it(folder: Path) -> None:
    files = {it.stem for it in MEASURED.glob("*.json")}
    assert set(KNOWN) == files
    assert set(tables.TABLES) - {"matrix-targets"} <= set(pages.PAGES)
    assert {it.stem for it in folder.glob("*.html")} == files | {"index"}
    assert all((folder / f"{name}.json").read_bytes() == (MEASURED / f"{name}.json").read_bytes() for name in files)


def test_the_index_says_of_each_what_was_asked_and_what_came(folder: Path) -> None:
    rows = (folder / "index.html").read_text().split("<tr>")[2:]
    assert len(rows) == len(KNOWN)
    for name, row in zip(KNOWN, rows, strict=True):
        found = pages.PAGES[name].answer(tables.measured(name))
        assert f'href="{name}.html"' in row
        for said in (found.number, found.ends, found.n, found.asked, found.measured, found.verdict):
            assert " ".join(said.split()) in words(row), (name, said)
        assert pages.has_changed(tables.measured(name)) in words(row)


@pytest.mark.parametrize("name", [it for it in KNOWN if it in tables.TABLES])
def test_a_page_has_the_table_of_the_documents_word_for_word(folder: Path, name: str) -> None:
    text = words((folder / f"{name}.html").read_text())
    for it in blocks(tables.TABLES[name](tables.measured(name))):
        for row in it.rows:
            assert " ".join(words(cell) for cell in row if cell) in text


def test_what_was_not_measured_has_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "measured").mkdir()
    kept = (MEASURED / "accuracy.json").read_text()
    (tmp_path / "measured" / "accuracy.json").write_text(kept)
    for module in (tables, pages):
        monkeypatch.setattr(module, "MEASURED", tmp_path / "measured")
    (tmp_path / "measured" / "README.md").write_text("")
    index = pages.write(tmp_path / "out")
    assert {it.name for it in index.parent.iterdir()} == {"index.html", "accuracy.html", "accuracy.json"}
    assert "1 of 1 1 pass" in words(index.read_text())


def wrong_trial(document: dict[str, Any]) -> None:
    document["cells"]["hang"]["runs"][0]["trials"][0]["outcome"] = "wrong"


def few_jobs(document: dict[str, Any]) -> None:
    document["cells"]["hang"]["runs"].pop()


def one_different(document: dict[str, Any]) -> None:
    document["cells"]["schedules"][7]["outcome"] = "different"


def all_rounds(document: dict[str, Any]) -> None:
    """As if 20 rounds had been like the first of ResNet-50, whose interval lies above each threshold."""
    runs = document["cells"].pop("resnet50")["runs"]
    cell = document["cells"]["digits"]
    cell["runs"] = [runs[number % 3] for number in range(20)]
    document["plan"]["cells"] = ["digits"]


def one_low(document: dict[str, Any]) -> None:
    all_rounds(document)
    document["cells"]["digits"]["bars"]["8"] = 0.999


def a_defect_recovered(document: dict[str, Any]) -> None:
    next(it for it in document["cells"].values() if it["effective"])["outcome"] = "recovered"


def a_late_alert(document: dict[str, Any]) -> None:
    document["cells"]["runs"][0]["faults"][0]["late"] = ["WorkersRestarted"]


def bad_checkpoint(document: dict[str, Any]) -> None:
    document["writers"]["proving-ground"]["bad"] = 1


def missed_mutant(document: dict[str, Any]) -> None:
    document["mutants"]["no sync of data"]["bad"] = 0


def costly(document: dict[str, Any]) -> None:
    document["cells"]["live"] = [[1.05 * it for it in own] for own in document["cells"]["live"]]


def an_alarm(document: dict[str, Any]) -> None:
    document["cells"]["live"][0]["evictions"] = 1


def half_an_hour(document: dict[str, Any]) -> None:
    del document["cells"]["live"][1]


def stuck(document: dict[str, Any]) -> None:
    document["cells"]["live"]["kinds"]["hang"]["stuck"] = 1


def three_runs(document: dict[str, Any]) -> None:
    for cell in document["cells"].values():
        cell["runs"] = [copy.deepcopy(cell["runs"][0]) for _ in range(3)]


def slow_up(document: dict[str, Any]) -> None:
    document["cells"]["whole"]["runs"][0]["up_s"] = 61.0


def slow_save(document: dict[str, Any]) -> None:
    document["rounds"] = [it | {"block_s": 0.07} for it in document["rounds"]]


def not_found(document: dict[str, Any]) -> None:
    document["plants"]["slow-node"]["found"] = False


def ours_stuck(document: dict[str, Any]) -> None:
    document["cells"]["restart"]["trials"][0]["outcome"] = "stuck"


@pytest.mark.parametrize(("name", "change", "verdict"), [
    ("recovery", wrong_trial, FAIL), ("recovery", few_jobs, UNKNOWN), ("same-training", one_different, FAIL),
    ("scaling", all_rounds, PASS), ("scaling", one_low, FAIL), ("trainers", a_defect_recovered, FAIL),
    ("alerts", a_late_alert, FAIL), ("checkpoints", bad_checkpoint, FAIL), ("checkpoints", missed_mutant, FAIL),
    ("step-cost", costly, FAIL), ("healthy", an_alarm, FAIL), ("healthy", half_an_hour, UNKNOWN),
    ("soak", stuck, FAIL), ("matrix", three_runs, FAIL), ("pulumi", slow_up, FAIL),
    ("checkpoint-speed", slow_save, FAIL), ("attribution", not_found, FAIL), ("shootout", ours_stuck, FAIL),
])  # fmt: skip
def test_a_verdict_follows_the_values(name: str, change: Changed, verdict: str) -> None:
    document = tables.measured(name)
    before = pages.PAGES[name].answer(document)
    change(document)
    after = pages.PAGES[name].answer(document)
    assert before.verdict != after.verdict == verdict
    assert bool(after.why) == (verdict != PASS)
    assert f"{verdict}: {name}" in pages.html(name, document)


def test_a_page_warns_where_its_code_has_changed_or_nobody_recorded_it() -> None:
    document = tables.measured("alerts")
    document["code"] = [{"commit": "a1b2", "paths": ["pyproject.toml"], "sha256": "0" * 16}]
    assert "Its code has changed since it was measured at a1b2" in words(pages.html("alerts", document))
    del document["code"]
    assert "Which code this was measured with was not recorded" in words(pages.html("alerts", document))


def test_a_recovery_that_never_came_is_drawn_as_a_cross_and_moves_no_axis() -> None:
    (made,) = pictures.of_shootout(tables.measured("shootout"))
    assert "torchrun: 1 never" in made.wide
    assert "no median" not in made.wide


def test_the_interval_of_trials_is_that_of_their_jobs() -> None:
    alike = [[1.0] * 5, [1.1] * 5, [1.2] * 5]
    low, high = answers.of_jobs(alike) or (0.0, 0.0)
    assert low < min(alike[0])  # three values, not fifteen
    assert high > max(alike[2])


def test_markdown_as_the_tables_use_it() -> None:
    table, text, items = blocks(
        "| | n |\n|---|--:|\n| `a` | 3 |\n\nOne **word**,\nand [a link](x.md).\n\n- one\n  more\n- two\n"
    )
    assert (table.heads, table.numeric, table.rows) == (("what", "n"), (False, True), [["<code>a</code>", "3"]])
    assert text.rows == [["One <b>word</b>, and a link."]]
    assert items.rows == [["one more"], ["two"]]
    head, below = blocks("Not counted:\n- a: b")
    assert (head.kind, below.kind, below.rows) == ("text", "list", [["a: b"]])


def test_hostile_words_stay_text() -> None:
    assert "<script>" not in inline("<script> `<b>` **<i>**")


@pytest.mark.browser
@pytest.mark.parametrize("name", [*KNOWN, "index"])
def test_a_page_is_in_order(browser: Any, folder: Path, name: str, tmp_path: Path) -> None:
    for window, (width, height) in WINDOWS.items():
        for scheme in ("light", "dark"):
            show(browser, folder / f"{name}.html", width, dark=scheme == "dark", height=height)
            screenshot(browser, f"validation-{name}-{window}-{scheme}", tmp_path)
            answer_and_picture(geometry.first_screen(browser), name)
            unfolded(browser, width)
            assert geometry.problems(browser) == [], (window, scheme)


@pytest.mark.browser
def test_values_and_pages_are_linked(browser: Any, folder: Path) -> None:
    show(browser, folder / "index.html", 1400)
    links = browser.execute_script("return [...document.querySelectorAll('td a')].map((it) => it.getAttribute('href'))")
    assert links == [f"{name}.html" for name in KNOWN]
    show(browser, folder / "recovery.html", 1400)
    found = "return [...document.querySelectorAll('.downloads a, .kicker a')].map((it) => it.getAttribute('href'))"
    targets = browser.execute_script(found)
    assert sorted(targets) == ["index.html", "recovery.json"]
    assert all((folder / it).exists() for it in targets)
    assert json.loads((folder / "recovery.json").read_text())["cells"]
