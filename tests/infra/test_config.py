"""The configuration: what is read, what is refused, and with which words."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import pytest

from proving_ground.infra import checks, config, migrate, naming, outputs
from proving_ground.infra.reading import ConfigError, build

GOOD: dict[str, Any] = {
    "version": 3,
    "name": "dev",
    "owner": "team",
    "cloud": "azure",
    "pools": [{"name": "t4", "gpu": "t4", "max_nodes": 2, "skus": ["Standard_NC4as_T4_v3"]}],
    "azure": {
        "location": "westeurope",
        "unique": "x",
        "network": {"admin_cidrs": ["203.0.113.0/24"]},
        "budget": {"monthly_usd": 100, "emails": ["a@example.com"]},
    },
}


def changed(path: str, value: object) -> dict[str, Any]:
    """GOOD with one value replaced: `changed("pools.0.max_nodes", 0)`."""
    data = copy.deepcopy(GOOD)
    target: Any = data
    *way, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    for step in way:
        target = target.setdefault(step, {}) if isinstance(target, dict) else target[step]
    target[last] = value
    return data


@pytest.mark.parametrize("stack", config.STACKS)
def test_every_shipped_stack_is_valid(stack: str) -> None:
    assert config.load(stack, environ={}).name == stack


def test_the_shipped_stacks_are_all_there() -> None:
    assert tuple(config.known()) == config.STACKS


HUB = "/subscriptions/s/resourceGroups/g/providers/Microsoft.Network/virtualNetworks/hub"
# path to spoil, value, what the message must name
BAD: list[tuple[str, object, str, str]] = [
    ("colour", "red", "colour: unknown key", "allowed: version, name, owner"),
    ("pools.0.maxnodes", 3, "pools[0].maxnodes: unknown key", "max_nodes"),
    ("azure.network.subnet", "x", "azure.network.subnet: unknown key", "endpoints"),
    ("version", 4, "version: 4", "allowed: 1, 2, 3"),
    ("version", [2], "version: [2]", "allowed: 1, 2, 3"),
    ("name", "prod", "name: 'prod'", "allowed: dev"),
    ("cloud", "aws", "cloud: 'aws'", "allowed: none, azure"),
    ("cloud", "none", "azure: given", "allowed: cloud azure"),
    ("azure", None, "azure: missing", "cloud azure needs it"),
    ("pools", [], "pools: empty", "one or more"),
    ("pools", {}, "pools: must be a list", "{}"),
    ("pools.0.max_nodes", 0, "pools[0].max_nodes: 0", "1 to 1000"),
    ("pools.0.max_nodes", "2", "pools[0].max_nodes: must be a whole number", "'2'"),
    ("pools.0.max_nodes", True, "pools[0].max_nodes: must be a whole number", "True"),
    ("pools.0.min_nodes", 3, "pools[0].min_nodes: 3", "0 to max_nodes (2)"),
    ("pools.0.nodes", 9, "pools[0].nodes: 9", "(0 to 2)"),
    ("pools.0.idle_timeout_s", 5, "pools[0].idle_timeout_s: 5", "60 and more"),
    ("pools.0.gpu", "b9000", "pools[0].gpu: 'b9000'", "a100"),
    ("pools.0.gpu", None, "Standard_NC4as_T4_v3 has GPUs", "gpu: t4"),
    ("pools.0.skus", [], "pools[0].skus: empty", "one or more"),
    ("pools.0.skus", ["Standard_D4s_v5"], "Standard_D4s_v5 has no GPU", "Standard_NC4as_T4_v3"),
    ("pools.0.skus", ["Standard_X"], "pools[0].skus[0]: 'Standard_X'", "Standard_D2s_v5"),
    ("pools.0.name", "Big-Pool", "pools[0].name: 'Big-Pool'", "lower-case"),
    ("pools.0.name", "system", "pools[0].name: 'system'", "not system"),
    ("pools.0.name", "averyverylongname", "too long", "up to 12"),
    ("azure.network.nodes", "10.40.0.0/99", "azure.network.nodes: '10.40.0.0/99'", "10.40.0.0/16"),
    ("azure.network.nodes", "10.99.0.0/18", "azure.network.nodes: 10.99.0.0/18 is outside", "10.40.0.0/16"),
    ("azure.network.ml", "10.40.64.0/22", "overlaps azure.network.endpoints", "do not overlap"),
    ("azure.network.services", "10.40.0.0/16", "overlaps azure.network.space", "do not overlap"),
    ("azure.network.services", "16.0.0.0/8", "azure.network.services: 16.0.0.0/8 is too large", "/12"),
    ("azure.network.admin_cidrs", [], "azure.network.admin_cidrs: empty", "private_cluster"),
    ("azure.storage.share_gib", 5, "azure.storage.share_gib: 5", "100 to 102400"),
    ("azure.storage.replication", "RAID", "azure.storage.replication: 'RAID'", "LRS, ZRS, GZRS"),
    ("azure.system_pool.sku", "Standard_NC4as_T4_v3", "azure.system_pool.sku", "Standard_D2s_v5"),
    ("azure.system_pool.min_nodes", 0, "azure.system_pool.min_nodes: 0", "1 to 3"),
    ("azure.budget.monthly_usd", 0, "azure.budget.monthly_usd: 0", "1 and more"),
    ("azure.budget.emails", [], "azure.budget.emails: empty", "one or more"),
    ("azure.budget.alerts_percent", [25, 50, 75, 100, 125], "[25, 50, 75, 100, 125]", "up to 4 values"),
    ("azure.private_cluster", True, "azure.operators: missing", "network and cidr"),
    (
        "azure.operators",
        {"network": "hub", "cidr": "10.50.0.0/24"},
        "azure.operators.network: 'hub'",
        "/subscriptions/",
    ),
    (
        "azure.operators",
        {"network": HUB, "cidr": "10.50.0.0/99"},
        "azure.operators.cidr: '10.50.0.0/99'",
        "10.50.0.0/24",
    ),
    ("azure.operators", {"network": HUB, "cidr": "10.42.7.0/24"}, "overlaps azure.network.pods", "do not overlap"),
    ("azure.budget.alerts_percent", [50, 100], "azure.budget.alerts_percent: [50, 100]", "125"),
    ("azure.ml_compute", {"sku": "nope", "max_nodes": 1}, "azure.ml_compute.sku: 'nope'", "Standard_D2s_v5"),
    ("azure.ml_compute", {"sku": "Standard_NC4as_T4_v3", "max_nodes": 0}, "azure.ml_compute.min_nodes", "0 to"),
    ("kubernetes.volume", {"kind": "nfs"}, "kubernetes.volume.server: missing", "nfs"),
    ("kubernetes.volume", {"size_gib": 0}, "kubernetes.volume.size_gib: 0", "1 and more"),
    ("kubernetes.ports", {"first": 80}, "kubernetes.ports: rendezvous 29500, first 80", "1024"),
    ("kubernetes.images", {"minecraft": "x"}, "kubernetes.images.minecraft: unknown image", "trainer"),
    ("kubernetes.node_exporter_port", 80, "kubernetes.node_exporter_port: 80", "1024 to 65535"),
    ("kubernetes.node_exporter_port", 10250, "kubernetes.node_exporter_port: 10250", "but 10250"),
    ("kubernetes.runbook_base", "docs/runbook", "kubernetes.runbook_base: 'docs/runbook'", "https://HOST/PATH"),
    ("ttl_hours", 0, "ttl_hours: 0", "1 and more"),
]


@pytest.mark.parametrize(("path", "value", "names", "allows"), BAD, ids=[f"{entry[0]}={entry[1]}" for entry in BAD])
def test_what_cannot_be_is_refused_with_key_and_allowed_values(
    path: str, value: object, names: str, allows: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        config.read(changed(path, value), "dev", {})
    message = str(refused.value)
    assert names in message
    assert allows in message
    assert "\n" not in message


def test_two_pools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"pools\[0\]\.name: 't4' is used twice"):
        config.read({**GOOD, "pools": GOOD["pools"] * 2}, "dev", {})


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ConfigError, match=r"pools\[0\]\.max_nodes: missing"):
        config.read({**GOOD, "pools": [{"name": "t4"}]}, "dev", {})


def test_azure_file_needs_azure() -> None:
    data = {**GOOD, "cloud": "none", "azure": None, "kubernetes": {"volume": {"kind": "azure_file"}}}
    with pytest.raises(ConfigError, match=r"kubernetes\.volume\.kind: azure_file needs cloud azure"):
        config.read(data, "dev", {})


def test_every_check_refuses_something() -> None:
    """A mutant of each check that never objects would let one of BAD through."""
    for mutant in checks.CHECKS:
        left = [check for check in checks.CHECKS if check is not mutant]
        passed = 0
        for path, value, _, _ in BAD:
            try:
                data = migrate.to_current(changed(path, value))
                environment = build(config.Environment, data, "")
                passed += not [problem for check in left for problem in check(environment)]
            except ConfigError:
                continue
        assert passed, f"nothing in BAD depends on {mutant.__name__}"


def test_version_1_is_migrated() -> None:
    old = {
        **GOOD,
        "version": 1,
        "pools": [{"name": "t4", "gpu": "t4", "max_nodes": 2, "sku": "Standard_NC4as_T4_v3", "idle_minutes": 15}],
    }
    before = copy.deepcopy(old)
    pool = config.read(old, "dev", {}).pools[0]
    assert (pool.skus, pool.idle_timeout_s) == (("Standard_NC4as_T4_v3",), 900)
    assert old == before


def test_version_2_is_migrated() -> None:
    """Dropping a key silently would be wrong for any but the start of the budget: that is known by itself now."""
    budget = {**GOOD["azure"]["budget"], "start": "2026-01-01"}
    storage = {"share_gib": 200, "delete_after_days": 30}
    old = {**GOOD, "version": 2, "azure": {**GOOD["azure"], "budget": budget, "storage": storage}}
    before = copy.deepcopy(old)
    azure = config.read(old, "dev", {}).azure
    assert azure is not None
    assert (azure.storage.keep_versions_days, azure.storage.share_gib, azure.budget.monthly_usd) == (30, 200, 100)
    assert old == before
    local = {"version": 2, "name": "dev", "owner": "o", "cloud": "none", "pools": [{"name": "cpu", "max_nodes": 1}]}
    assert config.read(local, "dev", {}).version == migrate.CURRENT


def test_machines_with_infiniband_are_refused_where_it_would_be_used() -> None:
    wanted = {"name": "h", "gpu": "h100", "max_nodes": 2, "skus": ["Standard_ND96isr_H100_v5"]}
    refusal = (
        r"pools\[0\]\.skus\[0\]: Standard_ND96isr_H100_v5 .* InfiniBand, which is not wired .*; allowed: max_nodes: 1"
    )
    with pytest.raises(ConfigError, match=refusal) as refused:
        config.read({**GOOD, "pools": [wanted]}, "dev", {})
    assert "Standard_NC80adis_H100_v5" in str(refused.value)
    config.read({**GOOD, "pools": [{**wanted, "max_nodes": 1}]}, "dev", {})


def test_what_is_to_go_by_itself_cannot_be_protected() -> None:
    data = {**changed("azure.storage", {"protected": True}), "ttl_hours": 12}
    with pytest.raises(ConfigError, match=r"azure\.storage\.protected: true, and the stack has a time to live"):
        config.read(data, "dev", {})


def test_environment_variables_go_over_the_file() -> None:
    environ = {
        "PROVING_GROUND_INFRA__POOLS__0__MAX_NODES": "7",
        "PROVING_GROUND_INFRA__AZURE__LOCATION": "northeurope",
        "X": "1",
    }
    environment = config.read(GOOD, "dev", environ)
    assert environment.pools[0].max_nodes == 7
    assert environment.azure is not None
    assert environment.azure.location == "northeurope"
    assert GOOD["pools"][0]["max_nodes"] == 2


@pytest.mark.parametrize(
    ("variable", "message"),
    [("PROVING_GROUND_INFRA__POOLS__4__MAX_NODES", "no item '4'"), ("PROVING_GROUND_INFRA__POOL", "pool: unknown key")],
)
def test_a_variable_that_leads_nowhere_is_refused(variable: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config.read(GOOD, "dev", {variable: "1"})


def test_stack_files_that_are_missing_or_broken(tmp_path: Any) -> None:
    (tmp_path / "Pulumi.dev.yaml").write_text("config: [")
    (tmp_path / "Pulumi.prod.yaml").write_text("config: {}")
    (tmp_path / "Pulumi.gone.yaml").symlink_to("nowhere.yaml")
    (tmp_path / "Pulumi.bytes.yaml").write_bytes(b"\xff\xfe")
    for stack, message in [
        ("qa", "allowed: dev, prod"), ("dev", "not YAML"), ("prod", "is missing"),
        ("gone", r"Pulumi\.gone\.yaml: No such file"), ("bytes", "not YAML: 'utf-8' codec"),
    ]:  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            config.load(stack, tmp_path, {})


@pytest.mark.parametrize("kind", naming.RULES)
def test_names_fit_their_rule(kind: str) -> None:
    made = naming.name(kind, "staging", "x")
    assert len(made) <= naming.RULES[kind].longest
    assert made == naming.name(kind, "staging", "x")
    assert naming.RULES[kind].hyphens or made.isalnum()
    assert (made != naming.name(kind, "staging", "y")) == naming.RULES[kind].worldwide


def test_a_name_too_long_for_azure_is_refused_with_both_lengths() -> None:
    data = {**GOOD, "name": "aratherlongenvironmentname"}
    with pytest.raises(ConfigError, match=r"name: 'pgaratherlong.*' has \d+ characters; Azure allows 24"):
        config.read(data, data["name"], {})


def test_outputs_survive_the_way_through_a_stack() -> None:
    made = outputs.StackOutputs(
        schema=outputs.SCHEMA,
        environment="dev",
        kubeconfig="planted-secret",
        context=None,
        namespace="training",
        service_account="trainer",
        headless_service="trainer",
        claim="shared",
        rendezvous_port=29500,
        pools=(outputs.PoolOutput("t4", 2, "t4", 1, spot=True, pod_template="trainer-t4"),),
        prometheus="http://prometheus",
        loki="http://loki",
        ray_client="ray://ray",
        azure=outputs.AzureOutputs("s", "rg", "acr", "https://blob", "checkpoints"),
    )
    exports = {key: value for key, value in outputs.to_exports(made).items() if value is not None}
    assert outputs.read(exports) == made
    assert "planted-secret" not in repr(made)
    with pytest.raises(ConfigError, match="schema 9 is not known"):
        outputs.read({**exports, "schema": 9})


def test_outputs_without_the_pulumi_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="pulumi: the command is not on PATH"):
        outputs.load("dev")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("echo '{}'", "it has no outputs"),
        ("echo error: no stack named dev >&2; exit 255", "no stack named dev"),
    ],
)
def test_outputs_of_a_stack_that_is_not_up(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, script: str, message: str
) -> None:
    command = tmp_path / "pulumi"
    command.write_text(f"#!/bin/sh\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(ConfigError, match=message):
        outputs.load("dev")


def test_config_and_outputs_import_without_pulumi() -> None:
    code = "import sys; from proving_ground.infra import config, outputs; config.load('prod'); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=config.ROOT)
    assert "proving_ground.infra.outputs" in done.stdout
    assert "pulumi" not in done.stdout
