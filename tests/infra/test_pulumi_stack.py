"""A stack through the Automation API, with a double for the API: what is asked of it, and what its errors become."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pulumi import automation

from infra.config import ROOT
from infra.life import StackError
from infra.stacks import PulumiStack
from tests.infra.test_sizes import EXPORT, LARGE

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


class Api:
    """What Pulumi's own `Stack` is asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.workspace = SimpleNamespace(env_vars={})
        self.past: list[Any] = []
        self.error: str | None = None

    def _do(self, name: str, on_output: Callable[[str], None]) -> None:
        self.asked.append(name)
        on_output(f"{name}…")
        if self.error:
            result = SimpleNamespace(stdout="", stderr=self.error, code=255)
            raise automation.CommandError(result)  # type: ignore[arg-type]

    def up(self, on_output: Callable[[str], None]) -> None:
        self._do("up", on_output)

    def preview(self, on_output: Callable[[str], None]) -> None:
        self._do("preview", on_output)

    def destroy(self, on_output: Callable[[str], None], *, exclude_protected: bool) -> None:
        assert exclude_protected
        self._do("destroy", on_output)

    def export_stack(self) -> Any:
        return SimpleNamespace(deployment=EXPORT)

    def history(self) -> list[Any]:
        return self.past


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Api:
    """The double, and a `pulumi` on PATH that is never run."""
    double = Api()
    (tmp_path / "pulumi").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    def select(stack_name: str, work_dir: str) -> Api:
        assert (stack_name, work_dir) == ("dev", str(ROOT))
        return double

    monkeypatch.setattr(automation, "create_or_select_stack", select)
    return double


def test_each_command_is_passed_on_with_its_output(api: Api) -> None:
    said: list[str] = []
    stack = PulumiStack("dev", said.append)
    stack.preview()
    stack.up()
    stack.destroy()
    assert api.asked == ["preview", "up", "destroy"]
    assert said == ["preview…", "up…", "destroy…"]


def test_sizes_come_from_the_state_and_go_to_the_program_alone(api: Api) -> None:
    stack = PulumiStack("dev", print)
    assert stack.skus() == {"a100": LARGE}
    stack.set_skus({"t4": "Standard_NC16as_T4_v3"})
    assert api.workspace.env_vars == {"PROVING_GROUND_SKUS": '{"t4": "Standard_NC16as_T4_v3"}'}


def test_an_error_keeps_the_providers_words(api: Api) -> None:
    api.error = "Code=SkuNotAvailable"
    with pytest.raises(StackError, match="SkuNotAvailable"):
        PulumiStack("dev", print).up()


def past(kind: str, hours: int, result: str = "succeeded") -> Any:
    """One entry of a stack's history."""
    return SimpleNamespace(kind=kind, result=result, end_time=NOW + dt.timedelta(hours=hours), start_time=NOW)


@pytest.mark.parametrize(
    ("history", "hours"),
    [
        ([], None),
        ([past("destroy", 9), past("update", 1)], None),
        ([past("update", 9), past("update", 5), past("destroy", 3), past("update", 1)], 5),
        ([past("destroy", 9, "failed"), past("update", 5)], 5),
    ],
)
def test_a_stack_is_as_old_as_its_first_up_after_the_last_down(api: Api, history: list[Any], hours: int | None) -> None:
    api.past = history
    created = PulumiStack("dev", print).created()
    assert created == (None if hours is None else NOW + dt.timedelta(hours=hours))
