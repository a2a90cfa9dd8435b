"""The program under the engine's own protocol: what is registered, what goes with what, a second run, and orders.

The ids of the tests say which language host ran the program: the CLI's own, where it is on PATH, or our stand-in.
"""

from __future__ import annotations

import dataclasses
import functools
import shutil
from pathlib import Path

import pytest

from proving_ground.infra.config import STACKS
from tests.infra.engine import CLIS_OWN, Registered, Run, host, run, stand_in
from tests.infra.mocks import PLANTED, PLANTED_FILE_KEY, PLANTED_KUBECONFIG
from tests.infra.steps import changes, gone_before, replacement, staying, waves

pytestmark = pytest.mark.timeout(1200)
LONGEST_S = 60  # of CPU, a run: 7 on a quiet machine, and twice as long on a core that is shared
INFRA = "PROVING_GROUND_INFRA__"


@functools.cache
def first(stack: str) -> Run:
    """A run of a stack's program, over nothing."""
    return run(stack)


@pytest.fixture(scope="module", params=STACKS, ids=lambda stack: f"{stack} by {Path(host()).name}")
def twice(request: pytest.FixtureRequest) -> tuple[Run, Run]:
    """Two runs of a stack's program, the second over the first one's state."""
    return first(request.param), run(request.param, over=first(request.param))


def short(found: dict[str, str]) -> dict[str, str]:
    """The same by name instead of URN."""
    return {urn.rpartition("::")[2]: step for urn, step in found.items()}


def test_the_program_runs_by_its_relative_path(twice: tuple[Run, Run]) -> None:
    for made in twice:
        assert (made.status, made.errors) == (0, [])
        assert made.outputs["schema"] == 1
        assert len(made.of(":Namespace")) == 4
    assert min(made.cpu_s for made in twice) <= LONGEST_S, "of two, as others may have the caches"


def test_the_clis_own_host_and_the_stand_in_register_the_same() -> None:
    if shutil.which(CLIS_OWN) is None:
        pytest.skip(f"{CLIS_OWN}, which comes with the Pulumi CLI, is not on PATH: {stand_in()} stood in for it")
    one = run("local", script=host())
    other = run("local", over=one, script=stand_in())
    assert len(one.resources) > 70
    assert (one.status, one.resources, one.outputs) == (other.status, other.resources, other.outputs)


def test_a_second_run_over_the_first_ones_state_changes_nothing(twice: tuple[Run, Run]) -> None:
    first, second = twice
    assert changes(first, second) == {}
    assert [urn for urn, item in first.resources.items() if item != second.resources[urn]] == []
    assert [urn for urn, item in first.state.items() if item != second.state[urn]] == []
    assert first.outputs == second.outputs


def test_a_cloud_gives_no_identity_twice() -> None:
    """So the test above compares with a state, and not with a run that happens to be alike."""
    again = changes(first("dev"), run("dev"))
    assert "update" in again.values()


@pytest.mark.parametrize("config", [PLANTED, {"grafana_password": PLANTED["grafana_password"]}], ids=len)
def test_nothing_is_sent_that_an_api_server_does_not_keep(config: dict[str, str]) -> None:
    """An empty `stringData` or `data` is dropped on the way, so it would be a change at every further run.

    With a webhook and without one, which is how most begin.
    """
    made = run("local", config={f"proving-ground:{name}": value for name, value in config.items()})
    assert made.status == 0
    kept = [item for kind in ("core/v1:Secret", "core/v1:ConfigMap") for item in made.of(kind)]
    assert len(made.of("core/v1:Secret")) == len(config)
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


def test_a_destroy_leaves_what_is_protected_and_what_it_lies_in(twice: tuple[Run, Run]) -> None:
    made = twice[0]
    kept = {made.resources[urn].name for urn in staying(made)}
    data = {"blob-account", "blob-protection", "checkpoints-container", "data-container", "backups-container"}
    around = {"resource-group", "storage", "proving-ground-prod"}  # the group, the component, the stack itself
    assert kept == (data | around if "proving-ground-prod" in str(made.of("Stack")) else set())


SPACES = ("namespace/pg-training", "namespace/pg-monitoring")
OBJECTS = ("pg-training/podtemplate/trainer-cpu", "pg-monitoring/statefulset/prometheus")
ON_A_CLUSTER = [(OBJECTS[0], SPACES[0]), (OBJECTS[1], SPACES[1]), (SPACES[0], "cluster"), (SPACES[1], "cluster")]
ON_AZURE = [
    *ON_A_CLUSTER,
    ("cluster", "deployer-aks-rbac-cluster-admin-on-aks"),  # by this right its objects are deleted
    ("cluster", "cpu-pool"),
    ("cpu-pool", "aks"),
    ("aks", "cluster-network-contributor-on-nodes"),
    ("aks", "kubelet-acr-pull-on-registry"),
    ("aks", "nodes-subnet"),
    ("blob-endpoint", "endpoints-subnet"),
    ("blob-endpoint", "blob-account"),
    ("checkpoints-container", "blob-account"),
    ("nodes-subnet", "vnet"),
    ("nodes-subnet", "nat"),
    ("vnet", "resource-group"),
    ("blob-account", "resource-group"),
]
PRIVATE = [*ON_AZURE, ("cluster", "to-operators"), ("cluster", "from-operators"), ("ml-compute", "ml-workspace")]
ORDERS = {"local": ON_A_CLUSTER, "dev": ON_AZURE, "staging": PRIVATE, "prod": PRIVATE}


