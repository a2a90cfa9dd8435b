"""A section that fails costs a line on the page and a verdict; the page is made all the same, for both reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench import rundir
from proving_ground.bench.rundir import RunDir
from proving_ground.reports import publish
from proving_ground.reports.attempts import CHECK, Attempts, Section
from proving_ground.reports.cli import main
from proving_ground.reports.recovery import page as recovery_page
from proving_ground.reports.recovery import results as recovery_results
from proving_ground.reports.recovery import terminal as recovery_terminal
from proving_ground.reports.scaling import page, results
from proving_ground.reports.scaling import terminal as scaling_terminal
from tests.reports.recovery import synthetic as chaos
from tests.reports.synthetic import Knobs, make

Analyse = Callable[[RunDir], Any]


def boom(_: object) -> None:
    raise ZeroDivisionError("boom")


@pytest.fixture(scope="module")
def scaling_analysis(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return results.analyse(make(tmp_path_factory.mktemp("scaling"), Knobs(nodes=(1, 2))))


@pytest.fixture(scope="module")
def recovery_analysis(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return recovery_results.analyse(chaos.make(tmp_path_factory.mktemp("chaos"), chaos.Knobs()))


def published(analysis: Any, kind: publish.Kind) -> tuple[list[str], str]:
    """(what the check of the report says, the page)."""
    verdicts = publish.publish(analysis, kind, "x", html=True)
    return [v["why"] for v in verdicts if v["check"] == CHECK], analysis.run.report.read_text()


def broken(sections: dict[str, Section], key: str) -> dict[str, Section]:
    return {**sections, key: Section(sections[key].name, boom, sections[key].instead)}


@pytest.mark.parametrize("key", page.SECTIONS)
def test_every_section_of_a_scaling_report_may_fail(scaling_analysis: Any, key: str) -> None:
    kind = publish.Kind(broken(page.SECTIONS, key), page.write, scaling_terminal.show)
    said, text = published(scaling_analysis, kind)
    line = f"this section could not be made: {page.SECTIONS[key].name}: ZeroDivisionError: boom"
    assert said == [line]
    assert line in text
    document = json.loads(scaling_analysis.run.results.read_text())
    assert [v["verdict"] for v in document["verdicts"] if v["check"] == CHECK] == ["unknown"]


@pytest.mark.parametrize("key", recovery_page.SECTIONS)
def test_every_section_of_a_recovery_report_may_fail(recovery_analysis: Any, key: str) -> None:
    kind = publish.Kind(broken(recovery_page.SECTIONS, key), recovery_page.write, recovery_terminal.show)
    said, text = published(recovery_analysis, kind)
    line = f"this section could not be made: {recovery_page.SECTIONS[key].name}: ZeroDivisionError: boom"
    assert said == [line]
    assert line in text


def test_a_whole_report_says_nothing_of_it(scaling_analysis: Any) -> None:
    kind = publish.Kind(page.SECTIONS, page.write, scaling_terminal.show)
    assert published(scaling_analysis, kind)[0] == []
    assert Attempts().made("x", lambda: 3, 0) == 3


@pytest.mark.parametrize(
    "part", ["proving_ground.reports.recovery.alerts.judge", "proving_ground.reports.recovery.healthy.step_times"]
)
def test_a_figure_of_a_recovery_report_may_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    run = chaos.make(tmp_path, chaos.Knobs())
    monkeypatch.setattr(part, lambda *_: boom(None))
    assert [v["verdict"] for v in recovery_results.analyse(run).verdicts if v["check"] == CHECK] == ["unknown"]


def rewritten(run: RunDir, change: Callable[[dict[str, Any]], None]) -> None:
    """Change every event of a run's history, and seal it again."""
    records = [json.loads(line) for line in run.history.read_text().splitlines()]
    for record in records:
        change(record)
    run.history.write_text("".join(json.dumps(record) + "\n" for record in records))
    rundir.seal(run, complete=True)


def bare(record: dict[str, Any]) -> None:
    """What a trainer of a user's own tells: no marks, no parts."""
    if record["event"] == "step":
        for name in [key for key in record if key.endswith(("_t", "_s"))]:
            del record[name]


def test_a_trainer_that_says_little_gets_its_recovery_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = chaos.make(tmp_path, chaos.Knobs())
    rewritten(run, bare)
    main([str(run.path)])
    assert "could not be made" not in capsys.readouterr().err
    assert [it["why"] for it in json.loads(run.results.read_text())["verdicts"] if it["check"] == CHECK] == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "NaN", "1e999"])
@pytest.mark.parametrize("field", ["loss", "lr", "samples", "comm_s", "grad_norm"])
def test_a_number_that_is_none_never_costs_the_report(tmp_path: Path, field: str, value: object) -> None:
    run = chaos.make(tmp_path / "chaos", chaos.Knobs())
    rewritten(run, lambda record: record.update({field: value}) if record["event"] == "step" else None)
    assert main([str(run.path)]) in (0, 1)
    assert run.report.exists()
    run = make(tmp_path / "scaling", Knobs(nodes=(1, 2), repeats=1))
    rewritten(run, lambda record: record.update({field: value}) if record["event"] == "step" else None)
    assert main([str(run.path)]) in (0, 1)
    assert run.report.exists()
