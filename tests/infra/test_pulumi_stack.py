"""A stack through the CLI, with a double of `pulumi` on PATH: what it is asked, what errors and signals become."""

from __future__ import annotations

import datetime as dt
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proving_ground.infra import life, stacks, states
from proving_ground.infra.config import ROOT
from proving_ground.infra.life import StackError
from proving_ground.infra.stacks import PulumiStack, Stops
from proving_ground.infra.states import without_cluster
from tests.infra.test_sizes import EXPORT, LARGE

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
GONE = 999_999_999  # no machine has a process of this number
DOUBLE = """#!{python}
import json, os, pathlib, signal, sys, time
here, words = pathlib.Path(__file__).parent, [word for word in sys.argv[1:] if not word.startswith("-")]
with (here / "asked").open("a") as log:
    log.write(json.dumps(sys.argv[1:]) + chr(10))
answers = json.loads((here / "answers").read_text())
answer = answers.get(" ".join(words[:2]), answers.get(words[0], {{}}))
if words[:2] == ["stack", "export"]:
    answer = {{"says": json.dumps({{"version": 3, "deployment": {{}}}}), **answer}}
if "unless" in answer and answer["unless"] in os.environ:
    answer = {{}}
if words[0] in ("up", "destroy", "refresh") and (here / "lock").exists():
    sys.exit((here / "lock").read_text())
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

    def verbs(self) -> list[str]:
        """Of those that change something, the first word."""
        return [words[0] for words in self.asked() if words[0] != "stack"]

    def lock(self, pid: int, host: str | None = None) -> None:
        """A lock, in the words of Pulumi 3.260."""
        who = f"me@{host or socket.gethostname()} (pid {pid}) at 2026-11-24T06:57:10Z"
        (self.folder / "lock").write_text(
            "error: the stack is currently locked by 1 lock(s). Either wait for the other process(es) to end or delete "
            f"the lock file with `pulumi cancel`.\n  file:///s/.pulumi/locks/p/dev/9.json: created by {who}"
        )


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
    assert cli.verbs() == ["preview", "up", "destroy"]
    assert all(words[-2:] == ["--stack", "dev"] and "--non-interactive" in words for words in cli.asked())
    assert said == ["preview…", "up…", "destroy…"]


def test_sizes_come_from_the_state_and_go_to_the_program_alone(cli: Cli) -> None:
    stack = PulumiStack("dev", print)
    cli.answer(stack_export={"says": json.dumps({"version": 3, "deployment": EXPORT})})
    assert stack.skus() == {"a100": LARGE}
    stack.set_skus({"t4": "Standard_NC16as_T4_v3"})
    assert all("config" not in words for words in cli.asked()), "the committed file stays as it is"


def test_an_error_keeps_the_providers_words(cli: Cli) -> None:
    cli.answer(up={"says": "Code=SkuNotAvailable", "status": 255})
    stack = PulumiStack("dev", print)
    with pytest.raises(StackError, match="SkuNotAvailable"):
        stack.up()
    cli.answer(stack_export={"says": "no", "status": 255})
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
    did = [words[:2] for words in cli.asked() if words[:2] != ["stack", "export"]]
    assert did[0] == ["stack", "import"]


def test_mending_opens_the_lock_of_a_process_that_is_gone(cli: Cli) -> None:
    cli.lock(GONE)
    PulumiStack("dev", print).mend()
    assert cli.verbs() == ["refresh", "cancel", "refresh"]


@pytest.fixture
def running(tmp_path: Path) -> Iterator[int]:
    """A process of this machine that is named as the CLI is."""
    (tmp_path / "bin").mkdir()
    shutil.copy("/bin/sleep", tmp_path / "bin" / "pulumi")
    with subprocess.Popen([tmp_path / "bin" / "pulumi", "60"]) as process:
        yield process.pid
        process.kill()


def test_nobody_opens_the_lock_of_what_still_runs(cli: Cli, running: int) -> None:
    cli.lock(running)
    stack = PulumiStack("dev", print)
    with pytest.raises(StackError, match=f"locked by me@{socket.gethostname()}, process {running}, which still runs"):
        stack.mend()
    with pytest.raises(StackError, match="currently locked by 1 lock"):
        stack.up()
    assert (cli.folder / "lock").exists()


def test_a_process_that_has_the_number_of_a_killed_one_holds_no_lock(cli: Cli) -> None:
    cli.lock(os.getpid())
    PulumiStack("dev", print).mend()
    assert not (cli.folder / "lock").exists()


def test_only_force_opens_the_lock_of_another_machine(cli: Cli) -> None:
    """A colleague's `up` runs there, or was killed there: from here nobody sees which."""
    cli.lock(GONE, "elsewhere")
    stack = PulumiStack("dev", print)
    with pytest.raises(StackError) as refused:
        stack.mend()
    assert life.explained(refused.value)[0].startswith(
        f"locked: the stack is currently locked by me@elsewhere, process {GONE}, on another machine ("
    )
    assert "pg infra mend STACK --force" in life.explained(refused.value)[0]
    with pytest.raises(StackError, match="currently locked"):
        stack.destroy()
    stack.mend(force=True)
    assert not (cli.folder / "lock").exists()


