"""Figures and verdicts of a load, from lines that were written by hand; each check has what it must see."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from bench import rundir
from bench.rundir import RunDir
from serving import figures, load, page

SCHEMA = json.loads((Path(figures.__file__).parent.parent / "reports/results.schema.json").read_text())
KILL = {"replica": "r1", "port": 1, "before_s": 25.0, "after_s": 25.2, "gone": True}
LEVELS_AT = (0.0, 10.0, 20.0, 30.0)  # two, then the kill's, and the end


def request(begin_s: float, seconds: float = 0.05, error: str = "") -> dict[str, Any]:
    return {"event": "request", "wall_s": begin_s, "seconds": seconds, "status": 0 if error else 200, "error": error}


STEADY = [request(it / 10) for it in range(300) if not 245 <= it <= 255]
FLYING = [request(24.9, 0.2, "reset"), request(24.95, 0.3)]


def recorded(
    folder: Path,
    requests: Sequence[Mapping[str, Any]],
    kill: Mapping[str, Any] = KILL,
    levels: Sequence[float] = LEVELS_AT,
    repeats: int = 1,
) -> RunDir:
    run = load.new_run(folder)
    orders = {"urls": ["http://here/score"], "users": [1, 2], "seconds": 10, "repeats": repeats, "kill": True}
    run.write("load", {"orders": orders, "request": {}, "engine": "azureml", "replicas": 2})
    run.write("provenance", {"argv": ["serving", "load"]})
    run.write("kill", kill)
    lines = [{"event": "level", "index": index, "wall_s": it} for index, it in enumerate(levels)]
    (run.events / "requests.jsonl").write_text("".join(json.dumps(it) + "\n" for it in [*lines, *requests]))
    rundir.seal(run, complete=True)
    return run


def verdict(run: RunDir, check: str = "lost_requests") -> tuple[str, str]:
    made = figures.document(figures.read(run))
    jsonschema.validate(made, SCHEMA)
    return next((it["verdict"], it["why"]) for it in made["verdicts"] if it["check"] == check)


def test_a_request_that_was_in_flight_may_be_lost(tmp_path: Path) -> None:
    found = verdict(recorded(tmp_path, [*STEADY, *FLYING]))
    assert found[0] == "pass"
    assert found[1].startswith("1 lost: 1 of 2 in flight at the kill, 0 of 0 begun while it died")


@pytest.mark.parametrize(
    ("requests", "kill", "answer", "words"),
    [
        ([*STEADY, *FLYING, request(26.0, 0.1, "refused")], KILL, "fail", "1 lost requests were not in flight"),
        ([*STEADY, *FLYING, request(22.0, 0.1, "refused")], KILL, "fail", "1 lost requests were not in flight"),
        ([it for it in STEADY if it["wall_s"] < 25] + FLYING, KILL, "fail", "nothing was answered after"),
        (STEADY, KILL, "unknown", "no request was in flight"),
        ([*STEADY, *FLYING], {**KILL, "gone": False}, "unknown", "still answered"),
    ],
)
def test_what_the_kill_must_not_cost(
    tmp_path: Path, requests: list[dict[str, Any]], kill: dict[str, Any], answer: str, words: str
) -> None:
    found = verdict(recorded(tmp_path, requests, kill))
    assert found[0] == answer
    assert words in found[1]


def test_an_error_without_a_kill_fails(tmp_path: Path) -> None:
    assert verdict(recorded(tmp_path, [*STEADY, *FLYING]), "errors")[0] == "pass"
    found = verdict(recorded(tmp_path / "b", [*STEADY, *FLYING, request(5.0, 0.1, "timed out")]), "errors")
    assert found == (
        "fail",
        f"1 of {len([it for it in STEADY if it['wall_s'] < 20]) + 1} requests failed, the first: timed out",
    )


def test_the_first_second_is_left_out_and_few_requests_have_no_p99(tmp_path: Path) -> None:
    made = figures.document(figures.read(recorded(tmp_path, [*STEADY, *FLYING])))
    rates = [it["median"] for it in made["figures"] if it["name"] == "requests_per_s"]
    assert rates == [pytest.approx(10, abs=0.2)] * 2
    assert not [it for it in made["figures"] if it["name"] == "p99"]  # 90 requests a level


@pytest.mark.parametrize(
    ("rates", "users"),
    [
        ({1: 100, 2: 190, 4: 200, 8: 180}, 2),
        ({1: 100, 2: 200, 4: 400}, None),
        ({1: 100, 2: 90, 4: 300}, None),
        ({1: 0.0}, None),
    ],
)
def test_saturated_is_where_more_users_bring_no_more(rates: dict[int, float], users: int | None) -> None:
    assert figures.saturation(rates) == users


def test_a_load_that_was_cut_off_has_no_figures(tmp_path: Path) -> None:
    with pytest.raises(rundir.RunDirError, match="2 of 3 levels"):
        figures.read(recorded(tmp_path, STEADY, levels=(0.0, 10.0)))
    run = recorded(tmp_path / "b", STEADY)
    rundir.seal(run, complete=False)
    with pytest.raises(rundir.RunDirError, match="was cut off"):
        figures.read(run)


def test_the_page_and_the_table_tell_the_same(tmp_path: Path) -> None:
    found = figures.read(recorded(tmp_path, [*STEADY, *FLYING]))
    made = figures.document(found)
    text = page.html(found, made)
    assert text == page.html(found, made)
    why = next(it["why"] for it in made["verdicts"] if it["check"] == "lost_requests")
    assert why in text
    assert any(why in line for line in page.table(found, made))
    assert "src=" not in text
