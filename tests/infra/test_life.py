"""The life of a stack, with a double for Pulumi: fall-back, queue, notification, time to live."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Mapping
from pathlib import Path

import pytest

from proving_ground.infra import config, life
from proving_ground.infra.reading import ConfigError

NOW = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
STAGING = config.load("staging", environ={})

MESSAGES = {
    "quota": "Code=QuotaExceeded Message=Operation could not be completed results in exceeding approved NCads quota",
    "capacity": "error: Code=SkuNotAvailable: The requested size for resource is currently not available in location",
    "policy": "Code=RequestDisallowedByPolicy: Resource 'x' was disallowed by policy 'allowed locations'",
    "rights": "AuthorizationFailed: The client does not have authorization to perform action",
    "name taken": "StorageAccountAlreadyTaken: The storage account named pgdevblob is already taken.",
    "locked": "error: the stack is currently locked by 1 lock(s)",
    "unknown": "something else entirely",
}
"""Kind → what Azure and Pulumi write; all of them are in `mistakes.toml`."""


class Double:
    """A stack whose `up` fails with the given messages first."""

    def __init__(self, *failures: str) -> None:
        self.failures = list(failures)
        self.kept: dict[str, str] = {}
        self.tried: list[dict[str, str]] = []
        self.waits: str | None = None

    def skus(self) -> Mapping[str, str]:
        return self.kept

    def set_skus(self, skus: Mapping[str, str]) -> None:
        self.tried.append(dict(skus))

    def up(self) -> None:
        if self.failures:
            raise life.StackError(self.failures.pop(0))

    def preview(self) -> None:
        self.tried.append({"preview": "yes"})

    def destroy(self, *, cluster_gone: bool = False) -> None:
        self.tried.append({"destroy": "gone" if cluster_gone else "yes"})

    def mend(self, *, force: bool = False) -> None:
        self.tried.append({"mend": "force" if force else "yes"})

    def waiting(self) -> str | None:
        return self.waits

    def set_waiting(self, reason: str | None) -> None:
        self.waits = reason

    def created(self) -> dt.datetime | None:
        return NOW


def failure(kind: str) -> str:
    return f"updating failed\n  azure-native:containerservice:AgentPool a100-pool creating: {MESSAGES[kind]}\n"


def test_the_next_size_is_tried_and_the_reason_told() -> None:
    said: list[str] = []
    stack = Double(failure("capacity"))
    result = life.provision(stack, STAGING, said.append)
    assert result.outcome == "up"
    assert [tried["a100"] for tried in stack.tried] == ["Standard_NC24ads_A100_v4", "Standard_NC48ads_A100_v4"]
    assert [tried["t4spot"] for tried in stack.tried] == ["Standard_NC16as_T4_v3"] * 2
    assert "pool a100, Standard_NC24ads_A100_v4: capacity" in said[0]
    assert "SkuNotAvailable" in said[0]


def test_the_size_of_the_last_time_comes_first_and_stays() -> None:
    stack = Double()
    stack.kept = {"a100": "Standard_NC48ads_A100_v4", "t4spot": "Standard_sold_no_more"}
    assert life.provision(stack, STAGING, lambda _: None).skus["a100"] == "Standard_NC48ads_A100_v4"
    assert stack.tried[0]["t4spot"] == "Standard_NC16as_T4_v3"
    stack = Double(failure("capacity"))
    stack.kept = {"a100": "Standard_NC48ads_A100_v4"}
    result = life.provision(stack, STAGING, lambda _: None)
    assert (result.outcome, result.skus["a100"]) == ("up", "Standard_NC24ads_A100_v4")


def test_an_interrupted_up_is_not_tried_again() -> None:
    class Stopped(Double):
        def up(self) -> None:
            super().up()
            raise life.InterruptedStackError(MESSAGES["capacity"])

    stack = Stopped()
    with pytest.raises(life.InterruptedStackError):
        life.provision(stack, STAGING, lambda _: None)
    assert len(stack.tried) == 1


def test_when_no_size_is_left_the_stack_is_queued() -> None:
    stack = Double(failure("capacity"), failure("quota"))
    result = life.provision(stack, STAGING, lambda _: None)
    assert result.outcome == "queued"
    assert len(result.steps) == 2


@pytest.mark.parametrize("kind", ["policy", "rights", "name taken", "locked", "unknown"])
def test_other_errors_are_not_tried_again(kind: str) -> None:
    stack = Double(failure(kind), failure(kind))
    assert life.provision(stack, STAGING, lambda _: None).outcome == "failed"
    assert len(stack.tried) == 1


def test_an_error_without_a_pool_is_not_tried_again() -> None:
    assert life.provision(Double(MESSAGES["quota"]), STAGING, lambda _: None).outcome == "failed"


def test_the_queue_remembers_and_forgets(tmp_path: Path) -> None:
    file = tmp_path / "q" / "queue.json"
    assert life.queued(file) == {}
    life.enqueue("staging", life.Result("queued", {}, ("why",)), NOW, file)
    assert life.queued(file)["staging"]["why"] == ["why"]
    life.dequeue("staging", file)
    life.dequeue("staging", file)
    assert life.queued(file) == {}
    file.write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        life.queued(file)


def test_a_notification_goes_to_the_file_and_the_address_is_not_told(tmp_path: Path) -> None:
    file = tmp_path / "notes.log"
    assert life.notify("ready", file, None, NOW) is None
    problem = life.notify("ready again", file, "http://127.0.0.1:9/planted-secret", NOW)
    assert problem is not None
    assert "planted-secret" not in problem + file.read_text()
    assert len(file.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("hours", "spent", "says"), [(71, 0, None), (72, 0, "72.0 hours old"), (1, 18750, "spent"), (1, 9, None)]
)
def test_a_forgotten_or_expensive_stack_is_due(hours: float, spent: float, says: str | None) -> None:
    found = life.due(STAGING, NOW - dt.timedelta(hours=hours), NOW, spent)
    assert (found is None) == (says is None)
    assert says is None or says in str(found)


def test_what_is_not_there_or_has_no_end_is_never_due() -> None:
    assert life.due(STAGING, None, NOW, 10**9) is None
    endless = dataclasses.replace(STAGING, ttl_hours=None)
    assert life.due(endless, NOW - dt.timedelta(days=900), NOW, None) is None
