"""The stacks as a whole: golden snapshots, secrets, and what differs between environments."""

from __future__ import annotations

import dataclasses
import difflib
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from proving_ground.infra import outputs
from proving_ground.infra.cluster import alerts
from proving_ground.infra.cluster.facts import files
from proving_ground.infra.config import STACKS
from tests.infra.mocks import PLANTED, PLANTED_FILE_KEY, PLANTED_KUBECONFIG, Recorded, record, snapshot

GOLDEN = Path(__file__).parent / "golden"
UPDATE = "PROVING_GROUND_UPDATE_GOLDEN"


def compare(text: str, file: Path) -> str:
    """The difference of `text` from the golden file; where UPDATE is 1 in the environment, it is written first."""
    if os.environ.get(UPDATE) == "1":
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    if not file.exists():
        return f"{file.name} is missing; look at the change, then set {UPDATE}=1 once to write it"
    lines = difflib.unified_diff(
        file.read_text().splitlines(), text.splitlines(), "golden", "declared", lineterm="", n=1
    )
    return "\n".join(lines)


@pytest.mark.parametrize("stack", STACKS)
def test_declared_resources_are_the_golden_ones(stack: str, recorded: Mapping[str, Recorded]) -> None:
    difference = compare(snapshot(recorded[stack]), GOLDEN / f"{stack}.json")
    assert not difference, difference


@pytest.mark.parametrize(
    "edge", [{"after": ()}, {"parent": ""}, {"deleted_with": ""}, {"protected": False}, {"ignored": ()}], ids=str
)
def test_a_lost_edge_shows_in_the_golden_file(
    edge: dict[str, Any], recorded: Mapping[str, Recorded], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(UPDATE, raising=False)
    found = recorded["prod"]
    spoiled = dataclasses.replace(found, resources=[dataclasses.replace(item, **edge) for item in found.resources])
    assert compare(snapshot(spoiled), GOLDEN / "prod.json")


def test_a_missing_or_different_golden_file_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(UPDATE, raising=False)
    assert "is missing" in compare("x\n", tmp_path / "none.json")
    assert not (tmp_path / "none.json").exists()
    (tmp_path / "other.json").write_text("y\n")
    assert "+x" in compare("x\n", tmp_path / "other.json")


def test_secrets_reach_the_engine_as_secrets_only(recorded: Mapping[str, Recorded]) -> None:
    planted = [*PLANTED.values(), PLANTED_KUBECONFIG, PLANTED_FILE_KEY]
    for found in recorded.values():
        text = snapshot(found)
        assert not [secret for secret in planted if secret in text]


def test_the_kubeconfig_is_exported_as_a_secret(recorded: Mapping[str, Recorded]) -> None:
    for stack in STACKS[1:]:
        assert PLANTED_KUBECONFIG in recorded[stack].exports["kubeconfig"]
        assert "kubeconfig" in recorded[stack].secret_exports


def test_a_secret_that_is_not_marked_would_be_seen(recorded: Mapping[str, Recorded]) -> None:
    """The mutant of the grep above: the same text, planted openly."""
    found = recorded["dev"]
    found.resources[0].inputs["leak"] = PLANTED_KUBECONFIG
    try:
        with pytest.raises(AssertionError):
            test_secrets_reach_the_engine_as_secrets_only({"dev": found})
    finally:
        del found.resources[0].inputs["leak"]


def test_rules_and_dashboards_are_taken_from_monitoring(recorded: Mapping[str, Recorded]) -> None:
    for found in recorded.values():
        maps = {item.inputs["metadata"]["name"]: item.inputs["data"] for item in found.of("core/v1:ConfigMap")}
        assert set(maps["prometheus-rules"]) == {"example.yml", alerts.OWN}  # not its tests
        assert set(maps["grafana-dashboards"]) == {"example.json"}


def test_without_a_monitoring_folder_there_are_none(tmp_path: Path) -> None:
    assert files(tmp_path / "rules", "*.y*ml") == {}


def test_exports_are_the_contract(recorded: Mapping[str, Recorded]) -> None:
    for stack, found in recorded.items():
        exports = {key: value for key, value in found.exports.items() if value is not None}
        made = outputs.read(exports)
        assert made.environment == stack
        assert all((pool.usd_per_hour is None) == (stack == "local") for pool in made.pools)
        assert [pool.name for pool in made.pools] == [pool.name for pool in found.environment.pools]


def test_declaring_prod_takes_little_of_a_processor() -> None:
    """A few seconds on a quiet machine; a core that is shared with others makes CPU time several times as long."""
    before = time.process_time()
    record("prod")
    assert time.process_time() - before <= 60
