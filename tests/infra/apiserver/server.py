"""A real Kubernetes API server for tests: etcd from the system, kube-apiserver built from its Go modules and cached.

With `controlling` also the controller manager, so that a namespace really goes. Used by `tests/infra/test_apiserver.py`
and `tests/infra/testbed`, which adds a node; `python -m tests.infra.gotools` only builds.
"""

from __future__ import annotations

import base64
import contextlib
import json
import secrets
import shutil
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.infra.gotools import UnavailableError, find

START_TIMEOUT_S = 90
PATIENCE_S = 2  # with a program that was asked to end
GATES = {"feature-gates": "GenericWorkload=true,WorkloadWithJob=true"}
"""Of the whole control plane: pods of a Job are scheduled together. On by default in some later version."""
PLURALS = {"networkpolicy": "networkpolicies", "priorityclass": "priorityclasses"}


@dataclass(frozen=True)
class Answer:
    """What the API server said."""

    status: int
    body: dict[str, Any]

    @property
    def message(self) -> str:
        """Why not, in the server's words; empty when it accepted."""
        return str(self.body.get("message", "")) if self.status >= 400 else ""


class Program:
    """A program of the cluster that runs while a `with` lasts, and can be killed and started again meanwhile."""

    def __init__(self, command: list[str], log: Path, environ: Mapping[str, str] | None = None) -> None:
        self._command, self.log, self._environ = command, log, environ
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def start(self) -> None:
        """Start it, again after `kill`; it does not outlive us, however we end."""
        tied = [setpriv, "--pdeathsig", "KILL"] if (setpriv := shutil.which("setpriv")) else []
        with self.log.open("ab") as out:
            self._process = subprocess.Popen(
                [*tied, *self._command], stdout=out, stderr=subprocess.STDOUT, env=self._environ
            )

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def ended(self) -> bool:
        """Whether it has ended by itself or was killed."""
        return self._process is None or self._process.poll() is not None


