"""Figures and verdicts of a load, from lines that were written by hand; each check has what it must see."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from proving_ground.bench import rundir
from proving_ground.bench.rundir import RunDir
from proving_ground.reports import gate
from proving_ground.serving import commands, figures, load, page

SCHEMA = json.loads((Path(figures.__file__).parent.parent / "reports/results.schema.json").read_text())
KILL = {"replica": "r1", "port": 1, "before_s": 25.0, "after_s": 25.2, "gone": True}
ANSWER = {"output": [[1.0]]}
LEVELS_AT = (0.0, 10.0, 20.0, 30.0)  # two, then the kill's, and the end


def request(begin_s: float, seconds: float = 0.05, error: str = "", **more: Any) -> dict[str, Any]:
    status = 0 if error else 200
    return {
        "wall_s": begin_s,
        "seconds": seconds,
        "status": status,
        "error": error,
        "replica": "r1",
        "body": "right",
        **more,
    }


def lines_of(requests: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Two of each request; one where it never ended."""
    for text, output in (("right", [[1.0]]), ("wrong", [[1.1]])):
        yield {"event": "body", "sha256": text, "text": json.dumps({"predictions": {"output": output}})}
    for number, it in enumerate(requests):
        yield {"event": "begin", "number": number, "wall_s": it["wall_s"]}
        if it["seconds"] != NEVER:
            yield {"event": "end", "number": number, **it}


NEVER = float("inf")
STEADY = [request(it / 10) for it in range(300) if not 245 <= it <= 255]
FLYING = [request(24.9, 0.2, "reset"), request(24.95, 0.3)]


def recorded(
    folder: Path,
    requests: Sequence[Mapping[str, Any]],
    kill: Mapping[str, Any] = KILL,
    levels: Sequence[float] = LEVELS_AT,
    repeats: int = 1,
    url: str = "http://127.0.0.1/score",
    **of_level: Any,
) -> RunDir:
    run = load.new_run(folder)
    orders = {"urls": [url], "users": [1, 2], "seconds": 10, "repeats": repeats, "kill": True}
    run.write("load", {"orders": orders, "request": {}, "answer": ANSWER, "engine": "azureml", "replicas": 2})
    run.write("provenance", {"argv": ["serving", "load"]})
    run.write("kill", kill)
    before = [0, *[1, 2] * repeats, 2]
    lines = [
        {"event": "level", "index": index, "wall_s": it, "cpu_s": it / 10, "users_before": before[index], **of_level}
        for index, it in enumerate(levels)
    ]
    every = [*lines, *lines_of(requests)]
    (run.events / "requests.jsonl").write_text("".join(json.dumps(it) + "\n" for it in every))
    served = [f"served {number} {it['replica']}" for number, it in enumerate(requests) if it["replica"]]
    (run.logs / "haproxy.log").write_text("\n".join(["[NOTICE] new worker", *served, ""]))
    rundir.seal(run, complete=True, names=load.SEALED)
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
        (
            [*STEADY, *FLYING, request(24.9, 0.2, "reset", replica="r2")],
            KILL,
            "fail",
            "1 lost requests were not in flight",
        ),
        (
            [*STEADY, *FLYING, request(25.1, 0.2, "reset", replica="r2")],
            KILL,
            "fail",
            "1 lost requests were not in flight",
        ),
        ([*STEADY, *FLYING, request(24.9, NEVER, replica="")], KILL, "unknown", "nothing says at which replica 1 lost"),
        ([*STEADY, *FLYING, request(26.0, NEVER)], KILL, "fail", "1 lost requests were not in flight"),
        ([*STEADY, request(24.9, 0.2, replica="r2")], KILL, "unknown", "no request was in flight at r1"),
        ([*STEADY, *FLYING], {**KILL, "after_s": 26.5}, "unknown", "r1 took 1.5 s to die"),
        ([*STEADY, *FLYING, request(26.0, 0.1, body="wrong")], KILL, "fail", "1 lost requests were not in flight"),
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


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        (request(5.0, NEVER), "never ended"),
        (request(5.0, body="wrong"), "another answer than the model's"),
        (request(5.0, body=""), "another answer than the model's"),
        (request(5.0, status=302), "status 302"),
    ],
)
def test_what_is_no_answer_is_an_error(tmp_path: Path, odd: dict[str, Any], why: str) -> None:
    run = recorded(tmp_path, [*STEADY, *FLYING, odd])
    found = verdict(run, "errors")
    assert found[0] == "fail"
    assert found[1].endswith(f"requests failed, the first: {why}")
    shares = [it["median"] for it in figures.document(figures.read(run))["figures"] if it["name"] == "error_share"]
    assert shares == [pytest.approx(1 / 91, abs=0.001), 0]


def test_slow_answers_are_counted_when_they_come(tmp_path: Path) -> None:
    slow = [request(it * 2.0, 1.99) for it in range(15)]  # one every two seconds
    made = figures.document(figures.read(recorded(tmp_path, slow)))["figures"]
    rates = [it["median"] for it in made if it["name"] == "requests_per_s"]
    assert rates == [pytest.approx(0.5, abs=0.06)] * 2
    assert [it["median"] for it in made if it["name"] == "p50"] == [pytest.approx(1990)] * 2


