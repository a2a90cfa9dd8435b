"""A job that a real Slurm begins again: what its queue took, and what a real accounting counted of it."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.clusters.remote import slurm_accounts, slurm_story
from tests.engines import accounting, needs, slurm
from tests.engines.runs import Session, command, events
from tests.engines.slurm import Cluster
from tests.engines.traces import ROOT

pytestmark = [pytest.mark.engines, pytest.mark.minutes, pytest.mark.timeout(400)]

SETTINGS = {"ReturnToService": "1", "KillWait": "15"}
BLOCKED_S = 30
"""For how long another job has the machines: longer than the run needs to ask for them."""


@pytest.fixture(scope="module")
def bed(volume: Path) -> Iterator[Cluster]:
    needs.require(slurm.PROGRAMS | accounting.PROGRAMS)
    with slurm.slurm(4, volume, settings=SETTINGS, counts=True) as made:
        yield made


def option(volume: Path, layout: str = "requeue") -> str:
    own = {"python": sys.executable, "volume": str(volume), "emulated": "true", layout: "true"}
    return "slurm:main," + ",".join(f"{name}={value}" for name, value in own.items())


def suite(folder: Path, *faults: str) -> str:
    """A suite with these faults alone."""
    head = (ROOT / "chaos" / "suites" / "slurm.toml").read_text().partition("[[case.faults]]")[0]
    (folder / "requeues.toml").write_text(head + "".join(f"[[case.faults]]\n{it}\n\n" for it in faults))
    return str(folder / "requeues.toml")


def seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def elapsed(begin: Mapping[str, Any]) -> float:
    return seconds(begin["end"]) - seconds(begin["start"])


def test_each_begin_is_counted_and_the_queue_is_a_stage_of_each_recovery(
    bed: Cluster, volume: Path, tmp_path: Path
) -> None:
    requeues = suite(tmp_path, *['kind = "slurm_requeue"'] * 2)
    words = ["--parsable", "--nodes=4", "--exclusive", "--chdir=/", "--output=/dev/null"]
    bed.run("sbatch", *words, f"--wrap=sleep {BLOCKED_S}")
    results = command(tmp_path, "chaos", "run", "--suite", requeues, "--cluster", option(volume), env=bed.env)
    (told,) = events(results, "accounting")
    assert (told["engine"], told["why"]) == ("slurm", ""), told
    begins = told["begins"]
    assert [it["state"].split()[0] for it in begins[:-1]] == ["REQUEUED"] * 2, begins
    assert len({it["job"] for it in begins}) == 1
    assert {(it["nodes"], it["cpus"]) for it in begins} == {(4, 4 * slurm.CPUS)}
    assert all(abs(elapsed(it) - it["elapsed_s"]) <= 1 for it in begins)

    figures = {(it["name"], it["where"].get("of")): it["median"] for it in results["figures"]}
    assert figures["charged_hours", "node"] == pytest.approx(sum(4 * it["elapsed_s"] for it in begins) / 3600)
    (up,) = events(results, "cluster_up")
    site_s = seconds(begins[0]["start"]) - seconds(begins[0]["submit"])
    assert site_s > 0
    assert figures["queued_s", None] == up["queued_s"] == pytest.approx(site_s, abs=3)
    said = rf"In the queue {up['queued_s']:.0f} s: (Priority, then )?Resources\."
    assert re.search(said, results["out"]), results["out"]
    assert "The site's accounting: " in results["out"]

    for trial, later in zip(results["trials"], begins[1:], strict=True):
        rows = trial["replaced"]
        assert [it["node"] for it in rows] == ["n1", "n2", "n3"]
        for row in rows:
            at = row["moments"]
            assert row["engine"] == "slurm"
            assert at["gone"] <= at["running"] + row["error_s"]
            assert at["running"] <= at["back"] + row["error_s"]
            assert at["back"] < at["joined"] < at["first_step"]
            assert row["error_s"] < 3 * slurm_story.LOOK_S
            # The controller's whole seconds bound what was seen from outside.
            site_s = seconds(later["start"]) - seconds(later["submit"])
            assert at["running"] - at["queued"] == pytest.approx(site_s, abs=2 + 2 * row["error_s"])


def test_an_element_of_an_array_is_counted_and_waits_apart(bed: Cluster, volume: Path, tmp_path: Path) -> None:
    requeues = suite(tmp_path, 'kind = "slurm_requeue"\ntarget = "rank0"')
    where = option(volume, "array")
    results = command(tmp_path, "chaos", "run", "--suite", requeues, "--cluster", where, env=bed.env)
    (told,) = events(results, "accounting")
    assert told["why"] == "", told
    begins = Counter(it["job"].partition("_")[2] for it in told["begins"])
    (trial,) = results["trials"]
    (node,) = trial["target"]
    assert begins == {"1": 1, "2": 1, "3": 1, "4": 1} | {node.removeprefix("n"): 2}
    assert {(it["nodes"], it["cpus"]) for it in told["begins"]} == {(1, slurm.CPUS)}
    (row,) = trial["replaced"]
    assert (row["node"], row["engine"]) == (node, "slurm")
    assert row["moments"]["queued"] < row["moments"]["running"] <= row["moments"]["back"] + row["error_s"]


@pytest.fixture
def slurm_here(monkeypatch: pytest.MonkeyPatch, bed: Cluster, quick: None) -> None:
    """A cluster that is driven by this process needs the clients' configuration, too."""
    del quick
    monkeypatch.setenv("SLURM_CONF", str(bed.conf))


@pytest.mark.usefixtures("slurm_here")
def test_a_site_whose_accounting_is_away_keeps_no_run(bed: Cluster, volume: Path, tmp_path: Path) -> None:
    with Session(option(volume), tmp_path / "run", 2) as session:
        accounting.kill(bed.controller)
        begin = time.monotonic()
        slurm_accounts.begins(["1"], "proving-ground")
        assert time.monotonic() - begin < 30, "it is waited for"
    (told,) = session.told("accounting")
    assert told["begins"] == []
    assert told["why"]
    bed.controller.run(["slurmdbd"])
    said = subprocess.run(["squeue", "--noheader"], env=bed.env, capture_output=True, text=True, check=True)
    assert not said.stdout
