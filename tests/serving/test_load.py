"""What a load leaves behind, with locust as it is and a small server of its own in place of a model's."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from proving_ground.bench.redact import redacted
from proving_ground.bench.rundir import RunDir
from proving_ground.bench.servers import HERE
from proving_ground.serving import figures, load, page
from tests.serving.stub import end_point

pytestmark = pytest.mark.timeout(300)  # locust, on a busy machine
EXAMPLE = load.Example({"inputs": {}}, {"output": [[1.0]]}, {"Key": "s3cret"})
GOOD = json.dumps({"predictions": {"output": [[1.0]]}}).encode()


def put(folder: Path, url: str, users: int = 1, seconds: int = 2) -> RunDir:
    run = load.new_run(folder)
    load.put(load.Orders([url], [users], seconds, 1), EXAMPLE, run, {}, None)
    return run


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("http://me:s3cret@here:1/score", "http://here:1/score"),
        ("--endpoint=http://t0ken@here/score?code=K/EY&v=1,http://there/score?K", "--endpoint=http://here/score?code=…&v=…,http://there/score?…"),
        ("mysql://u:p/ss@w@here/db", "mysql://here/db"),
        ("http://a:1/score,http://u:p/q@b/score", "http://a:1/score,http://b/score"),
        ("API to https://u:p@here/api?t=1 failed", "API to https://here/api?t=… failed"),
        ("http://here:1/score@2", "http://here:1/score@2"),
        ("what? a=b; me@here", "what? a=b; me@here"),
    ],
)  # fmt: skip
def test_addresses_are_shown_without_their_secrets(text: str, shown: str) -> None:
    assert redacted(text) == shown


def test_no_secret_of_an_address_is_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def answer(handler: BaseHTTPRequestHandler, _: bytes) -> tuple[int, bytes]:
        asked.append((handler.path, handler.headers["Key"]))
        return (200, GOOD) if len(asked) % 2 else (500, b"no")

    with end_point(answer) as url:
        secret = f"{url}?code=s3cret"
        monkeypatch.setattr(sys, "argv", ["serving", "load", "--endpoint", secret, "--tracking-uri=http://u:s3cret@h"])
        run = put(tmp_path, secret)
    assert set(asked) == {("/score?code=s3cret", "s3cret")}
    found = figures.read(run)
    assert sum(it.ok for it in found.requests) == pytest.approx(len(asked) / 2, abs=1)
    assert "s3cret" not in page.html(found, figures.document(found))
    written = [it for it in run.path.rglob("*") if it.is_file()]
    assert written
    assert [it.name for it in written if b"s3cret" in it.read_bytes()] == []


def test_a_request_is_sent_once_and_counts_where_it_has_no_answer(tmp_path: Path) -> None:
    asked = []

    def answer(handler: object, _: bytes) -> tuple[int, bytes] | None:
        asked.append(handler)
        time.sleep(0.02)
        return None

    with end_point(answer) as url:
        found = figures.read(put(tmp_path, url))
    assert len(found.requests) == len(asked) > 1
    assert not any(it.ok for it in found.requests)


def test_a_request_that_never_ends_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "STOP_S", 1)
    hang, asked = threading.Event(), []

    def answer(handler: object, _: bytes) -> tuple[int, bytes]:
        asked.append(handler)
        hang.wait(60 if len(asked) >= 20 else 0)  # so that either user has one
        time.sleep(0.01)
        return 200, GOOD

    with end_point(answer) as url:
        found = figures.read(put(tmp_path, url, users=2))
        hang.set()
    assert [it.error for it in found.requests if not it.ok] == ["never ended"] * 2
    (errors,) = figures.verdicts(found)
    assert (errors["verdict"], errors["why"]) == ("fail", f"2 of {len(asked)} requests failed, the first: never ended")


def test_an_answer_that_is_not_the_checked_one_is_an_error(tmp_path: Path) -> None:
    with end_point(lambda *_: (200, GOOD.replace(b"1.0", b"0.0"))) as url:
        found = figures.read(put(tmp_path, url))
    assert found.requests
    assert {it.error for it in found.requests} == {"another answer than the model's"}


def test_a_redirection_is_no_answer(tmp_path: Path) -> None:
    with end_point(lambda *_: (302, b"")) as url:
        found = figures.read(put(tmp_path, url))
    assert found.requests
    assert not any(it.ok for it in found.requests)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_a_certificate_of_nobody_is_not_trusted(tmp_path: Path) -> None:
    both = tmp_path / "both.pem"
    words = ["-x509", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={HERE}", "-keyout", str(both)]
    subprocess.run(["openssl", "req", *words, "-out", str(tmp_path / "c")], check=True, capture_output=True)
    both.write_text(both.read_text() + (tmp_path / "c").read_text())
    with end_point(lambda *_: (200, GOOD), both) as url:
        found = figures.read(put(tmp_path, url))
    assert found.requests
    assert all("certificate" in it.error.lower() for it in found.requests)
