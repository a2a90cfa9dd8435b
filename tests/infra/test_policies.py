"""The table of policies over all stacks; a rule that checked nothing fails, so does one that catches nothing."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import pytest

from infra.config import STACKS
from tests.infra.cluster_policies import CLUSTER
from tests.infra.mocks import Declared, Recorded
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


def test_private_services_have_their_end_points(recorded: Mapping[str, Recorded]) -> None:
    for stack in STACKS[1:]:
        links = [item.inputs["privateLinkServiceConnections"] for item in recorded[stack].of("PrivateEndpoint")]
        azure = recorded[stack].environment.azure
        wanted = {"blob", "file", "vault", "registry"} | ({"amlworkspace"} if azure and azure.ml_compute else set())
        assert {link[0]["groupIds"][0] for link in links} == wanted


def test_no_resource_names_another_environment(recorded: Mapping[str, Recorded]) -> None:
    for stack, found in recorded.items():
        others = [name for other in STACKS if other != stack for name in (f"pg-{other}-", f"pg{other}")]
        for resource in found.resources:
            assert not [other for other in others if other in str(resource.inputs)], resource.name
