"""The environment of an end point: exact pins of its own, made on demand by uv, once for each set of pins.

Azure ML's server wants an older pydantic than the rest of the project, so it cannot live in `.venv`. Called by
`serving.servers`, and by `serving.model` for what a model says that it needs. `nox -s lock` writes the pins.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from proving_ground.serving.mistakes import FailedError, ServingError

PINS = Path(__file__).with_name("environment.txt")
DECLARED = ("mlflow-skinny", "numpy", "pandas", "torch")
STAMP = "pins"  # written last: an environment without it is half made


def pins() -> list[str]:
    """The requirements that a model declares, as they are pinned here."""
    return [it for it in PINS.read_text().splitlines() if it.partition("==")[0] in DECLARED]


def folder(file: Path = PINS) -> Path:
    """Where the environment of a file's pins lies, made or not: beside the user's other caches."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    key = hashlib.sha256(file.read_bytes() + platform.python_version().encode()).hexdigest()
    return cache / "proving-ground" / f"scoring-{key[:16]}"


def ready(say: Callable[[str], None], file: Path = PINS) -> Path:
    """The folder `bin` of the environment; made, and said so, where it is not there.

    Raises:
        ServingError: uv is not installed.
        FailedError: it cannot be made.
    """
    made = folder(file)
    with alone(made):
        if not (made / STAMP).exists():
            say(f"making the environment of end points, once: {made}")
            make(made, file)
    return made / "bin"


@contextlib.contextmanager
def alone(made: Path) -> Iterator[None]:
    """One process makes it, the others wait."""
    made.parent.mkdir(parents=True, exist_ok=True)
    with made.with_name(f"{made.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def make(made: Path, file: Path = PINS) -> None:
    """Create it by uv, whose cache has torch already; nothing is left of what fails.

    Raises:
        ServingError: uv is not installed.
        FailedError: uv fails; its own words.
    """
    if importlib.util.find_spec("uv") is None:
        raise ServingError("uv is not installed: pip install '.[dev]'")
    shutil.rmtree(made, ignore_errors=True)
    python = str(made / "bin" / "python")
    try:
        uv("venv", "--python", sys.executable, str(made))
        uv("pip", "install", "--no-deps", "--python", python, "-r", str(file))
        (made / STAMP).write_text(file.read_text())
    except BaseException:
        shutil.rmtree(made, ignore_errors=True)
        raise


def uv(*words: str) -> None:
    """Run uv, quietly.

    Raises:
        FailedError: it fails; its own words.
    """
    command = [sys.executable, "-m", "uv", "--quiet", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise FailedError(f"the environment of end points cannot be made: {' '.join(done.stderr.split())}")
