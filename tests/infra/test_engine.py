"""The program under the engine's own protocol: what is registered, what goes with what, and a second run."""

from __future__ import annotations

import pytest

from tests.infra.engine import Run, run
from tests.infra.mocks import PLANTED, PLANTED_FILE_KEY, PLANTED_KUBECONFIG

pytestmark = pytest.mark.timeout(1200)
STACKS = ("local", "dev")  # one of the caller's cluster, one whose cluster is made


@pytest.fixture(scope="module", params=STACKS)
def twice(request: pytest.FixtureRequest) -> tuple[Run, Run]:
    """Two runs of a stack's program, one after the other."""
    return run(request.param), run(request.param)


def test_the_program_runs_by_its_relative_path(twice: tuple[Run, Run]) -> None:
    for made in twice:
        assert (made.status, made.errors) == (0, [])
        assert made.outputs["schema"] == 1
        assert len(made.of(":Namespace")) == 4


def test_a_second_run_over_the_first_ones_state_changes_nothing(twice: tuple[Run, Run]) -> None:
    first, second = twice
    assert first.resources.keys() == second.resources.keys()
    assert [urn for urn, item in first.resources.items() if item != second.resources[urn]] == []
    assert first.outputs == second.outputs


def test_nothing_is_sent_that_an_api_server_does_not_keep(twice: tuple[Run, Run]) -> None:
    """An empty `stringData` or `data` is dropped on the way, so it would be a change at every further run."""
    kept = [item for kind in ("core/v1:Secret", "core/v1:ConfigMap") for item in twice[0].of(kind)]
    assert kept
    assert not [item.name for item in kept if not (item.inputs.get("stringData") or item.inputs.get("data"))]


def test_every_object_goes_with_its_cluster_or_its_namespace(twice: tuple[Run, Run]) -> None:
    made = twice[0]
    objects = [item for item in made.resources.values() if item.kind.startswith("kubernetes:")]
    clusters = {item.urn for item in made.of(":ManagedCluster")}
    spaces = {item.inputs["metadata"]["name"]: item.urn for item in made.of(":Namespace")}
    assert len(objects) > 50
    for item in objects:
        space = spaces.get(item.inputs["metadata"].get("namespace", ""), "")
        assert item.deleted_with in (clusters or {space}), item.name


def test_a_destroy_asks_only_for_what_does_not_go_by_itself(twice: tuple[Run, Run]) -> None:
    made = twice[0]
    asked = {item.kind.rpartition(":")[2] for item in made.asked_to_delete() if item.kind.startswith("kubernetes:")}
    global_kinds = {"Namespace", "PriorityClass", "PersistentVolume", "ClusterRole", "ClusterRoleBinding"}
    assert asked == (set() if made.of(":ManagedCluster") else global_kinds)


def test_objects_come_after_their_namespace_and_through_the_stacks_own_provider(twice: tuple[Run, Run]) -> None:
    made = twice[0]
    spaces = {item.inputs["metadata"]["name"]: item.urn for item in made.of(":Namespace")}
    (provider,) = made.of("providers:kubernetes")
    for item in made.resources.values():
        if item.kind.startswith("kubernetes:"):
            assert item.provider.startswith(f"{provider.urn}::"), item.name
            space = item.inputs["metadata"].get("namespace")
            assert space is None or spaces[space] in item.dependencies, item.name


def test_config_maps_and_secrets_are_updated_in_place(twice: tuple[Run, Run]) -> None:
    (provider,) = twice[0].of("providers:kubernetes")
    assert provider.inputs["enableConfigMapMutable"] == provider.inputs["enableSecretMutable"] == "true"


def test_secrets_are_marked_on_the_wire(twice: tuple[Run, Run]) -> None:
    text = str([item.inputs for item in twice[0].resources.values()]) + str(twice[0].outputs)
    assert not [secret for secret in (*PLANTED.values(), PLANTED_KUBECONFIG, PLANTED_FILE_KEY) if secret in text]


def test_a_refusal_is_told_to_the_engine_and_registers_nothing() -> None:
    made = run("local", environ={"PROVING_GROUND_INFRA__COLOUR": "red"})
    assert made.status != 0
    assert "Pulumi.local.yaml: colour: unknown key" in made.errors[0]
    assert not made.of(":Namespace")


def test_only_a_person_writes_the_environment() -> None:
    made = run("local", config={"proving-ground:environment": "{}"})
    assert made.status != 0
    assert made.errors == ["environment is set by `pulumi config`; it is read from Pulumi.local.yaml only"]
