"""Runs a stack's program without the Pulumi CLI and without a cloud, and records every resource that it declares."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import contextvars
import dataclasses
import datetime as dt
import json
import types
import unittest.mock
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulumi
from pulumi.runtime import mocks as pulumi_mocks

from proving_ground.infra.config import Environment, load
from proving_ground.infra.program import PROJECT
from proving_ground.infra.stack import Secrets, build

HERE = Path(__file__).parent
SUBSCRIPTION = "/subscriptions/00000000-0000-0000-0000-000000000000"
PLANTED = {"grafana_password": "planted-grafana-secret", "webhook": "https://planted-webhook-secret.example"}
PLANTED_KUBECONFIG = "planted-kubeconfig-secret"
KUBECONFIG = f"""
users:
- name: {PLANTED_KUBECONFIG}
  user:
    exec:
      apiVersion: client.authentication.k8s.io/v1beta1
      command: kubelogin
      args: [get-token, --environment, AzurePublicCloud, --server-id, s, --login, devicecode]
"""
PLANTED_FILE_KEY = "planted-file-key-secret"
NOW = dt.datetime(2026, 1, 15, 12, tzinfo=dt.UTC)
SECRET = "[secret]"  # noqa: S105 - what a snapshot shows instead of one


@dataclass(frozen=True)
class Declared:
    """One resource as the program declared it; secrets are replaced by SECRET in `inputs`.

    `after`: logical names of what it depends on; `parent`, `deleted_with` likewise; `protected` and `ignored` as in
    Pulumi's resource options.
    """

    type: str
    name: str
    inputs: dict[str, Any]
    after: tuple[str, ...] = ()
    parent: str = ""
    deleted_with: str = ""
    protected: bool = False
    ignored: tuple[str, ...] = ()

    @property
    def edges(self) -> dict[str, Any]:
        """What ties it to others and to its state, as far as there is something."""
        found = {
            "after": list(self.after), "parent": self.parent, "deletedWith": self.deleted_with,
            "protect": self.protected, "ignoreChanges": list(self.ignored),
        }  # fmt: skip
        return {name: value for name, value in found.items() if value}


@dataclass
class Recorded:
    """All that one stack declared, and what it exports."""

    stack: str
    environment: Environment
    resources: list[Declared] = field(default_factory=list)
    exports: dict[str, Any] = field(default_factory=dict)
    secret_exports: set[str] = field(default_factory=set)

    def of(self, kind: str) -> list[Declared]:
        """The resources whose type ends with `kind`, e.g. `storage:StorageAccount`."""
        return [resource for resource in self.resources if resource.type.endswith(kind)]


class Cloud(pulumi_mocks.Mocks):
    """Answers like a cloud in which everything works."""

    def __init__(self, recorded: Recorded) -> None:
        self.recorded = recorded

    def new_resource(self, args: pulumi_mocks.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        inputs = _hide_secrets(args.inputs)
        self.recorded.resources.append(Declared(args.typ, args.name, inputs))
        kind = args.typ.rpartition(":")[2]
        own_name = inputs.get(OWN_NAME.get(kind, ""), inputs.get("resourceName", args.name))
        identity = {"identity": IDENTITY} if "identity" in inputs else {}
        answer = {**args.inputs, **identity, "name": own_name, **ANSWERS.get(kind, {})}
        return f"{SUBSCRIPTION}/{args.typ}/{own_name}", answer

    def call(self, args: pulumi_mocks.MockCallArgs) -> tuple[dict[str, Any], list[tuple[str, str]]]:
        return CALLS[args.token.rpartition(":")[2]], []


OWN_NAME = {
    "ResourceGroup": "resourceGroupName",
    "StorageAccount": "accountName",
    "VirtualNetwork": "virtualNetworkName",
    "PrivateZone": "privateZoneName",
    "Workspace": "workspaceName",
    "Subnet": "subnetName",
}
IDENTITY = {"type": "UserAssigned", "principalId": "principal", "tenantId": "tenant", "userAssignedIdentities": {}}
ANSWERS: dict[str, dict[str, Any]] = {
    "ManagedCluster": {"oidcIssuerProfile": {"enabled": True, "issuerURL": "https://issuer.example/"}},
    "UserAssignedIdentity": {"principalId": "principal", "clientId": "client"},
    "PublicIPAddress": {"ipAddress": "198.51.100.7"},
    "Registry": {"loginServer": "registry.example"},
    "StorageAccount": {"primaryEndpoints": {"blob": "https://blob.example/"}},
}
CALLS: dict[str, dict[str, Any]] = {
    "getClientConfig": {"tenantId": "tenant", "objectId": "deployer", "subscriptionId": "sub", "clientId": "cli"},
    "listManagedClusterUserCredentials": {
        "kubeconfigs": [{"name": "user", "value": base64.b64encode(KUBECONFIG.encode()).decode()}]
    },
    "readStackResourceOutputs": {"name": "organization/proving-ground/x", "outputs": {}},
    "listStorageAccountKeys": {"keys": [{"keyName": "key1", "value": PLANTED_FILE_KEY, "permissions": "Full"}]},
}


def _hide_secrets(value: Any) -> Any:
    if isinstance(value, pulumi.Output):
        raise TypeError("an unresolved output reached the engine")
    if isinstance(value, dict):
        if pulumi.runtime.rpc._special_sig_key in value:
            return SECRET
        return {key: _hide_secrets(item) for key, item in value.items()}
    return [_hide_secrets(item) for item in value] if isinstance(value, list) else value


@contextlib.contextmanager
def noting_options(recorded: Recorded) -> Iterator[None]:
    """Add each resource's options to what was recorded of it: Pulumi's mocks see inputs only."""
    original = pulumi_mocks.MockMonitor.RegisterResource

    def register(monitor: pulumi_mocks.MockMonitor, request: Any) -> Any:
        answer = original(monitor, request)  # type: ignore[no-untyped-call]
        for number, item in enumerate(recorded.resources):
            if (item.type, item.name) == (request.type, request.name):
                recorded.resources[number] = dataclasses.replace(item, **_options(request))
        return answer

    with unittest.mock.patch.object(pulumi_mocks.MockMonitor, "RegisterResource", register):
        yield


def _options(request: Any) -> dict[str, Any]:
    return {
        "after": tuple(sorted({_name(urn) for urn in request.dependencies})),
        "parent": _name(request.parent),
        "deleted_with": _name(request.deletedWith),
        "protected": request.protect,
        "ignored": tuple(request.ignoreChanges),
    }


def _name(urn: str) -> str:
    return urn.rpartition("::")[2]


def record(stack: str, environment: Environment | None = None, now: dt.datetime = NOW) -> Recorded:
    """Run the program of a stack at a moment and return what it declared."""
    recorded = Recorded(stack, environment or load(stack, environ={}))
    with closing_loops(), noting_options(recorded):
        contextvars.copy_context().run(_run, recorded, now)  # Pulumi keeps its root resource in a context variable
    return recorded


def _run(recorded: Recorded, now: dt.datetime) -> None:
    pulumi.runtime.set_mocks(Cloud(recorded), PROJECT, recorded.stack, preview=False)
    secrets = Secrets(**{key: pulumi.Output.secret(value) for key, value in PLANTED.items()})

    def program() -> pulumi.Output[None]:
        # A small monitoring/ that changes with these tests only, and a clock that stands still.
        with unittest.mock.patch("proving_ground.infra.cluster.facts.ROOT", HERE), standing_still(now):
            exports = build(recorded.environment, secrets)
        noted = [_note(recorded, key, value) for key, value in exports.items()]
        return pulumi.Output.all(*noted).apply(lambda _: None)

    pulumi.runtime.test(program)()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def standing_still(now: dt.datetime) -> Iterator[None]:
    """Have the budget see this moment whenever it looks at the clock."""

    class Clock(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> dt.datetime:  # type: ignore[override]
            return now.astimezone(tz)

    module = types.SimpleNamespace(**{**vars(dt), "datetime": Clock})
    with unittest.mock.patch("proving_ground.infra.azure.budget.dt", module):
        yield


@contextlib.contextmanager
def closing_loops() -> Iterator[None]:
    """Close the event loops that Pulumi opens in its worker threads and leaves to the garbage collector."""
    opened: list[asyncio.AbstractEventLoop] = []
    original = asyncio.new_event_loop

    def new_event_loop() -> asyncio.AbstractEventLoop:
        opened.append(original())
        return opened[-1]

    with unittest.mock.patch("asyncio.new_event_loop", new_event_loop):
        asyncio.set_event_loop(new_event_loop())
        try:
            yield
        finally:
            for loop in opened:
                loop.close()
            asyncio.set_event_loop(None)


def _note(recorded: Recorded, key: str, value: Any) -> pulumi.Output[None]:
    output = pulumi.Output.from_input(value)

    async def take() -> None:
        recorded.exports[key] = await output.future()
        if await output.is_secret():
            recorded.secret_exports.add(key)

    return pulumi.Output.from_input(take())


def snapshot(recorded: Recorded) -> str:
    """The declared resources with their edges as stable text, one block each, in the order of type and name."""
    blocks = sorted(
        ({"type": item.type, "name": item.name, "inputs": item.inputs, **item.edges} for item in recorded.resources),
        key=lambda block: (block["type"], block["name"]),
    )
    return json.dumps(blocks, indent=1, sort_keys=True) + "\n"
