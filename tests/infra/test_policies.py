"""The table of policies over all stacks; a rule that checked nothing fails, so does one that catches nothing."""

from __future__ import annotations

import copy
import dataclasses
import datetime as dt
from collections.abc import Mapping

import pytest
import yaml

from proving_ground.infra.azure.aks import unattended
from proving_ground.infra.cluster.everything import manifests
from proving_ground.infra.cluster.facts import Facts
from proving_ground.infra.config import STACKS, Pool, load
from proving_ground.infra.skus import SKUS, Sku, allocatable
from tests.infra.cluster_policies import CLUSTER, fits, one_core_more
from tests.infra.mocks import Declared, Recorded, record
from tests.infra.policies import AZURE, Rule

RULES = AZURE + CLUSTER


def _subjects(rule: Rule, recorded: Mapping[str, Recorded]) -> list[tuple[Recorded, Declared]]:
    return [
        (stack, resource)
        for stack in recorded.values()
        for kind in rule.kinds
        for resource in stack.of(kind)
        if rule.where(resource.inputs)
    ]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_holds_everywhere_and_checked_something(rule: Rule, recorded: Mapping[str, Recorded]) -> None:
    subjects = _subjects(rule, recorded)
    assert subjects, "this rule checked nothing"
    broken = [
        f"{stack.stack}: {resource.name}" for stack, resource in subjects if not rule.holds(resource.inputs, stack)
    ]
    assert not broken


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_rule_catches_its_mutant(rule: Rule, recorded: Mapping[str, Recorded]) -> None:
    for stack, resource in _subjects(rule, recorded):
        spoiled = copy.deepcopy(resource.inputs)
        rule.mutant(spoiled)
        assert not rule.holds(spoiled, stack), f"{stack.stack}: {resource.name}"


@pytest.mark.parametrize("kind", sorted({kind for rule in RULES for kind in rule.kinds}))
def test_every_kind_in_the_table_is_declared_somewhere(kind: str, recorded: Mapping[str, Recorded]) -> None:
    assert any(stack.of(kind) for stack in recorded.values())


@pytest.mark.parametrize("sku", SKUS)
def test_a_trainer_pod_fits_a_machine_of_every_size(sku: str) -> None:
    pool = Pool("one", max_nodes=1, gpu=SKUS[sku].gpu, skus=(sku,))
    beside = Pool("gpus", max_nodes=1, gpu="t4")  # so that the GPUs' daemons are there too
    facts = Facts(dataclasses.replace(load("dev", environ={}), pools=(pool, beside)), skus={"one": sku})
    objects = manifests(facts)
    template = next(item for item in objects if item["metadata"]["name"] == "trainer-one")
    daemons = [item for item in objects if item["kind"] == "DaemonSet"]
    assert fits(template, SKUS[sku], daemons)
    one_core_more(template)
    assert not fits(template, SKUS[sku], daemons)


@pytest.mark.parametrize(
    ("cores", "millicores"), [(1, 60), (2, 100), (4, 140), (8, 180), (16, 260), (32, 420), (64, 740)]
)
def test_what_aks_reserves_of_cores_is_its_published_table(cores: int, millicores: int) -> None:
    assert allocatable(Sku(cores, 64)).millicores == 1000 * cores - millicores


def test_what_aks_reserves_of_memory_is_its_published_rule() -> None:
    """20 MB a pod and 50 MB, at most a quarter; 100 MiB for eviction; 4 % that the machine does not show."""
    assert allocatable(Sku(8, 100)).memory_mib == 98_304 - 620 - 100  # 650 MB are 619.9 MiB
    assert allocatable(Sku(2, 2)).memory_mib == 1966 - 1966 // 4 - 100


