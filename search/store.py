"""A search's directory, `runs/search/<suite>/<UTC time>-<id>/`: a run's layout with the files of a search.

Called by everything here; the one module that knows which file is what. `bench.rundir` does what runs have in common.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from proving_ground.bench import rundir
from proving_ground.bench.rundir import RunDir, RunDirError
from proving_ground.search.spec import Search, as_document, search_from

FOLDER = "search"
"""Of all searches, beside the suites' folders under `runs`."""
MARK = "search.json"
"""What was asked; a folder without is no search yet."""
SEALED = (MARK, "provenance.json", "trials.jsonl")


class SearchDir(RunDir):
    """One search's directory. Properties are paths; nothing is cached."""

    @property
    def spec(self) -> Path:
        """What was asked."""
        return self.path / MARK

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


def create(runs: Path, search: Search, why: Sequence[str] = ()) -> SearchDir:
    """Make a new search's directory, and point `latest` there; `why` has the reasons of a proposed one."""
    asked = {"search": as_document(search), **({"auto": {"why": why}} if why else {})}
    return SearchDir(rundir.create(runs / FOLDER, search.name, {"search": asked}).path.resolve())


def find(runs: Path, name: str) -> SearchDir:
    """The search that a person means: a path, an id, a suite's newest, or `latest`.

    Raises:
        RunDirError: there is no such search; names the known ones nearby.
    """
    return SearchDir(rundir.find(runs / FOLDER, name, "search", MARK).path)


def every(runs: Path) -> list[SearchDir]:
    """All searches, oldest first."""
    return [SearchDir(it.path) for it in rundir.all_runs(runs / FOLDER, MARK)]


def asked(search: SearchDir) -> Search:
    """What was asked.

    Raises:
        RunDirError, SearchError: it cannot be read.
    """
    document = search.read("search")
    if not isinstance(document, dict) or "search" not in document:
        raise RunDirError(f"{search.spec}: has no table 'search'")
    return search_from(document["search"], str(search.spec))


def seal(search: SearchDir, *, complete: bool) -> None:
    """Write `seal.json` with the SHA-256 of every collected file."""
    rundir.seal(search, complete=complete, names=SEALED)


def unlike_the_seal(search: SearchDir) -> str:
    """The first thing in which the files are not as the search left them; empty where they are."""
    if not (search.path / "seal.json").exists():
        return "seal.json: missing: the search was not finished"
    try:
        differs = rundir.verify(search, SEALED)
    except RunDirError as error:
        return str(error)
    return differs[0] if differs else "" if search.read("seal").get("complete") is True else "sealed as incomplete"
