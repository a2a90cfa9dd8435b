"""What stands before and behind an end point, with small servers in place of a model's."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from proving_ground.bench.rundir import RunDir
from proving_ground.bench.servers import HERE, free_port, listens
from proving_ground.serving import commands, figures, servers
from proving_ground.serving.mistakes import FailedError
from tests.serving.stub import end_point

SOON_S = 30.0  # on a busy machine
needs_proxy = pytest.mark.skipif(
    shutil.which("haproxy") is None and not Path("/usr/sbin/haproxy").exists(), reason="needs HAProxy"
)


def started(name: str, port: int, folder: Path, *command: str) -> contextlib.AbstractContextManager[servers.Replica]:
    return servers.started_group(name, port, folder, command, os.environ)


@contextlib.contextmanager
def proxy(folder: Path, front: int, ports: list[int]) -> Iterator[servers.Replica]:
    folder.mkdir()
    file = servers.write_proxy(folder, front, ports, "/")
    with started("haproxy", front, folder, servers.found_proxy(), "-db", "-f", str(file)) as it:
        servers.wait_ready(it, "/")
        yield it


def port_of(url: str) -> int:
    return urlsplit(url).port or 0


def test_a_server_is_ready_once_it_listens_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port(0)
    with started("web", port, tmp_path, sys.executable, "-m", "http.server", str(port), "--bind", HERE) as it:
        servers.wait_ready(it, "/")
        assert listens(it.process.pid, port)
    monkeypatch.setattr(servers, "READY_S", 1.0)
    with (
        end_point(lambda *_: None) as url,
        started("r1", port_of(url), tmp_path, "sleep", "60") as late,
        pytest.raises(FailedError, match="r1 was not ready"),
    ):
        servers.wait_ready(late, "/")


@needs_proxy
def test_two_proxies_do_not_share_a_port(tmp_path: Path) -> None:
    with (
        end_point(lambda *_: (200, b"{}")) as url,
        proxy(tmp_path / "a", free_port(0), [port_of(url)]) as first,
        pytest.raises(FailedError, match="haproxy ended with 1"),
        proxy(tmp_path / "b", first.port, [1]),
    ):
        pass


def post(port: int, number: int) -> int:
    """The status of a request on a connection of its own."""
    connection = http.client.HTTPConnection(HERE, port)
    connection.request("POST", "/score", b"{}", {servers.NUMBER_HEADER: str(number)})
    with contextlib.closing(connection):
        return connection.getresponse().status


@needs_proxy
def test_the_proxy_says_where_a_request_was_also_without_an_answer(tmp_path: Path) -> None:
    with (
        end_point(lambda *_: (200, b"{}")) as good,
        end_point(lambda *_: None) as silent,
        proxy(tmp_path / "logs", free_port(0), [port_of(good), port_of(silent)]) as it,
    ):
        statuses = [post(it.port, number) for number in range(6)]
        end = time.monotonic() + SOON_S
        while len(found := figures.replicas_of(RunDir(tmp_path))) < len(statuses) and time.monotonic() < end:
            time.sleep(0.05)
    assert found == {number: {200: "r1", 502: "r2"}[status] for number, status in enumerate(statuses)}
    assert set(found.values()) == {"r1", "r2"}


def test_the_end_of_the_proxy_is_the_end(tmp_path: Path) -> None:
    with (
        started("r1", 0, tmp_path, "sleep", "60") as one,
        started("haproxy", 0, tmp_path, "sh", "-c", "echo out of files; exit 3") as front,
        pytest.raises(FailedError, match="haproxy has ended with 3: out of files"),
    ):
        commands.watch(servers.EndPoint("http://here/score", [one], tmp_path, front))


def test_a_replica_s_end_is_told_and_the_last_one_s_is_the_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with started("r1", 0, tmp_path, "false") as one, pytest.raises(FailedError, match="no replica is left"):
        commands.watch(servers.EndPoint("http://here/score", [one], tmp_path))
    assert "r1 has ended with 1" in capsys.readouterr().err


def test_nothing_compiled_is_left_in_the_model_s_folder(tmp_path: Path) -> None:
    code = tmp_path / "model"
    code.mkdir()
    (code / "score.py").write_text("")
    words = [sys.executable, "-c", f"import sys; sys.path.append({str(code)!r}); import score"]
    subprocess.run(words, env=servers.variables(tmp_path / "env/bin"), cwd=tmp_path, check=True)
    assert [it.name for it in code.iterdir()] == ["score.py"]
    assert list((tmp_path / "env/compiled").rglob("score.*.pyc"))
