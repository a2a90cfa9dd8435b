"""Lines of event files: what cannot be computed with stays a text, and no line ends a reader."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from training import launch
from training.events import EVENTS_VARIABLE, EventError, check_event, open_events, parsed


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
