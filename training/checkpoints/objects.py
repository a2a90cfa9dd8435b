"""Checkpoints in object storage, through fsspec: Azure Blob (`abfs://`) and S3 (`s3://`). Called by `stores`.

Objects cannot be renamed: the parts are uploaded under their final names and the manifest last; its presence is the
commit. Credentials come from the environment that adlfs and s3fs read (AZURE_STORAGE_CONNECTION_STRING, AWS_* …), and
no message of ours repeats what a service answered, since that may quote them.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
from errno import EREMOTEIO
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import urlsplit

from proving_ground.training.checkpoints.stores import GENERATIONS, KEPT_CLAIMS, MANIFEST, QUARANTINE, owner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PACKAGES = {"abfs": "adlfs", "s3": "s3fs"}
"""What a scheme needs, in the extra `stores`."""


PERMANENT = (PermissionError, NotImplementedError, ValueError)
"""What a client raises that asking again does not help against."""


class StoreError(OSError):
    """Object storage did not do what it was asked; without the service's own words."""

    passing = True
    """Whether it may help to ask again."""


@contextlib.contextmanager
def plainly(what: str) -> Iterator[None]:
    """Turn whatever a client library raises into an OSError of one line that names no secret."""
    try:
        yield
    except FileNotFoundError:
        raise FileNotFoundError(2, "No such object", what) from None
    except FileExistsError:
        raise FileExistsError(17, "Object exists", what) from None
    except Exception as error:  # noqa: BLE001 - three libraries' errors, without a common ancestor
        code = getattr(error, "error_code", None) or getattr(error, "errno", None)
        kind = type(error).__name__ + (f" {code}" if code else "")
        failed = StoreError(EREMOTEIO, f"object storage failed ({kind})", what)
        failed.passing = not isinstance(error, PERMANENT) and "Credential" not in kind
        raise failed from None


def file_system(scheme: str) -> Any:  # noqa: ANN401 - fsspec ships no types
    """A client of our own that remembers no listing: others write there too."""
    import fsspec  # noqa: PLC0415 - in the extra `stores`

    return fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True)


def located(address: str, packages: Mapping[str, str]) -> tuple[str, str]:
    """The scheme of a URL, and the place in its storage; `packages`: scheme → the package that it needs.

    Raises:
        ValueError: another kind of URL, one with credentials in it, or its package is not installed.
    """
    url = urlsplit(address)
    if url.scheme not in packages:
        kinds = " or ".join(f"{scheme}://" for scheme in packages)
        raise ValueError(f"{url.scheme}://…: must be a path, or a URL that begins with {kinds}")
    local = url.scheme == "file"
    if "@" in url.netloc or url.query or bool(url.netloc) == local:
        form = "file:///FOLDER" if local else f"{url.scheme}://CONTAINER/FOLDER; credentials: see the README"
        raise ValueError(f"{url.scheme}://…: must be {form}")
    try:
        importlib.import_module(packages[url.scheme])
    except ModuleNotFoundError:
        needs = f"{url.scheme}:// needs the package {packages[url.scheme]}"
        raise ValueError(f"{needs}: pip install '.[stores]'") from None
    return url.scheme, url.path.rstrip("/") if local else f"{url.netloc}/{url.path.strip('/')}".rstrip("/")


