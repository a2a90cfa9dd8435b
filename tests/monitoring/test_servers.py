"""The real Prometheus and Alertmanager beside a run: they find it, an alert comes when it must, and goes."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from proving_ground.bench.servers import free_port
from proving_ground.bench.tail import last_line
from proving_ground.monitoring import beside
from proving_ground.monitoring.cli import main
from proving_ground.monitoring.exporter import Watched, serving
from proving_ground.monitoring.inbox import Inbox, Message, receiving
from proving_ground.monitoring.mistakes import MonitoringError
from proving_ground.monitoring.programs import program
from proving_ground.monitoring.rules import LIVE_FACTOR
from proving_ground.monitoring.servers import (
    CONFIGURATION,
    Running,
    Wanted,
    get,
    query,
    running,
    server,
    write_configuration,
)
from tests.monitoring.conftest import Recorded, needs_prometheus

PATIENCE_S = 60.0  # on a busy machine; on an idle one an alert is there after 2 s


class Scene:
    """A run that goes on, watched by the real servers with the live variant of the rules."""

    def __init__(self, recorded: Recorded, watched: Watched, inbox: Inbox, ports: Running) -> None:
        self.recorded, self.watched, self.inbox, self.ports = recorded, watched, inbox, ports
        self.told: list[Message] = []
        self.number = 0

    def go_on(self, until: Callable[[], bool], *, steps: bool = True) -> bool:
        """Let the run make steps until something is so; whether it came to be."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            if steps:
                self.number += 1
                self.recorded.step(self.number)
            self.watched.poll()
            self.told += self.inbox.new()
            if until():
                return True
            time.sleep(0.1)
        return False

    def came(self, alert: str, state: str = "firing") -> bool:
        return any((it.alert, it.state) == (alert, state) for it in self.told)


@pytest.fixture
def scene(recorded: Recorded, tmp_path: Path) -> Iterator[Scene]:
    watched = Watched(recorded.run.path)
    with receiving() as inbox, serving(watched, "127.0.0.1", 0) as port:
        wanted = Wanted(tmp_path / "servers", port, factor=LIVE_FACTOR, webhook=inbox.url)
        with running(wanted) as ports:
            yield Scene(recorded, watched, inbox, ports)


@needs_prometheus
def test_a_run_is_scraped_and_a_dead_node_is_told_and_its_return_too(scene: Scene) -> None:
    up = 'up{job="training"} == 1'
    assert scene.go_on(lambda: len(query(scene.ports.prometheus, up)) == 1)
    stepping = "max(increase(training_steps_total[5s])) > 0"
    assert scene.go_on(lambda: len(query(scene.ports.prometheus, stepping)) == 1)
    assert not scene.came("NodeFailed")
    scene.recorded.write("harness", "process_exit", trial="t001", node="n2", slot=0, pid=2, code=-9)
    assert scene.go_on(lambda: scene.came("NodeFailed"), steps=False)
    message = next(it for it in scene.told if it.alert == "NodeFailed")
    assert message.labels["node"] == "n2"
    assert message.labels["severity"] == "critical"
    assert message.annotations["summary"].startswith("n2: its part of s/20260102T030405Z-c0de t001 died")
    assert scene.go_on(lambda: scene.came("TrainingStalled"), steps=False)
    scene.recorded.write("harness", "process_start", trial="t001", node="n2", slot=0, pid=7)
    assert scene.go_on(lambda: scene.came("NodeFailed", "resolved") and scene.came("TrainingStalled", "resolved"))
    assert not scene.came("Straggler")
    assert not scene.came("CommunicationHigh")


@needs_prometheus
def test_an_exporter_that_is_gone_is_told(recorded: Recorded, tmp_path: Path) -> None:
    with receiving() as inbox:
        told: list[Message] = []
        with serving(Watched(recorded.run.path), "127.0.0.1", 0) as port:
            wanted = Wanted(tmp_path / "servers", port, factor=LIVE_FACTOR, webhook=inbox.url)
            servers = running(wanted)
            servers.__enter__()
        try:
            end = time.monotonic() + PATIENCE_S
            while not any(it.alert == "ExporterDown" for it in told) and time.monotonic() < end:
                time.sleep(0.1)
                told += inbox.new()
        finally:
            servers.__exit__(None, None, None)
    assert [it.alert for it in told if it.state == "firing"] == ["ExporterDown"]


