"""Spans of a run: what is a part of what, over which time; as a Chrome trace file, and decoded from OTLP."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from proving_ground.bench import rundir
from proving_ground.bench.loglines import Clock
from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.monitoring import otlp, traces
from proving_ground.monitoring.traces import Span, Wanted
from tests.monitoring.receiver import receiver

CLOCK = Clock(t=0.0, wall_s=1_000_000.0, utc_offset_s=0.0)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """Two ranks; a fault at 5 s, after which step 2 is made again. n2 is the slower one."""
    store = RunDir(tmp_path / "suite" / "id")
    store.events.mkdir(parents=True)
    store.write("plan", {"trials": [{"id": "t001", "case": "own", "nodes": 2, "repeat": 1}]})
    fault = {"trial": "t001", "fault": "f01", "kind": "worker_kill", "target": ["n2"]}
    write(store, "harness", [
        {"t": 0.0, "event": "run_start"},
        {"t": 1.0, "event": "trial_start", "trial": "t001"},
        {"t": 5.1, "event": "fault_begin", "inject_t": 5.0, **fault},
        {"t": 6.0, "event": "fault_end", **fault},
        {"t": 12.0, "event": "trial_end", "trial": "t001"},
        {"t": 13.0, "event": "run_end"},
    ])  # fmt: skip
    for node, rank, slower in (("n1", 0, 0.0), ("n2", 1, 0.1)):
        write(store, f"t001.{node}.0", [
            {"t": 1.5, "event": "start", "rank": rank, "world_size": 2, "pid": 1, "wall_s": 1.0},
            step(2, 1, 1, slower), step(3, 2, 1, slower), step(9, 2, 2, slower),
        ])  # fmt: skip
    rundir.merge(store)
    return store


def write(store: RunDir, name: str, records: list[dict[str, Any]]) -> None:
    (store.events / f"{name}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))


def step(begin: float, number: int, generation: int, slower: float) -> dict[str, Any]:
    """0.1 s data, 0.2 forward, 0.3 backward (n2: 0.4), communication together until 0.8, optimizer, checkpoint."""
    ends = {
        "begin_t": 0,
        "data_t": 0.1,
        "forward_t": 0.3,
        "backward_t": 0.6 + slower,
        "comm_t": 0.8,
        "optimizer_t": 0.85,
    }
    marks = {name: begin + at for name, at in ends.items()}
    own = {"step": number, "samples": 8, "generation": generation, "checkpoint_s": 0.05}
    return {"t": begin + 0.95, "event": "step", **own, **marks}


def judge(store: RunDir, **timeline: float | None) -> None:
    row = {"trial": "t001", "fault": "f01", "kind": "worker_kill", "outcome": "recovered", "timeline": timeline}
    store.write("results", {"figures": [], "verdicts": [], "trials": [row]})


def named(found: list[Span], name: str, track: str = "") -> Span:
    return next(it for it in found if it.name.startswith(name) and it.track.startswith(track))


def test_run_trial_fault_and_steps_are_parts_of_each_other(run: RunDir) -> None:
    found = list(traces.spans(run, Wanted()))
    whole, trial, fault = (named(found, name) for name in ("run id", "trial t001", "fault f01 worker_kill"))
    assert (whole.begin_t, whole.end_t, trial.begin_t, trial.end_t) == (0, 13, 1, 12)
    assert (fault.begin_t, fault.end_t) == (5.0, 6.0)
    steps = [it for it in found if it.name.startswith("step")]
    assert len(steps) == 6
    assert {it.parent for it in [fault, *steps]} == {trial}
    assert trial.parent is whole
    assert [it.about["rank"] for it in steps if it.track == "n2.0"] == [1, 1, 1]


def test_a_span_comes_before_its_parts_and_contains_them(run: RunDir) -> None:
    judge(run, inject=5.0, detected=5.5, first_committed_step=9.0, full_speed=11.0)
    seen: list[Span] = []
    for it in traces.spans(run, Wanted()):
        if it.parent is not None:
            assert it.parent in seen
            assert it.parent.begin_t <= it.begin_t <= it.end_t <= it.parent.end_t, it.name
        seen.append(it)


def test_the_parts_of_a_step_follow_each_other_and_waiting_is_apart(run: RunDir) -> None:
    found = [it for it in traces.spans(run, Wanted(step=1)) if it.parent and it.parent.name == "step 1"]
    lasted = {(it.track, it.name): round(it.end_t - it.begin_t, 3) for it in found}
    assert [name for track, name in lasted if track == "n1.0"] == [
        "data", "forward", "backward", "wait", "comm", "optimizer", "checkpoint",
    ]  # fmt: skip
    assert (lasted["n1.0", "wait"], lasted["n1.0", "comm"], lasted["n2.0", "comm"]) == (0.1, 0.1, 0.1)
    assert ("n2.0", "wait") not in lasted, "the slowest waits for nobody"
    assert lasted["n1.0", "checkpoint"] == 0.05, "and what nothing explains is no part"
    own = [it for it in found if it.track == "n1.0"]
    assert all(later.begin_t == earlier.end_t for earlier, later in pairwise(own))


def test_a_step_that_was_made_again_is_shown_as_it_was_made_last(run: RunDir) -> None:
    found = [it for it in traces.spans(run, Wanted(step=2)) if it.name == "step 2"]
    assert [(it.track, it.begin_t, it.about["generation"]) for it in found] == [("n1.0", 9, 2), ("n2.0", 9, 2)]


def test_the_phases_of_a_recovery_are_those_of_the_report(run: RunDir) -> None:
    judge(run, inject=5.0, detected=5.5, survivors_stopped=5.4, membership_agreed=None, state_loaded=8.0,
          first_committed_step=9.0, full_speed=11.0)  # fmt: skip
    found = [it for it in traces.spans(run, Wanted()) if it.track == "recovery"]
    assert [(it.name, it.begin_t, it.end_t) for it in found] == [
        ("recovery f01 worker_kill", 5.0, 11.0), ("unnoticed", 5.0, 5.5), ("loading", 5.5, 8.0),
        ("first step", 8.0, 9.0), ("getting up to speed", 9.0, 11.0),
    ]  # fmt: skip


def test_without_a_report_no_recovery_is_made_up(run: RunDir) -> None:
    assert [it for it in traces.spans(run, Wanted()) if it.track == "recovery"] == []


def test_a_trainer_that_tells_no_moments_has_steps_without_parts(run: RunDir) -> None:
    for node in ("n1", "n2"):
        write(run, f"t001.{node}.0", [{"t": 3.0, "event": "step", "step": 1, "samples": 8, "step_s": 0.5}])
    rundir.merge(run)
    found = [(it.name, it.track, it.begin_t, it.end_t) for it in traces.spans(run, Wanted(step=1))]
    assert found == [("step 1", "n1.0", 2.5, 3.0), ("step 1", "n2.0", 2.5, 3.0)]


def test_a_run_in_progress_has_a_trace_too(run: RunDir) -> None:
    run.history.unlink()
    assert len([it for it in traces.spans(run, Wanted()) if it.name.startswith("step")]) == 6


@pytest.mark.parametrize(
    ("wanted", "message"),
    [(Wanted(step=7), "nobody made step 7 in t001"), (Wanted("t9"), "no trial t9; recorded: t001")],
)
def test_what_is_not_there_is_one_line(run: RunDir, wanted: Wanted, message: str) -> None:
    with pytest.raises(RunDirError, match=message):
        list(traces.spans(run, wanted))


def test_the_chrome_file_has_a_named_track_a_process_and_times_in_microseconds(run: RunDir, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    assert traces.write_chrome(traces.spans(run, Wanted(step=1)), file, origin_t=2.0) == 15
    events = json.loads(file.read_text())["traceEvents"]
    tracks = {it["tid"]: it["args"]["name"] for it in events if it["ph"] == "M"}
    assert list(tracks.values()) == ["n1.0", "n2.0"]
    forward = next(it for it in events if it["name"] == "forward" and tracks[it["tid"]] == "n2.0")
    assert (forward["ph"], forward["ts"], forward["dur"]) == ("X", 100_000, 200_000)


def test_tracks_are_in_the_order_of_nodes() -> None:
    found = sorted(["n10.0", "n2.0", "recovery", "run", "n2.1", "faults"], key=traces.track_order)
    assert found == ["run", "faults", "recovery", "n2.0", "n2.1", "n10.0"]


def decoded(bodies: list[bytes]) -> list[Any]:
    requests = [ExportTraceServiceRequest.FromString(body) for body in bodies]
    return [span for it in requests for rs in it.resource_spans for scope in rs.scope_spans for span in scope.spans]


def test_over_otlp_arrives_what_was_sent_once_and_with_its_parents(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp, "BATCH", 10)
    found = list(traces.spans(run, Wanted()))
    with receiver((200, b"")) as collector:
        assert otlp.export(found, collector.url, "id", CLOCK) == len(found)
        otlp.export(found, collector.url + "/v1/traces", "id", CLOCK)
    assert {(path, kind) for path, kind, _ in collector.got} == {("/v1/traces", "application/x-protobuf")}
    got = decoded([body for _, _, body in collector.got])
    first, again = got[: len(found)], got[len(found) :]
    assert [it.span_id for it in first] == [it.span_id for it in again], "the same spans, not twice as many"
    assert len({it.span_id for it in first}) == len(found)
    assert len({it.trace_id for it in got}) == 1
    ids = {it.span_id: it.name for it in first}
    forward = next(it for it in first if it.name == "forward")
    assert ids[forward.parent_span_id] == "step 1"
    assert forward.end_time_unix_nano - forward.start_time_unix_nano == pytest.approx(0.2e9, abs=1000)
    trial = next(it for it in first if it.name == "trial t001")
    assert trial.start_time_unix_nano == 1_000_001_000_000_000
    assert ids[trial.parent_span_id] == "run id"


def test_a_collector_that_refuses_is_one_line(run: RunDir, capfd: pytest.CaptureFixture[str]) -> None:
    with receiver((400, b"bad")) as collector, pytest.raises(otlp.ExportError, match=r"/v1/traces: .*400"):
        otlp.export(list(traces.spans(run, Wanted())), collector.url, "id", CLOCK)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "ftp://x"])
def test_no_collector_there_is_one_line(run: RunDir, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "TIMEOUT_S", 1.0)
    with pytest.raises(otlp.ExportError, match=url.replace("http://", "")):
        otlp.export(list(traces.spans(run, Wanted(step=1))), url, "id", CLOCK)
