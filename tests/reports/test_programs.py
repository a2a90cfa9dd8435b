"""Measuring programs: their values become figures, held against the links, and no efficiency is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from proving_ground.bench.clusters.fake import FakeCluster, FakeJob
from proving_ground.bench.run import run
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.spec import Case, Suite
from proving_ground.reports.cli import main
from proving_ground.reports.figures import pick
from proving_ground.reports.scaling import page, results
from proving_ground.reports.scaling.results import Analysis

CASE = Case(
    "collectives", "collectives", steps=3, warmup_steps=1, estimated_step_s=0.1, batch_per_node=1, link_mbps=400,
    training={"ops": ["all_reduce"], "sizes": [1_000_000]},
)  # fmt: skip
MEMORY = Case("memory", "memory", steps=3, warmup_steps=1, estimated_step_s=0.1, batch_per_node=1)


class Measuring(FakeCluster):
    """Tells one collective and one measure in each round; the first round is slow, as a first round is."""

    def _step(self, job: FakeJob, end: float) -> None:
        for rank in job.members:
            seconds = 1.0 if job.step == 0 else 0.025 + 0.0001 * job.step
            bandwidth = 1e6 / seconds
            about = {"op": "all_reduce", "bytes": 1_000_000, "ranks": len(job.members), "seconds": seconds}
            if "collectives" in rank.spec.argv:
                self._write(rank, end, "collective", step=job.step + 1, **about, algbw=bandwidth, busbw=bandwidth)
            else:
                where = {"model": "resnet50", "batch": 8}
                self._write(
                    rank, end, "measure", step=job.step + 1, name="memory_peak", unit="MB", value=512.0, where=where
                )
        super()._step(job, end)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    suite = Suite("programs", "Programs", (2, 4), (CASE, MEMORY), repeats=3)
    return run(suite, Measuring(), tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def analysis(recorded: RunDir) -> Analysis:
    return results.analyse(recorded)


def test_collectives_are_figures_in_megabits(analysis: Analysis) -> None:
    found = pick(analysis.figures, "busbw", case="collectives", nodes=4, op="all_reduce", bytes=1_000_000)
    assert found is not None
    assert (found["unit"], found["n"]) == ("Mb/s", 3)
    assert found["median"] == pytest.approx(8 / 0.02515, rel=1e-3)  # the warm-up round is not in it
    latency = pick(analysis.figures, "collective_time", nodes=2)
    assert latency is not None
    assert latency["median"] == pytest.approx(25.15)


def test_measures_keep_name_unit_and_place(analysis: Analysis) -> None:
    found = pick(analysis.figures, "memory_peak", model="resnet50", batch=8, nodes=2)
    assert found is not None
    assert (found["unit"], found["values"]) == ("MB", [512.0, 512.0, 512.0])


def test_no_efficiency_is_made_of_them(analysis: Analysis) -> None:
    assert not [f for f in analysis.figures if f["name"] in ("efficiency", "throughput", "time_share", "node_hours")]


def test_page_and_terminal_hold_them_against_the_link(
    analysis: Analysis, recorded: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(recorded.path), "--no-html"]) in (0, 1)
    out = capsys.readouterr().out
    assert "80 %" in out  # 318 of 400 Mb/s
    made = page.html(analysis).replace("\N{NO-BREAK SPACE}", " ")
    assert "at best all-reduce moves 318 Mb/s (bus bandwidth), 80 % of the links' 400" in made.replace("&#39;", "'")
    assert "What was measured" in made
    assert "How it scales" not in made


def test_what_a_calibration_refused_and_decided_is_told(
    recorded: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = recorded.read("plan") | {"refused": [{"case": "big", "nodes": 8, "why": "8 nodes: links are too fast"}]}
    plan |= {"decided": ["small: time dilated by 3"]}
    there = RunDir(tmp_path / "programs" / recorded.run_id)
    there.path.mkdir(parents=True)
    for name in ("spec", "provenance"):
        there.write(name, recorded.read(name))
    there.write("plan", plan)
    there.history.write_text(recorded.history.read_text())
    made = page.html(results.analyse(there)).replace("\N{NO-BREAK SPACE}", " ")
    assert "Not run: big at 8 nodes: links are too fast." in made
    assert '<b>Decided by calibration.</b> <span class="soft">small: time dilated by 3. </span>' in made
    main([str(there.path), "--no-html"])
    assert "decided by calibration: small: time dilated by 3\n" in capsys.readouterr().out