def test_private_services_have_their_end_points(recorded: Mapping[str, Recorded]) -> None:
    """Azure ML needs blobs and files of its own account, and a vault (how-to-secure-workspace-vnet)."""
    for stack in STACKS[1:]:
        links = [item.inputs["privateLinkServiceConnections"] for item in recorded[stack].of("PrivateEndpoint")]
        azure = recorded[stack].environment.azure
        beside = ["amlworkspace", "blob", "file", "vault"] if azure and azure.ml_compute else []
        assert sorted(link[0]["groupIds"][0] for link in links) == sorted(["blob", "file", "registry", *beside])


CLUSTER_WAITS = (
    "cluster-network-contributor-on-nodes",
    "cluster-identity-operator-on-kubelet",
    "kubelet-acr-pull-on-registry",
)
WORKSPACE_WAITS = (
    "ml-contributor-on-ml-blobs",
    "ml-contributor-on-vault",
    "ml-key-vault-administrator-on-vault",
    "ml-contributor-on-registry",
    "ml-contributor-on-insights",
    "ml-jobs-acr-pull-on-registry",
)
PEERINGS = ("to-operators", "from-operators")
ADMINISTRATOR = "deployer-aks-rbac-cluster-admin-on-aks"
# stack, what waits, for what: also what stays until it is gone again
ORDER = [
    *((stack, "aks", CLUSTER_WAITS) for stack in STACKS[1:]),
    ("dev", "cluster", ("cpu-pool", "t4-pool", ADMINISTRATOR)),
    ("staging", "cluster", ("cpu-pool", "a100-pool", "t4spot-pool", ADMINISTRATOR, *PEERINGS)),
    ("prod", "cluster", ("cpu-pool", "h100-pool", "a100-pool", "a100spot-pool", ADMINISTRATOR, *PEERINGS)),
    ("staging", "ml-workspace", WORKSPACE_WAITS),
    ("prod", "ml-workspace", WORKSPACE_WAITS),
]


def _waits(recorded: Recorded, name: str) -> set[str]:
    return {first for item in recorded.resources if item.name == name for first in item.after}


@pytest.mark.parametrize(("stack", "name", "first"), ORDER, ids=lambda value: value if isinstance(value, str) else "")
def test_nothing_is_made_before_it_may_work(
    recorded: Mapping[str, Recorded], stack: str, name: str, first: tuple[str, ...]
) -> None:
    """Said of the resource itself: what its component waits for does not show among its own dependencies."""
    assert set(first) <= _waits(recorded[stack], name)
    for missing in first:
        spoiled = [
            dataclasses.replace(item, after=tuple({*item.after} - {missing})) for item in recorded[stack].resources
        ]
        assert not set(first) <= _waits(dataclasses.replace(recorded[stack], resources=spoiled), name)


def test_each_group_of_operators_has_its_own_grants_and_none_depends_on_who_runs_up() -> None:
    """Azure refuses a second assignment of a role to a principal on a scope (RoleAssignmentExists)."""
    azure = load("dev", environ={}).azure
    assert azure is not None
    for groups, principals in (((), {"deployer"}), (("g1", "g2"), {"g1", "g2"})):
        given = dataclasses.replace(load("dev", environ={}), azure=dataclasses.replace(azure, admin_group_ids=groups))
        made = [
            item for item in record("dev", given).of("RoleAssignment") if "ServicePrincipal" not in str(item.inputs)
        ]
        assert len(made) == 4 * len(principals)
        assert {item.inputs["principalId"] for item in made} == principals
        assert len({item.inputs["roleAssignmentName"] for item in made}) == len(made)
        assert all(("principalId" in item.ignored) == (not groups) for item in made)


def test_what_stays_when_prod_is_taken_down_is_what_cannot_be_made_again(recorded: Mapping[str, Recorded]) -> None:
    kept = {"blob-account", "blob-protection", "checkpoints-container", "data-container", "backups-container"}
    for stack, found in recorded.items():
        protected = {item.name for item in found.resources if item.protected}
        assert protected == (kept if stack == "prod" else set())


