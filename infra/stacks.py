"""Stacks through the Pulumi CLI: what `infra.life` asks of a stack, done for real.

The CLI runs in a session of its own, so that a Ctrl-C reaches it once, from here: it then ends what is under way, saves
its state, opens its lock, and only then do we end. What a killed run of this machine left, the next command mends.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proving_ground.infra import locks, sizes, states
from proving_ground.infra.config import ROOT
from proving_ground.infra.life import InterruptedStackError, StackError
from proving_ground.infra.reading import ConfigError
from proving_ground.infra.trouble import classify

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


QUIET = ("--non-interactive", "--color", "never")
AT_ONCE = ("--yes", "--skip-preview", "--suppress-progress")
ENVIRONMENT = {"PULUMI_SKIP_UPDATE_CHECK": "true"}
STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPING = b"infra: stopping: what is under way ends first; once more ends it at once\n"
REFRESH = ("refresh", *AT_ONCE, "--clear-pending-creates")
TAKING_OVER = {"PULUMI_K8S_UPSERT_EXISTING_OBJECTS": "true"}
"""By which the Kubernetes provider takes over an object of ours that it finds, made by a command that was killed."""
UNREACHABLE = {"PULUMI_K8S_SKIP_UPDATE_UNREACHABLE": "true"}
"""By which the Kubernetes provider leaves objects as the state has them where it reaches no API server."""
WAITS = "proving-ground:waits"
"""The stack's tag that holds why it waits for machines; it is kept with the state, so every machine sees it."""
ASK_TIMEOUT_S = 120


def needed() -> None:
    """Refuse to work without the Pulumi CLI.

    Raises:
        ConfigError: it is not on PATH.
    """
    if shutil.which("pulumi") is None:
        raise ConfigError("pulumi: the command is not on PATH; install it (infra/README.md, step 1)")


