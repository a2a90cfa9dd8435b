"""`preview`, `up`, a second `up` without changes, a change in place, `down`: `local` by the real Pulumi CLI.

Against a real API server with its controllers; nothing runs the pods there, so nothing waits for them. Then what a user
does to it: stopping it in the middle, killing it, taking the API server away. `nox -s pulumi-tests`.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from infra.cluster.labels import NAMESPACES
from infra.config import ROOT
from tests.infra.apiserver.server import Server, controlling, kubeconfig, running
from tests.infra.gotools import UnavailableError

pytestmark = [
    pytest.mark.apiserver,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        shutil.which("pulumi") is None, reason="no Pulumi CLI on this machine; no package registry has it"
    ),
]
PASSWORD = "planted-grafana-secret"  # noqa: S105 - planted on purpose
LONGEST_S = 600  # one command
KILLS = int(os.environ.get("PROVING_GROUND_INTERRUPTIONS", "4"))
SEED = int(os.environ.get("PROVING_GROUND_SEED", "1"))


@dataclass(frozen=True)
class Project:
    """A copy of what Pulumi reads, with states, configuration and kubeconfig of its own."""

    folder: Path
    server: Server
    environ: dict[str, str]

    def command(self, *words: str) -> list[str]:
        """A command of `infra` for the stack `local`."""
        return [sys.executable, "-m", "infra", *words, "local"]

    def infra(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """Run one to its end."""
        return subprocess.run(
            self.command(*words), cwd=self.folder, env=self.environ | environ, capture_output=True, text=True,
            check=False, timeout=LONGEST_S,
        )  # fmt: skip

    def pulumi(self, *words: str) -> str:
        """What the CLI answers."""
        command = ["pulumi", *words, "--stack", "local", "--non-interactive"]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False, timeout=LONGEST_S
        )
        assert not done.returncode, done.stdout + done.stderr
        return done.stdout

    def spaces(self) -> set[str]:
        """Our namespaces on the cluster."""
        found = self.server.request("GET", "/api/v1/namespaces").body["items"]
        return {it["metadata"]["name"] for it in found} & set(NAMESPACES)

    def left(self) -> list[str]:
        """What is left of ours outside of namespaces."""
        kinds = ("clusterroles", "clusterrolebindings")
        paths = [f"/apis/rbac.authorization.k8s.io/v1/{kind}" for kind in kinds]
        paths += ["/api/v1/persistentvolumes", "/apis/scheduling.k8s.io/v1/priorityclasses", "/api/v1/namespaces"]
        query = "?labelSelector=app.kubernetes.io/part-of=proving-ground"
        found = [item for path in paths for item in self.server.request("GET", path + query).body["items"]]
        return [item["metadata"]["name"] for item in found]

    def emptied(self) -> bool:
        """Nothing is left, once the controllers have emptied the namespaces: without `wait`, `down` ends before."""
        end = time.monotonic() + LONGEST_S
        while self.left() and time.monotonic() < end:
            time.sleep(1)
        return not self.left()


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """The project, on a running cluster with nothing on it."""
    try:
        with running(tmp_path) as server, controlling(server, tmp_path):
            yield copied(tmp_path, server)
    except UnavailableError as reason:
        pytest.skip(str(reason))


def copied(home: Path, server: Server) -> Project:
    """Copy what is committed; nothing of the developer's own stacks comes along."""
    folder = home / "project"
    for name in ("infra", "monitoring"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Pulumi.local.yaml", folder)
    settings = (ROOT / "Pulumi.yaml").read_text()
    (folder / "Pulumi.yaml").write_text(settings.replace("virtualenv: .venv", f"virtualenv: {environment(home)}"))
    (home / "states").mkdir()
    assert kubeconfig(server)["clusters"]
    made = {
        "KUBECONFIG": str(home / "kubeconfig"), "PULUMI_BACKEND_URL": f"file://{home / 'states'}",
        "PULUMI_CONFIG_PASSPHRASE": "test", "PROVING_GROUND_INFRA__KUBERNETES__WAIT": "false",
        "PULUMI_SKIP_UPDATE_CHECK": "true", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PULUMI_CONFIG", "ARM_"))}
    project = Project(folder, server, kept | made)
    project.infra("preview")  # makes the stack; it has no password yet
    project.pulumi("config", "set", "--secret", "proving-ground:grafana_password", PASSWORD)
    return project


def environment(home: Path) -> Path:
    """An environment with pip, as nox makes it, that sees the packages of this one."""
    made = home / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(made)], check=True)
    (packages,) = made.glob("lib/python3*/site-packages")
    (packages / "here.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return made


def changes(output: str) -> dict[str, int]:
    """How many resources an update made, changed, replaced, deleted, or left alone."""
    summary = output.rpartition("Resources:")[2]
    counted = re.findall(r"(\d+) (created|updated|replaced|deleted|unchanged)", summary)
    return {what: int(number) for number, what in counted}


def test_local_comes_up_stays_changes_and_goes(project: Project) -> None:
    done = project.infra("up")
    assert not done.returncode, done.stdout + done.stderr
    assert project.spaces() == set(NAMESPACES)
    made = changes(done.stdout)["created"]
    again = changes(project.infra("up").stdout)
    assert again == {"unchanged": made}
    other = changes(project.infra("up", PROVING_GROUND_INFRA__KUBERNETES__RETENTION_DAYS="3").stdout)
    assert "replaced" not in other
    assert other["updated"] >= 1
    gone = project.infra("down")
    assert not gone.returncode, gone.stdout + gone.stderr
    assert project.emptied()
    shown = [it.read_text(errors="replace") for it in project.folder.parent.rglob("*.json") if it.is_file()]
    assert not [text for text in [done.stdout, gone.stdout, *shown] if PASSWORD in text]
    committed = (ROOT / "Pulumi.local.yaml").read_text()
    assert (project.folder / "Pulumi.local.yaml").read_text() == committed


def test_a_cluster_that_is_gone_does_not_keep_the_stack(project: Project) -> None:
    assert not project.infra("up").returncode
    away = kubeconfig(project.server)
    away["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
    (project.folder.parent / "kubeconfig").write_text(json.dumps(away))  # the state keeps the file's path
    refused = project.infra("down")
    assert refused.returncode == 1
    assert refused.stderr.startswith("infra: cluster: ")
    assert len(refused.stderr.splitlines()) == 1
    done = project.infra("down", "--cluster-gone")
    assert not done.returncode, done.stdout + done.stderr
    assert project.pulumi("stack", "--show-urns").count("kubernetes:") == 0


@pytest.mark.parametrize("number", range(KILLS))
def test_an_interruption_at_any_moment_is_mended_by_one_command(project: Project, number: int) -> None:
    chance = random.Random(f"{SEED}-{number}")  # noqa: S311 - moments, not secrets
    before = time.monotonic()
    assert not project.infra("up").returncode
    whole_s = time.monotonic() - before
    words = chance.choice(["up", "down"])
    if words == "up":
        assert not project.infra("down").returncode
    way = chance.choice([signal.SIGINT, signal.SIGKILL])
    stop(project, words, way, chance.uniform(0, whole_s))
    if way == signal.SIGKILL:
        mended = project.infra("mend")
        assert not mended.returncode, mended.stdout + mended.stderr
    done = project.infra(words)
    assert not done.returncode, done.stdout + done.stderr
    again = changes(project.infra("up").stdout) if words == "up" else {}
    assert set(again) <= {"unchanged"}
    assert words == "up" or project.emptied()


def stop(project: Project, words: str, way: signal.Signals, after_s: float) -> None:
    """Start a command and end it: by a Ctrl-C, or all of its processes at once."""
    with subprocess.Popen(
        project.command(words), cwd=project.folder, env=project.environ, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        time.sleep(after_s)
        if way == signal.SIGKILL:
            for pid in [process.pid, *children(process.pid)]:
                os.kill(pid, signal.SIGKILL)
        elif process.poll() is None:
            process.send_signal(way)
        _, err = process.communicate(timeout=LONGEST_S)
    assert "Traceback" not in err
    assert process.returncode in ((0, 130) if way == signal.SIGINT else (0, -9))


def children(pid: int) -> list[int]:
    """All processes under one."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], check=True, capture_output=True, text=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    found = [child for child, parent in pairs if parent == pid]
    return found + [below for child in found for below in children(child)]