@pytest.mark.parametrize(
    ("now", "start"),
    [
        (dt.datetime(2027, 12, 31, 23, 59, tzinfo=dt.UTC), "2027-12-01T00:00:00Z"),
        (dt.datetime(2028, 2, 29, tzinfo=dt.timezone(dt.timedelta(hours=-1))), "2028-02-01T00:00:00Z"),
        (dt.datetime(2028, 3, 1, 0, 30, tzinfo=dt.timezone(dt.timedelta(hours=1))), "2028-02-01T00:00:00Z"),  # in UTC
    ],
)
def test_a_budget_starts_with_the_month_in_which_it_is_made(now: dt.datetime, start: str) -> None:
    """Azure refuses a start in an earlier month."""
    (budget,) = record("dev", now=now).of("consumption:Budget")
    assert budget.inputs["timePeriod"]["startDate"] == start


def test_a_budget_s_month_stays_the_one_in_which_it_was_made(recorded: Mapping[str, Recorded]) -> None:
    for stack in STACKS[1:]:
        assert recorded[stack].of("consumption:Budget")[0].ignored == ("timePeriod",)


def test_azure_ml_has_the_roles_that_its_documentation_asks_for(recorded: Mapping[str, Recorded]) -> None:
    """And on what only it uses: nothing that a job runs as reaches the backups."""
    for stack in ("staging", "prod"):
        given = {item.name for item in recorded[stack].of("RoleAssignment") if item.name.startswith("ml-")}
        assert given == {
            *WORKSPACE_WAITS,
            "ml-blob-data-contributor-on-ml-blobs",
            "ml-contributor-on-workspace",
            "ml-jobs-blob-data-contributor-on-ml-blobs",
            "ml-jobs-key-vault-secrets-user-on-vault",
            "ml-jobs-ml-data-scientist-on-workspace",
        }
        workspace = recorded[stack].of("machinelearningservices:Workspace")[0].inputs
        assert workspace["storageAccount"].rpartition("/")[2].startswith(f"pg{stack}ml")
        identities = [recorded[stack].of(f"machinelearningservices:{kind}")[0] for kind in ("Workspace", "Compute")]
        assert len({str(item.inputs["identity"]) for item in identities}) == 2


def test_trainers_write_checkpoints_read_data_and_nothing_else(recorded: Mapping[str, Recorded]) -> None:
    for stack in STACKS[1:]:
        given = {item.name for item in recorded[stack].of("RoleAssignment") if item.name.startswith("trainer-")}
        assert given == {"trainer-blob-data-contributor-on-checkpoints", "trainer-blob-data-reader-on-data"}


LOGIN = ["get-token", "--environment", "AzurePublicCloud", "--server-id", "s", "--tenant-id", "t"]


@pytest.mark.parametrize("asks", [["--login", "devicecode"], ["-l", "interactive"], ["--login=devicecode"], []])
def test_nobody_is_asked_for_a_device_code(asks: list[str]) -> None:
    user = {"name": "u", "user": {"exec": {"command": "kubelogin", "args": [*LOGIN, *asks]}}}
    made = yaml.safe_load(unattended(yaml.safe_dump({"clusters": ["kept"], "users": [user]})))
    assert made["users"][0]["user"]["exec"]["args"] == [*LOGIN, "--login", "azurecli"]
    assert made["users"][0]["user"]["exec"]["interactiveMode"] == "Never"
    assert made["clusters"] == ["kept"]


def test_the_kubeconfig_that_is_used_logs_in_unattended(recorded: Mapping[str, Recorded]) -> None:
    for stack in STACKS[1:]:
        arguments = yaml.safe_load(recorded[stack].exports["kubeconfig"])["users"][0]["user"]["exec"]["args"]
        assert arguments[-2:] == ["--login", "azurecli"]
        assert "devicecode" not in arguments


def test_no_resource_names_another_environment(recorded: Mapping[str, Recorded]) -> None:
    for stack, found in recorded.items():
        others = [name for other in STACKS if other != stack for name in (f"pg-{other}-", f"pg{other}")]
        for resource in found.resources:
            assert not [other for other in others if other in str(resource.inputs)], resource.name
