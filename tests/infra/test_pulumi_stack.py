"""A stack through the CLI, with a double of `pulumi` on PATH: what it is asked, what errors and signals become."""

from __future__ import annotations

import datetime as dt
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.config import ROOT
from infra.life import StackError
from infra.stacks import PulumiStack, living_owner, without_cluster
from tests.infra.test_sizes import EXPORT, LARGE

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DOUBLE = """#!{python}
import json, os, pathlib, signal, sys, time
here, words = pathlib.Path(__file__).parent, [word for word in sys.argv[1:] if not word.startswith("-")]
with (here / "asked").open("a") as log:
    log.write(json.dumps(sys.argv[1:]) + chr(10))
answers = json.loads((here / "answers").read_text())
answer = answers.get(" ".join(words[:2]), answers.get(words[0], {{}}))
if "lock" in answer and (here / "lock").exists():
    sys.exit("error: the stack is currently locked by 1 lock(s). " + answer["lock"])
if words[0] == "cancel":
    (here / "lock").unlink()
if answer.get("waits"):
    signal.signal(signal.SIGINT, lambda *_: (print("ended in order", flush=True), os._exit(255)))
    print("begun", flush=True)
    time.sleep(60)
print(answer.get("says", words[0] + "…"), flush=True)
sys.exit(answer.get("status", 0))
"""


class Cli:
    """The double: what it answers by command, and what it was asked."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "pulumi").write_text(DOUBLE.format(python=sys.executable))
        (folder / "pulumi").chmod(0o755)
        self.answer()

    def answer(self, **answers: dict[str, Any]) -> None:
        """Answers by command; `_` stands for the space in `stack_history`."""
        made = {name.replace("_", " "): answer for name, answer in answers.items()}
        (self.folder / "answers").write_text(json.dumps(made))

    def asked(self) -> list[list[str]]:
        """All commands after the first, which selects the stack."""
        return [json.loads(line) for line in (self.folder / "asked").read_text().splitlines()][1:]


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Cli:
    """The double, the only thing on PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return Cli(tmp_path)


def test_each_command_is_passed_on_with_its_output(cli: Cli) -> None:
    said: list[str] = []
    stack = PulumiStack("dev", said.append)
    stack.preview()
    stack.up()
    stack.destroy()
    assert [words[0] for words in cli.asked()] == ["preview", "up", "destroy"]
    assert all(words[-2:] == ["--stack", "dev"] and "--non-interactive" in words for words in cli.asked())
    assert said == ["preview…", "up…", "destroy…"]


def test_sizes_come_from_the_state_and_go_to_the_program_alone(cli: Cli) -> None:
    stack = PulumiStack("dev", print)
    cli.answer(stack_export={"says": json.dumps({"version": 3, "deployment": EXPORT})})
    assert stack.skus() == {"a100": LARGE}
    stack.set_skus({"t4": "Standard_NC16as_T4_v3"})
    assert all("config" not in words for words in cli.asked()), "the committed file stays as it is"


def test_an_error_keeps_the_providers_words(cli: Cli) -> None:
    cli.answer(up={"says": "Code=SkuNotAvailable", "status": 255}, stack_export={"says": "no", "status": 255})
    stack = PulumiStack("dev", print)
    with pytest.raises(StackError, match="SkuNotAvailable"):
        stack.up()
    with pytest.raises(StackError, match="no"):
        stack.skus()


def test_a_cluster_that_is_gone_is_forgotten_and_not_asked(cli: Cli) -> None:
    kinds = ("pulumi:pulumi:Stack", "pulumi:providers:kubernetes", "kubernetes:core/v1:Secret")
    items = [{"urn": kind, "type": kind} for kind in kinds]
    begun = [{"resource": item, "type": "creating"} for item in items]
    state = {"version": 3, "deployment": {"resources": items, "pending_operations": begun, "manifest": {}}}
    kept = without_cluster(state)["deployment"]
    assert kept == {"resources": items[:2], "pending_operations": begun[:2], "manifest": {}}
    cli.answer(stack_export={"says": json.dumps(state)})
    PulumiStack("dev", print).destroy(cluster_gone=True)
    assert [words[:2] for words in cli.asked()] == [["stack", "export"], ["stack", "import"], ["destroy", "--yes"]]


def test_mending_opens_the_lock_of_a_process_that_is_gone(cli: Cli) -> None:
    (cli.folder / "lock").touch()
    cli.answer(refresh={"lock": f"file: created by me@{socket.gethostname()} (pid 999999999) at now"})
    PulumiStack("dev", print).mend()
    assert [words[0] for words in cli.asked()] == ["refresh", "cancel", "refresh"]


def test_mending_leaves_alone_what_still_runs(cli: Cli) -> None:
    (cli.folder / "lock").touch()
    message = f"file: created by me@{socket.gethostname()} (pid {os.getpid()}) at now"
    cli.answer(refresh={"lock": message})
    with pytest.raises(StackError, match=f"process {os.getpid()}, which still runs"):
        PulumiStack("dev", print).mend()
    assert (cli.folder / "lock").exists()
    assert living_owner(message.replace(socket.gethostname(), "elsewhere")) is None
    assert living_owner(message.replace(str(os.getpid()), "1")) == 1


def test_mending_passes_other_errors_on(cli: Cli) -> None:
    cli.answer(refresh={"says": "error: unreachable", "status": 255})
    with pytest.raises(StackError, match="unreachable"):
        PulumiStack("dev", print).mend()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_stop_lets_the_cli_end_in_order(cli: Cli, number: signal.Signals, tmp_path: Path) -> None:
    cli.answer(destroy={"waits": True})
    command = [sys.executable, "-m", "infra", "down", "local"]
    given = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=given, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        preexec_fn=_heeding,  # noqa: PLW1509 - nothing of this process runs threads here
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(number)
        assert process.stdout.read() == "ended in order\n"
        said = process.stderr.read()
    assert process.returncode == 130
    assert said.splitlines()[-1].startswith("infra: interrupted")
    assert "Traceback" not in said


def _heeding() -> None:
    """Shells start background jobs with SIGINT ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def past(kind: str, hours: int, result: str = "succeeded") -> dict[str, str]:
    """One entry of a stack's history, as the CLI writes it."""
    return {"kind": kind, "result": result, "startTime": _text(NOW), "endTime": _text(NOW + dt.timedelta(hours=hours))}


def _text(moment: dt.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")


@pytest.mark.parametrize(
    ("history", "hours"),
    [
        ([], None),
        ([past("destroy", 9), past("update", 1)], None),
        ([past("update", 9), past("update", 5), past("destroy", 3), past("update", 1)], 5),
        ([past("destroy", 9, "failed"), past("update", 5)], 5),
    ],
)
def test_a_stack_is_as_old_as_its_first_up_after_the_last_down(
    cli: Cli, history: list[dict[str, str]], hours: int | None
) -> None:
    cli.answer(stack_history={"says": json.dumps(history)})
    created = PulumiStack("dev", print).created()
    assert created == (None if hours is None else NOW + dt.timedelta(hours=hours))