def test_a_destroy_deletes_nothing_that_something_left_needs(twice: tuple[Run, Run]) -> None:
    made = twice[0]
    assert not [pair for pair in ORDERS[stack_of(made)] if not gone_before(made, *pair)]
    order = [urn for wave in waves(made, made.resources) for urn in wave]
    assert len(order) == len(made.resources)
    assert order[-1] == made.of("pulumi:Stack")[0].urn


def stack_of(made: Run) -> str:
    """The stack of a run."""
    return made.of("pulumi:Stack")[0].name.rpartition("-")[2]


@pytest.mark.parametrize("name", ["cluster", "aks", "cpu-pool", "namespace/pg-training", "nodes-subnet"])
def test_an_order_that_no_edge_holds_would_be_seen(name: str) -> None:
    """The mutant: a resource that says of nothing that it needs it."""
    made = first("dev")
    alone = {urn: loosened(item) if item.name == name and item.custom else item for urn, item in made.resources.items()}
    spoiled = dataclasses.replace(made, resources=alone)
    assert [pair for pair in ON_AZURE if not gone_before(spoiled, *pair)]


def loosened(item: Registered) -> Registered:
    """The same without its edges."""
    none: frozenset[str] = frozenset()
    return dataclasses.replace(item, dependencies=none, used=none, parent="", deleted_with="", provider="")


def test_a_larger_pool_is_a_change_in_place() -> None:
    before = first("dev")
    after = run("dev", {f"{INFRA}POOLS__1__MAX_NODES": "3"}, over=before)
    quotas = dict.fromkeys(("pg-ray/resourcequota/quota", "pg-training/resourcequota/quota"), "update")
    assert short(changes(before, after)) == {"t4-pool": "update", **quotas}
    assert replacement(before, after) == []


def test_another_size_replaces_its_pool_and_nothing_else() -> None:
    before, skus = first("dev"), ("Standard_NC16as_T4_v3", "Standard_NC4as_T4_v3")
    after = run("dev", {f"{INFRA}POOLS__1__SKUS__{number}": sku for number, sku in enumerate(skus)}, over=before)
    assert short(changes(before, after)) == {"t4-pool": "replace", "pg-training/podtemplate/trainer-t4": "update"}
    assert replacement(before, after) == [("delete", "t4-pool"), ("create", "t4-pool")]


def test_another_region_replaces_all_in_an_order_that_works() -> None:
    """What is on the cluster goes with it: its API server is not asked, and all is there again afterwards."""
    before = first("dev")
    after = run("dev", {f"{INFRA}AZURE__LOCATION": "northeurope"}, over=before)
    steps = replacement(before, after)
    deletes = [name for step, name in steps if step == "delete"]
    creates = [name for step, name in steps if step == "create"]
    assert steps == [("delete", name) for name in deletes] + [("create", name) for name in creates]
    assert not [name for name in deletes if "/" in name]
    assert {*OBJECTS, *SPACES} < {*creates}
    for first_gone, last_gone in ON_AZURE:
        if {first_gone, last_gone} <= {*deletes}:
            assert deletes.index(first_gone) < deletes.index(last_gone)
        assert creates.index(first_gone) > creates.index(last_gone)
    assert {"aks", "cpu-pool", "vnet", "resource-group"} < {*deletes}


def test_what_is_protected_is_not_replaced_either() -> None:
    before = first("prod")
    after = run("prod", {f"{INFRA}AZURE__LOCATION": "northeurope"}, over=before)
    with pytest.raises(PermissionError, match="protected: backups-container, blob-account"):
        replacement(before, after)


def test_a_refusal_is_told_to_the_engine_and_registers_nothing() -> None:
    made = run("local", environ={"PROVING_GROUND_INFRA__COLOUR": "red"})
    assert made.status != 0
    assert "Pulumi.local.yaml: colour: unknown key" in made.errors[0]
    assert not made.of(":Namespace")


def test_only_a_person_writes_the_environment() -> None:
    made = run("local", config={"proving-ground:environment": "{}"})
    assert made.status != 0
    assert made.errors == ["environment is set by `pulumi config`; it is read from Pulumi.local.yaml only"]
