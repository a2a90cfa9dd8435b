"""A copy of the project with a stack `local` of its own, driven as a user drives it: up, down, stopped, killed.

Called by `tests/infra/test_pulumi_cli.py` and `tests.validations.pulumi`.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from proving_ground.infra.cluster.labels import NAMESPACES
from proving_ground.infra.config import ROOT
from tests.infra.apiserver.server import Server

PASSWORD = "planted-grafana-secret"  # noqa: S105 - planted on purpose
LONGEST_S = 600  # one command
FOREIGN = ("PULUMI_", "PROVING_GROUND_", "ARM_", "AZURE_", "KUBE")
"""How variables begin that would bring something of the developer's own along: stacks, choices, plugins, clusters."""
SHOWS_ALL = re.compile(r"(\d+) (created|updated|replaced|deleted|unchanged)")
WAYS = {"SIGINT": signal.SIGINT, "SIGKILL": signal.SIGKILL}


@dataclass(frozen=True)
class Done:
    """A command that has ended."""

    status: int
    out: str
    err: str
    seconds: float

    @property
    def changes(self) -> dict[str, int]:
        """How many resources an update made, changed, replaced, deleted, or left alone."""
        return {what: int(number) for number, what in SHOWS_ALL.findall(self.out.rpartition("Resources:")[2])}

    def fine(self) -> Done:
        """The same.

        Raises:
            AssertionError: it did not end with status 0; the message has what it printed.
        """
        if self.status:
            raise AssertionError(f"status {self.status}\n{self.out}\n{self.err}")
        return self


