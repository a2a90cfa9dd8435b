"""The recovery report in a real Chromium: nothing overflows, no console error, no request leaves the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from proving_ground.reports.recovery import page, results
from tests.reports.recovery.synthetic import FAULTS, Knobs, make
from tests.reports.test_browser import BOXES, requests, show
from tests.reports.test_browser import browser as browser  # noqa: PLC0414 - the fixture

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = make(tmp_path_factory.mktemp("runs"), Knobs(faults=FAULTS, mutant="second_writer"))
    page.write(results.analyse(run))
    return run.report


@pytest.mark.parametrize("width", [1100, 360])
@pytest.mark.parametrize("dark", [False, True])
def test_charts_are_there_and_nothing_overflows(browser: Any, file: Path, width: int, dark: bool) -> None:  # noqa: FBT001
    show(browser, file, width, dark=dark)
    boxes = [box for box in browser.execute_script(BOXES) if box[0] != "none"]
    assert len(boxes) == 3  # the short waterfall, the long one, and one job's speed over time
    assert all(wide > 0.8 * min(width, 420) and high > 100 for _, wide, high in boxes)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.get_log("browser") == []


def test_no_request_leaves_the_file(browser: Any, file: Path) -> None:
    requests(browser)  # those of earlier tests
    show(browser, file, 1100)
    assert set(requests(browser)) <= {file.as_uri(), "data:,"}


def test_a_cell_of_the_matrix_leads_to_its_trials(browser: Any, file: Path) -> None:
    show(browser, file, 1100)
    browser.execute_script("document.querySelectorAll('details').forEach((it) => it.removeAttribute('open'))")
    browser.execute_script("document.querySelector('.cells li.cell a').click()")
    shown = "const row = document.querySelector(':target'); return getComputedStyle(row).display + row.innerText"
    told = browser.execute_script(shown)
    assert told.startswith("table-row")
    assert "worker_kill" in told
    assert browser.execute_script("return document.querySelector(':target').closest('details').open")
