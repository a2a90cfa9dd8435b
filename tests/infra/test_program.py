"""The program that `pulumi up` runs, with Pulumi's configuration as the CLI would give it."""

from __future__ import annotations

import asyncio
import base64
import contextvars
import json
from typing import Any

import pulumi
import pytest

from proving_ground.infra import passwords, program, sizes
from proving_ground.infra.cluster.apply import unawaited
from proving_ground.infra.config import KEY, Environment, load
from proving_ground.infra.stack import Secrets
from tests.infra.mocks import CALLS, Cloud, Recorded, closing_loops

PASSWORD = "planted-grafana-secret"  # noqa: S105 - planted on purpose


def settings() -> dict[str, str]:
    """What `pulumi config` holds, as Pulumi hands it over: texts, JSON where it is more."""
    return {"proving-ground:grafana_password": PASSWORD}


def run(stack: str, config: dict[str, str]) -> Recorded:
    """Run the program against mocks."""
    recorded = Recorded(stack, load(stack, environ={}))

    def inside() -> None:
        pulumi.runtime.set_mocks(Cloud(recorded), program.PROJECT, stack, preview=False)
        pulumi.runtime.set_all_config(config, ["proving-ground:grafana_password"])
        pulumi.runtime.test(program.main)()  # type: ignore[no-untyped-call]

    with closing_loops():
        contextvars.copy_context().run(inside)
    return recorded


def test_the_program_declares_the_stack() -> None:
    found = run("local", settings())
    assert len(found.of("core/v1:Namespace")) == 4
    assert PASSWORD not in str(found.resources)


def vm_sizes(found: Recorded) -> dict[str, str]:
    return {item.name: item.inputs["vmSize"] for item in found.of("containerservice:AgentPool")}


def test_a_pool_keeps_the_size_that_the_state_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one would replace it; so would the first of the list, which an `up` elsewhere could not have."""
    assert vm_sizes(run("dev", settings())) == {"cpu-pool": "Standard_D8s_v5", "t4-pool": "Standard_NC4as_T4_v3"}
    pool = {"type": sizes.POOL, "outputs": {"name": "t4", "vmSize": "Standard_NC16as_T4_v3"}}
    monkeypatch.setitem(CALLS, "readStackResourceOutputs", {"name": "x", "outputs": {"urn": pool}})
    found = run("dev", settings())
    assert vm_sizes(found) == {"cpu-pool": "Standard_D8s_v5", "t4-pool": "Standard_NC16as_T4_v3"}
    monkeypatch.setenv(sizes.VARIABLE, json.dumps({"t4": "Standard_NC4as_T4_v3"}))
    assert vm_sizes(run("dev", settings()))["t4-pool"] == "Standard_NC4as_T4_v3"
    monkeypatch.setenv(sizes.VARIABLE, "no")
    with pytest.raises(pulumi.RunError, match=sizes.VARIABLE):
        run("dev", settings())


def test_a_bad_configuration_creates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROVING_GROUND_INFRA__COLOUR", "red")
    with pytest.raises(pulumi.RunError, match=r"Pulumi\.local\.yaml: colour: unknown key; allowed: version"):
        run("local", settings())


def test_the_environment_is_not_taken_from_pulumis_own_file() -> None:
    with pytest.raises(pulumi.RunError, match=r"environment is set by `pulumi config`; it is read from Pulumi\.local"):
        run("local", {**settings(), KEY: "{}"})


STATE = {
    "outputs": {
        f"urn:pulumi:local::proving-ground::c$kubernetes:core/v1:Secret::pg-monitoring/secret/{name}": {
            "type": "kubernetes:core/v1:Secret",
            "outputs": {"data": {key: base64.b64encode(value.encode()).decode()}},
        }
        for name, key, value in (("grafana", "password", "kept"), ("alertmanager", "webhook", "https://kept"))
    }
}
"""What the engine answers of a stack that is up, as far as its secrets go."""


def secrets_of(monkeypatch: pytest.MonkeyPatch, config: dict[str, str]) -> dict[str, str | None]:
    """What the program hands on."""
    handed: list[Secrets] = []

    def build(_: Environment, secrets: Secrets, __: object) -> dict[str, Any]:
        handed.append(secrets)
        return {}

    monkeypatch.setattr(program, "build", build)
    run("local", config)
    found: dict[str, str | None] = {}
    for name in passwords.VARIABLES:
        output = getattr(handed[0], name)
        found[name] = output and asyncio.run(_plain(output))
    return found


async def _plain(output: pulumi.Output[str]) -> str:
    assert await output._is_secret, "a secret reaches the engine as one"
    return await output._future


def test_secrets_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """In CI, where nobody has run `pulumi config`; a variable that is there and empty is none."""
    for name, variable in passwords.VARIABLES.items():
        monkeypatch.setenv(variable, f"from {name}")
    wanted = {"grafana_password": "from grafana_password", "webhook": "from webhook"}
    assert secrets_of(monkeypatch, {}) == secrets_of(monkeypatch, settings()) == wanted
    for variable in passwords.VARIABLES.values():
        monkeypatch.setenv(variable, "")
    assert secrets_of(monkeypatch, settings()) == {"grafana_password": PASSWORD, "webhook": None}


def test_an_up_from_a_machine_without_the_secrets_keeps_those_of_the_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CALLS, "readStackResourceOutputs", STATE)
    assert secrets_of(monkeypatch, {}) == {"grafana_password": "kept", "webhook": "https://kept"}
    config = settings() | {"proving-ground:webhook": "https://new"}
    assert secrets_of(monkeypatch, config) == {"grafana_password": PASSWORD, "webhook": "https://new"}
    assert secrets_of(monkeypatch, {"proving-ground:webhook": "none"})["webhook"] is None
    monkeypatch.setenv(passwords.VARIABLES["webhook"], "none")
    assert secrets_of(monkeypatch, config)["webhook"] is None


def test_a_state_that_is_just_being_written_is_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    failures = ["failed to load checkpoint: EOF"] * 2
    real = pulumi.runtime.invoke

    def invoke(*asked: Any) -> Any:
        if failures:
            raise Exception(failures.pop())  # noqa: TRY002 - as Pulumi does
        return real(*asked)

    monkeypatch.setattr(program, "BETWEEN_READS_S", 0)
    monkeypatch.setattr(pulumi.runtime, "invoke", invoke)
    assert run("local", settings()).of("core/v1:Namespace")
    failures.extend(["failed to load checkpoint: EOF"] * program.READS)
    with pytest.raises(pulumi.RunError, match="the stack's state cannot be read: failed to load checkpoint: EOF"):
        run("local", settings())


def test_a_missing_password_says_how_to_set_it() -> None:
    with pytest.raises(
        pulumi.RunError, match="pulumi config set --secret proving-ground:grafana_password --stack local"
    ):
        run("local", {})


def test_without_waiting_every_object_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    manifest = {"kind": "Namespace", "metadata": {"name": "n", "annotations": {"a": "b"}}}
    marked = unawaited(manifest)
    assert marked["metadata"] == {"name": "n", "annotations": {"a": "b", "pulumi.com/skipAwait": "true"}}
    assert manifest["metadata"] == {"name": "n", "annotations": {"a": "b"}}
    for wait in (True, False):
        monkeypatch.setenv("PROVING_GROUND_INFRA__KUBERNETES__WAIT", str(wait))
        made = run("local", settings())
        objects = [it.inputs["metadata"] for it in made.resources if it.type.startswith("kubernetes:")]
        assert len(objects) > 50
        assert {"pulumi.com/skipAwait" in it.get("annotations", {}) for it in objects} == {not wait}
