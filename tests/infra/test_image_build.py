"""The images, really built by buildah: the trainer's trains as nobody on a read-only root and holds what is pinned.

`nox -s image`; some minutes and 12 GB of disk. The base image comes from its registry; where none can be reached,
Debian's Python of the same minor version stands in for it (debootstrap), and the size is that of this base.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from proving_ground.infra import image
from proving_ground.infra.cluster.manifest import USER
from proving_ground.infra.config import ROOT

TAG = "localhost/proving-ground/trainer:test"
NEEDED = ("buildah", "unshare")

pytestmark = [
    pytest.mark.image,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts"),
    pytest.mark.skipif(any(shutil.which(name) is None for name in NEEDED), reason=f"needs {' and '.join(NEEDED)}"),
]

ENTER = """
import os, subprocess, sys
root, user, *argv = sys.argv[1:]
def mount(*words):
    subprocess.run(["mount", *words], check=True)
mount("--make-rprivate", "/")
mount("--bind", root, root)
mount("-o", "remount,bind,ro", root)
mount("-t", "tmpfs", "tmpfs", root + "/tmp")
for name in ("/proc", "/dev"):
    mount("--bind", name, root + name)
os.chroot(root)
os.chdir("/app")
os.setgroups([])
os.setgid(int(user))
os.setuid(int(user))
os.execvpe(argv[0], argv, {"PATH": "/opt/trainer/bin:/opt/exporter/bin:/usr/local/bin:/usr/bin:/bin", "HOME": "/tmp", "PYTHONDONTWRITEBYTECODE": "1"})
"""  # what a kubelet does with readOnlyRootFilesystem and runAsUser, in a mount namespace of its own  # noqa: E501


def base_tag() -> str:
    """The base image's tag, as the Dockerfile has it."""
    found = image.BASE.search(image.FILES["trainer"].read_text())
    assert found is not None
    return found["tag"]


def stand_in(name: str) -> None:
    """Debian's own Python under the base image's name."""
    if shutil.which("debootstrap") is None:
        pytest.skip("no registry can be reached, and there is no debootstrap for a base in its place")
    told = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"],
        check=True, capture_output=True, text=True,
    ).stdout.splitlines()  # fmt: skip
    made = image.tool("from", "scratch")
    try:
        root = image.tool("mount", made)
        packages = "--include=python3,python3-venv,python3-pip"
        suite = name.rpartition("-")[2]
        subprocess.run(["debootstrap", "--variant=minbase", packages, suite, root, told[0]], check=True, timeout=600)
        Path(root, "usr/local/bin/python").symlink_to("/usr/bin/python3")
        image.tool("config", "--cmd", "python", made)
        image.tool("commit", made, name)
    finally:
        image.tool("rm", made)


@pytest.fixture(scope="session")
def more() -> list[str]:
    """What buildah is told besides; the base image is there then."""
    name = f"{image.NAME}:{base_tag()}"
    try:
        image.tool("inspect", "--type", "image", name)
    except image.ImageError:
        try:
            image.tool("pull", name)
        except image.ImageError:
            stand_in(name)
    given = [path for path in ("/etc/pip.conf", "/etc/ssl/certs") if Path(path).exists()]  # how this machine uses pip
    return [f"--volume={path}:{path}:ro" for path in given]


@pytest.fixture(scope="session")
def built(more: list[str]) -> image.Image:
    """The trainer's image, built now."""
    return shown(image.build("trainer", TAG, more=more))


def shown(made: image.Image) -> image.Image:
    """The same, told to who watches."""
    print(f"\n{made}")
    return made


def inside(*argv: str, tag: str = TAG) -> subprocess.CompletedProcess[str]:
    """A command in the image as the cluster runs it: no root, a read-only root file system, a writable /tmp."""
    with image.container(tag) as (_, root):
        command = ["unshare", "--mount", sys.executable, "-c", ENTER, str(root), str(USER), *argv]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_it_trains(built: image.Image) -> None:
    assert built.tag == TAG
    done = inside(
        "python", "-m", "proving_ground.training", "run", "--config", "training/configs/digits.toml", "--set", "steps=5"
    )
    assert done.returncode == 0, done.stderr
    done = inside("python", "-c", "import torchft.coordination, torchft.local_sgd")
    assert done.returncode == 0, done.stderr


