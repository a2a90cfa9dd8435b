"""Which size a pool has and keeps, and what is done where the autoscaler gets no machine of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from proving_ground.infra import __main__ as cli
from proving_ground.infra import config, health, life, operate, outputs, scaling, sizes
from proving_ground.infra.reading import ConfigError
from tests.infra.test_health import stack, thing
from tests.infra.test_life import Double, failure

STAGING = config.load("staging", environ={})
SMALL, LARGE = "Standard_NC24ads_A100_v4", "Standard_NC48ads_A100_v4"
URN = "urn:pulumi:dev::proving-ground::azure-native:containerservice:AgentPool::a100-pool"

# As Pulumi 3.260 answers of a stack with one pool.
ANSWER: dict[str, Any] = {
    "name": "organization/proving-ground/dev",
    "outputs": {
        URN: {"type": sizes.POOL, "outputs": {"name": "a100", "vmSize": LARGE}},
        "urn:pulumi:dev::proving-ground::pulumi:pulumi:Stack::x": {"type": "pulumi:pulumi:Stack", "outputs": {}},
    },
}
EXPORT: dict[str, Any] = {
    "resources": [
        {"urn": "urn:…", "type": "pulumi:pulumi:Stack"},
        {"urn": URN, "type": sizes.POOL, "inputs": {"agentPoolName": "a100", "vmSize": LARGE}},
    ]
}


def test_what_the_state_holds_is_read_alike_by_the_program_and_from_an_export() -> None:
    assert sizes.of_engine(ANSWER) == sizes.of_export(EXPORT) == {"a100": LARGE}
    nothing: list[Mapping[str, Any]] = [{}, {"outputs": {}, "name": "new"}]
    assert [sizes.of_engine(answer) for answer in nothing] == [{}, {}]
    assert sizes.of_export({"resources": None}) == {}


@pytest.mark.parametrize(
    ("wish", "state", "size"),
    [
        ({}, {}, SMALL),
        ({}, {"a100": LARGE}, LARGE),
        ({"a100": SMALL}, {"a100": LARGE}, SMALL),
        ({"a100": LARGE}, {}, LARGE),
        ({"cpu": "x"}, {"a100": LARGE}, LARGE),
        ({}, {"a100": "Standard_X"}, SMALL),  # taken out of the list on purpose
    ],
)
def test_a_pool_keeps_its_size_until_another_is_chosen(wish: dict[str, str], state: dict[str, str], size: str) -> None:
    assert sizes.chosen(STAGING.pools, {sizes.VARIABLE: json.dumps(wish)}, state)["a100"] == size


@pytest.mark.parametrize("text", ["{", "3", "[1]"])
def test_a_choice_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"{sizes.VARIABLE}: .* is not allowed; allowed: {{pool: size}} as JSON"):
        sizes.chosen(STAGING.pools, {sizes.VARIABLE: text}, {})


def test_up_starts_from_the_sizes_in_use() -> None:
    double = Double()
    double.kept = {"a100": LARGE}
    assert life.provision(double, STAGING, lambda _: None).outcome == "up"
    assert double.tried[0]["a100"] == LARGE
    again = Double(failure("capacity"))
    again.kept = {"a100": LARGE}
    assert life.provision(again, STAGING, lambda _: None).skus["a100"] == SMALL


def status(**groups: tuple[str, str]) -> str:
    """The autoscaler's status: pool → scale-up status, error code."""
    made = [
        {
            "name": f"aks-{pool}-12345678-vmss",
            "health": {"status": "Healthy"},
            "scaleUp": {"status": state, "backoffInfo": {"errorCode": code, "errorMessage": "no\nroom"}},
        }
        for pool, (state, code) in groups.items()
    ]
    return json.dumps({"autoscalerStatus": "Running", "nodeGroups": made})


def test_the_autoscalers_status_says_which_pool_gets_no_machine() -> None:
    said = status(a100=("Backoff", "QuotaExceeded"), cpu=("NoActivity", ""))
    assert scaling.stuck(said) == {"a100": "QuotaExceeded no room"}
    assert scaling.stuck("") == scaling.stuck("nodeGroups: null") == scaling.stuck("Cluster-autoscaler at x") == {}
    assert scaling.stuck("nodeGroups: [{name: aks-t4-1-vmss, scaleUp: {status: Backoff}}]") == {"t4": "no reason given"}


@pytest.mark.parametrize(
    ("has", "nodes", "following"),
    [
        ({"a100": SMALL}, {}, {"a100": LARGE}),
        ({"a100": LARGE}, {"a100": (0, 0)}, {"a100": SMALL}),  # round again: what was lacking may be free now
        ({"a100": SMALL}, {"a100": (0, 1)}, {}),  # a change would take that node away
        ({"a100": "Standard_X"}, {}, {}),
    ],
)
def test_the_next_size_is_for_pools_without_nodes(
    has: dict[str, str], nodes: dict[str, tuple[int, int]], following: dict[str, str]
) -> None:
    reasons = {"a100": "quota", "cpu": "one size only"}
    assert scaling.following(STAGING.pools, {**has, "cpu": "Standard_D16s_v5"}, reasons, nodes) == following


def test_retry_gives_a_pool_that_gets_no_machine_the_next_size(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    double = Double()
    double.kept = {"a100": SMALL, "cpu": "Standard_D16s_v5", "t4spot": "Standard_NC16as_T4_v3"}
    found = health.judge([thing("n", ready=True)], [], status(a100=("Backoff", "SkuNotAvailable")))
    assert found.complaints == ("pool a100: gets no machine: SkuNotAvailable no room",)
    monkeypatch.setattr(operate, "open_stack", lambda _: double)
    monkeypatch.setattr(outputs, "load", lambda _: stack())
    monkeypatch.setattr(health, "look", lambda _: found)
    assert cli.main(["retry", "staging"]) == 0
    assert [tried["a100"] for tried in double.tried] == [LARGE]
    assert f"staging: pool a100: SkuNotAvailable no room; now {LARGE}" in capsys.readouterr().out
    monkeypatch.setattr(health, "look", lambda _: health.judge([], []))
    assert cli.main(["retry", "staging"]) == 0
    assert len(double.tried) == 1
    assert "no pool gets another size" in capsys.readouterr().out
    double.kept = {}
    assert cli.main(["retry", "staging"]) == 0
    assert "staging: has no pools" in capsys.readouterr().out