def test_the_services_lock_is_a_lock_too(cli: Cli) -> None:
    (cli.folder / "lock").write_text("error: [409] Conflict: Another update is currently in progress.")
    stack = PulumiStack("dev", print)
    with pytest.raises(StackError, match="another update is in progress, and nothing says where"):
        stack.mend()
    stack.mend(force=True)
    assert cli.verbs()[-2:] == ["cancel", "refresh"]


def thing(name: str, space: str | None = None) -> dict[str, Any]:
    """A Kubernetes object as a state has it before it is made."""
    metadata = {"name": name} | ({"namespace": space} if space else {})
    kind = "kubernetes:core/v1:Secret"
    return {"urn": f"urn:pulumi:dev::p::{kind}::{name}", "type": kind, "custom": True, "inputs": {"metadata": metadata}}


def killed(*creating: dict[str, Any]) -> dict[str, Any]:
    """A state whose command was killed while it made things."""
    whole = [{"urn": "urn:pulumi:dev::p::pulumi:pulumi:Stack::p-dev", "type": "pulumi:pulumi:Stack"}]
    begun = [{"type": "creating", "resource": item} for item in creating]
    return {"version": 3, "deployment": {"resources": whole, "pending_operations": begun}}


def test_objects_that_a_killed_command_may_have_made_are_compared_too() -> None:
    """Else an `up` meets them ("already exists") and a `down` leaves them."""
    azure = {"urn": "a", "type": "azure-native:network:VirtualNetwork"}
    found = states.adopted(killed(thing("space"), thing("secret", "space"), azure))
    assert found is not None
    made = found["deployment"]["resources"][1:]
    assert [item["id"] for item in made] == ["space", "space/secret"]
    assert all(item["outputs"] == item["inputs"] for item in made)
    assert found["deployment"]["pending_operations"] == [{"type": "creating", "resource": azure}]
    assert states.adopted(killed(azure)) is None
    assert states.adopted({"version": 3, "deployment": None}) is None


@pytest.mark.parametrize("verb", ["up", "destroy"])
def test_after_a_kill_the_same_command_is_enough(cli: Cli, verb: str) -> None:
    """Its lock is there, and what it had begun is in the state."""
    said: list[str] = []
    cli.lock(GONE)
    getattr(PulumiStack("dev", said.append), verb)()
    assert cli.verbs() == [verb, "refresh", "cancel", "refresh", verb]
    assert "infra: an earlier command was killed and left its lock; opening it and mending the state first" in said
    (cli.folder / "asked").unlink()
    half = {"urn": "urn:pulumi:dev::p::azure-native:network:VirtualNetwork::net", "type": "azure-native:network:X"}
    cli.answer(stack_export={"says": json.dumps(killed(half, thing("s", "pg-ray")))})
    getattr(PulumiStack("dev", said.append), verb)()
    assert cli.verbs() == ["refresh", verb]
    told = [line for line in said if "begun and not finished" in line]
    assert told == [f"infra: begun and not finished: {half['urn']}; it may exist, and is not in the state"]


