"""The images of stack `local`, made without a registry: one layer each, in a form that containerd imports.

Prometheus and Alertmanager are built from their Go modules, in the versions that we ship. node-exporter is Debian's,
with the libraries that it loads. What cannot be had here — Grafana, Loki 3, Fluent Bit, kube-state-metrics — has a
STAND-IN: a web server that answers the probes and does nothing else. It shows that a pod is scheduled, started, probed
and stopped, and nothing of the program it stands for.
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.infra.gotools import UnavailableError, find

PAUSE = "proving-ground/pause:testbed"
LABEL = "proving-ground/stand-in"
SHELL, STATIC = "busybox", "busybox-static"
BUILT = ""
"""No package: built from its Go module."""
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
LEFT_OUT = {"test", "tests", "idlelib", "tkinter", "turtledemo", "ensurepip", "site-packages", "__pycache__"}
"""Of the standard library, in an image: it would be half of it."""
LIBRARY = re.compile(r"(/\S+) \(0x")


@dataclass(frozen=True)
class Part:
    """An image: the program that is in it, the Debian package that has that, and what a container runs first."""

    program: str
    package: str
    entry: tuple[str, ...]
    stand_in: bool = False
    answers: tuple[str, ...] = ()  # paths
    commands: tuple[str, ...] = ()  # of BusyBox, which the image that we ship is based on


def stand_in(port: int, *answers: str, commands: tuple[str, ...] = ()) -> Part:
    """Answers paths, ends when it is told to, and takes no notice of its arguments."""
    serve = f"trap 'exit 0' TERM; busybox httpd -f -p {port} -h /www & wait"
    return Part(
        SHELL,
        STATIC,
        ("/bin/busybox", "sh", "-c", serve, "stand-in"),
        stand_in=True,
        answers=answers,
        commands=commands,
    )


PARTS: dict[str, Part] = {
    "prometheus": Part("prometheus-on-kubernetes", BUILT, ("/bin/prometheus-on-kubernetes",)),
    "alertmanager": Part("alertmanager", BUILT, ("/bin/alertmanager",)),
    "node_exporter": Part(
        "prometheus-node-exporter", "prometheus-node-exporter", ("/bin/prometheus-node-exporter",), commands=("chown",)
    ),
    "grafana": stand_in(3000, "api/health"),
    "loki": stand_in(3100, "ready"),
    "log_collector": stand_in(2020),
    "kube_state_metrics": stand_in(8080),
}
"""Component, as in `infra.cluster.images` → its image here."""


INSTEAD = {"node_exporter": stand_in(9100, "metrics", commands=("chown",))}
"""What stands in for a package that this machine lacks, where the stack is only to be there."""


def had(component: str) -> Part:
    """The component's image here, with a stand-in for a program that this machine lacks."""
    part = PARTS[component]
    return INSTEAD[component] if component in INSTEAD and shutil.which(part.program) is None else part


def make(folder: Path, names: Mapping[str, str], of: Callable[[str], Part] = PARTS.__getitem__) -> None:
    """An archive for each component that `names` gives a name, and one for what keeps a pod together.

    Raises:
        UnavailableError: a program is not on this machine.
    """
    folder.mkdir()
    pause = Part(SHELL, STATIC, ("/bin/busybox", "sleep", "infinity"))
    archive(folder / "pause.tar", PAUSE, pause)
    for component, name in names.items():
        archive(folder / f"{component}.tar", name, of(component))


def named(archive: Path) -> set[str]:
    """The names of the images in an archive as `docker save` writes it, without a registry's or `localhost`.

    Raises:
        ValueError: it is no such archive.
    """
    try:
        with tarfile.open(archive) as read:
            listed = read.extractfile("manifest.json")
            tags = [tag for image in json.load(listed or io.BytesIO()) for tag in image["RepoTags"] or ()]
    except (OSError, tarfile.TarError, KeyError, TypeError, ValueError) as reason:
        raise ValueError(f"{archive}: not an archive as `docker save` writes it: {reason}") from None
    return {tag.removeprefix("docker.io/").removeprefix("localhost/") for tag in tags}


def archive(target: Path, name: str, part: Part) -> None:
    """One part's image."""
    pack(target, name, layer_of(part), part.entry, {LABEL: str(part.stand_in).lower()})