class Objects:
    """Checkpoints under a prefix of a container or bucket."""

    def __init__(self, address: str) -> None:
        """Nothing is contacted yet.

        Raises:
            ValueError: another kind of URL, one with credentials in it, or its package is not installed.
        """
        scheme, self._root = located(address, PACKAGES)
        self._address = f"{scheme}://{self._root}"
        self._files = file_system(scheme)

    def where(self, name: str = "") -> str:
        """The URL."""
        return f"{self._address}/{name}"

    def names(self) -> list[str]:
        """The prefixes that have a manifest."""
        return [name for name, parts in self._found().items() if MANIFEST in parts]

    def free(self) -> int | None:
        """Nobody knows."""
        return None

    def begin(self, name: str) -> None:
        """Nothing to prepare: what lies there without a manifest is overwritten."""

    @contextlib.contextmanager
    def create(self, name: str, part: str) -> Iterator[IO[bytes]]:
        """A buffer that is uploaded at the end, in blocks side by side; the service acknowledges what is durable."""
        buffer = io.BytesIO()
        yield buffer
        with plainly(self.where(f"{name}/{part}")):
            self._files.pipe_file(f"{self._root}/{name}/{part}", buffer.getvalue())

    def commit(self, name: str, manifest: bytes, last_check: Callable[[], None]) -> None:
        """Upload the manifest."""
        last_check()
        with plainly(self.where(name)):
            self._files.pipe_file(f"{self._root}/{name}/{MANIFEST}", manifest)

    def discard(self, name: str) -> None:
        """Remove the parts, unless the commit came through after all."""
        with contextlib.suppress(OSError):
            if name not in self.names():
                self._remove(name)

    def open(self, name: str, part: str) -> IO[bytes]:
        """The whole object, downloaded."""
        with plainly(self.where(f"{name}/{part}")):
            return io.BytesIO(self._files.cat_file(f"{self._root}/{name}/{part}"))

    def remove(self, name: str) -> None:
        """The manifest, then the parts."""
        with plainly(self.where(name)):
            self._files.rm_file(f"{self._root}/{name}/{MANIFEST}")
        self._remove(name)

    def set_aside(self, name: str) -> str:
        """Copy it to `quarantine/`, then remove it, the manifest first."""
        target = f"{QUARANTINE}/{name}.{os.urandom(4).hex()}"
        parts = self._found().get(name, [])
        with plainly(self.where(name)):
            for part in parts:
                self._files.cp_file(f"{self._root}/{name}/{part}", f"{self._root}/{target}/{part}")
            for part in sorted(parts, key=lambda part: part != MANIFEST):
                self._files.rm_file(f"{self._root}/{name}/{part}")
        return self.where(target)

    def sweep(self, keep: Callable[[str], bool]) -> None:
        """Remove parts that have no manifest."""
        with contextlib.suppress(OSError):
            for name, parts in self._found().items():
                if MANIFEST not in parts and not keep(name):
                    self._remove(name)

    def claims(self) -> list[int]:
        """The objects under `generations/`."""
        return sorted(int(name) for name in self._list(f"{self._root}/{GENERATIONS}") if name.isdecimal())

    def claim(self, generation: int) -> bool:
        """An object that only one process can create (If-None-Match)."""
        with plainly(self.where(GENERATIONS)):
            try:
                self._files.pipe_file(self._claim(generation), owner().encode(), mode="create")
            except FileExistsError:
                return False
            for old in self.claims()[:-KEPT_CLAIMS]:
                self._files.rm_file(self._claim(old))
        return True

    def claimed(self, generation: int) -> bool:
        """Whether the object is ours."""
        with contextlib.suppress(FileNotFoundError), plainly(self.where(GENERATIONS)):
            return bool(self._files.cat_file(self._claim(generation)) == owner().encode())
        return False

    def _claim(self, generation: int) -> str:
        return f"{self._root}/{GENERATIONS}/{generation:08d}"

    def _found(self) -> dict[str, list[str]]:
        """Name → parts of everything that looks like a checkpoint."""
        found: dict[str, list[str]] = {}
        with plainly(self.where()):
            for path in self._files.find(self._root):
                name, _, part = str(path).removeprefix(f"{self._root}/").partition("/")
                if name.startswith("step-") and part:
                    found.setdefault(name, []).append(part)
        return found

    def _list(self, path: str) -> list[str]:
        with plainly(self.where()):
            return [str(entry).rpartition("/")[2] for entry in self._files.find(path)]

    def _remove(self, name: str) -> None:
        for part in self._found().get(name, []):
            with plainly(self.where(name)):
                self._files.rm_file(f"{self._root}/{name}/{part}")
