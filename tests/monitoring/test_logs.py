"""Logs on their way to Loki: what it is sent, in which order, and what is said when it is away or refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from proving_ground.bench.rundir import RunDir
from proving_ground.monitoring import logs
from tests.monitoring.receiver import Receiver, receiver


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    store = RunDir(tmp_path / "suite" / "id")
    store.events.mkdir(parents=True)
    store.logs.mkdir()
    store.write("provenance", {"t": 10.0, "wall_s": 1795276500.0, "utc_offset_s": 0})
    begun = {"t": 12.0, "event": "start", "rank": 1, "world_size": 2, "pid": 1, "wall_s": 1.0}
    (store.events / "t001.n2.0.jsonl").write_text(json.dumps(begun) + "\n")
    (store.logs / "t001.n1.0.log").write_text("one\ntwo\n")
    (store.logs / "t001.n2.0.log").write_text("E1121 15:55:03.500000 7 api.py:8] lost\n  below\n")
    return store


def entries(got: Receiver) -> list[tuple[str, int, dict[str, Any]]]:
    """(node, Unix time in ns, line) as Loki would store them."""
    assert {(path, kind) for path, kind, _ in got.got} == {("/loki/api/v1/push", "application/json")}
    streams = [stream for _, _, body in got.got for stream in json.loads(body)["streams"]]
    return [(it["stream"]["node"], int(t), json.loads(line)) for it in streams for t, line in it["values"]]


def test_every_line_arrives_once_with_labels_time_rank_and_step(run: RunDir) -> None:
    with receiver() as loki:
        assert logs.ship(run, loki.url) == 4
    labels = json.loads(loki.got[0][2])["streams"][1]["stream"]
    assert labels == {"job": "proving-ground", "suite": "suite", "run": "id", "trial": "t001", "node": "n2"}
    assert [it for it in entries(loki) if it[0] == "n2"] == [
        ("n2", 1795276503_500000000,
         {"slot": 0, "rank": 1, "level": "error", "message": "E1121 15:55:03.500000 7 api.py:8] lost"}),
        ("n2", 1795276503_500000001, {"slot": 0, "rank": 1, "message": "  below"}),
    ]  # fmt: skip


def test_lines_without_a_time_keep_their_order(run: RunDir) -> None:
    with receiver() as loki:
        logs.ship(run, loki.url)
    first, second = (it for it in entries(loki) if it[0] == "n1")
    assert (first[2]["message"], second[2]["message"], second[1] - first[1]) == ("one", "two", 1)


def test_many_lines_are_sent_in_batches(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "BATCH", 3)
    with receiver() as loki:
        assert logs.ship(run, loki.url) == 4
    assert len(loki.got) == 2


def test_sending_again_sends_the_same(run: RunDir) -> None:
    with receiver() as loki:
        logs.ship(run, loki.url)
        logs.ship(run, loki.url)
    assert entries(loki)[:4] == entries(loki)[4:]


def test_a_refusal_is_one_line_with_the_reason(run: RunDir) -> None:
    with receiver((400, b"entry too far behind\nmore")) as loki, pytest.raises(logs.ShippingError) as told:
        logs.ship(run, loki.url)
    assert str(told.value) == f"{loki.url}/loki/api/v1/push: 400: entry too far behind"


@pytest.mark.parametrize(
    ("url", "message"),
    [("http://127.0.0.1:9", "Connection refused"), ("file:///etc/passwd", "allowed: http://HOST:PORT")],
)
def test_no_loki_there_is_one_line(run: RunDir, url: str, message: str) -> None:
    with pytest.raises(logs.ShippingError, match=message):
        logs.ship(run, url)
