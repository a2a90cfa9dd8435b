"""Stacks through Pulumi's Automation API: what `infra.life` asks of a stack, done for real. Needs the Pulumi CLI."""

from __future__ import annotations

import datetime as dt
import json
import shutil
from typing import TYPE_CHECKING

from pulumi import automation

from infra import sizes
from infra.config import ROOT
from infra.life import StackError
from infra.reading import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class PulumiStack:
    """One stack of this project, selected or made; it implements `infra.life.Stack`."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        if shutil.which("pulumi") is None:
            raise ConfigError("pulumi: the command is not on PATH; install it (infra/README.md, step 1)")
        self._say = say
        try:
            self._stack = automation.create_or_select_stack(stack_name=name, work_dir=str(ROOT))
        except automation.CommandError as error:
            raise StackError(str(error)) from None

    def up(self) -> None:
        """Make it so."""
        self._do(lambda: self._stack.up(on_output=self._say))

    def preview(self) -> None:
        """Say what `up` would do."""
        self._do(lambda: self._stack.preview(on_output=self._say))

    def destroy(self) -> None:
        """Take all of it away but what is protected, which the CLI then names."""
        self._do(lambda: self._stack.destroy(on_output=self._say, exclude_protected=True))

    def set_skus(self, skus: Mapping[str, str]) -> None:
        """Choose the size of each pool for the next `up`."""
        workspace = self._stack.workspace
        workspace.env_vars = {**workspace.env_vars, sizes.VARIABLE: json.dumps(dict(skus))}

    def skus(self) -> dict[str, str]:
        """The size that each pool has."""
        return sizes.of_export(self._stack.export_stack().deployment or {})

    def created(self) -> dt.datetime | None:
        """When the first `up` after the last `destroy` ended; None when there is nothing."""
        first: dt.datetime | None = None
        for update in self._stack.history():  # newest first
            if update.kind == "destroy" and update.result == "succeeded":
                break
            if update.kind == "update":
                first = update.end_time or update.start_time
        return first.replace(tzinfo=dt.UTC) if first and first.tzinfo is None else first

    def _do(self, action: Callable[[], object]) -> None:
        try:
            action()
        except automation.CommandError as error:
            raise StackError(str(error)) from None
