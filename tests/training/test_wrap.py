"""A trainer that knows nothing of us: its words, its lines, its signals and its end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.tail import appended
from proving_ground.training.__main__ import main
from proving_ground.training.events import EVENTS_VARIABLE
from proving_ground.training.wrap import LineEvents, filled_in, number

STEP = {"step": r"step (?P<step>\d+)(?: loss (?P<loss>[\d.e-]+))?"}
ROOT = Path(__file__).parents[2]
ENV = {"RANK": "1", "WORLD_SIZE": "2", "PROVING_GROUND_BATCH": "16"}


def events_of(lines: list[str], pattern: dict[str, str], env: dict[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    reader = LineEvents(pattern, env, 42, lambda event, **fields: found.append({"event": event, **fields}))
    reader.start()
    for line in lines:
        reader.line(line)
    return found


def test_fields_come_from_the_line_and_what_is_known() -> None:
    start, first, second = events_of(["step 1 loss 2.5e-1", "hello", "step 2"], STEP, ENV)
    assert {key: start[key] for key in ("event", "rank", "world_size", "pid")} == {
        "event": "start", "rank": 1, "world_size": 2, "pid": 42
    }  # fmt: skip
    assert first == {"event": "step", "step": 1, "samples": 16, "loss": 0.25}
    assert second == {"event": "step", "step": 2, "samples": 16}


def test_a_line_that_lacks_a_required_field_is_no_event() -> None:
    assert events_of(["step 1"], STEP, {}) == []


def test_the_last_step_fills_in_for_events_about_it() -> None:
    pattern = STEP | {"end": "^done"}
    assert events_of(["done"], pattern, {"PROVING_GROUND_BATCH": "1"}) == []
    assert events_of(["step 7", "done"], pattern, {"PROVING_GROUND_BATCH": "1"})[-1] == {"event": "end", "step": 7}


@pytest.mark.parametrize(("text", "value"), [("3", 3), ("1,024", 1024), ("0.5", 0.5), ("1e3", 1000.0), ("val", "val")])
def test_numbers(text: str, value: object) -> None:
    assert number(text) == value
    assert type(number(text)) is type(value)


@pytest.mark.parametrize(
    ("word", "made"),
    [
        ("--batch=$((PROVING_GROUND_BATCH / 3))", "--batch=5"),
        ("$(( 2 * (WORLD_SIZE + 1) - 1 ))", "5"),
        ("$(($WORLD_SIZE % 2))x$RANK", "0x1"),
        ("$((-RANK))", "-1"),
        ("$UNKNOWN $(date) ${RANK}", "$UNKNOWN $(date) 1"),
    ],
)
def test_words_are_filled_in_as_by_a_shell(word: str, made: str) -> None:
    assert filled_in(word, ENV) == made


@pytest.mark.parametrize(
    ("word", "why"),
    [
        ("$((NONE + 1))", "'NONE' is not set"),
        ("$((RANK ** 9))", "whole numbers"),
        ("$((RANK / 0))", "whole numbers"),
        ("$((__import__('os')))", "whole numbers"),
        ("$((1.5))", "whole numbers"),
        ("$((TEXT))", "whole numbers"),
        ("$(())", "whole numbers"),
        (f"$(({'-' * 5000}1))", "whole numbers"),
    ],
)
def test_what_is_no_arithmetic_is_refused(word: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        filled_in(word, {**ENV, "TEXT": "x"})


def test_one_rank_tells_of_the_samples_of_all() -> None:
    assert events_of(["step 1"], STEP, {**ENV, "PROVING_GROUND_SAMPLES": "32"})[-1]["samples"] == 32


class Wrapped:
    """`pg training wrap …`, started."""

    def __init__(self, folder: Path, code: str, *options: str, **env: str) -> None:
        self.events, self.log = folder / "e.jsonl", folder / "log"
        words = [sys.executable, "-m", "proving_ground.training", "wrap", *options, "python", "-u", "-c", code, "$RANK"]
        own = {"RANK": "1", "WORLD_SIZE": "2", "PROVING_GROUND_BATCH": "16", EVENTS_VARIABLE: str(self.events), **env}
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(words, cwd=ROOT, env=os.environ | own, stdout=log, stderr=log)

    def end(self) -> int:
        """Its exit code, as `subprocess` has it."""
        return self.process.wait(60)

    def told(self) -> list[dict[str, Any]]:
        """The events so far."""
        return [json.loads(line) for line in appended(self.events, 0)[0]]

    def said(self) -> str:
        """What it printed."""
        return self.log.read_text()

    def until(self, event: str) -> dict[str, Any]:
        """Wait for an event."""
        deadline = time.monotonic() + 60
        while not (found := [it for it in self.told() if it["event"] == event]):
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.01)
        return found[-1]


PATTERN = ("--pattern", f"step={STEP['step']}")


def test_python_is_the_one_that_runs_the_harness(tmp_path: Path) -> None:
    """Whatever comes first on PATH, unless it is named with its path."""
    other = tmp_path / "bin" / "python"
    other.parent.mkdir()
    other.write_text("#!/bin/sh\necho another\n")
    other.chmod(0o755)
    first = {"PATH": f"{other.parent}:{os.environ['PATH']}"}
    wrapped = Wrapped(tmp_path, "import sys; print(sys.executable)", **first)
    assert (wrapped.end(), wrapped.said().strip()) == (0, sys.executable)


def test_words_are_filled_in_lines_are_events_and_every_byte_is_in_the_log(tmp_path: Path) -> None:
    code = (
        "import os, sys; out = sys.stdout.buffer; out.write(b'rank ' + sys.argv[1].encode() + b'\\n'); "
        "out.write(b'step 1\\r\\nst'); out.flush(); out.write(b'ep 2\\n\\xff odd\\n'); "
        f"print('{EVENTS_VARIABLE}' in os.environ, file=sys.stderr); out.write(b'step 3'); sys.exit(7)"
    )
    wrapped = Wrapped(tmp_path, code, *PATTERN)
    assert wrapped.end() == 7
    start, *steps = wrapped.told()
    assert (start["event"], start["rank"], start["world_size"]) == ("start", 1, 2)
    assert start["pid"] != wrapped.process.pid
    assert [(it["step"], it["samples"]) for it in steps] == [(1, 16), (2, 16), (3, 16)]
    assert sorted(it["t"] for it in wrapped.told()) == [it["t"] for it in wrapped.told()]
    assert wrapped.log.read_bytes().replace(b"False\n", b"") == b"rank 1\nstep 1\r\nstep 2\n\xff odd\nstep 3"


def test_a_trainer_without_a_pattern_tells_by_itself(tmp_path: Path) -> None:
    code = (
        f"import os; f = open(os.environ['{EVENTS_VARIABLE}'], 'a'); "
        'f.write(\'{"t": 1, "event": "step", "step": 1, "samples": 2}\\n\')'
    )
    wrapped = Wrapped(tmp_path, code)
    assert wrapped.end() == 0
    assert [it["event"] for it in wrapped.told()] == ["start", "step"]


NAP = "import time; print('step 1'); time.sleep(600)"
POLITE = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: (print('step 9'), sys.exit(3))); "
    "print('step 1'); time.sleep(600)"
)


def test_it_ends_as_the_trainer_ends(tmp_path: Path) -> None:
    wrapped = Wrapped(tmp_path, NAP, *PATTERN)
    wrapped.until("step")
    os.kill(wrapped.told()[0]["pid"], signal.SIGKILL)
    assert wrapped.end() == -signal.SIGKILL


def test_a_mistake_is_told_since_a_launcher_may_hide_the_status(tmp_path: Path) -> None:
    wrapped = Wrapped(tmp_path, "import sys; sys.exit(2)")
    assert wrapped.end() == 2
    assert [(it["event"], it.get("status")) for it in wrapped.told()] == [("start", None), ("error", 2)]


def test_a_signal_reaches_the_trainer_once(tmp_path: Path) -> None:
    wrapped = Wrapped(tmp_path, POLITE, *PATTERN)
    wrapped.until("step")
    wrapped.process.send_signal(signal.SIGTERM)
    assert wrapped.end() == 3
    assert [it["step"] for it in wrapped.told() if it["event"] == "step"] == [1, 9]


@pytest.mark.skipif(sys.platform != "linux", reason="asks the kernel")
def test_the_trainer_does_not_outlive_it(tmp_path: Path) -> None:
    wrapped = Wrapped(tmp_path, NAP, *PATTERN)
    wrapped.until("step")
    pid = wrapped.told()[0]["pid"]
    wrapped.process.kill()
    wrapped.end()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_the_trainer_left_behind_does_not_hold_its_end_up(tmp_path: Path) -> None:
    code = "import subprocess; print('step', subprocess.Popen(['sleep', '600']).pid)"
    wrapped = Wrapped(tmp_path, code, *PATTERN)
    assert wrapped.end() == 0
    os.kill(wrapped.told()[-1]["step"], signal.SIGKILL)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ([], 2, "wrap: needs a command"),
        (["--pattern", "step", "true"], 2, "wrap: needs a command, and EVENT=REGEX"),
        (["no-such-program"], 127, "wrap: cannot start no-such-program: No such file or directory"),
    ],
)
def test_mistakes_are_one_line(words: list[str], status: int, said: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["wrap", *words]) == status
    err = capfd.readouterr().err
    assert err.startswith(said)
    assert err.count("\n") == 1


def test_it_starts_where_it_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["wrap", "--cwd", str(tmp_path), "python", "-c", "import os; print(os.getcwd())"]) == 0
    assert str(tmp_path) in capfd.readouterr().out
    assert main(["wrap", "--cwd", str(tmp_path / "none"), "python", "-c", "1"]) == 2
    assert "no such folder" in capfd.readouterr().err
    assert main(["wrap", "python", "-c", "$((x))"]) == 2
    assert "'x' is not set" in capfd.readouterr().err
