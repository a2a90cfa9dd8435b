"""The Helm chart: the committed one is the one that would be written, and Helm renders from it what Pulumi declares."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from proving_ground.infra import chart
from proving_ground.infra.cluster.everything import label, manifests
from proving_ground.infra.cluster.images import IMAGES
from tests.infra.gotools import UnavailableError, find


def render(*settings: str) -> subprocess.CompletedProcess[str]:
    """What Helm makes of the committed chart."""
    try:
        helm = find("helm")
    except UnavailableError as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(f"in CI there must be Helm: {reason}")
        pytest.skip(str(reason))
    command = [str(helm), "template", "test", str(chart.FOLDER), *settings]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def objects(text: str) -> dict[str, Any]:
    """Label → object."""
    return {label(item): item for item in yaml.safe_load_all(text) if item}


def test_the_committed_chart_is_the_one_that_would_be_written(tmp_path: Path) -> None:
    chart.write(tmp_path)
    made = {str(file.relative_to(tmp_path)): file.read_text() for file in tmp_path.rglob("*.yaml")}
    kept = {str(file.relative_to(chart.FOLDER)): file.read_text() for file in chart.FOLDER.rglob("*.yaml")}
    assert kept == made, "run: pg infra chart"


@pytest.mark.apiserver
@pytest.mark.timeout(600)
def test_helm_renders_what_pulumi_declares() -> None:
    done = render("--set", "grafanaPassword=secret", "--set", "images.trainer=mine/trainer:1")
    assert not done.returncode, done.stderr
    wanted = manifests(chart.facts({**IMAGES, "trainer": "mine/trainer:1"}, "secret"))
    assert objects(done.stdout) == {label(item): item for item in wanted}


@pytest.mark.apiserver
@pytest.mark.timeout(600)
def test_helm_asks_for_the_password() -> None:
    done = render()
    assert done.returncode
    assert "grafanaPassword must be set" in done.stderr
