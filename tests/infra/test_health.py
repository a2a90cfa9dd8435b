"""Health, from the answers of an API server (a double of kubectl)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proving_ground.infra import __main__ as cli
from proving_ground.infra import health, outputs
from proving_ground.infra.reading import ConfigError


def thing(
    name: str, *, ready: bool, namespace: str = "pg-ray", phase: str = "Running", pool: str = "cpu"
) -> dict[str, Any]:
    """A node or a pod."""
    conditions = [{"type": "Ready", "status": str(ready)}]
    metadata = {"name": name, "namespace": namespace, "labels": {"proving-ground/pool": pool}}
    return {"metadata": metadata, "status": {"phase": phase, "conditions": conditions}}


WELL = ([thing("a", ready=True), thing("b", ready=True, pool="t4")], [thing("p", ready=True)])
ILL = ([*WELL[0], thing("c", ready=False)], [thing("p", ready=False), thing("q", ready=False, phase="Pending")])


def test_what_is_well_is_not_complained_about() -> None:
    found = health.judge(*WELL)
    assert found == health.Health({"cpu": (1, 1), "t4": (1, 1)}, ())
    finished = thing("job", ready=False, phase="Succeeded")
    foreign = thing("x", ready=False, namespace="default")
    assert not health.judge([], [finished, foreign]).complaints


def test_what_is_not_well_is_named() -> None:
    found = health.judge(*ILL)
    assert found.nodes["cpu"] == (1, 2)
    assert found.complaints == ("node c: not ready", "pod pg-ray/p: not ready", "pod pg-ray/q: Pending")


def stack(**changes: Any) -> outputs.StackOutputs:
    """A stack's outputs."""
    exports = {"schema": 1, "environment": "dev", "namespace": "n", "service_account": "s", "headless_service": "h"}
    more = {"claim": "c", "rendezvous_port": 1, "pools": [], "prometheus": "", "loki": "", "ray_client": ""}
    return outputs.read({**exports, **more, **changes})


def kubectl(folder: Path, monkeypatch: pytest.MonkeyPatch, nodes: Any, pods: Any) -> Path:
    """A kubectl that answers this and keeps its arguments."""
    for name, items in (("nodes", nodes), ("pods", pods)):
        (folder / name).write_text(json.dumps({"items": items}))
    choose = f'case "$*" in *"get nodes"*) cat {folder}/nodes;; *) cat {folder}/pods;; esac'
    script = f'#!/bin/sh\necho "$@" >> {folder}/asked\n{choose}\n'
    (folder / "kubectl").write_text(script)
    (folder / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder / "asked"


def test_the_command_says_who_is_ill(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = kubectl(tmp_path, monkeypatch, *ILL)
    monkeypatch.setattr(outputs, "load", lambda _: stack(kubeconfig="planted-kubeconfig"))
    assert cli.main(["health", "dev"]) == 1
    out = capsys.readouterr().out
    assert "nodes ready: cpu 1/2, t4 1/1; not well: 3" in out
    assert "pod pg-ray/q: Pending" in out
    assert "--kubeconfig" in asked.read_text()
    assert "planted" not in out + asked.read_text()


def test_the_command_with_a_context(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = kubectl(tmp_path, monkeypatch, *WELL)
    monkeypatch.setattr(outputs, "load", lambda _: stack(context="kind"))
    assert cli.main(["health", "local"]) == 0
    assert "--context kind get nodes" in asked.read_text()


def test_a_cluster_that_does_not_answer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="kubectl: the command is not on PATH"):
        health.look(stack())
    (tmp_path / "kubectl").write_text('#!/bin/sh\necho "error: context \\"x\\" does not exist" >&2\nexit 1\n')
    (tmp_path / "kubectl").chmod(0o755)
    with pytest.raises(ConfigError, match='context "x" does not exist'):
        health.look(stack())
