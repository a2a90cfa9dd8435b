"""Collecting: every byte once, in order, whatever is sent twice; what never comes is a gap that is told."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proving_ground.bench.clusters.remote.clock import NodeClock
from proving_ground.bench.clusters.remote.collect import Collector


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    (tmp_path / "events").mkdir()
    return tmp_path


def collector(run: Path, gaps: list[tuple[str, int, int]]) -> Collector:
    clock = NodeClock()
    clock.heard((0.0, 0.0), 0.0, {"t": 100.0, "wall_s": 0.0})
    return Collector(run, clock, lambda *about: gaps.append(about))


@given(content=st.binary(max_size=60), cuts=st.lists(st.integers(0, 60), max_size=8))
def test_what_is_sent_again_is_written_once(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, cuts: list[int]
) -> None:
    run, gaps = tmp_path_factory.mktemp("run"), list[tuple[str, int, int]]()
    (run / "logs").mkdir()
    it, begin = collector(run, gaps), 0
    for end in [*sorted(cut for cut in cuts if cut <= len(content)), len(content)]:
        it.take("logs/a.log", begin, content[begin:end])
        begin = max(0, end - 3)  # a new connection sends some once more
    file = run / "logs" / "a.log"
    assert (file.read_bytes() if file.exists() else b"") == content
    assert gaps == []


def test_a_half_line_waits_for_its_end(run: Path) -> None:
    it = collector(run, [])
    it.take("events/t1.n1.0.jsonl", 0, b'{"t":101.0,"event":"end","st')
    assert not (run / "events/t1.n1.0.jsonl").exists()
    it.take("events/t1.n1.0.jsonl", 28, b'ep":1}\n{"t":')
    assert (run / "events/t1.n1.0.jsonl").read_bytes() == b'{"t":1.0,"event":"end","step":1,"node_t":101.0}\n'
    it.over()
    assert (run / "events/t1.n1.0.jsonl").read_bytes().endswith(b'}\n{"t":')


@pytest.mark.parametrize("name", ["/etc/motd", "../elsewhere", "logs/../../elsewhere"])
def test_a_name_that_leads_out_of_the_run_is_refused(run: Path, name: str) -> None:
    with pytest.raises(OSError, match="is outside"):
        collector(run, []).take(name, 0, b"x")


def test_a_gap_is_told_and_what_follows_is_kept(run: Path) -> None:
    gaps: list[tuple[str, int, int]] = []
    it = collector(run, gaps)
    it.take("logs/a.log", 0, b"first\n")
    it.take("logs/a.log", 10, b"third\n")
    assert gaps == [("logs/a.log", 6, 10)]
    assert (run / "logs/a.log").read_bytes() == b"first\nthird\n"
    assert it.arrived == {"logs/a.log": 16}