@needs_prometheus
def test_a_wrong_rule_file_keeps_them_from_starting_in_one_line(recorded: Recorded, tmp_path: Path) -> None:
    folder = tmp_path / "rules"
    folder.mkdir()
    (folder / "mine.yaml").write_text("groups: [{name: a, rules: [{alert: A, expr: 'sum('}]}]")
    wanted = Wanted(tmp_path / "servers", 1, rules=folder)
    with pytest.raises(MonitoringError, match=r"mine\.yaml: .*unclosed left parenthesis"), running(wanted):
        pass
    del recorded


@needs_prometheus
def test_a_port_in_use_is_told_in_one_line(
    recorded: Recorded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with receiving() as inbox:
        taken = str(inbox.server_address[1])
        words = ["up", str(recorded.run.path), "--port", "0", "--alertmanager", "0", "--prometheus", taken]
        assert main(words) == 1
    assert capsys.readouterr().err == f"monitoring: port {taken} of 127.0.0.1: Address already in use; choose another\n"
    del tmp_path


def test_without_prometheus_it_says_so_and_the_exporter_works_on(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["up", str(recorded.run.path), "--port", "0", "--prometheus", "0", "--alertmanager", "0"]) == 1
    said = capsys.readouterr().err
    assert said == (
        "monitoring: prometheus is not installed (Debian: apt-get install prometheus prometheus-alertmanager)\n"
    )
    assert main(["check"]) == 1
    assert "promtool is not installed" in capsys.readouterr().err
    watched = Watched(recorded.run.path)
    with serving(watched, "127.0.0.1", 0) as port:
        watched.poll()
        assert get(port, "/readyz") == (200, b"ok\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "RUN", "--factor", "0.5"], "--factor: 0.5; allowed: 1 (as shipped) to 1000"),
        (["up", "RUN", "--prometheus", "70000"], "--prometheus: 70000; allowed: 0 (a free one) to 65535"),
        (["export", "RUN", "--port", "-1"], "--port: -1; allowed: 0 (a free one) to 65535"),
        (["export", "nowhere"], "no run 'nowhere' under runs"),
    ],
)
def test_mistakes_are_told_in_one_line(
    words: list[str], said: str, recorded: Recorded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(recorded.run.path)
    assert main([word.replace("RUN", str(recorded.run.path)) for word in words]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"monitoring: {said}")
    assert error.count("\n") == 1


def test_a_server_that_ends_at_once_gives_its_last_words(tmp_path: Path) -> None:
    argv = ["sh", "-c", "echo first; echo the disk is on fire >&2; exit 3"]
    with (
        pytest.raises(OSError, match="thing ended with status 3: the disk is on fire"),
        server("thing", free_port(0), tmp_path, argv),
    ):
        pass
    assert last_line(tmp_path / "thing.log") == "the disk is on fire"


def test_the_shipped_configuration_limits_what_a_scrape_may_bring() -> None:
    (job,) = yaml.safe_load((CONFIGURATION / "prometheus.yaml").read_text())["scrape_configs"]
    assert job["sample_limit"] == 60_000
    assert job["honor_labels"] is True


@needs_prometheus
def test_the_shipped_configuration_is_right(tmp_path: Path) -> None:
    write_configuration(Wanted(tmp_path, 1), Running(2, 3))
    command = [program("promtool"), "check", "config", str(tmp_path / "prometheus.yaml")]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


@needs_prometheus
def test_alerts_become_events_of_the_run(recorded: Recorded) -> None:
    stop = threading.Event()
    record = beside.Record(recorded.run)
    watched = Watched(recorded.run.path)
    folder = recorded.run.path / "servers"
    wanted = Wanted(folder, 0, factor=LIVE_FACTOR)
    thread = threading.Thread(target=beside.beside, args=(recorded.run, wanted, watched, stop, record))
    thread.start()
    file = recorded.run.events / beside.EVENTS
    end = time.monotonic() + PATIENCE_S
    recorded.write("harness", "process_exit", trial="t001", node="n3", slot=0, pid=3, code=-9)
    while '"NodeFailed"' not in file.read_text().partition('"alert"')[2] and time.monotonic() < end:
        time.sleep(0.1)
    stop.set()
    thread.join()
    record.close()
    assert '"monitoring_up"' in file.read_text()
    assert '"state":"firing","alert":"NodeFailed"' in file.read_text()