def test_an_answer_after_the_level_has_its_time_in_it(tmp_path: Path) -> None:
    made = figures.document(figures.read(recorded(tmp_path, [*STEADY, request(9.5, 4.0)])))["figures"]
    (first, _) = (it["median"] for it in made if it["name"] == "locust_cores")
    assert first == pytest.approx(0.1)
    found = figures.read(recorded(tmp_path / "b", [request(9.5, 4.0)]))
    assert figures.percentile(found.levels[0].requests, 50) == pytest.approx(4000)
    assert [it.rate for it in found.levels] == [0, pytest.approx(1 / 9)]


@pytest.mark.parametrize(
    ("of_level", "words"),
    [
        ({}, "saturated at 1 users"),
        ({"cpu_s": 0}, "saturated at 1 users"),
        ({"users_before": 1}, "cannot be told: locust had 1 users instead of 2"),
    ],
)
def test_saturation_is_told_where_the_users_were_there(tmp_path: Path, of_level: dict[str, Any], words: str) -> None:
    found = figures.read(recorded(tmp_path, [*STEADY, *FLYING], **of_level))
    made = figures.document(found)
    assert any(words in it for it in page.table(found, made))
    assert [it["name"] for it in made["figures"]].count("saturation_users") == ("cannot" not in words)


def test_saturation_is_not_told_where_locust_was_busy(tmp_path: Path) -> None:
    run = recorded(tmp_path, [*STEADY, *FLYING])
    file = run.events / "requests.jsonl"
    lines = [json.loads(it) for it in file.read_text().splitlines()]
    busy = [{**it, "cpu_s": it["wall_s"] * 0.95} if it["event"] == "level" else it for it in lines]
    file.write_text("".join(json.dumps(it) + "\n" for it in busy))
    rundir.seal(run, complete=True, names=load.SEALED)
    found = figures.read(run)
    assert any("cannot be told: locust used 0.95 of a core" in it for it in page.table(found, figures.document(found)))


@pytest.mark.parametrize(
    ("url", "label"),
    [
        ("http://127.0.0.1:1/score", "emulated"),
        ("http://[::1]:1/score", "emulated"),
        ("http://localhost/score", "emulated"),
        ("https://models.example/score", "real"),
    ],
)
def test_only_this_machine_shares_its_cores(tmp_path: Path, url: str, label: str) -> None:
    found = figures.read(recorded(tmp_path, [*STEADY, *FLYING], url=url))
    made = figures.document(found)
    assert {it["label"] for it in made["figures"]} == {label}
    assert ("share the cores" in page.html(found, made)) == (label == "emulated")


@pytest.mark.parametrize("name", ["load.json", "kill.json", "events/requests.jsonl"])
def test_a_load_that_was_changed_has_no_figures(tmp_path: Path, name: str) -> None:
    run = recorded(tmp_path, [*STEADY, *FLYING])
    with (run.path / name).open("a") as file:
        file.write("\n")
    with pytest.raises(rundir.RunDirError, match=f"not as it was sealed: {name}: changed"):
        figures.read(run)


def test_the_page_says_of_how_many_values_a_figure_is(tmp_path: Path) -> None:
    many = [request(it / 20) for it in range(199)]  # enough for a p99 in the first level alone
    found = figures.read(recorded(tmp_path, [*many, *(it for it in STEADY if it["wall_s"] >= 10)]))
    first, second = page.rows(found, figures.document(found)["figures"])
    assert [it["n"] for it in first["cells"]] == ["1", "1", "1", "1"]
    assert [it["n"] for it in second["cells"]] == ["1", "1", "", "1"]


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
    rundir.seal(run, complete=False, names=load.SEALED)
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


@pytest.mark.parametrize(
    ("line", "status", "words"),
    [
        ("every p50{users=1} <= 1000 ms", 0, "constraints: pass"),
        ("every p50{users=1} <= 1", 1, "constraints: fail"),
        ("every p99{users=1} <= 1000", 1, "not measured"),
        ("requests_per_s >= 1", 1, "is one value"),
        ("every lost_at_kill <= 1", 0, "constraints: pass"),
    ],
)
def test_a_load_is_held_to_constraints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, status: int, words: str
) -> None:
    run = recorded(tmp_path, [*STEADY, *FLYING])
    assert commands.reported(run, [gate.parsed(line, "--that")]) == status
    assert words in capsys.readouterr().out


def test_a_load_is_one_document_for_machines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = recorded(tmp_path, [*STEADY, *FLYING])
    assert commands.reported(run, [gate.parsed("every p50{users=1} <= 1", "--that")], json=True) == 1
    found = json.loads(capsys.readouterr().out)
    made = run.read("results")
    assert (found["schema"], found["run"]) == ("proving-ground/serving-load/1", str(run.path))
    assert [found[key] for key in ("figures", "verdicts")] == [made[key] for key in ("figures", "verdicts")]
    assert [it["verdict"] for it in found["constraints"]] == ["fail"]
    page = (Path(__file__).parents[2] / "docs/machines.md").read_text()
    assert f"| `serving load` | {', '.join(f'`{key}`' for key in list(found)[1:])} |" in page


def test_every_figure_of_a_load_can_be_named(tmp_path: Path) -> None:
    made = figures.document(figures.read(recorded(tmp_path, [*STEADY, *FLYING])))
    assert {it["name"] for it in made["figures"]} <= set(gate.OF_LOAD)