def bare(target: Path, name: str) -> None:
    """An image without a program: a pod mounts this machine's `/usr` (and its Python) there, read-only."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        for place in ("etc", "tmp", "usr", "root", "run"):
            directory(out, place)
        for place in ("bin", "sbin", "lib", "lib64"):
            link = tarfile.TarInfo(place)
            link.type, link.linkname = tarfile.SYMTYPE, f"usr/{place}"
            out.addfile(link)
        add(out, "etc/passwd", b"root:x:0:0:root:/root:/bin/sh\ntrainer:x:1000:1000::/tmp:/bin/sh\n")
    pack(target, name, buffer.getvalue(), (), {})


def python(target: Path, name: str) -> None:
    """An image with this Python and its standard library, and nothing else: no torch, no NumPy."""
    program, library = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))
    kept = [
        it for it in sorted(library.rglob("*")) if it.is_file() and not LEFT_OUT & set(it.relative_to(library).parts)
    ]
    needed = {it for one in (program, *library.glob("lib-dynload/*.so")) for it in libraries(str(one))}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        for file in (program, *kept, *map(Path, sorted(needed))):
            add(out, str(file).lstrip("/"), file.read_bytes())
        for link_name in ("python", "python3"):
            link = tarfile.TarInfo(f"usr/bin/{link_name}")
            link.type, link.linkname = tarfile.SYMTYPE, str(program)
            out.addfile(link)
        for command in ("bin/sh", "bin/busybox"):
            add(out, command, Path(installed(SHELL, STATIC)).read_bytes())
        for place in ("tmp", "etc"):
            directory(out, place)
    pack(target, name, buffer.getvalue(), (), {})


def pack(target: Path, name: str, layer: bytes, entry: tuple[str, ...], labels: Mapping[str, str]) -> None:
    """One image with one layer, as `docker save` writes it."""
    config = {
        "architecture": ARCHITECTURES[platform.machine()], "os": "linux",
        "config": {"Entrypoint": list(entry), "Env": ["PATH=/usr/bin:/bin"], "Labels": dict(labels)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }  # fmt: skip
    content = json.dumps(config).encode()
    file = f"{hashlib.sha256(content).hexdigest()}.json"
    manifest = [{"Config": file, "RepoTags": [name], "Layers": ["layer.tar"]}]
    with tarfile.open(target, "w") as out:
        for path, data in ((file, content), ("layer.tar", layer), ("manifest.json", json.dumps(manifest).encode())):
            add(out, path, data)


def layer_of(part: Part) -> bytes:
    """The program in `/bin`, its libraries where it looks for them, and files for what it answers."""
    program = installed(part.program, part.package) if part.package else str(find(part.program))
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as out:
        add(out, f"bin/{part.program}", Path(program).read_bytes())
        for library in libraries(program):
            add(out, library.lstrip("/"), Path(library).read_bytes())
        for command in part.commands:  # it does what its name says
            add(out, f"bin/{command}", Path(installed(SHELL, STATIC)).read_bytes())
        for path in part.answers:
            add(out, f"www/{path}", b"stand-in\n")
        for place in ("tmp", "etc", "www"):
            directory(out, place)
    return buffer.getvalue()


def installed(program: str, package: str) -> str:
    """Where a program is.

    Raises:
        UnavailableError: it is not on this machine; the message has the Debian package.
    """
    found = shutil.which(program)
    if found is None:
        raise UnavailableError(f"{program} (Debian: {package}) is not on PATH")
    return found


def libraries(program: str) -> Iterable[str]:
    """What the loader takes along; nothing for a program that stands alone."""
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False)
    return sorted(set(LIBRARY.findall(done.stdout)))


def add(out: tarfile.TarFile, path: str, data: bytes) -> None:
    """A file that everybody may read and run."""
    entry = tarfile.TarInfo(path)
    entry.size, entry.mode = len(data), 0o755
    out.addfile(entry, io.BytesIO(data))


def directory(out: tarfile.TarFile, path: str) -> None:
    """A folder that everybody may enter; `tmp` is for all to write to."""
    folder = tarfile.TarInfo(path)
    folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if path == "tmp" else 0o755
    out.addfile(folder)
