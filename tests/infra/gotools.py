"""Programs that tests need and no package registry has: built from their Go modules, kept in the user's cache."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
BUILD_TIMEOUT_S = 1000
KUBERNETES = "v1.37.2"


class UnavailableError(RuntimeError):
    """A program cannot be had on this machine; the message says why."""


@dataclass(frozen=True)
class Tool:
    """A program: the folder with its go.mod, its package, its version (as in that go.mod).

    With `module` it is built by that module's own go.mod instead, in a copy; what is in `folder`, if any, goes over it.
    """

    folder: str
    package: str
    version: str
    module: str = ""
    checksum: str = ""  # of the module


TOOLS = {
    "kube-apiserver": Tool("apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", KUBERNETES),
    "kube-controller-manager": Tool("apiserver", "k8s.io/kubernetes/cmd/kube-controller-manager", KUBERNETES),
    "kube-scheduler": Tool("apiserver", "k8s.io/kubernetes/cmd/kube-scheduler", KUBERNETES),
    "kubectl": Tool("apiserver", "k8s.io/kubernetes/cmd/kubectl", KUBERNETES),
    "kubelet": Tool("apiserver", "k8s.io/kubernetes/cmd/kubelet", KUBERNETES),
    "prometheus-on-kubernetes": Tool(  # Debian's is built without the discovery of pods
        "prometheus", "./cmd/prometheus", "v0.55.1", "github.com/prometheus/prometheus",
        "h1:+NM9V/h4A+wRkOyQzGewzgPPgq/iX2LUQoISNvmjZmI=",
    ),
    "alertmanager": Tool(  # Debian's cannot read the webhook's address from a file
        "", "./cmd/alertmanager", "v0.27.0", "github.com/prometheus/alertmanager",
        "h1:V6nTa2J5V4s8TG4C4HtrBP/WNSebCCTYGGv4qecA/+I=",
    ),
    "coredns": Tool(
        "", ".", "v1.12.4", "github.com/coredns/coredns", "h1:rIMnjPvB02drP18DTlJJb1vGkc8Tyl8fe7NFnnSv2lU="),
    "kwok": Tool(
        "", "./cmd/kwok", "v0.8.0", "sigs.k8s.io/kwok", "h1:OTIOTwgROqPMovcTwxICx2eYQ4AwLpSx5EpjbDKF4SQ="),
    "helm": Tool("helm", "helm.sh/helm/v3/cmd/helm", "v3.18.6"),
}  # fmt: skip


def find(name: str) -> Path:
    """The program: on PATH, in the cache, or built now, once.

    On two cores Kubernetes' programs take 5 minutes, each other takes 1 or 2.

    Raises:
        UnavailableError: it is neither there nor can it be built.
    """
    if found := shutil.which(name):
        return Path(found)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "proving-ground"
    kept = cache / f"{name}-{TOOLS[name].version}"
    if not kept.exists():
        _build(name, kept)
    return kept


def _build(name: str, target: Path) -> None:
    go, tool = shutil.which("go"), TOOLS[name]
    if go is None:
        raise UnavailableError(f"{name} is not on PATH, and there is no go to build it with")
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    command = [go, "build", "-trimpath", "-ldflags", "-s -w", "-o", str(temporary), tool.package]
    flags = f"{os.environ.get('GOFLAGS', '')} -mod=readonly".strip()
    given = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": flags}
    with tempfile.TemporaryDirectory() as folder:
        where = _copied(go, tool, Path(folder)) if tool.module else HERE / tool.folder
        done = subprocess.run(
            command, cwd=where, env=given, capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT_S
        )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UnavailableError(f"{name} cannot be built: {why}")
    temporary.rename(target)


def _copied(go: str, tool: Tool, folder: Path) -> Path:
    """A module's source, checked, in a folder of ours: a module's own go.mod counts only where it is the main one."""
    command = [go, "mod", "download", "-json", f"{tool.module}@{tool.version}"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT_S)
    found = json.loads(done.stdout or "{}")
    if found.get("Sum") != tool.checksum:
        raise UnavailableError(f"{tool.module} {tool.version}: {found.get('Error', 'another checksum than expected')}")
    where = shutil.copytree(found["Dir"], folder / "source", copy_function=shutil.copyfile)
    for path in [where, *where.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    if tool.folder:
        shutil.copytree(HERE / tool.folder, where, dirs_exist_ok=True)
    return where


if __name__ == "__main__":
    for tool_name in TOOLS:
        print(find(tool_name))
