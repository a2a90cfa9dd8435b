"""A program as in its pod, on this machine: its files where the pod has them, the API server as every pod finds it.

Needs root: it takes a mount namespace of its own, in which /etc, /run and /tmp are folders of the test.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from tests.infra.apiserver.server import Program, Server
from tests.infra.gotools import UnavailableError

HOST = "127.0.0.9"  # an address of the loopback that nothing else of a machine uses: the pods' ports are free there
ACCOUNT = "run/secrets/kubernetes.io/serviceaccount"
ENTER = 'for it in etc run tmp; do mount --bind "$0/$it" "/$it" || exit 1; done; exec "$@"'


@dataclass(frozen=True)
class Pod:
    """Where its log is, for the message when something does not come about."""

    log: Path

    def wait(self, until: Callable[[], bool], timeout_s: float = 60.0) -> None:
        """Wait until something is so; what cannot be reached yet is not so."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            with contextlib.suppress(OSError):
                if until():
                    return
            time.sleep(0.2)
        raise AssertionError(f"not within {timeout_s} s: {self.log.read_text()[-2000:]}")


@contextlib.contextmanager
def pod(
    folder: Path, command: list[str], files: Mapping[str, str], server: Server | None = None, account: str = ""
) -> Iterator[Pod]:
    """A command with these files (absolute paths under /etc), and with an account's token if it is given.

    Raises:
        UnavailableError: without root, or without `unshare`.
    """
    unshare = shutil.which("unshare")
    if os.geteuid() != 0 or unshare is None:
        raise UnavailableError("needs root and unshare (util-linux) to give a program the files of its pod")
    for name in ("etc", ACCOUNT, "tmp"):
        (folder / name).mkdir(parents=True)
    known = {"/etc/hosts": f"127.0.0.1 localhost\n{HOST} alertmanager prometheus loki\n", **files}
    for path, text in known.items():
        file = folder / path.lstrip("/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    if server:
        (folder / ACCOUNT / "token").write_text(token(server, account))
        shutil.copy(server.certificate, folder / ACCOUNT / "ca.crt")
    shutil.copy(command[0], folder / "run" / "program")  # it may lie where the pod's folders will be
    started = ["/run/program", *command[1:]]
    enter = [unshare, "--mount", "--propagation", "private", "sh", "-c", ENTER, str(folder), *started]
    with Program(enter, folder / "log", environment(server)):
        yield Pod(folder / "log")


def environment(server: Server | None) -> dict[str, str]:
    """What a pod finds the API server by; nothing of ours."""
    if server is None:
        return {"PATH": os.defpath}
    address = urlsplit(server.url)
    return {
        "PATH": os.defpath,
        "KUBERNETES_SERVICE_HOST": str(address.hostname),
        "KUBERNETES_SERVICE_PORT": str(address.port),
    }


def token(server: Server, account: str) -> str:
    """A token of a service account, `namespace:name`, as the kubelet asks for it."""
    space, _, name = account.partition(":")
    path = f"/api/v1/namespaces/{space}/serviceaccounts/{name}/token"
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    answer = server.request("POST", path, asked)
    assert not answer.message, answer.message
    return str(answer.body["status"]["token"])
