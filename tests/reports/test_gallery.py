"""The list of all runs: a row each, curves of what was measured alike, links both ways, and runs that are damaged."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from proving_ground.bench.rundir import RunDir
from proving_ground.reports import document, gallery, layout, verdicts
from proving_ground.reports.cli import main
from proving_ground.reports.scaling import page, results
from tests.reports.faked import ProfiledCluster, case, faked, suite
from tests.reports.synthetic import Knobs, make

NOW_S = 1767323045.0 + 7200
SMALL = Knobs(nodes=(1, 2), steps=12, scalings=("weak",), bars={2: 0.9})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight of one configuration, slower from the fifth on; one of another suite; one that cannot be read."""
    root = tmp_path_factory.mktemp("runs")
    for seed in range(8):
        run = faked(
            root, suite(case(), nodes=(1, 2), repeats=2), ProfiledCluster(seed=seed, slow=1.1 if seed > 3 else 1.0)
        )
        document.write(run, results.analyse(run).results)
    other = make(root, SMALL)
    document.write(other, results.analyse(other).results)
    broken = root / "scaling" / "20260102T030406Z-dead"
    broken.mkdir()
    (broken / "spec.json").write_text("{}")
    (broken / "provenance.json").write_text("[")
    return root


@pytest.fixture(scope="module")
def text(runs: Path) -> str:
    return gallery.write(runs, NOW_S).read_text()


def test_every_run_has_a_row_with_its_answer(text: str) -> None:
    table = text[text.index("<tbody>") : text.index("</tbody>")]
    assert table.count("<tr>") == 10
    (row,) = [line for line in table.split("<tr>") if "20260102T030405Z-abcd" in line]
    assert "✓ pass" in row
    assert re.search(r"efficiency.9\d\.\d+.%", row)
    assert "digits, weak, 2" in row
    assert "2026-01-02 03:04" in row
    assert ">2 h<" in row


def test_a_run_that_cannot_be_read_says_so(text: str) -> None:
    (row,) = [line for line in text.split("<tr>") if line.startswith('<td class="tight">20260102T030406Z-dead')]
    assert "cannot be read" in row


def test_a_step_in_the_series_is_found_and_drawn(text: str) -> None:
    part = text[text.index('id="suite-faked"') :]
    (row,) = [
        line for line in part.split("<tr>") if line.startswith("<td>throughput") and "2\N{NO-BREAK SPACE}nodes" in line
    ]
    assert row.count("<circle") == 8
    assert re.search(r"−9\.\d.% from \d{8}T", row)
    assert all(f"<title>{name}" in row for name in re.findall(r"\d{8}T\d{6}Z-[0-9a-f]{4}(?=: )", row))


def test_of_few_runs_no_step_is_told(runs: Path) -> None:
    found = gallery.measured_alike([RunDir(it) for it in sorted((runs / "faked").glob("2*"))])[:4]
    assert len(found) == 4
    assert all(it["found"].startswith("fewer than 6 runs") for it in gallery.lines(found))


def test_pages_and_list_are_linked_and_the_rest_stays_byte_for_byte(tmp_path: Path) -> None:
    run = make(tmp_path, SMALL)
    analysis = results.analyse(run)
    page.write(analysis)
    alone = run.report.read_text()
    assert alone == page.html(analysis)
    document.write(run, analysis.results)
    place = gallery.write(tmp_path, NOW_S)
    assert run.report.read_text() == alone.replace(layout.INDEX, layout.ALL_RUNS)
    assert (run.report.parent / "../../index.html").resolve() == place.resolve()
    assert f'href="scaling/{run.run_id}/report.html"' in place.read_text()
    page.write(analysis)  # a page that is made later has the link as well
    assert run.report.read_text() == alone.replace(layout.INDEX, layout.ALL_RUNS)
    assert gallery.write(tmp_path, NOW_S).read_text() == place.read_text()


def test_as_a_command(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", "--runs", str(runs)]) == 0
    assert capsys.readouterr().out.strip() == str(runs / "index.html")
    assert main(["index", "--runs", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"reports: no runs under {tmp_path}")


def test_hostile_names_stay_text() -> None:
    made = gallery.spark([("<script>", 1.0), ("b", 2.0)], "<b>")
    assert "<script>" not in made
    assert "<b>" not in made


@pytest.mark.parametrize(("seconds", "said"), [(5, "now"), (120, "2 min"), (7200, "2 h"), (200_000, "2 d")])
def test_ages(seconds: float, said: str) -> None:
    assert gallery.age(seconds) == said


def test_a_run_without_events_has_no_duration(tmp_path: Path) -> None:
    run = make(tmp_path, SMALL)
    found = gallery.duration(run)
    assert found is not None
    assert found > 1
    file = run.events / "harness.jsonl"
    file.write_text(file.read_text()[:-20])  # cut off
    assert gallery.duration(run) is None
    file.unlink()
    assert gallery.duration(run) is None
    assert gallery.entry(run).verdict in ("", verdicts.PASS)


@pytest.mark.parametrize(
    "damage", ["[]", "{}", '{"figures": [1], "verdicts": []}', '{"figures": 3, "verdicts": [{}]}', "{"]
)
def test_a_report_that_was_damaged_spoils_its_own_row_only(tmp_path: Path, damage: str) -> None:
    run = make(tmp_path, SMALL)
    document.write(run, results.analyse(run).results)
    other = RunDir(tmp_path / "scaling" / "20260102T030406Z-abce")
    shutil.copytree(run.path, other.path)
    other.results.write_text(damage)
    text = gallery.write(tmp_path, NOW_S).read_text()
    (row,) = [line for line in text.split("<tr>") if line.startswith(f'<td class="tight">{other.run_id}')]
    assert "cannot be read" in row
    assert "✓ pass" in text
