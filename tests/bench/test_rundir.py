"""Run directories: sealing, finding, and what crashes leave behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proving_ground.bench import rundir
from proving_ground.bench.rundir import RunDir, RunDirError


@pytest.fixture
def store(tmp_path: Path) -> RunDir:
    made = rundir.create(tmp_path, "unit")
    made.write("spec", {"name": "unit"})
    return made


def step(t: float, number: int = 1) -> str:
    return json.dumps({"t": t, "event": "step", "step": number, "samples": 1}) + "\n"


def test_latest_points_to_the_newest(tmp_path: Path, store: RunDir) -> None:
    assert rundir.find(tmp_path).path == store.path
    assert rundir.find(tmp_path, "unit").path == store.path
    assert rundir.find(tmp_path, store.run_id).path == store.path
    assert rundir.find(tmp_path, str(store.path)).path == store.path
    assert [run.run_id for run in rundir.all_runs(tmp_path)] == [store.run_id]


def test_an_unknown_run_names_the_known_ones(tmp_path: Path, store: RunDir) -> None:
    with pytest.raises(RunDirError, match=f"unknown run 'x'; allowed: latest, .*{store.run_id}"):
        rundir.find(tmp_path, "x")


@pytest.mark.usefixtures("store")
def test_a_name_with_stars_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="unknown run"):
        rundir.find(tmp_path, "a**")


def test_a_seal_without_a_table_is_damaged(store: RunDir) -> None:
    store.write("seal", [])
    with pytest.raises(RunDirError, match="has no table of files"):
        rundir.verify(store)


def test_no_runs_at_all(tmp_path: Path) -> None:
    with pytest.raises(RunDirError, match="newest runs: none yet"):
        rundir.find(tmp_path / "empty")


def test_a_half_written_last_line_is_left_out(store: RunDir) -> None:
    (store.events / "t001.n1.0.jsonl").write_text(step(1) + step(2)[:-9])
    notes = rundir.merge(store)
    assert [it["t"] for it in rundir.read_history(store)] == [1]
    assert notes == ["t001.n1.0.jsonl: line 2 is half written, left out"]


def test_records_out_of_order_are_sorted(store: RunDir) -> None:
    (store.events / "t001.n1.0.jsonl").write_text(step(2) + step(1))
    notes = rundir.merge(store)
    assert [it["t"] for it in rundir.read_history(store)] == [1, 2]
    assert notes == ["t001.n1.0.jsonl: records out of order, sorted"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("null\n", "an event is a JSON object, not NoneType"),
        ('{"t": 1, "event": "stepp"}\n', "unknown event 'stepp'; allowed: start, ready, step"),
        ('{"t": "1", "event": "step"}\n', "`t` must be a number of seconds, not '1'"),
        ('{"t": 1, "event": "step"}\n', "event 'step' lacks step, samples"),
        ('{"t": NaN, "event": "end", "step": 1}\n', "`t` must be a number of seconds"),
        ("\x00\x00\n", "line 1 left out"),
    ],
)
def test_a_line_that_is_no_event_is_left_out_and_told(store: RunDir, line: str, words: str) -> None:
    (store.events / "t001.n1.0.jsonl").write_text(line + step(3))
    notes = rundir.merge(store)
    assert [it["t"] for it in rundir.read_history(store)] == [3]
    assert len(notes) == 1
    assert words in notes[0]


def test_a_harness_line_without_a_time_is_left_out(store: RunDir) -> None:
    (store.events / "harness.jsonl").write_text('{"event": "run_start"}\n[]\n{"t": 1, "event": "run_end"}\n')
    notes = rundir.merge(store)
    assert [it["event"] for it in rundir.read_history(store)] == ["run_end"]
    assert len(notes) == 2


@settings(max_examples=30)
@given(st.lists(st.lists(st.floats(0, 100), max_size=8), min_size=1, max_size=4))
def test_merging_keeps_every_record_in_order(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[float]]
) -> None:
    made = rundir.create(tmp_path_factory.mktemp("runs"), "unit")
    for number, times in enumerate(files, 1):
        (made.events / f"t001.n{number}.0.jsonl").write_text("".join(step(t) for t in times))
    rundir.merge(made)
    assert [it["t"] for it in rundir.read_history(made)] == sorted(t for times in files for t in times)


def test_a_seal_tells_what_was_changed(recorded: RunDir) -> None:
    assert rundir.verify(recorded) == []
    events = sorted(recorded.events.glob("t*.jsonl"))
    events[0].write_text("")
    events[1].unlink()
    (recorded.logs / "new.log").write_text("x")
    assert rundir.verify(recorded) == sorted(
        [f"events/{events[0].name}: changed", f"events/{events[1].name}: missing", "logs/new.log: not in the seal"]
    )


def test_missing_and_damaged_documents_are_named(store: RunDir) -> None:
    with pytest.raises(RunDirError, match=r"plan.json is missing; is this a run directory\?"):
        store.read("plan")
    (store.path / "plan.json").write_text("{")
    with pytest.raises(RunDirError, match=r"plan.json: cannot be read as JSON"):
        store.read("plan")


def test_a_missing_history_says_what_to_do(store: RunDir) -> None:
    with pytest.raises(RunDirError, match="the run was not finished; pg bench run --resume "):
        list(rundir.read_history(store))


def test_a_document_is_written_whole_or_not_at_all(store: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        store.write("spec", {"name": "other"})
    assert store.read("spec") == {"name": "unit"}


def compared(run: RunDir) -> list[str]:
    """What differs between the history and the event files, by the quick way that reports go."""
    found: list[str] = []
    assert list(rundir.read_compared(run, json.loads, found)) == list(rundir.read_history(run))
    return found


def test_a_history_is_what_its_event_files_merge_to(recorded: RunDir) -> None:
    assert compared(recorded) == []
    file = max(recorded.events.glob("t*.jsonl"))
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[1::-1] + lines[2:]) + "no event\n" + '{"t": 1')  # out of order, and what a crash left
    assert compared(recorded) == []
    lines[0] = json.dumps(json.loads(lines[0]), indent=None, separators=(" , ", " : ")) + "\n"  # a trainer of one's own
    file.write_text("".join(lines))
    assert compared(recorded) == []


@pytest.mark.parametrize("where", ["history", "events"])
@pytest.mark.parametrize("change", ["changed", "removed", "doubled", "moved"])
def test_a_history_that_differs_from_its_event_files_is_found_out(recorded: RunDir, where: str, change: str) -> None:
    file = recorded.history if where == "history" else max(recorded.events.glob("t*.jsonl"))
    lines = file.read_text().splitlines(keepends=True)
    at = next(number for number, line in enumerate(lines) if '"step"' in line and number > 3)
    record = json.loads(lines[at])
    new = {"changed": [record | {"samples": 99}], "removed": [], "doubled": [record] * 2, "moved": [record | {"t": 0}]}
    lines[at : at + 1] = [json.dumps(it, separators=(",", ":")) + "\n" for it in new[change]]
    file.write_text("".join(lines))
    (said,) = compared(recorded)
    assert said.startswith("history.jsonl is not what the event files say: line ")


def test_an_event_file_that_the_history_does_not_know_is_found_out(recorded: RunDir) -> None:
    (recorded.events / "t999.n1.0.jsonl").write_text('{"t":1,"event":"end","step":3}\n')
    assert len(compared(recorded)) == 1
