"""A real Blob emulator for tests: Azurite, from npm, kept in the user's cache."""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from azure.core.exceptions import ResourceExistsError
from azure.storage.blob import ContainerClient

from proving_ground.infra.blobs import Blobs
from tests.infra.gotools import UnavailableError

VERSION = "3.35.0"
INSTALL_TIMEOUT_S = 300
START_TIMEOUT_S = 60
ACCOUNT = "tests"


def find() -> Path:
    """The emulator: on PATH, in the cache, or installed now (half a minute, once).

    Raises:
        UnavailableError: it is neither there nor can it be installed.
    """
    if found := shutil.which("azurite-blob"):
        return Path(found)
    cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "proving-ground" / f"azurite-{VERSION}"
    program = cache / "node_modules" / ".bin" / "azurite-blob"
    npm = shutil.which("npm")
    if not program.exists():
        if npm is None:
            raise UnavailableError("azurite-blob is not on PATH, and there is no npm to install it with")
        cache.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(cache), f"azurite@{VERSION}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INSTALL_TIMEOUT_S)
        if done.returncode:
            raise UnavailableError(f"azurite cannot be installed: {(done.stderr.splitlines() or ['no message'])[-1]}")
    return program


@contextlib.contextmanager
def running(folder: Path) -> Iterator[str]:
    """An emulator on loopback with its data under `folder`; its connection string."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    key = base64.b64encode(secrets.token_bytes(64)).decode()
    command = [str(find()), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", str(folder)]
    settings = ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    given = {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{key}"}
    quiet = subprocess.DEVNULL
    with subprocess.Popen([*command, *settings], env=given, stdout=quiet, stderr=quiet) as process:
        try:
            _wait(port)
            endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
            yield f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={key};BlobEndpoint={endpoint};"
        finally:
            process.terminate()


def _wait(port: int) -> None:
    before = time.monotonic()
    while time.monotonic() - before < START_TIMEOUT_S:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.1)
    raise UnavailableError("azurite did not start")


@contextlib.contextmanager
def container(connection: str, name: str) -> Iterator[Blobs]:
    """A container of the emulator."""
    with ContainerClient.from_connection_string(connection, name) as client:
        with contextlib.suppress(ResourceExistsError):
            client.create_container()
        yield Blobs(client)
