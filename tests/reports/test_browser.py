"""The page in a real Chromium: no console errors, no request leaves the file; narrow, dark, sorted and on paper."""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from proving_ground.reports.scaling import page, results
from proving_ground.reports.scaling.cost import Price
from tests.reports.faked import case, faked, suite
from tests.reports.synthetic import Knobs, make

pytestmark = pytest.mark.browser
CHROMIUM, DRIVER = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
NO_CHROMIUM = "no chromium with chromedriver on PATH (Debian: chromium, chromium-driver)"
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip
BOXES = """return [...document.querySelectorAll("figure svg")].map((svg) => {
  const box = svg.getBoundingClientRect();
  return [getComputedStyle(svg.parentElement).display, box.width, box.height];
});"""


LABELS = """return [...document.querySelectorAll("figure svg")].map((svg) =>
  [...svg.querySelectorAll("text")].filter((text) => ["weak", "strong"].includes(text.textContent.trim()))
    .map((text) => text.parentElement.getBoundingClientRect()).map((box) => [box.left, box.right, box.top, box.bottom])
);"""


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    knobs = Knobs(steps=12, cases=("digits", "resnet50"), accuracy=0.97, baseline=0.1, steal=0.1, steal_repeats=(2,))
    analysis = results.analyse(make(tmp_path_factory.mktemp("runs"), knobs))
    page.write(analysis)
    return analysis.run.report


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    if not CHROMIUM or not DRIVER:
        if os.environ.get("CI") == "true":
            pytest.fail(NO_CHROMIUM)
        pytest.skip(NO_CHROMIUM)
    driver = opened(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


def opened(profile: Path) -> Any:
    """A Chromium of one's own; whoever opens it calls `quit`.

    Raises:
        OSError: there is none.
    """
    if not CHROMIUM or not DRIVER:
        raise OSError(NO_CHROMIUM)
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    return webdriver.Chrome(options=options, service=Service(DRIVER))


def show(browser: Any, file: Path, width: int, *, dark: bool = False, height: int = 800) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
    browser.get(file.as_uri())


def requests(browser: Any) -> list[str]:
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]


@pytest.mark.parametrize("width", [1100, 360])
def test_lines_that_end_close_together_can_both_be_read(browser: Any, tmp_path: Path, width: int) -> None:
    equal = results.analyse(make(tmp_path, Knobs(nodes=(1, 2), comm={1: 0.0, 2: 0.0}, steps=12)))
    page.write(equal)
    show(browser, equal.run.report, width)
    labels = [found for found in browser.execute_script(LABELS) if any(right > left for left, right, _, _ in found)]
    assert [len(found) for found in labels] == [2]
    (_, _, top, bottom), (_, _, other_top, other_bottom) = labels[0]
    assert bottom <= other_top or other_bottom <= top


@pytest.mark.parametrize(("width", "shown"), [(1100, 6), (360, 6)])
def test_charts_are_there_and_nothing_overflows(browser: Any, file: Path, width: int, shown: int) -> None:
    show(browser, file, width)
    boxes = [box for box in browser.execute_script(BOXES) if box[0] != "none"]
    assert len(boxes) == shown
    assert all(wide > 0.8 * min(width, 420) and high > 100 for _, wide, high in boxes)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.get_log("browser") == []


def test_no_request_leaves_the_file(browser: Any, file: Path) -> None:
    requests(browser)  # those of earlier tests
    show(browser, file, 1100)
    assert set(requests(browser)) <= {file.as_uri(), "data:,"}


def test_dark_mode_has_dark_paper_and_light_ink(browser: Any, file: Path) -> None:
    brightness = []
    for dark in (False, True):
        show(browser, file, 1100, dark=dark)
        script = "const s = getComputedStyle(document.body); return [s.backgroundColor, s.color];"
        paper, ink = (sum(json.loads(f"[{c[c.index('(') + 1 : -1]}]")[:3]) for c in browser.execute_script(script))
        brightness.append((paper, ink))
        line = browser.execute_script("return getComputedStyle(document.querySelector('figure svg text')).fill")
        assert line.startswith("rgb")
    (light_paper, light_ink), (dark_paper, dark_ink) = brightness
    assert light_paper > 700 > light_ink
    assert dark_paper < 150 < dark_ink


def test_tables_sort_when_a_head_is_pressed(browser: Any, file: Path) -> None:
    show(browser, file, 1100)
    table = "document.querySelector('table.sortable')"
    column = f"return [...{table}.tBodies[0].rows].map((row) => row.cells[0].textContent)"
    press = f"{table}.tHead.rows[0].cells[0].querySelector('button').click();"
    assert browser.execute_script(press + press + column) == ["8", "4", "2", "1"]
    assert browser.execute_script(f"return {table}.tHead.rows[0].cells[0].ariaSort") == "descending"


def test_prints_on_paper(browser: Any, file: Path) -> None:
    show(browser, file, 1100, dark=True)
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", {})["data"])
    assert printed.startswith(b"%PDF")
    assert len(printed) > 20_000


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with every section: bounds, predictions, advice, cost."""
    asked = suite(case(link_mbps=300), nodes=(1, 2, 4, 8), repeats=2, predict=True)
    analysis = results.analyse(faked(tmp_path_factory.mktemp("runs"), asked), Price(2.5, 48))
    page.write(analysis)
    return analysis.run.report


@pytest.mark.parametrize("width", [1100, 360])
def test_a_page_with_every_section_fits(browser: Any, predicted: Path, width: int) -> None:
    show(browser, predicted, width)
    heads = browser.execute_script("return [...document.querySelectorAll('h2, h3')].map((it) => it.textContent.trim())")
    for title in ("Against what the links allow", "Predicted, then measured", "What would help", "Cost"):
        assert title in heads
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.get_log("browser") == []
