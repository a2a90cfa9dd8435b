"""Lines of event files: what cannot be computed with stays a text, and no line ends a reader."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from proving_ground.bench.examples import pg_events
from proving_ground.training.events import EVENTS_VARIABLE, LOG_VARIABLE, EventError, check_event, open_events, parsed
from proving_ground.training.recovery import launch

ROOT = Path(__file__).parents[2]


def test_each_process_of_a_pod_has_its_own_file_in_a_folder_that_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, f"{tmp_path}/new/run-1.n0.$LOCAL_RANK.jsonl")
    monkeypatch.setenv("LOCAL_RANK", "3")
    events = open_events()
    events.emit("end", step=1)
    events.close()
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["run-1.n0.3.jsonl"]
    assert launch.event_file(3) == tmp_path / "new" / "run-1.n0.3.jsonl"
    monkeypatch.setenv(EVENTS_VARIABLE, f"{tmp_path}/run-1.n0.0.jsonl")
    assert launch.event_file(3) == tmp_path / "run-1.n0.3.jsonl"


def test_who_comes_after_half_a_line_begins_one_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a killed process leaves it: what was written behind it would be lost, with it the begin of the next life."""
    for number, before in enumerate(("", '{"t":1,"event":"end"}\n', '{"t":1,"eve')):
        file = tmp_path / f"e{number}"
        file.write_text(before)
        monkeypatch.setenv(EVENTS_VARIABLE, str(file))
        for opened in (open_events().emit, pg_events.Job().tell):
            opened("start", pid=1)
        lines = file.read_text().splitlines()
        assert [json.loads(it)["event"] for it in lines[-2:]] == ["start", "start"]
        assert len(lines) == 2 + bool(before)


def test_events_may_go_into_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()
    monkeypatch.setenv(EVENTS_VARIABLE, f"/proc/self/fd/{writes}")
    open_events().emit("start", pid=1)
    pg_events.Job().tell("start", pid=1)
    os.close(writes)
    assert os.read(reads, 1000).count(b'"event":"start"') == 2
    os.close(reads)


def test_a_further_worker_of_a_launcher_writes_to_files_of_its_own(tmp_path: Path) -> None:
    words = (
        "import os; from proving_ground.training.events import take_own_files, open_events; take_own_files(); "
        "open_events().emit('end', step=1); os.system('echo from a child'); print('mine')"
    )
    told = {EVENTS_VARIABLE: "e.0", f"{EVENTS_VARIABLE}_1": "e.1", f"{LOG_VARIABLE}_1": "l.1"}
    told = {name: str(tmp_path / file) for name, file in told.items()}
    for slot in ("0", "1"):
        env = {**os.environ, **told, "LOCAL_RANK": slot, "PYTHONPATH": str(ROOT)}
        done = subprocess.run([sys.executable, "-c", words], env=env, capture_output=True, text=True, check=True)
        assert done.stdout == ("from a child\nmine\n" if slot == "0" else "")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["e.0", "e.1", "l.1"]
    assert (tmp_path / "l.1").read_text() == "from a child\nmine\n"


def test_a_launcher_follows_the_files_that_its_workers_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(EVENTS_VARIABLE, f"{tmp_path}/n1.0.jsonl")
    monkeypatch.setenv(f"{EVENTS_VARIABLE}_1", f"{tmp_path}/away.jsonl")
    assert [launch.event_file(slot) for slot in (0, 1)] == [tmp_path / "n1.0.jsonl", tmp_path / "away.jsonl"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("NaN", "NaN"),
        ("-Infinity", "-Infinity"),
        ("1e999", "1e999"),
        ("-1E+999", "-1E+999"),
        ("1" + "0" * 400, "1" + "0" * 400),
        ("1" + "0" * 5000, "1" + "0" * 5000),
        ("1e-999", 0.0),
        ("1e300", 1e300),
        ("12345678901234567890", 12345678901234567890),
        ('"NaN"', "NaN"),
    ],
)
def test_what_is_no_number_stays_the_text_that_it_was(text: str, value: object) -> None:
    assert parsed(f'{{"loss": {text}, "step": 7, "lr": 0.5}}') == {"loss": value, "step": 7, "lr": 0.5}
    assert parsed(f"[{text}]".encode()) == [value]
    assert json.dumps(parsed(f"[{text}]"), allow_nan=False)


@pytest.mark.parametrize("line", ["[" * 100_000, "{", "", "\x00"])
def test_what_is_no_json_is_a_value_error(line: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parsed(line)


@pytest.mark.parametrize(
    "change",
    [{"step": "1e999"}, {"step": 1.5}, {"step": True}, {"step": 10**400}, {"step": float("nan")}, {"step": None},
     {"t": "NaN"}, {"t": float("inf")}, {"t": 10**400}, {"t": "1" * 4000}, {"t": None}, {"t": True}],
)  # fmt: skip
def test_a_moment_or_step_that_is_none_is_refused_in_a_line(change: dict[str, object]) -> None:
    event = {"t": 1.0, "event": "step", "step": 7, "samples": 3}
    assert check_event(event) == event
    assert check_event({**event, "step": 7.0})["step"] == 7
    with pytest.raises(EventError) as refused:
        check_event({**event, **change})
    assert len(str(refused.value)) < 200
