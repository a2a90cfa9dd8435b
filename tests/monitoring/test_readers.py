"""The commands that show a run, as a person types them: what they print, and what each mistake says."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from proving_ground.bench.rundir import RunDir
from proving_ground.monitoring import readers
from proving_ground.monitoring.cli import main, parser
from tests.monitoring.receiver import receiver

ROOT = Path(__file__).parents[2]
PARTS = {"begin_t": 2.0, "data_t": 2.1, "forward_t": 2.2, "backward_t": 2.3, "comm_t": 2.4, "optimizer_t": 2.5}


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr("signal.signal", lambda *_: None)
    store = RunDir(tmp_path / "suite" / "id")
    for folder in (store.events, store.logs):
        folder.mkdir(parents=True)
    for name, document in {
        "spec": {}, "plan": {"trials": [{"id": "t001", "nodes": 1}]}, "provenance": {"t": 0.0, "wall_s": time.time()},
    }.items():  # fmt: skip
        store.write(name, document)
    harness = [{"t": 0, "event": "run_start"}, {"t": 1, "event": "trial_start", "trial": "t001"},
               {"t": 4, "event": "trial_end", "trial": "t001"}, {"t": 4, "event": "run_end", "ok": True}]  # fmt: skip
    worker = [{"t": 1.5, "event": "start", "rank": 0, "world_size": 1, "pid": 1, "wall_s": 1.0},
              {"t": 2.6, "event": "step", "step": 1, "samples": 8, **PARTS}]  # fmt: skip
    for file, records in (("harness", harness), ("t001.n1.0", worker)):
        (store.events / f"{file}.jsonl").write_text("".join(json.dumps(it) + "\n" for it in records))
    (store.logs / "t001.n1.0.log").write_text("hello\n")
    return store


def monitoring(run: RunDir, *words: str) -> int:
    return main(["--runs", str(run.path.parent.parent), words[0], str(run.path), *words[1:]])


def test_live(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert monitoring(run, "live") == 0
    assert capsys.readouterr().out.endswith("the run has ended\n")


def test_trace(run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "trace.json"
    with receiver((200, b"")) as collector:
        assert monitoring(run, "trace", "--step", "1", "--out", str(out), "--otlp", collector.url) == 0
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith(f"{out}: 6 spans of run id; open it in ui.perfetto.dev")
    assert said[1] == f"6 spans of run id sent to {collector.url}"
    first = next(it for it in json.loads(out.read_text())["traceEvents"] if it["ph"] == "X")
    assert (first["name"], first["ts"]) == ("step 1", 0.0)


def test_ship_logs(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    with receiver() as loki:
        assert monitoring(run, "ship-logs", "--loki", loki.url) == 0
    assert capsys.readouterr().out == f"1 lines of run id sent to {loki.url}\n"


COMMAND = re.compile(r"^ {4}(pg monitoring .*)$", re.MULTILINE)


@pytest.mark.parametrize("line", COMMAND.findall((Path(__file__).parents[2] / "monitoring" / "README.md").read_text()))
def test_the_commands_of_the_readme_can_be_typed(line: str) -> None:
    words = line.partition("#")[0].replace("[", "").replace("]", "").replace("…", "").split()[2:]
    parser().parse_args(words)


def test_every_command_has_help_and_is_described(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "monitoring" / "README.md").read_text()
    for name in readers.COMMANDS:
        with pytest.raises(SystemExit) as end:
            parser().parse_args([name, "--help"])
        assert end.value.code == 0
        assert f"pg monitoring {name}" in text
    assert "usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (["trace"], 2, "trace: nowhere to put it; allowed: --out FILE, --otlp URL or both"),
        (["trace", "--out", "x.json", "--step", "9"], 2, "nobody made step 9 in t001"),
        (["trace", "--out", "/no/such/x.json"], 2, "there is no folder /no/such"),
        (["ship-logs", "--loki", "http://127.0.0.1:9"], 1, "http://127.0.0.1:9/loki/api/v1/push: "),
    ],
)
def test_a_mistake_is_one_line(
    run: RunDir, words: list[str], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert monitoring(run, *words) == status
    said = capsys.readouterr().err
    assert said.startswith("monitoring: ")
    assert message in said
    assert said.count("\n") == 1


def test_without_its_packages_it_says_in_one_line_how_to_get_them() -> None:
    lacking = (
        "import sys; sys.modules['prometheus_client'] = None; from proving_ground.bench.start import start; "
        "start('monitoring')"
    )
    done = subprocess.run([sys.executable, "-c", lacking], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == "monitoring: prometheus_client is not installed: pip install '.[monitoring]'\n"
