"""The testbed as a person uses it: up, broken, mended, down; whatever interrupts it, nothing is left."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proving_ground.infra.cluster.images import IMAGES
from proving_ground.infra.config import ROOT
from tests.engines import kubernetes, needs
from tests.engines.folders import vanishing
from tests.infra.testbed import images
from tests.infra.testbed.__main__ import main
from tests.infra.testbed.service import Place
from tests.infra.testbed.test_testbed import left, shared, until

pytestmark = [pytest.mark.engines, pytest.mark.timeout(1500)]  # Kubernetes is built once
KUBELET_PORT = 10250
EXTRA = "example/extra:1"


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder for a testbed, short enough for a socket."""
    needs.require(kubernetes.PROGRAMS)
    with vanishing("pg-bed-") as made:
        try:
            yield made / "bed"
        finally:
            Place(made / "bed").end()


def typed(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """What a person types."""
    return subprocess.run(command(folder, *words), cwd=ROOT, capture_output=True, text=True, check=False)


def command(folder: Path, *words: str) -> list[str]:
    """The same, as words."""
    return [sys.executable, "-m", "tests.infra.testbed", "--folder", str(folder), *words]


def said(done: subprocess.CompletedProcess[str]) -> str:
    """What a command printed that went well."""
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def answers(address: str) -> bool:
    """Whether a kubelet can be reached."""
    with contextlib.suppress(OSError), socket.create_connection((address, KUBELET_PORT), timeout=0.5):
        return True
    return False


def test_up_breaks_mends_and_down_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    before = set(shared())
    archive = tmp_path / "extra.tar"
    images.bare(archive, EXTRA)
    told = said(typed(folder, "up", "--nodes", "2", "--image", str(archive)))
    assert f"KUBECONFIG={folder}/cluster/kubeconfig" in told
    assert f"--cluster '{kubernetes.option()}," in told
    assert f"power={folder}/testbed,api={folder}/testbed api'" in told
    again = typed(folder, "up")
    assert (again.returncode, again.stderr) == (
        2, f"testbed: a testbed is up already in {folder}: `down` ends it\n",
    )  # fmt: skip
    addresses = nodes(folder)
    assert set(addresses) == {"n1", "n2"}
    assert EXTRA in (folder / "cluster" / "n2" / "images.log").read_text()

    assert said(typed(folder, "kill", "n2")) == "n2 has no power"
    assert (answers(addresses["n1"]), answers(addresses["n2"])) == (True, False)
    assert typed(folder, "kill", "n2").stderr == "testbed: n2 has no power already\n"
    assert "n2  no power, reached" in said(typed(folder, "status"))
    assert said(typed(folder, "restore", "n2")) == "n2 has power again"
    assert until(lambda: answers(addresses["n2"]))

    assert said(typed(folder, "partition", "n1")) == "n1 is cut off from all others"
    assert not answers(addresses["n1"])
    assert "n1  power, cut off" in said(typed(folder, "status"))
    said(typed(folder, "heal", "n1"))
    assert until(lambda: answers(addresses["n1"]))

    script = [str(folder / "testbed"), "api"]  # from any folder, as an option of a cluster has it
    subprocess.run([*script, "stop"], cwd="/", check=True, capture_output=True)
    assert "API server: away" in said(typed(folder, "status"))
    subprocess.run([*script, "start"], cwd="/", check=True, capture_output=True)
    assert set(nodes(folder)) == {"n1", "n2"}

    assert said(typed(folder, "down")) == "the testbed is down"
    assert left(folder, before) == []
    assert not folder.exists()
    assert said(typed(folder, "down")) == "no testbed was up"
    assert typed(folder, "status").returncode == 1


def nodes(folder: Path) -> dict[str, str]:
    """Node → its address, by the API server."""
    env = {**os.environ, "KUBECONFIG": str(folder / "cluster" / "kubeconfig")}
    kubectl = str(folder / "cluster" / "bin" / "kubectl")
    asked = subprocess.run([kubectl, "get", "nodes", "-o", "json"], env=env, capture_output=True, check=True)
    return {
        it["metadata"]["name"]: next(a["address"] for a in it["status"]["addresses"] if a["type"] == "InternalIP")
        for it in json.loads(asked.stdout)["items"]
    }


def interrupted(harness: subprocess.Popen[bytes], _: Place) -> None:
    """Ctrl-C."""
    harness.send_signal(signal.SIGINT)


def killed(harness: subprocess.Popen[bytes], _: Place) -> None:
    """`kill -9` of the command."""
    harness.kill()


def holder_killed(_: subprocess.Popen[bytes], place: Place) -> None:
    """`kill -9` of the process in the background."""
    if pid := place.holder:  # else it has ended by itself
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("way", "after_s"), [(interrupted, 1.5), (killed, 1.5), (holder_killed, 0.7), (holder_killed, 2.0)]
)
def test_what_is_interrupted_on_its_way_up_leaves_nothing_after_down(
    folder: Path, way: Callable[[subprocess.Popen[bytes], Place], None], after_s: float
) -> None:
    before, place = set(shared()), Place(folder)
    with subprocess.Popen(command(folder, "up", "--nodes", "2"), cwd=ROOT, stderr=subprocess.PIPE) as harness:
        assert until(lambda: place.holder is not None)
        time.sleep(after_s)
        way(harness, place)
        _, why = harness.communicate()
    assert harness.returncode in (0, 2, 130, -signal.SIGKILL), why
    assert b"Traceback" not in why
    said(typed(folder, "down"))
    assert until(lambda: left(folder, before) == []), left(folder, before)
    assert not folder.exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["up", "--nodes", "0"], "'0' is no number of nodes: allowed are 1 to 20"),
        (["up", "--image", "/no/such.tar"], "--image /no/such.tar: no such file"),
        (["kill", "n1"], "no testbed is up in "),
        (["api", "start"], "no testbed is up in "),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["--folder", str(tmp_path / "bed"), *words])
    except SystemExit as end:
        status = int(str(end.code))
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert (status, says in line) == (2, True), line


def test_a_machine_that_cannot_is_told_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    have = shutil.which
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "containerd" else have(name) or name)
    assert main(["--folder", str(tmp_path / "bed"), "up"]) == 2
    assert capsys.readouterr().err == "testbed: containerd (Debian: containerd) is not on PATH\n"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main(["--folder", str(tmp_path / "bed"), "up"]) == 2
    assert capsys.readouterr().err == "testbed: a node takes root\n"
    assert not (tmp_path / "bed").exists()


def test_a_trainer_s_image_of_ones_own_is_not_replaced(tmp_path: Path) -> None:
    """The stack's stand-in has the same name, and the last one imported would be the one that runs."""
    given, other = tmp_path / "given.tar", tmp_path / "other.tar"
    images.bare(given, f"localhost/{IMAGES['trainer']}")
    images.bare(other, EXTRA)
    for archives, stands_in in (([given, other], False), ([other], True)):
        made = tmp_path / str(stands_in)
        kubernetes.fill(made, archives, stack=True)
        assert (made / "python.tar").exists() == stands_in


def test_what_is_no_image_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = tmp_path / "wrong.tar"
    wrong.write_text("no archive")
    assert main(["--folder", str(tmp_path / "bed"), "up", "--image", str(wrong)]) == 2
    assert "wrong.tar: not an archive as `docker save` writes it" in capsys.readouterr().err
