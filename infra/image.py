"""The project's own images: built without a daemon, measured, their parts listed, their base pinned.

`pg infra image` needs buildah, `pg infra pin` skopeo. Whoever builds with docker follows the head of
the Dockerfiles instead.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from proving_ground.infra.config import ROOT
from proving_ground.infra.reading import ConfigError

FILES = {"trainer": ROOT / "training" / "Dockerfile", "exporter": ROOT / "monitoring" / "Dockerfile"}
PACKAGES = "opt/*/lib/python3.11/site-packages"
BASE = re.compile(r"^ARG PYTHON=(?P<tag>[^\s@]+)(?:@(?P<digest>sha256:[0-9a-f]{64}))?$", re.MULTILINE)
NAME = "docker.io/library/python"
LIST = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"


class ImageError(RuntimeError):
    """A builder's last line."""


@dataclass(frozen=True)
class Image:
    """What was built: bytes on disk, unpacked, of the whole and of its largest packages; package → version."""

    tag: str
    bytes: int
    largest: Mapping[str, int]
    packages: Mapping[str, str]

    def __str__(self) -> str:
        """One line for people."""
        parts = ", ".join(f"{name} {size / 1e6:,.0f}" for name, size in self.largest.items())
        return f"{self.tag}: {self.bytes / 1e6:,.0f} MB unpacked, {len(self.packages)} packages (MB: {parts}, …)"


def tool(*argv: str, name: str = "buildah") -> str:
    """What a program prints.

    Raises:
        ConfigError: it is not installed.
        ImageError: it failed; its last line, and the last error of what it ran.
    """
    found = shutil.which(name)
    if found is None:
        raise ConfigError(f"{name}: the command is not on PATH; Debian and Fedora have a package of that name")
    done = subprocess.run([found, *argv], capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        said = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith("ERROR")][-1:]
        said += done.stderr.strip().splitlines()[-1:]
        raise ImageError(f"{name} {argv[0]}: {': '.join(said) or 'no message'}")
    return done.stdout.strip()


def build(which: str, tag: str, torch_index: str = "", more: Sequence[str] = ()) -> Image:
    """Build one and look at it; `torch_index` is PyTorch's package index for CPU wheels, `more` goes to buildah.

    Raises:
        ConfigError, ImageError: as `tool`.
    """
    file = FILES[which]
    about = ["--isolation", "chroot", "--file", str(file), "--ignorefile", f"{file}.dockerignore", "--tag", tag]
    about += ["--build-arg", f"TORCH_INDEX={torch_index}"] if torch_index else []
    tool("bud", *about, *more, str(ROOT))
    return look(tag)


def look(tag: str) -> Image:
    """Size and packages of an image that is there."""
    with container(tag) as (name, root):
        packages = json.loads(tool("run", "--isolation", "chroot", name, "--", "python", "-c", LIST))
        sizes = {it.name: size_of(it) for folder in root.glob(PACKAGES) for it in folder.iterdir()}
        largest = dict(sorted(sizes.items(), key=lambda it: -it[1])[:5])
        return Image(tag, size_of(root), largest, dict(sorted(packages.items())))


@contextmanager
def container(tag: str) -> Iterator[tuple[str, Path]]:
    """A container of the image, not started: (its name, its root folder on this machine). Gone afterwards."""
    name = tool("from", "--pull-never", tag)
    try:
        yield name, Path(tool("mount", name))
    finally:
        tool("rm", name)


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files in a folder; links count for themselves."""
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    return sum(file.lstat().st_size for file in path.rglob("*") if file.is_symlink() or not file.is_dir())


def bill(image: Image) -> dict[str, object]:
    """The software bill of materials of what the trainer brings along (the base image has its own): CycloneDX 1.5."""
    parts = [
        {"type": "library", "name": name, "version": version, "purl": f"pkg:pypi/{name.lower()}@{version}",
         "bom-ref": f"pkg:pypi/{name.lower()}@{version}"}
        for name, version in image.packages.items()
    ]  # fmt: skip
    about = {"component": {"type": "container", "name": image.tag, "bom-ref": image.tag}}
    return {"bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": about, "components": parts}


def pin(file: Path) -> str:
    """Write the base image's digest, as its registry says today, into a Dockerfile; what now stands there.

    Raises:
        ConfigError: no skopeo, or the file names no base.
        ImageError: no registry, or it does not know the image.
    """
    text = file.read_text()
    found = BASE.search(text)
    if found is None:
        raise ConfigError(f"{file}: has no line ARG PYTHON=TAG")
    digest = tool("inspect", "--no-tags", "--format", "{{.Digest}}", f"docker://{NAME}:{found['tag']}", name="skopeo")
    pinned = f"{found['tag']}@{digest}"
    file.write_text(text.replace(found[0], f"ARG PYTHON={pinned}"))
    return pinned