def test_nothing_can_be_written_but_scratch(built: image.Image) -> None:
    del built
    for path, fine in (("/app/x", False), ("/opt/trainer/x", False), ("/tmp/x", True)):
        done = inside("python", "-c", f"open({path!r}, 'w')")
        assert (done.returncode == 0) == fine, done.stderr
    assert inside("python", "-c", "import os; print(os.getuid(), os.getgid())").stdout.split() == [str(USER)] * 2


def test_it_has_what_is_pinned_and_no_installer(built: image.Image) -> None:
    pins = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    pinned = {(normal(name), version) for name, version in pins}
    assert {(normal(name), version) for name, version in built.packages.items()} <= pinned
    assert not {"pip", "pytest", "triton"} & built.packages.keys()
    assert {"torch", "torchvision", "torchft", "transformers"} <= {normal(name) for name in built.packages}
    assert built.bytes > sum(built.largest.values()) > 0


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def test_nobody_becomes_root_by_what_the_build_adds(built: image.Image) -> None:
    del built
    with image.container(TAG) as (_, root):
        for folder in ("opt", "app"):
            assert not [it for it in (root / folder).rglob("*") if not it.is_symlink() and it.stat().st_mode & 0o6002]


EXPORT = """
import subprocess, sys, time, urllib.request
command = [sys.executable, "-m", "proving_ground.monitoring", "export", "/tmp/jobs", "--port", "8765"]
with subprocess.Popen(command) as exporter:
    for _ in range(100):
        time.sleep(0.1)
        try:
            print(urllib.request.urlopen("http://127.0.0.1:8765/healthz").status)
            break
        except OSError:
            pass
    exporter.terminate()
"""


def test_the_exporter_answers_in_its_own_image(more: list[str]) -> None:
    tag = f"{TAG}-exporter"
    made = shown(image.build("exporter", tag, more=more))
    assert not {"torch", "pip", "numpy"} & made.packages.keys()
    done = inside("python", "-c", EXPORT, tag=tag)
    assert done.stdout.splitlines()[-1:] == ["200"], done.stderr


@contextlib.contextmanager
def registry(folder: Path) -> Iterator[int]:
    """A real registry on loopback; its port."""
    program = shutil.which("docker-registry")
    if program is None or shutil.which("skopeo") is None:
        pytest.skip("needs docker-registry and skopeo (Debian has both)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = int(free.getsockname()[1])
    config = folder / "registry.yml"
    config.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {folder / 'kept'}}}}}\n"
        f"http: {{addr: '127.0.0.1:{port}'}}\n"
    )
    with subprocess.Popen(
        [program, "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as runs:
        try:
            wait_for(port)
            yield port
        finally:
            runs.terminate()


def wait_for(port: int) -> None:
    """Until somebody listens there."""
    for _ in range(100):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.1)
    raise TimeoutError(port)


def test_the_base_is_pinned_by_what_a_registry_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text(
        image.FILES["trainer"].read_text().replace(f"ARG PYTHON={base_tag()}", "ARG PYTHON=3.11.99-slim-tiny")
    )
    with registry(tmp_path) as port:
        mirror = f'[[registry]]\nprefix = "docker.io"\nlocation = "127.0.0.1:{port}"\ninsecure = true\n'
        (tmp_path / ".config" / "containers").mkdir(parents=True)
        (tmp_path / ".config" / "containers" / "registries.conf").write_text(mirror)
        monkeypatch.setenv("HOME", str(tmp_path))
        tiny = image.tool("from", "scratch")
        image.tool(
            "commit", "--rm", "--tls-verify=false", tiny, f"docker://127.0.0.1:{port}/library/python:3.11.99-slim-tiny"
        )
        pinned = image.pin(file)
        assert re.fullmatch(r"3\.11\.99-slim-tiny@sha256:[0-9a-f]{64}", pinned)
        assert f"ARG PYTHON={pinned}\n" in file.read_text()
        assert image.pin(file) == pinned
