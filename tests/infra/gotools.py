"""Programs that tests need and no package registry has: built from their Go modules, kept in the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
BUILD_TIMEOUT_S = 1000
KUBERNETES = "v1.34.4"


class UnavailableError(RuntimeError):
    """A program cannot be had on this machine; the message says why."""


@dataclass(frozen=True)
class Tool:
    """A program: the folder with its go.mod, its package, its version (as in that go.mod)."""

    folder: str
    package: str
    version: str


TOOLS = {
    "kube-apiserver": Tool("apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", KUBERNETES),
    "kube-controller-manager": Tool("apiserver", "k8s.io/kubernetes/cmd/kube-controller-manager", KUBERNETES),
    "kube-scheduler": Tool("apiserver", "k8s.io/kubernetes/cmd/kube-scheduler", KUBERNETES),
    "kubelet": Tool("apiserver", "k8s.io/kubernetes/cmd/kubelet", KUBERNETES),
    "helm": Tool("helm", "helm.sh/helm/v3/cmd/helm", "v3.18.6"),
}


def find(name: str) -> Path:
    """The program: on PATH, in the cache, or built now (once; all of Kubernetes 5, helm 1 minute on two idle cores).

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
    where = HERE / tool.folder
    done = subprocess.run(
        command, cwd=where, env=given, capture_output=True, text=True, check=False, timeout=BUILD_TIMEOUT_S
    )
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise UnavailableError(f"{name} cannot be built: {why}")
    temporary.rename(target)


if __name__ == "__main__":
    for tool_name in TOOLS:
        print(find(tool_name))
