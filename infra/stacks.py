"""Stacks through the Pulumi CLI: what `infra.life` asks of a stack, done for real.

The CLI runs in a session of its own, so that a Ctrl-C reaches it once, from here: it then ends what is under way, saves
its state, opens its lock, and only then do we end.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra import sizes
from infra.config import ROOT
from infra.life import InterruptedStackError, StackError
from infra.reading import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


QUIET = ("--non-interactive", "--color", "never")
AT_ONCE = ("--yes", "--skip-preview", "--suppress-progress")
ENVIRONMENT = {"PULUMI_SKIP_UPDATE_CHECK": "true"}
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPING = b"infra: stopping: what is under way ends first; once more ends it at once and may need `infra mend`\n"
OBJECT = "kubernetes:"
"""How the type of a Kubernetes object begins."""
OWNER = re.compile(r"created by \S+?@(?P<host>\S+) \(pid (?P<pid>\d+)\)")
"""Who holds a lock, as the CLI tells it for states in files and buckets."""


class PulumiStack:
    """One stack of this project, selected or made; it implements `infra.life.Stack`."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        if shutil.which("pulumi") is None:
            raise ConfigError("pulumi: the command is not on PATH; install it (infra/README.md, step 1)")
        self._name, self._say = name, say
        self._chosen: dict[str, str] = {}  # for the program alone
        self._ask("stack", "select", name, "--create", named=False)

    def up(self) -> None:
        """Make it so."""
        self._do("up", *AT_ONCE)

    def preview(self) -> None:
        """Say what `up` would do."""
        self._do("preview", "--suppress-progress")

    def destroy(self, *, cluster_gone: bool = False) -> None:
        """Take all of it away but what is protected; where its cluster is gone, without asking the API server."""
        if cluster_gone:
            self._forget_cluster()
        self._do("destroy", *AT_ONCE, "--exclude-protected")

    def mend(self) -> None:
        """Open the lock that a killed run left, and compare the state with what there is.

        Raises:
            StackError: the run that holds the lock still lives here, or the comparison failed.
        """
        refresh = ("refresh", *AT_ONCE, "--clear-pending-creates")
        try:
            self._do(*refresh)
        except StackError as error:
            if "locked" not in str(error):
                raise
            if (owner := living_owner(str(error))) is not None:
                raise StackError(f"error: the stack is currently locked by process {owner}, which still runs") from None
            self._ask("cancel", "--yes", self._name, named=False)
            self._do(*refresh)

    def skus(self) -> dict[str, str]:
        """The size that each pool has."""
        return sizes.of_export(json.loads(self._ask("stack", "export"))["deployment"] or {})

    def set_skus(self, skus: Mapping[str, str]) -> None:
        """Choose the size of each pool for the next `up`."""
        self._chosen = {sizes.VARIABLE: json.dumps(dict(skus))}

    def created(self) -> dt.datetime | None:
        """When the first `up` after the last `destroy` ended; None when there is nothing."""
        first: str | None = None
        for update in json.loads(self._ask("stack", "history", "--json")):  # newest first
            if update["kind"] == "destroy" and update["result"] == "succeeded":
                break
            if update["kind"] == "update":
                first = update.get("endTime") or update["startTime"]
        return dt.datetime.fromisoformat(first) if first else None

    def _forget_cluster(self) -> None:
        """Take the cluster's objects out of the state, since no provider can delete what it cannot reach."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "state.json"
            file.write_text(json.dumps(without_cluster(json.loads(self._ask("stack", "export")))))
            self._ask("stack", "import", "--file", str(file))

    def _ask(self, *words: str, named: bool = True) -> str:
        """What a short command answers."""
        command = self._command(words, named=named)
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise StackError(f"{done.stdout}\n{done.stderr}")
        return done.stdout

    def _do(self, *words: str) -> None:
        """Run a long command, saying its output line by line; a signal to us stops it in order."""
        command, environment = self._command(words), os.environ | ENVIRONMENT | self._chosen
        with subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process, passing_stops_on(process) as stops:  # fmt: skip
            lines = list(self._following(process))
        if stops and process.returncode:
            raise InterruptedStackError("\n".join(lines))
        if process.returncode:
            raise StackError("\n".join(lines))

    def _following(self, process: subprocess.Popen[str]) -> Iterator[str]:
        for line in process.stdout or ():
            self._say(line.rstrip("\n"))
            yield line.rstrip("\n")

    def _command(self, words: tuple[str, ...], *, named: bool = True) -> list[str]:
        return ["pulumi", *words, *QUIET, *(("--stack", self._name) if named else ())]


def without_cluster(state: dict[str, Any]) -> dict[str, Any]:
    """An exported state without Kubernetes objects, neither whole nor half made."""
    deployment = state["deployment"]
    kept = [item for item in deployment.get("resources", []) if not item["type"].startswith(OBJECT)]
    begun = [it for it in deployment.get("pending_operations", []) if not it["resource"]["type"].startswith(OBJECT)]
    return {**state, "deployment": {**deployment, "resources": kept, "pending_operations": begun}}


@contextlib.contextmanager
def passing_stops_on(process: subprocess.Popen[str]) -> Iterator[list[int]]:
    """Hand every request to stop to the CLI as a Ctrl-C; gives the list of those that came."""
    came: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        came.append(number)
        with contextlib.suppress(OSError):  # the terminal may be what went away
            os.write(2, STOPPING)
        process.send_signal(signal.SIGINT)

    before = {number: signal.signal(number, pass_on) for number in STOPS}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def living_owner(message: str) -> int | None:
    """The process on this machine that holds the lock which the message is about, if it lives."""
    for found in OWNER.finditer(message):
        pid = int(found["pid"])
        if found["host"] == socket.gethostname() and _alive(pid):
            return pid
    return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
