"""Pulumi's engine as the program sees it: a resource monitor over gRPC that records what is registered.

`run("dev")` starts the program in a process of its own, by its relative path in its own folder, as the CLI does. With
`over=earlier` it runs over an earlier run's state: what exists keeps its identity and answers as it is stored.
`tests.infra.steps` says what an engine would then do.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import shutil
import subprocess
import sys
from concurrent import futures
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import empty_pb2, json_format, struct_pb2
from pulumi.runtime import mocks as pulumi_mocks
from pulumi.runtime.proto import (
    engine_pb2,
    engine_pb2_grpc,
    provider_pb2,
    resource_pb2,
    resource_pb2_grpc,
)

from proving_ground.infra.config import ROOT, load
from proving_ground.infra.program import PROJECT
from tests.infra.mocks import PLANTED, SECRET, Cloud, Recorded

SECRET_MARK = "4dabf18193072939515e22adb298388d"  # noqa: S105 - how the protocol marks a special value
UNKNOWN = "04da6b54-80e4-46f7-96ec-b56ff0331ba9"
TIMEOUT_S = 500
ROOT_TYPE = "pulumi:pulumi:Stack"
CLIS_OWN = "pulumi-language-python-exec"
"""The script that comes with the CLI; where it is not on PATH, `entry.py` stands in for it."""


@dataclass(frozen=True)
class Registered:
    """One resource as the engine was told of it; secrets are replaced by SECRET."""

    urn: str
    kind: str
    name: str
    custom: bool
    parent: str
    inputs: dict[str, Any]
    dependencies: frozenset[str]
    deleted_with: str
    protect: bool
    provider: str
    replace_on_changes: tuple[str, ...]
    delete_before_replace: bool
    ignored: tuple[str, ...]
    used: frozenset[str]  # what its inputs come from, which is less than what it waits for


@dataclass(frozen=True)
class Stored:
    """What a state keeps of a resource, secrets as the protocol has them."""

    identity: str
    inputs: dict[str, Any]
    outputs: dict[str, Any]


@dataclass
class Run:
    """What one run of the program told the engine."""

    resources: dict[str, Registered] = field(default_factory=dict)
    state: dict[str, Stored] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    status: int = 0
    cpu_s: float = 0.0

    def of(self, kind: str) -> list[Registered]:
        """The resources whose type ends with `kind`."""
        return [item for item in self.resources.values() if item.kind.endswith(kind)]

    def asked_to_delete(self) -> list[Registered]:
        """What a destroy of everything would ask the providers to delete: not what goes with something else."""
        return [item for item in self.resources.values() if item.custom and item.deleted_with not in self.resources]


class Monitor(resource_pb2_grpc.ResourceMonitorServicer):
    """Registers everything, answers as `tests.infra.mocks.Cloud` does; for what `before` has, as stored there."""

    def __init__(self, stack: str, run: Run, before: Run) -> None:
        self._stack, self._run, self._before = stack, run, before
        self._new = secrets.token_hex(4)  # a cloud gives no identity twice
        self._cloud = Cloud(Recorded(stack, load(stack, environ={})))

    def SupportsFeature(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002 - the protocol's names
        """Everything a current engine can, but for what would make the program wait for us."""
        able = request.id in {"secrets", "resourceReferences", "outputValues", "deletedWith", "aliasSpecs"}
        return resource_pb2.SupportsFeatureResponse(hasSupport=able)

    def RegisterResource(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002 - the protocol's names
        """Note it, and answer like a cloud in which everything works."""
        urn = f"urn:pulumi:{self._stack}::{PROJECT}::{request.type}::{request.name}"
        inputs = _plain(json_format.MessageToDict(request.object))
        self._run.resources[urn] = Registered(
            urn, request.type, request.name, request.custom, request.parent, _hidden(inputs),
            frozenset(request.dependencies), request.deletedWith, request.protect, request.provider,
            tuple(request.replaceOnChanges), request.deleteBeforeReplace, tuple(request.ignoreChanges),
            frozenset(used for item in request.propertyDependencies.values() for used in item.urns),
        )  # fmt: skip
        identity, answer = self._made(request, inputs, urn) if request.custom else ("", inputs)
        self._run.state[urn] = Stored(identity, inputs, answer)
        made = json_format.ParseDict(answer, struct_pb2.Struct())
        return resource_pb2.RegisterResourceResponse(urn=urn, id=identity, object=made)

    def _made(self, request: Any, inputs: dict[str, Any], urn: str) -> tuple[str, dict[str, Any]]:
        """Its identity and outputs: as stored where nothing is changed, else what the cloud answers."""
        stored = self._before.state.get(urn)
        if stored and stored.inputs == inputs:
            return stored.identity, stored.outputs
        asked = pulumi_mocks.MockResourceArgs(request.type, request.name, inputs, request.provider)
        identity, answer = self._cloud.new_resource(asked)
        return stored.identity if stored else f"{identity}-{self._new}", answer

    def RegisterResourceOutputs(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002 - the protocol's names
        """The stack's exports come this way."""
        if self._run.resources[request.urn].kind == ROOT_TYPE:
            self._run.outputs = _hidden(_plain(json_format.MessageToDict(request.outputs)))
        return empty_pb2.Empty()

    def Invoke(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002 - the protocol's names
        """A question to a provider."""
        asked = pulumi_mocks.MockCallArgs(request.tok, {}, "")
        answer = json_format.ParseDict(self._cloud.call(asked)[0], struct_pb2.Struct())
        return provider_pb2.InvokeResponse(**{"return": answer})

    def SignalAndWaitForShutdown(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002 - the protocol's names
        """The program is done."""
        return empty_pb2.Empty()


class Engine(engine_pb2_grpc.EngineServicer):
    """Takes the program's messages."""

    def __init__(self, run: Run) -> None:
        self._run, self._root = run, ""

    def Log(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002 - the protocol's names
        """Keep errors."""
        if request.severity == engine_pb2.ERROR:
            self._run.errors.append(request.message)
        return empty_pb2.Empty()

    def GetRootResource(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002 - the protocol's names
        """The stack's own resource."""
        return engine_pb2.GetRootResourceResponse(urn=self._root)

    def SetRootResource(self, request: Any, context: Any) -> Any:  # noqa: N802, ARG002 - the protocol's names
        """It is told once."""
        self._root = request.urn
        return engine_pb2.SetRootResourceResponse()


def run(
    stack: str,
    environ: dict[str, str] | None = None,
    config: dict[str, str] | None = None,
    over: Run | None = None,
    script: str | None = None,
) -> Run:
    """Run the program of a stack; `environ` goes over the environment, `config` is what `pulumi config` holds.

    `over`: the run whose state there is already; `script`: of the language host, `host()` where it is not given.
    """
    made, server = Run(), grpc.server(futures.ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
    resource_pb2_grpc.add_ResourceMonitorServicer_to_server(Monitor(stack, made, over or Run()), server)
    engine_pb2_grpc.add_EngineServicer_to_server(Engine(made), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        given = {f"{PROJECT}:{key}": value for key, value in PLANTED.items()} if config is None else config
        command = _command(stack, address, script or host())
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **_config(given), **(environ or {})},
            capture_output=True, text=True, check=False, timeout=TIMEOUT_S,
        )  # fmt: skip
    finally:
        server.stop(None)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    made.cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    made.status = done.returncode
    made.errors += [done.stderr] if done.returncode and not made.errors else []
    return made


def host() -> str:
    """The language host's script: the CLI's own where it is on PATH, else ours, which does the same."""
    return shutil.which(CLIS_OWN) or stand_in()


def stand_in() -> str:
    """Our own script of a language host."""
    return str(Path(__file__).with_name("entry.py"))


def _command(stack: str, address: str, script: str) -> list[str]:
    """The language host's own command."""
    where = ["--monitor", address, "--engine", address, "--pwd", str(ROOT / "infra")]
    what = ["--project", PROJECT, "--stack", stack, "--organization", "organization"]
    return [sys.executable, "-u", script, *where, *what, "--dry_run", "false", "--parallel", "16", "program.py"]


def _config(given: dict[str, str]) -> dict[str, str]:
    return {"PULUMI_CONFIG": json.dumps(given), "PULUMI_CONFIG_SECRET_KEYS": json.dumps(sorted(given))}


def _plain(value: Any) -> Any:
    """Output values of the protocol as the values they have, secrets marked the older way."""
    if isinstance(value, dict):
        mark = value.get(SECRET_MARK)
        if mark == "d0e6a833031e9bbcd3f4e8bde6ca49a4":  # an output value
            inner = _plain(value.get("value", UNKNOWN))
            secret = {SECRET_MARK: "1b47061264138c4ac30d75fd1eb44270", "value": inner}
            return secret if value.get("secret") else inner
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _hidden(value: Any) -> Any:
    if isinstance(value, dict):
        return SECRET if SECRET_MARK in value else {key: _hidden(item) for key, item in value.items()}
    return [_hidden(item) for item in value] if isinstance(value, list) else value
