"""The loop on a real Kubernetes: stack `local`, real pods, killed in the middle, and taken down by its time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proving_ground.infra.cluster.labels import NAMESPACES
from proving_ground.infra.config import ROOT
from proving_ground.loop import ledger
from tests.engines import kubernetes
from tests.engines.kubernetes import Kubernetes
from tests.infra.gotools import UnavailableError

pytestmark = [pytest.mark.testbed, pytest.mark.timeout(1500)]  # Kubernetes is built once
HERE = Path(__file__).parent
LONGEST_S = 300.0


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kubernetes]:
    folder = tmp_path_factory.mktemp("loop")
    for name in ("bed", "shared"):
        (folder / name).mkdir()
    try:
        with kubernetes.kubernetes(folder / "bed", 2, folder / "shared", stack=True) as made:
            yield made
    except UnavailableError as reason:
        if os.environ.get("CI") == "true":
            pytest.fail(str(reason))
        pytest.skip(str(reason))


def begin(bed: Kubernetes, runs: Path, *words: str) -> subprocess.Popen[str]:
    """Start a command of the loop as a user does, without a Pulumi CLI."""
    volume = {"PROVING_GROUND_INFRA__KUBERNETES__VOLUME__SOURCE": str(bed.folder.parent / "shared")}
    return subprocess.Popen(
        [sys.executable, "-m", "proving_ground.loop", *words, "--runs", str(runs)], cwd=ROOT, text=True,
        env={**bed.env, **volume, "PATH": f"{bed.folder / 'bin'}:/usr/bin:/bin"},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def spaces(bed: Kubernetes) -> set[str]:
    """The stack's namespaces that are there."""
    found = bed.bed.server.request("GET", "/api/v1/namespaces").body["items"]
    return {it["metadata"]["name"] for it in found} & set(NAMESPACES)


SMALL = (
    "local", "--bench", str(HERE / "tiny.toml"), "--chaos", str(HERE / "tiny-chaos.toml"), "--options", "emulated=true",
)  # fmt: skip


def test_it_measures_breaks_reports_and_leaves_nothing(bed: Kubernetes, tmp_path: Path) -> None:
    process = begin(bed, tmp_path, *SMALL, "--hours", "0.3")
    out, err = process.communicate()
    assert process.returncode == 0, out + err
    made = ledger.latest(tmp_path, "local")
    assert made
    results = [json.loads(file.read_text()) for file in made.runs.glob("*/2*/results.json")]
    assert {it["suite"] for it in results} == {"tiny", "tiny-chaos"}
    assert [(it["kind"], it["outcome"]) for one in results for it in one["trials"]] == [("worker_kill", "recovered")]
    assert spaces(bed) == set()


def test_killed_in_the_middle_it_is_taken_down_by_its_time(bed: Kubernetes, tmp_path: Path) -> None:
    process = begin(bed, tmp_path, *SMALL, "--hours", "0.3")
    deadline = time.monotonic() + LONGEST_S
    while not ((made := ledger.latest(tmp_path, "local")) and made.state().last == "bench"):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.kill()
    process.communicate()
    assert spaces(bed) == {"pg-training", "pg-monitoring", "pg-node-agents", "pg-ray"}
    made.note("kept", deadline=time.time())
    while not made.state().ended:
        assert time.monotonic() < deadline
        time.sleep(0.5)
    assert spaces(bed) == set()