class PulumiStack:
    """One stack of this project, selected or made; it implements `infra.life.Stack`."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        needed()
        self._name, self._say = name, say
        self._chosen: dict[str, str] = {}  # for the program alone
        self._ask("stack", "select", name, "--create", named=False)

    def up(self) -> None:
        """Make it so."""
        self._change("up", *AT_ONCE)

    def preview(self) -> None:
        """Say what `up` would do."""
        self._do("preview", "--suppress-progress")

    def destroy(self, *, cluster_gone: bool = False) -> None:
        """Take all of it away but what is protected; where its cluster is gone, without asking the API server."""
        if cluster_gone:
            self._unless_killed(self._forget_cluster)
        self._change("destroy", *AT_ONCE, "--exclude-protected")

    def mend(self, *, force: bool = False) -> None:
        """Open the lock that a killed run left, and compare the state with what there is.

        Raises:
            StackError: somebody may still hold the lock, and it is not to be opened by `force`; or a comparison failed.
        """
        try:
            self._compare()
        except InterruptedStackError:
            raise
        except StackError as error:
            if classify(str(error)).kind != "locked":
                raise
            self._unlock(str(error), force=force)
            self._compare()

    def waiting(self) -> str | None:
        """Why the stack waits for machines, or None: nothing says so, or something was done to it since."""
        try:
            reason = self._ask("stack", "tag", "get", WAITS).strip()
        except StackError:
            return None
        last = next((it for it in self._history() if it["kind"] in ("update", "destroy")), {})
        return reason if (last.get("kind"), last.get("result")) == ("update", "failed") else None

    def set_waiting(self, reason: str | None) -> None:
        """Note why the stack waits for machines, or that it does not."""
        words = ("set", WAITS, reason) if reason else ("rm", WAITS)
        self._ask("stack", "tag", *words)

    def skus(self) -> dict[str, str]:
        """The size that each pool has."""
        return sizes.of_export(self._export()["deployment"] or {})

    def set_skus(self, skus: Mapping[str, str]) -> None:
        """Choose the size of each pool for the next `up`."""
        self._chosen = {sizes.VARIABLE: json.dumps(dict(skus))}

    def created(self) -> dt.datetime | None:
        """When the first `up` after the last `destroy` ended; None when there is nothing."""
        first: str | None = None
        for update in self._history():
            if update["kind"] == "destroy" and update["result"] == "succeeded":
                break
            if update["kind"] == "update":
                first = update.get("endTime") or update["startTime"]
        return dt.datetime.fromisoformat(first) if first else None

    def _history(self) -> list[dict[str, Any]]:
        """What was done to the stack, newest first."""
        return list(self._read("stack", "history", "--json"))

    def _export(self) -> dict[str, Any]:
        return dict(self._read("stack", "export"))

    def _import(self, state: states.State) -> None:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "state.json"
            file.write_text(json.dumps(state))
            self._ask("stack", "import", "--file", str(file))

    def _change(self, *words: str) -> None:
        """Run a command that changes the stack; what a killed one of this machine left is mended first, and told."""
        if states.begun(self._export()):
            self._say("infra: an earlier command was killed half-way; mending the state first")
            self.mend()
        self._unless_killed(lambda: self._do(*words, environ=TAKING_OVER))

    def _unless_killed(self, do: Callable[[], None]) -> None:
        """Do it; where only a process of this machine that is gone locks the stack, mend and do it again."""
        try:
            do()
        except InterruptedStackError:
            raise
        except StackError as error:
            if classify(str(error)).kind != "locked" or locks.held(str(error)):
                raise
            self._say("infra: an earlier command was killed and left its lock; opening it and mending the state first")
            self.mend()
            do()

    def _compare(self) -> None:
        """Compare the state with what there is; where the API server is away, all but what is on the cluster."""
        state = self._export()
        for urn in states.half_made(state):
            self._say(f"infra: begun and not finished: {urn}; it may exist, and is not in the state")
        adopted = states.adopted(state)
        if adopted:
            self._import(adopted)
        try:
            self._do(*REFRESH)
        except InterruptedStackError:
            raise
        except StackError as error:
            if classify(str(error)).kind != "cluster":
                raise
            self._say("infra: the API server does not answer; what is on the cluster is taken to be as it was")
            if adopted:  # nobody knows whether they exist; a later `up` takes over those that do
                self._import(state)
            self._do(*REFRESH, environ=UNREACHABLE)

    def _unlock(self, message: str, *, force: bool) -> None:
        if not force and (reason := locks.held(message)):
            raise StackError(f"error: {reason}")
        self._ask("cancel", "--yes", self._name, named=False)

    def _forget_cluster(self) -> None:
        """Take the cluster's objects out of the state, since no provider can delete what it cannot reach."""
        self._import(states.without_cluster(self._export()))

    def _read(self, *words: str) -> Any:  # noqa: ANN401 - whatever the CLI has as JSON
        """A short command's answer, which is JSON."""
        answer = self._ask(*words)
        try:
            return json.loads(answer)
        except ValueError as error:
            raise StackError(f"error: pulumi {' '.join(words[:2])}: its answer is not JSON: {error}") from None

    def _ask(self, *words: str, named: bool = True) -> str:
        """What a short command answers."""
        command = self._command(words, named=named)
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False,
                stdin=subprocess.DEVNULL, timeout=ASK_TIMEOUT_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            asked = " ".join(words[:2])
            raise StackError(f"error: pulumi {asked}: no answer within {ASK_TIMEOUT_S} s") from None
        if done.returncode:
            raise StackError(f"{done.stdout}\n{done.stderr}")
        return done.stdout

    def _do(self, *words: str, environ: Mapping[str, str] | None = None) -> None:
        """Run a long command, saying its output line by line; a signal to us stops it in order."""
        command, environment = self._command(words), os.environ | ENVIRONMENT | self._chosen | dict(environ or {})
        with passing_stops_on() as stops, subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        ) as process:  # fmt: skip
            stops.pass_to(process)
            lines = list(self._following(process))
        if stops.came and process.returncode:
            raise InterruptedStackError("\n".join(lines))
        if process.returncode:
            raise StackError("\n".join(lines))

    def _following(self, process: subprocess.Popen[str]) -> Iterator[str]:
        for line in process.stdout or ():
            self._say(line.rstrip("\n"))
            yield line.rstrip("\n")

    def _command(self, words: tuple[str, ...], *, named: bool = True) -> list[str]:
        return ["pulumi", *words, *QUIET, *(("--stack", self._name) if named else ())]


class Stops:
    """The requests to stop that came, and the process that each is passed on to, once there is one."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self._passed = 0
        self._process: subprocess.Popen[Any] | None = None

    def take(self, number: int, _frame: object) -> None:
        """A signal's handler."""
        self.came.append(number)
        with contextlib.suppress(OSError):  # the terminal may be what went away
            os.write(2, STOPPING)
        self._pass()

    def pass_to(self, process: subprocess.Popen[Any]) -> None:
        """From now on there is a process; what came before reaches it too."""
        self._process = process
        self._pass()

    def _pass(self) -> None:
        while self._process is not None and self._passed < len(self.came):
            self._passed += 1  # first: a signal may come between the two, and none may be passed twice
            self._process.send_signal(signal.SIGINT)


@contextlib.contextmanager
def passing_stops_on() -> Iterator[Stops]:
    """Take every request to stop for the CLI, as a Ctrl-C; from before it starts, so that none ends us alone."""
    stops = Stops()
    before = {number: signal.signal(number, stops.take) for number in STOPS}
    try:
        yield stops
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