@dataclass(frozen=True)
class Server:
    """A running API server; `token` is its administrator's."""

    url: str
    token: str
    certificate: Path
    program: Program

    def stop(self) -> None:
        """Kill it; what it has stored stays."""
        self.program.kill()

    def start(self) -> None:
        """Start it again after `stop`, and wait until it answers.

        Raises:
            RuntimeError: it does not.
        """
        self.program.start()
        self.wait()

    def wait(self) -> None:
        """Wait until it answers.

        Raises:
            RuntimeError: it does not.
        """
        end = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < end and not self.program.ended:
            with contextlib.suppress(OSError, ValueError):
                if self.request("GET", "/api/v1/namespaces/default").status == 200:
                    return
            time.sleep(0.2)
        raise RuntimeError(f"the API server did not start: {self.program.log.read_text()[-2000:]}")

    def request(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Answer:
        """One request; refusals are answers, not exceptions."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": kind}
        request = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310 - loopback
        trust = ssl.create_default_context(cafile=self.certificate)
        try:
            with urllib.request.urlopen(request, context=trust, timeout=30) as response:  # noqa: S310 - same
                return Answer(response.status, json.load(response))
        except urllib.error.HTTPError as refusal:
            return Answer(refusal.code, json.load(refusal))

    def apply(self, manifest: dict[str, Any], *, dry_run: bool) -> Answer:
        """Server-side apply with strict field validation."""
        query = {"fieldManager": "tests", "fieldValidation": "Strict", "force": "true"} | (
            {"dryRun": "All"} if dry_run else {}
        )
        path = f"{_path(manifest)}/{manifest['metadata']['name']}?{urllib.parse.urlencode(query)}"
        return self.request("PATCH", path, manifest, "application/apply-patch+yaml")


def _path(manifest: dict[str, Any]) -> str:
    api, kind = manifest["apiVersion"], manifest["kind"].lower()
    namespace = manifest["metadata"].get("namespace")
    root = f"/apis/{api}" if "/" in api else f"/api/{api}"
    return f"{root}{f'/namespaces/{namespace}' if namespace else ''}/{PLURALS.get(kind, kind + 's')}"


@contextlib.contextmanager
def running(folder: Path, address: str = "127.0.0.1") -> Iterator[Server]:
    """An API server with an empty etcd under `folder`, at an address of this machine; both are gone afterwards.

    Raises:
        UnavailableError: something that it takes is not on this machine.
    """
    etcd, openssl = shutil.which("etcd"), shutil.which("openssl")
    if etcd is None or openssl is None:
        missing = "etcd (Debian: etcd-server)" if etcd is None else "openssl"
        raise UnavailableError(f"{missing} is not on PATH")
    program = find("kube-apiserver")
    token, key = secrets.token_hex(16), folder / "accounts.key"
    subprocess.run([openssl, "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    (folder / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
    ports = [_free_port() for _ in range(3)]
    command = _server_command(program, folder, key, address, ports)
    with (
        Program(_etcd_command(etcd, folder, ports[0], ports[1]), folder / "etcd.log"),
        Program(command, folder / "apiserver.log") as started,
    ):
        server = Server(f"https://{address}:{ports[2]}", token, folder / "apiserver.crt", started)
        server.wait()
        yield server


@contextlib.contextmanager
def controlling(server: Server, folder: Path) -> Iterator[None]:
    """The controller manager of a server that `running` started in `folder`.

    Raises:
        UnavailableError: it is neither there nor can it be built.
    """
    keys = {
        "service-account-private-key-file": str(folder / "accounts.key"),
        "root-ca-file": str(server.certificate),  # pods trust it
        "pvclaimbinder-sync-period": "1s",  # 15 s are for clusters with many volumes
    }
    with _component("kube-controller-manager", server, folder, keys):
        yield


@contextlib.contextmanager
def scheduling(server: Server, folder: Path) -> Iterator[None]:
    """The scheduler of a server that `running` started in `folder`.

    Raises:
        UnavailableError: it is neither there nor can it be built.
    """
    with _component("kube-scheduler", server, folder, {}):
        yield


def _component(name: str, server: Server, folder: Path, more: dict[str, str]) -> Program:
    """A program of the control plane beside the API server, as its administrator."""
    (folder / "kubeconfig").write_text(json.dumps(kubeconfig(server)))
    settings = {
        "kubeconfig": str(folder / "kubeconfig"),
        **GATES,
        "leader-elect": "false",
        "bind-address": "127.0.0.1",
        "secure-port": str(_free_port()),
        "cert-dir": str(folder),
    }
    command = [str(find(name)), *(f"--{key}={value}" for key, value in (settings | more).items())]
    return Program(command, folder / f"{name}.log")


def kubeconfig(server: Server) -> dict[str, Any]:
    """How kubectl and Pulumi reach it, as its administrator."""
    trust = base64.b64encode(server.certificate.read_bytes()).decode()
    return {
        "apiVersion": "v1", "kind": "Config", "current-context": "test",
        "clusters": [{"name": "test", "cluster": {"server": server.url, "certificate-authority-data": trust}}],
        "users": [{"name": "test", "user": {"token": server.token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }  # fmt: skip


def _etcd_command(etcd: str, folder: Path, port: int, peer_port: int) -> list[str]:
    client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{peer_port}"
    urls = ["--listen-client-urls", client, "--advertise-client-urls", client, "--listen-peer-urls", peer]
    cluster = ["--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}"]
    return [etcd, "--data-dir", str(folder / "etcd"), *urls, *cluster]


def _server_command(program: Path, folder: Path, key: Path, address: str, ports: list[int]) -> list[str]:
    settings = {
        "etcd-servers": f"http://127.0.0.1:{ports[0]}",
        "bind-address": address,
        "advertise-address": address,
        "secure-port": str(ports[2]),
        "cert-dir": str(folder),
        "service-cluster-ip-range": "10.0.0.0/24",
        "service-account-issuer": "https://127.0.0.1",
        "service-account-key-file": str(key),
        "service-account-signing-key-file": str(key),
        "authorization-mode": "RBAC",
        "token-auth-file": str(folder / "tokens.csv"),
        "endpoint-reconciler-type": "none",
        "kubelet-preferred-address-types": "InternalIP",  # a node's name means nothing outside of it
        **GATES,
        "runtime-config": "scheduling.k8s.io/v1beta1=true,scheduling.k8s.io/v1alpha3=true",  # where gangs are kept
    }
    return [str(program), *(f"--{name}={value}" for name, value in settings.items())]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