@dataclass(frozen=True)
class Project:
    """What Pulumi reads, with states, configuration and kubeconfig of its own, on a cluster."""

    folder: Path
    server: Server
    environ: dict[str, str]
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """Command → what it took when nothing disturbed it, the last time."""

    def command(self, *words: str) -> list[str]:
        """A command of `infra` for the stack `local`."""
        return [sys.executable, "-m", "proving_ground.infra", *words, "local"]

    def infra(self, *words: str, **environ: str) -> Done:
        """Run one to its end."""
        return self._run(self.command(*words), self.environ | environ)

    def timed(self, word: str) -> Done:
        """Run `up` or `down`, which must succeed, and remember what it took."""
        done = self.infra(word).fine()
        self.seconds[word] = done.seconds
        return done

    def pulumi(self, *words: str) -> str:
        """What the CLI answers."""
        return self._run(["pulumi", *words, "--stack", "local", "--non-interactive"], self.environ).fine().out

    def _run(self, command: list[str], environ: Mapping[str, str]) -> Done:
        before = time.monotonic()
        done = subprocess.run(
            command, cwd=self.folder, env=environ, capture_output=True, text=True, check=False, timeout=LONGEST_S
        )
        return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - before)

    def interrupt(self, word: str, way: str, after_s: float) -> Done:
        """Start a command and end it: by a Ctrl-C, or by killing all of its processes at once."""
        signal.signal(
            signal.SIGINT, signal.default_int_handler
        )  # ignored by a background job, it would be below us too
        before = time.monotonic()
        with subprocess.Popen(
            self.command(word), cwd=self.folder, env=self.environ, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as process:  # fmt: skip
            time.sleep(after_s)
            if process.poll() is None:
                for pid in [process.pid, *(children(process.pid) if way == "SIGKILL" else [])]:
                    os.kill(pid, WAYS[way])
            out, err = process.communicate(timeout=LONGEST_S)
        return Done(process.returncode, out, err, time.monotonic() - before)

    def mend(self, word: str) -> Done:
        """What `infra/README.md` says to do after an interruption, however it came: the same command again."""
        return self.infra(word).fine()

    def bring(self, word: str) -> None:
        """Have the stack `up` or `down`, whatever it is now."""
        if word == "up" and self.spaces() != set(NAMESPACES):
            self.timed("up")
        if word == "down" and self.left():
            self.timed("down")

    def spaces(self) -> set[str]:
        """Our namespaces on the cluster."""
        found = self.server.request("GET", "/api/v1/namespaces").body["items"]
        return {it["metadata"]["name"] for it in found} & set(NAMESPACES)

    def left(self) -> list[str]:
        """What is left of ours on the cluster, outside of namespaces that are gone."""
        query = "?labelSelector=app.kubernetes.io/part-of=proving-ground"
        found = [path for kind in CLUSTER_WIDE for path in self._paths(kind, query)]
        return [*found, *self._paths("/api/v1/pods", query)]

    def _paths(self, kind: str, query: str) -> list[str]:
        items = self.server.request("GET", kind + query).body["items"]
        return [f"{kind}/{item['metadata']['name']}" for item in items]

    def pods(self) -> dict[str, bool]:
        """Our pods: name → whether it is ready."""
        found = [
            item
            for space in NAMESPACES
            for item in self.server.request("GET", f"/api/v1/namespaces/{space}/pods").body["items"]
        ]
        return {item["metadata"]["name"]: is_ready(item) for item in found}

    def resources(self) -> int:
        """How many objects of the cluster the stack's state has."""
        return self.pulumi("stack", "--show-urns").count("kubernetes:")


CLUSTER_WIDE = (
    "/api/v1/namespaces",
    "/api/v1/persistentvolumes",
    "/apis/scheduling.k8s.io/v1/priorityclasses",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
)


def is_ready(pod: Mapping[str, object]) -> bool:
    """Whether a pod passes its probes."""
    status = pod["status"]
    assert isinstance(status, dict)
    return any(it["type"] == "Ready" and it["status"] == "True" for it in status.get("conditions", []))


def copied(home: Path, server: Server, kubeconfig: Path) -> Project:
    """Copy what is committed; nothing of the developer's own stacks comes along."""
    folder, states = home / "project", home / "states"
    for name in ("infra", "monitoring"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Pulumi.local.yaml", folder)
    settings = (ROOT / "Pulumi.yaml").read_text()
    (folder / "Pulumi.yaml").write_text(settings.replace("virtualenv: .venv", f"virtualenv: {environment(home)}"))
    states.mkdir()
    plugins = Path(os.environ.get("PULUMI_HOME", Path.home() / ".pulumi")) / "plugins"
    if plugins.exists():  # programs, and nothing of the developer's settings
        (home / "pulumi").mkdir()
        (home / "pulumi" / "plugins").symlink_to(plugins)
    project = Project(folder, server, environ(os.environ, home, kubeconfig))
    project.infra("preview")  # makes the stack; it has no password yet
    project.pulumi("config", "set", "--secret", "proving-ground:grafana_password", PASSWORD)
    return project


def environ(given: Mapping[str, str], home: Path, kubeconfig: Path) -> dict[str, str]:
    """The variables of a user who has nothing but what this test made; the developer's own are left out."""
    made = {
        "HOME": str(home), "PULUMI_HOME": str(home / "pulumi"), "KUBECONFIG": str(kubeconfig),
        "PULUMI_BACKEND_URL": f"file://{home / 'states'}", "PULUMI_CONFIG_PASSPHRASE": "test",
        "PULUMI_SKIP_UPDATE_CHECK": "true", "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    return {name: value for name, value in given.items() if not name.startswith(FOREIGN)} | made


def environment(home: Path) -> Path:
    """An environment with pip, as nox makes it, that sees the packages of this one."""
    made = home / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(made)], check=True)
    (packages,) = made.glob("lib/python3*/site-packages")
    (packages / "here.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    return made


def children(pid: int) -> list[int]:
    """All processes under one."""
    listed = subprocess.run(["ps", "-eo", "pid=,ppid="], check=True, capture_output=True, text=True).stdout
    pairs = [tuple(map(int, line.split())) for line in listed.splitlines()]
    found = [child for child, parent in pairs if parent == pid]
    return found + [below for child in found for below in children(child)]
