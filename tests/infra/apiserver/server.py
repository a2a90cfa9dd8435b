"""A real Kubernetes API server for tests: etcd from the system, kube-apiserver built from its Go modules and cached.

With `controlling` also the controller manager, so that a namespace really goes. Used by `tests/infra/test_apiserver.py`
and `test_pulumi_cli.py`; `python -m tests.infra.gotools` only builds.
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
from typing import Any

from tests.infra.gotools import UnavailableError, find

START_TIMEOUT_S = 90
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


@dataclass(frozen=True)
class Server:
    """A running API server; `token` is its administrator's."""

    url: str
    token: str
    certificate: Path

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
def running(folder: Path) -> Iterator[Server]:
    """An API server with an empty etcd under `folder`, on loopback; both are gone afterwards.

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
    with process(_etcd_command(etcd, folder, ports[0], ports[1]), folder / "etcd.log"):
        command = _server_command(program, folder, key, ports[0], ports[2])
        with process(command, folder / "apiserver.log") as started:
            server = Server(f"https://127.0.0.1:{ports[2]}", token, folder / "apiserver.crt")
            _wait(server, started, folder / "apiserver.log")
            yield server


@contextlib.contextmanager
def controlling(server: Server, folder: Path) -> Iterator[None]:
    """The controller manager of a server that `running` started in `folder`.

    Raises:
        UnavailableError: it is neither there nor can it be built.
    """
    (folder / "kubeconfig").write_text(json.dumps(kubeconfig(server)))
    settings = {
        "kubeconfig": str(folder / "kubeconfig"),
        "service-account-private-key-file": str(folder / "accounts.key"),
        "leader-elect": "false",
        "bind-address": "127.0.0.1",
        "secure-port": str(_free_port()),
        "cert-dir": str(folder),
    }
    command = [str(find("kube-controller-manager")), *(f"--{name}={value}" for name, value in settings.items())]
    with process(command, folder / "controllers.log"):
        yield


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


def _server_command(program: Path, folder: Path, key: Path, etcd_port: int, port: int) -> list[str]:
    settings = {
        "etcd-servers": f"http://127.0.0.1:{etcd_port}",
        "bind-address": "127.0.0.1",
        "advertise-address": "127.0.0.1",
        "secure-port": str(port),
        "cert-dir": str(folder),
        "service-cluster-ip-range": "10.0.0.0/24",
        "service-account-issuer": "https://127.0.0.1",
        "service-account-key-file": str(key),
        "service-account-signing-key-file": str(key),
        "authorization-mode": "RBAC",
        "token-auth-file": str(folder / "tokens.csv"),
        "endpoint-reconciler-type": "none",
    }
    return [str(program), *(f"--{name}={value}" for name, value in settings.items())]


@contextlib.contextmanager
def process(
    command: list[str], log: Path, environ: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A command that is ended with the block; what it prints goes to `log`."""
    with log.open("wb") as out, subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, env=environ) as started:
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(10)
            except subprocess.TimeoutExpired:
                started.kill()


def _wait(server: Server, started: subprocess.Popen[bytes], log: Path) -> None:
    before = time.monotonic()
    while time.monotonic() - before < START_TIMEOUT_S:
        if started.poll() is not None:
            break
        with contextlib.suppress(OSError, ValueError):
            if server.request("GET", "/api/v1/namespaces/default").status == 200:
                return
        time.sleep(0.2)
    raise RuntimeError(f"the API server did not start: {log.read_text()[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
