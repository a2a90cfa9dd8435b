"""The time for which the suite holds a fault is no part of a recovery: in numbers, in words, in the charts."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from proving_ground.bench import listing
from proving_ground.reports.figures import pick_all
from proving_ground.reports.recovery import effective, page, results, waterfall, words
from proving_ground.reports.recovery.effective import HELD, parts_of, recovery_s
from proving_ground.reports.recovery.incidents import Incident
from tests.reports.recovery.synthetic import Fault, Knobs, make

Moments = dict[str, float | None]
WAITED: Moments = {"inject": 10.0, "detected": 10.4, "first_committed_step": 14.0, "full_speed": 14.5, "healed": 13.0}


def incident(moments: Moments, *, new: int | None = 2, held: float = 3.0) -> Incident:
    job: Any = None
    return Incident(job, "f01", {}, 10.0, math.inf, {"heal_after_s": held}, new=new, moments=moments)


def seconds(parts: list[tuple[str, float]], *names: str) -> float:
    return sum(took for name, took in parts if not names or name in names)


def test_where_training_waits_for_the_fault_to_be_lifted_recovery_begins_there() -> None:
    one = incident(WAITED)
    assert seconds(parts_of(one)) == pytest.approx(4.5), "all of it is there"
    assert seconds(parts_of(one), HELD) == pytest.approx(3.0)
    assert recovery_s(one) == pytest.approx(1.0)
    assert seconds(effective.phases_of(one)) == pytest.approx(1.5)


def test_counted_as_before_it_would_be_the_suites_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effective, "waited", lambda _: False)  # the mutant
    assert recovery_s(incident(WAITED)) == pytest.approx(4.0)


def test_where_training_goes_on_meanwhile_its_recovery_counts_in_full() -> None:
    one = incident(WAITED | {"first_committed_step": 11.3})
    assert recovery_s(one) == pytest.approx(1.3)
    assert seconds(parts_of(one), HELD) == pytest.approx(1.7), "from the first step to the lifting"
    assert seconds(parts_of(one)) == pytest.approx(4.5)


def test_where_training_never_stops_it_is_at_full_speed_after_the_lifting() -> None:
    one = incident({"inject": 10.0, "full_speed": 13.6, "healed": 13.0}, new=None)
    assert [name for name, _ in parts_of(one)] == [HELD, "getting up to speed"]
    assert recovery_s(one) == pytest.approx(0.6)


def test_a_fault_that_is_not_held_has_no_such_part() -> None:
    assert HELD not in dict(parts_of(incident(WAITED, held=0.0)))
    assert recovery_s(incident(WAITED, held=0.0)) == pytest.approx(4.0)


@pytest.fixture(scope="module")
def long_held(tmp_path_factory: pytest.TempPathFactory) -> results.Analysis:
    faults = (
        Fault("f01", "worker_kill", 26, "n2", hold_s=0.0),
        Fault("f02", "link_rate", 60, "n1", how="none", hold_s=20),
    )
    return results.analyse(make(tmp_path_factory.mktemp("runs"), Knobs(faults=faults, fingerprints=False)))


def test_the_chart_shows_it_hatched_and_says_how_long(long_held: results.Analysis) -> None:
    chart = waterfall.overview(long_held)
    assert chart is not None
    assert "held 20." in chart.wide
    assert "url(#" in chart.wide, "a hatch"
    assert "not to scale" in chart.wide
    assert "link_rate: held 20." in chart.wide, "the mark tells it too"


def test_times_are_shown_where_sameness_is_not_known(long_held: results.Analysis) -> None:
    assert words.title(long_held) == "Both kinds of fault recovered; same training: not known"
    html = page.html(long_held)
    assert "1.40" in html[html.index('class="big"') : html.index('class="about"')]
    told = html[html.index('<ul class="answers">') : html.index('<div class="picture">')]
    assert "✓ 2 of 2" in told
    assert "? not known" in told


def test_where_nothing_is_proven_training_went_on_and_that_is_all(tmp_path: Path) -> None:
    shrinks = Fault("f01", "node_kill", 53, "n3", how="shrink")
    found = results.analyse(make(tmp_path, Knobs(faults=(shrinks,), replays=False)))
    assert [it["outcome"] for it in found.trials] == ["unproven"]
    assert words.title(found) == "Training went on after 1 of 1 kind of fault; same training: not known"
    html = page.html(found)
    told = html[html.index('<ul class="answers">') : html.index('<div class="picture">')]
    assert "training went on" in told
    assert "recovered" not in told


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (["pass", "pass"], ", at full speed again"),
        (["pass", "unknown"], ", 1 of them at full speed again"),
        (["unknown", "fail"], ""),
    ],
)
def test_only_who_was_at_full_speed_again_is_said_to_be(verdicts: list[str], said: str) -> None:
    assert page.at_full_speed([{"verdicts": {"full_speed": it}} for it in verdicts]) == said


def test_times_are_shown_of_what_went_wrong(tmp_path: Path) -> None:
    found = results.analyse(make(tmp_path, Knobs(mutant="second_writer")))
    assert words.title(found) == "3 of 4 kinds of fault recovered; worker_kill went wrong"
    (wrong,) = [cell for cell in words.cells(found) if cell.kind == "worker_kill"]
    time = words.counted_time(found, wrong)
    assert time
    assert time["median"] == pytest.approx(1.4)


def test_a_kind_that_got_stuck_has_no_time(tmp_path: Path) -> None:
    found = results.analyse(make(tmp_path, Knobs(mutant="no_recovery")))
    assert words.title(found) == "0 of 4 kinds of fault recovered; 1 stuck, 3 invalid"
    assert all(words.counted_time(found, cell) is None for cell in words.cells(found))


def test_the_largest_time_is_none_where_one_got_stuck(long_held: results.Analysis) -> None:
    assert "got stuck" not in words.slowest(long_held)
    stuck = [{**it, "outcome": "stuck"} if it["kind"] == "link_rate" else it for it in long_held.trials]
    said = words.slowest(replace(long_held, results={**long_held.results, "trials": stuck}))
    assert ", and 1 got stuck; " in said


def test_no_cell_is_empty(long_held: results.Analysis) -> None:
    html = page.html(long_held)
    cells = html[html.index('<table class="cells">') : html.index("</table>", html.index('<table class="cells">'))]
    assert cells.count('<li class="cell') == 2
    assert "–" not in cells


def test_every_view_has_the_same_time_to_recovery(long_held: results.Analysis) -> None:
    """The figure, the list of runs and the gate's name: none counts what the suite held a fault for."""
    times: dict[str, list[float]] = {}
    for one in long_held.incidents:
        if (took := recovery_s(one)) is not None:
            times.setdefault(one.kind, []).append(took)
    told = {it["where"]["kind"]: it["median"] for it in pick_all(long_held.figures, "time_to_recovery")}
    assert told == pytest.approx({kind: median(values) for kind, values in times.items()})
    full = next(one.took("full_speed") for one in long_held.incidents if one.kind == "link_rate")
    assert full is not None
    assert full - told["link_rate"] > 15
    assert listing.headline(long_held.results).endswith(f"recovered, {median(told.values()):.2g} s")
