"""The program that `pulumi up` runs, with Pulumi's configuration as the CLI would give it."""

from __future__ import annotations

import contextvars
import json
from typing import Any

import pulumi
import pytest
import yaml

from infra import program, sizes
from infra.cluster.apply import unawaited
from infra.config import KEY, ROOT, load
from tests.infra.mocks import CALLS, Cloud, Recorded, closing_loops

PASSWORD = "planted-grafana-secret"  # noqa: S105 - planted on purpose


def settings(stack: str, **changes: Any) -> dict[str, str]:
    """The stack's configuration as Pulumi hands it over: texts, JSON where it is more."""
    environment = yaml.safe_load((ROOT / f"Pulumi.{stack}.yaml").read_text())["config"][KEY]
    return {KEY: json.dumps({**environment, **changes}), "proving-ground:grafana_password": PASSWORD}


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
    found = run("local", settings("local"))
    assert len(found.of("core/v1:Namespace")) == 4
    assert PASSWORD not in str(found.resources)


def vm_sizes(found: Recorded) -> dict[str, str]:
    return {item.name: item.inputs["vmSize"] for item in found.of("containerservice:AgentPool")}


def test_a_pool_keeps_the_size_that_the_state_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one would replace it; so would the first of the list, which an `up` elsewhere could not have."""
    assert vm_sizes(run("dev", settings("dev"))) == {"cpu-pool": "Standard_D8s_v5", "t4-pool": "Standard_NC4as_T4_v3"}
    pool = {"type": sizes.POOL, "outputs": {"name": "t4", "vmSize": "Standard_NC16as_T4_v3"}}
    monkeypatch.setitem(CALLS, "readStackResourceOutputs", {"name": "x", "outputs": {"urn": pool}})
    found = run("dev", settings("dev"))
    assert vm_sizes(found) == {"cpu-pool": "Standard_D8s_v5", "t4-pool": "Standard_NC16as_T4_v3"}
    monkeypatch.setenv(sizes.VARIABLE, json.dumps({"t4": "Standard_NC4as_T4_v3"}))
    assert vm_sizes(run("dev", settings("dev")))["t4-pool"] == "Standard_NC4as_T4_v3"
    monkeypatch.setenv(sizes.VARIABLE, "no")
    with pytest.raises(pulumi.RunError, match=sizes.VARIABLE):
        run("dev", settings("dev"))


def test_a_bad_configuration_creates_nothing() -> None:
    with pytest.raises(pulumi.RunError, match=r"Pulumi\.local\.yaml: colour: unknown key; allowed: version"):
        run("local", settings("local", colour="red"))


def test_a_missing_password_says_how_to_set_it() -> None:
    config = {KEY: settings("local")[KEY]}
    with pytest.raises(
        pulumi.RunError, match="pulumi config set --secret proving-ground:grafana_password --stack local"
    ):
        run("local", config)


def test_without_waiting_every_object_says_so() -> None:
    manifest = {"kind": "Namespace", "metadata": {"name": "n", "annotations": {"a": "b"}}}
    marked = unawaited(manifest)
    assert marked["metadata"] == {"name": "n", "annotations": {"a": "b", "pulumi.com/skipAwait": "true"}}
    assert manifest["metadata"] == {"name": "n", "annotations": {"a": "b"}}
    known = yaml.safe_load((ROOT / "Pulumi.local.yaml").read_text())["config"][KEY]["kubernetes"]
    for wait in (True, False):
        made = run("local", settings("local", kubernetes={**known, "wait": wait}))
        objects = [it.inputs["metadata"] for it in made.resources if it.type.startswith("kubernetes:")]
        assert len(objects) > 50
        assert {"pulumi.com/skipAwait" in it.get("annotations", {}) for it in objects} == {not wait}
