"""`preview`, `up`, a second `up` without changes, `destroy`: `local` by the Pulumi CLI against a real API server."""

from __future__ import annotations

import base64
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pulumi import automation

from infra import stacks
from infra.cluster.labels import NAMESPACES
from infra.config import ROOT
from infra.stacks import PulumiStack
from tests.infra.apiserver.server import Server, running
from tests.infra.gotools import UnavailableError

pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.timeout(1200),
    pytest.mark.skipif(
        shutil.which("pulumi") is None, reason="no Pulumi CLI on this machine; no package registry has it"
    ),
]
PASSWORD = "planted-grafana-secret"  # noqa: S105 - planted on purpose


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A running API server, with nothing on it."""
    try:
        with running(tmp_path) as started:
            yield started
    except UnavailableError as reason:
        pytest.skip(str(reason))


@pytest.fixture
def project(tmp_path: Path, server: Server, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what Pulumi reads, since it writes into it; state in a folder, the cluster in a kubeconfig."""
    copy = tmp_path / "project"
    for name in ("infra", "monitoring"):
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Pulumi.local.yaml", copy)
    settings = (ROOT / "Pulumi.yaml").read_text()
    (copy / "Pulumi.yaml").write_text(settings.replace("virtualenv: .venv", f"virtualenv: {sys.prefix}"))
    trust = base64.b64encode(server.certificate.read_bytes()).decode()
    config = {
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": server.url, "certificate-authority-data": trust}}],
        "users": [{"name": "test", "user": {"token": server.token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }  # fmt: skip
    (tmp_path / "kubeconfig").write_text(json.dumps(config))
    (tmp_path / "state").mkdir()
    for name, value in {
        "KUBECONFIG": str(tmp_path / "kubeconfig"), "PULUMI_BACKEND_URL": f"file://{tmp_path / 'state'}",
        "PULUMI_CONFIG_PASSPHRASE": "test", "PROVING_GROUND_INFRA__KUBERNETES__WAIT": "false",
        "PULUMI_SKIP_UPDATE_CHECK": "true",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(stacks, "ROOT", copy)
    return copy


def spaces(server: Server) -> set[str]:
    """Those of ours on the cluster that are not on their way out."""
    found = server.request("GET", "/api/v1/namespaces").body["items"]
    return {it["metadata"]["name"] for it in found if "deletionTimestamp" not in it["metadata"]} & set(NAMESPACES)


def test_local_comes_up_stays_and_goes(project: Path, server: Server, tmp_path: Path) -> None:
    said: list[str] = []
    stack = PulumiStack("local", said.append)
    api = automation.select_stack("local", work_dir=str(project))
    api.set_config("proving-ground:grafana_password", automation.ConfigValue(PASSWORD, secret=True))
    stack.preview()
    assert spaces(server) == set()
    stack.up()
    assert spaces(server) == set(NAMESPACES)
    assert stack.created() is not None
    api.up(expect_no_changes=True)
    stack.destroy()
    assert spaces(server) == set()
    assert stack.created() is None
    written = [
        file.read_text(errors="replace") for file in tmp_path.rglob("*") if file.is_file() and os.access(file, 4)
    ]
    state = [text for text in written if '"checkpoint"' in text]
    assert state
    assert not [text for text in [*said, *state] if PASSWORD in text]
