"""A search's directory, `runs/search/<suite>/<UTC time>-<id>/`: a run's layout with the files of a search.

Called by everything here; the one module that knows which file is what. `bench.rundir` does what runs have in common.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from bench import rundir
from bench.rundir import RunDir, RunDirError
from training.typed import unknown

FOLDER = "search"
"""Of all searches, beside the suites' folders under `runs`."""
SEALED = ("search.json", "provenance.json", "trials.jsonl")


class SearchDir(RunDir):
    """One search's directory. Properties are paths; nothing is cached."""

    @property
    def spec(self) -> Path:
        """What was asked."""
        return self.path / "search.json"

    @property
    def ledger(self) -> Path:
        """What became of every trial."""
        return self.path / "trials.jsonl"

    def of_trial(self, trial: str) -> Path:
        """What a trial's trainer recorded."""
        return self.events / f"{trial}.n1.0.jsonl"

    @property
    def ray(self) -> Path:
        """Ray's own files while a driver runs; short, since paths of sockets end at 107 characters."""
        return Path("/tmp") / f"pg-search-{hashlib.sha256(str(self.path).encode()).hexdigest()[:8]}"  # noqa: S108 - same


def create(runs: Path, suite: str) -> SearchDir:
    """Make a new search's directory, and point `latest` there."""
    return SearchDir(rundir.create(runs / FOLDER, suite).path.resolve())


def find(runs: Path, name: str) -> SearchDir:
    """The search that a person means: a path, an id, a suite's newest, or `latest`.

    Raises:
        RunDirError: there is no such search; names the known ones nearby.
    """
    root = runs / FOLDER
    candidates = (
        [root / "latest"] if name == "latest" else [Path(name), root / name / "latest", *root.glob(f"*/{name}")]
    )
    for path in candidates:
        if (path / "search.json").exists():
            return SearchDir(path.resolve())
    known = every(runs)
    if not known:
        raise RunDirError(f"no search {name!r} under {root}; searches: none yet")
    names = ["latest", *dict.fromkeys(it.suite for it in known), *(it.run_id for it in known[::-1])]
    raise RunDirError(f"{root}: {unknown('search', name, names)}")


def every(runs: Path) -> list[SearchDir]:
    """All searches, oldest first."""
    paths = (it.parent for it in (runs / FOLDER).glob("*/*/search.json") if not it.parent.is_symlink())
    return [SearchDir(it) for it in sorted(paths, key=lambda it: it.name)]


def seal(search: SearchDir, *, complete: bool) -> None:
    """Write `seal.json` with the SHA-256 of every collected file."""
    files = [*(search.path / name for name in SEALED), *sorted(search.events.glob("*")), *sorted(search.logs.glob("*"))]
    document: dict[str, Any] = {str(it.relative_to(search.path)): rundir.sha256(it) for it in files if it.is_file()}
    search.write("seal", {"complete": complete, "files": document})


def verify(search: SearchDir) -> list[str]:
    """What differs from the seal, one line a file; empty when nothing does, or nothing was sealed yet."""
    if not (search.path / "seal.json").exists():
        return ["seal.json: missing: the search was not finished"]
    files: dict[str, str] = search.read("seal")["files"]
    return [
        f"{name}: {'changed' if (search.path / name).exists() else 'missing'}"
        for name, digest in files.items()
        if not (search.path / name).exists() or rundir.sha256(search.path / name) != digest
    ]
