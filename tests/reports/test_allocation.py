"""The time in the queue and what the site counted: told of the run, by both kinds of report, and in no trial."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from proving_ground.reports import allocation, gate
from proving_ground.reports.recovery import page as recovery_page
from proving_ground.reports.recovery import results as recovery
from proving_ground.reports.recovery import terminal as recovery_terminal
from proving_ground.reports.scaling import page, results, terminal
from tests.reports import synthetic
from tests.reports.recovery import synthetic as chaos
from tests.reports.rewritten import rewrite

Record = dict[str, Any]
OFF = "Slurm accounting storage is disabled"
TIME = "2026-11-25T17:34:{}+00:00"


def begin(elapsed_s: int = 90, state: str = "REQUEUED", end: str = TIME.format(59), **more: object) -> Record:
    return {
        "job": "7", "name": "proving-ground-r1", "state": state, "exit": "0:0", "submit": TIME.format("01"),
        "eligible": TIME.format("02"), "start": TIME.format("03"), "end": end, "elapsed_s": elapsed_s, "nodes": 4,
        "cpus": 256, "gpus": 0, "tres": "cpu=256", "hosts": "e[1-4]", **more,
    }  # fmt: skip


def queued(why: str, **more: object) -> Record:
    return {"event": "queued", "why": why, **more}


def up(queued_s: float | None = 41.4) -> Record:
    return {"event": "cluster_up", "seconds": 50.0, **({} if queued_s is None else {"queued_s": queued_s})}


def counted(*begins: Record, why: str = "") -> Record:
    return {"event": "accounting", "engine": "slurm", "begins": list(begins), "why": why}


WAITED = [queued("job 7 is pending: Priority"), queued("job 7 is pending: Resources"), up()]
TWICE = counted(begin(), begin(180, "CANCELLED by 0"))


def changed(*told: Record) -> Callable[[list[Record]], list[Record]]:
    """A run's records with these before its first trial, and those of the accounting at its end."""

    def change(records: list[Record]) -> list[Record]:
        first, last = records[0]["t"], records[-1]["t"]
        made = [{"t": last if it["event"] == "accounting" else first, "source": "harness", **it} for it in told]
        own = [it for it in records if it["event"] != "cluster_up"]
        return [own[0], *made, *own[1:]]

    return change


def plain(html: str) -> str:
    return html.replace("\N{NO-BREAK SPACE}", " ").replace("&nbsp;", " ")


def scaling(folder: Path, *told: Record) -> results.Analysis:
    knobs = synthetic.Knobs(nodes=(1, 2), repeats=2, scalings=("weak",))
    return results.analyse(rewrite(synthetic.make(folder, knobs), changed(*told)))


def recovered(folder: Path, *told: Record) -> recovery.Analysis:
    return recovery.analyse(rewrite(chaos.make(folder, chaos.Knobs(replays=False)), changed(*told)))


def values(analysis: results.Analysis | recovery.Analysis, name: str) -> dict[str, list[float]]:
    return {it["where"].get("of", ""): it["values"] for it in analysis.figures if it["name"] == name}


def test_the_queue_is_told_with_its_reasons_by_the_report_of_a_benchmark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    analysis = scaling(tmp_path, *WAITED, TWICE)
    assert values(analysis, "queued_s") == {"": [41.4]}
    terminal.show(analysis, "x")
    out = capsys.readouterr().out
    assert "In the queue 41 s: Priority, then Resources." in out
    assert "The site's accounting: 0.3 node-hours, 19.2 CPU-hours in 2 begins." in out
    shown = plain(page.html(analysis))
    assert "41 s: Priority, then Resources" in shown
    assert "What the site counted" in shown


def test_the_same_is_told_by_that_of_a_chaos_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    analysis = recovered(tmp_path, *WAITED, TWICE)
    assert values(analysis, "queued_s") == {"": [41.4]}
    assert values(analysis, "charged_hours") == {
        "node": pytest.approx([4 * 270 / 3600]), "CPU": pytest.approx([256 * 270 / 3600]),
    }  # fmt: skip
    recovery_terminal.show(analysis, "x")
    out = capsys.readouterr().out
    assert "In the queue 41 s: Priority, then Resources." in out
    assert "The site's accounting: 0.3 node-hours, 19.2 CPU-hours in 2 begins." in out
    shown = plain(recovery_page.html(analysis))
    assert "41 s: Priority, then Resources" in shown
    assert "CANCELLED by 0" in shown
    assert "2026-11-25 17:34:01 UTC" in shown
    assert "GPUs</th>" not in shown


def test_no_trial_is_longer_for_it(tmp_path: Path) -> None:
    plain, waited = scaling(tmp_path / "a"), scaling(tmp_path / "b", *WAITED, TWICE)
    mine = [it for it in waited.figures if it["name"] not in ("queued_s", "charged_hours")]
    assert mine == plain.figures
    broken, held = recovered(tmp_path / "c"), recovered(tmp_path / "d", *WAITED, TWICE)
    assert [it["timeline"] for it in broken.trials] == [it["timeline"] for it in held.trials]


def test_their_figures_can_be_asked_for() -> None:
    assert {"queued_s", "charged_hours"} <= set(gate.NAMES)


def test_a_node_that_was_lost_waits_in_its_recovery_and_not_for_the_run() -> None:
    told = [queued("n pods run: Unschedulable: 0/2 nodes"), up(3.21), queued("BeginTime", node="n2"), up(0.4)]
    assert [it.words for it in allocation.waits(told)] == ["3.2 s: Unschedulable: 0/2 nodes", "0.4 s"]


def test_older_runs_said_nothing_of_it(tmp_path: Path) -> None:
    analysis = recovered(tmp_path, queued("job 7 is pending: Resources"), up(None))
    assert values(analysis, "queued_s") == values(analysis, "charged_hours") == {}
    told = analysis.recorded.allocation
    assert [*allocation.facts(told), *allocation.lines(told)] == []


def test_a_site_that_counts_nothing_is_a_line_on_the_page_and_no_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    analysis = recovered(tmp_path, up(0.5), counted(why=OFF))
    assert values(analysis, "charged_hours") == {}
    recovery_terminal.show(analysis, "x")
    assert "ccounting" not in capsys.readouterr().out
    shown = plain(recovery_page.html(analysis))
    assert OFF in shown
    assert "What the site counted" not in shown
    assert analysis.recorded.warnings == []


@pytest.mark.parametrize(
    "told",
    [
        [up(), counted(begin(), begin(12, "RUNNING", end=""), why="5 s after the end of the run …")],  # not yet told
        [up(), up(), counted(begin())],  # a sitting that was killed
    ],
)
def test_what_is_not_known_whole_is_at_least_so_much_and_no_figure(told: list[Record]) -> None:
    assert list(allocation.figures(told, {"trials": [{"label": "real"}]}))[1:] == []
    assert allocation.charged(told).startswith("at least 0.1")
    assert allocation.table(told)["why"]


def test_gpus_are_counted_where_the_site_does(tmp_path: Path) -> None:
    told = [up(), counted(begin(gpus=32))]
    assert allocation.hours(told)["GPU"] == pytest.approx(0.8)
    assert "GPUs</th>" in recovery_page.html(recovered(tmp_path, *told))


def test_a_job_that_never_began_costs_nothing(tmp_path: Path) -> None:
    told = [counted(begin(0, "CANCELLED by 0", start="", cpus=0))]
    assert (allocation.charged(told), list(allocation.figures(told, {"trials": []}))) == ("", [])
    shown = plain(recovery_page.html(recovered(tmp_path, *told)))
    assert "charged for nothing" in shown
