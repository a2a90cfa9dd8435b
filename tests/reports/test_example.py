"""The README's pictures: of real runs that passed, in one size, and small."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from proving_ground.bench.rundir import RunDir
from proving_ground.reports import document
from proving_ground.reports.scaling import page, results
from tests.reports.example import HEIGHT, MOST_BYTES, ROOT, WIDTH, main
from tests.reports.synthetic import Knobs, make
from tests.reports.test_browser import browser as browser  # noqa: PLC0414 - the fixture

PICTURE = re.compile(r"!\[[^]]*\]\(([^)]+\.png)\)")
SMALL = Knobs(nodes=(1, 2), steps=12, scalings=("weak",))


def reported(run: RunDir) -> Path:
    analysis = results.analyse(run)
    document.write(run, analysis.results)
    page.write(analysis)
    return run.path


def size(picture: Path) -> tuple[int, int]:
    with Image.open(picture) as found:
        return found.size


def test_the_readme_shows_small_pictures_of_one_size() -> None:
    shown = PICTURE.findall((ROOT / "README.md").read_text())
    assert "reports/recovery/example.png" in shown
    for name in shown:
        assert (ROOT / name).stat().st_size <= MOST_BYTES
        assert size(ROOT / name) == (WIDTH, HEIGHT)


def test_a_run_that_did_not_pass_is_not_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failed = reported(make(tmp_path, Knobs(nodes=(1, 2), steps=12, kill="t001")))
    assert main([str(failed)], tmp_path) == 2
    said = capsys.readouterr().err
    assert "a picture needs a complete run whose verdict is pass; this one is fail" in said
    assert said.count("\n") == 1
    assert main([str(tmp_path / "none")], tmp_path) == 2
    assert main([], tmp_path) == 2
    assert not list(tmp_path.rglob("*.png"))


@pytest.mark.browser
@pytest.mark.usefixtures("browser")  # skips where there is none
def test_a_run_that_passed_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "reports").mkdir()
    assert main([str(reported(make(tmp_path, SMALL)))], tmp_path) == 0
    made = tmp_path / "reports" / "example.png"
    assert capsys.readouterr().out.strip() == str(made)
    assert size(made) == (WIDTH, HEIGHT)
    assert 10_000 < made.stat().st_size <= MOST_BYTES