def test_mending_needs_no_api_server(cli: Cli) -> None:
    said: list[str] = []
    gone = "error: failed to read resource state due to unreachable cluster. If the cluster was deleted, you can remove"
    away = {"says": gone, "status": 255, "unless": "PULUMI_K8S_SKIP_UPDATE_UNREACHABLE"}
    cli.answer(refresh=away, stack_export={"says": json.dumps(killed(thing("space")))})
    PulumiStack("dev", said.append).mend()
    assert cli.verbs() == ["refresh", "refresh"]
    assert [words[:2] for words in cli.asked()].count(["stack", "import"]) == 2, (
        "not kept: nobody saw whether it exists"
    )
    assert "infra: the API server does not answer; what is on the cluster is taken to be as it was" in said


def test_mending_passes_other_errors_on(cli: Cli) -> None:
    cli.answer(refresh={"says": "error: something else", "status": 255})
    with pytest.raises(StackError, match="something else"):
        PulumiStack("dev", print).mend()
    assert cli.verbs() == ["refresh"]


def test_up_takes_over_what_it_finds_of_ours_on_the_cluster(cli: Cli) -> None:
    refused = {"says": "already exists", "status": 255, "unless": "PULUMI_K8S_UPSERT_EXISTING_OBJECTS"}
    cli.answer(up=refused)
    PulumiStack("dev", print).up()


def test_a_question_has_an_end(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "ASK_TIMEOUT_S", 0.2)
    cli.answer(stack={"waits": True})
    with pytest.raises(StackError, match=r"no answer within 0\.2 s"):
        PulumiStack("dev", print)


def test_an_answer_that_is_not_json_is_a_failure_of_the_stack(cli: Cli) -> None:
    cli.answer(stack_export={"says": "oh"})
    with pytest.raises(StackError, match="stack export: its answer is not JSON"):
        PulumiStack("dev", print).skus()


@pytest.mark.parametrize(
    ("history", "waits"),
    [
        ([("update", "failed")], True),
        ([("refresh", "succeeded"), ("update", "failed")], True),
        ([("update", "succeeded"), ("update", "failed")], False),
        ([("destroy", "succeeded"), ("update", "failed")], False),
        ([], False),
    ],
)
def test_a_stack_waits_until_something_is_done_to_it(
    cli: Cli,
    history: list[tuple[str, str]],
    waits: bool,  # noqa: FBT001 - a table's column
) -> None:
    told = [{"kind": kind, "result": result} for kind, result in history]
    cli.answer(stack_tag={"says": "no machine"}, stack_history={"says": json.dumps(told)})
    assert PulumiStack("dev", print).waiting() == ("no machine" if waits else None)
    cli.answer(stack_tag={"says": "error: stack tag not found", "status": 255})
    assert PulumiStack("dev", print).waiting() is None


def test_that_a_stack_waits_is_noted_with_its_state(cli: Cli) -> None:
    stack = PulumiStack("dev", print)
    stack.set_waiting("no machine")
    stack.set_waiting(None)
    noted = [words[1:4] for words in cli.asked()]
    assert noted == [["tag", "set", stacks.WAITS], ["tag", "rm", stacks.WAITS]]


def test_a_request_that_comes_before_the_process_reaches_it_once() -> None:
    stops = Stops()
    stops.take(signal.SIGINT, None)
    with subprocess.Popen(["sleep", "600"]) as process:
        stops.pass_to(process)
        assert process.wait(60) == -signal.SIGINT
    assert stops.came == [signal.SIGINT]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_request_to_stop_lets_the_cli_end_in_order(cli: Cli, number: signal.Signals, tmp_path: Path) -> None:
    cli.answer(destroy={"waits": True})
    command = [sys.executable, "-m", "proving_ground.infra", "down", "local"]
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
