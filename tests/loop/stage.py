"""A machine without Pulumi whose kubectl is a stand-in: whether the stack is there is a file. For the loop's tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from proving_ground.bench.tail import appended
from proving_ground.infra.config import ROOT
from proving_ground.loop import ledger
from proving_ground.loop.ledger import Ledger

KUBECTL = """#!{python} -SE
import json, os, pathlib, sys, time
here, words = pathlib.Path(__file__).parent, sys.argv[1:]
with (here / "asked").open("a") as log:
    log.write(json.dumps(words) + chr(10))
words = words[2:] if words[0] == "--context" else words
if (here / "fails").exists() and words[0] in (here / "fails").read_text():
    sys.exit("error: You must be logged in to the server (Unauthorized)")
there = here / "there"
if words[0] == "apply":
    given = json.load(sys.stdin)["items"]
    (here / "applying").write_text(str(os.getpid()))
    there.write_text(json.dumps([*(json.loads(there.read_text()) if there.exists() else []), *given]))
    time.sleep(float(os.environ.get("apply_S", "0.2")))
    (here / "applied").touch()
elif words[0] == "delete":
    time.sleep(0.2)
    there.unlink(missing_ok=True)
elif words[0] == "config":
    print((here / "context").read_text() if (here / "context").exists() else "")
elif words[:2] == ["get", "configmap"]:
    found = [it for it in json.loads(there.read_text()) if it["metadata"]["name"] == words[2]] if there.exists() else []
    print(json.dumps(found[-1]) if found else "")
elif words[0] == "get":
    print("" if "--ignore-not-found" in words else json.dumps({{"items": []}}))
if words[0] == "rollout":
    print("done")
"""
LONGEST_S = 40.0


@dataclass(frozen=True)
class Stage:
    """One machine."""

    folder: Path

    @property
    def there(self) -> bool:
        """Whether the stack is up, or half."""
        return (self.folder / "bin" / "there").exists()

    @property
    def runs(self) -> Path:
        """Where its loops are."""
        return self.folder / "runs"

    @property
    def ledger(self) -> Ledger:
        """Of the newest loop."""
        found = ledger.latest(self.runs, "local")
        assert found
        return found

    def fails(self, *verbs: str) -> None:
        """Have kubectl refuse these."""
        (self.folder / "bin" / "fails").write_text(" ".join(verbs))

    def expire(self) -> None:
        """Let the time of the newest loop be over now: no test waits for it, and no busy machine is too slow."""
        self.ledger.note("kept", deadline=time.time())

    def asked(self) -> list[list[str]]:
        """What kubectl was asked."""
        return [json.loads(line) for line in appended(self.folder / "bin" / "asked", 0)[0]]

    def begin(self, *words: str, **environ: str) -> subprocess.Popen[str]:
        """Start a command of the loop."""
        path = f"{self.folder / 'bin'}:/usr/bin:/bin"
        given = {name: it for name, it in os.environ.items() if not name.startswith(("PROVING_GROUND", "KUBE"))}
        return subprocess.Popen(
            [sys.executable, "-m", "tests.loop.acted", *words, "--runs", str(self.runs)], cwd=ROOT, text=True,
            env={**given, "PATH": path, "KUBECONFIG": str(self.folder), **environ},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip

    def loop(self, *words: str, **environ: str) -> tuple[int, str, str]:
        """Run one to its end: status, what it said, what it complained of."""
        process = self.begin(*words, **environ)
        out, err = process.communicate(timeout=LONGEST_S)
        return process.returncode, out, err

    def await_down(self) -> None:
        """Wait until the process that keeps the time has done its work."""
        wait(lambda: ledger.holder(self.ledger.folder / ledger.KEEPER) is None)


def staged(folder: Path) -> Stage:
    """A machine with nothing up."""
    (folder / "bin").mkdir(parents=True)
    program = folder / "bin" / "kubectl"
    program.write_text(KUBECTL.format(python=sys.executable))
    program.chmod(0o755)
    return Stage(folder)


def wait(until: Callable[[], Any]) -> None:
    """Wait for it.

    Raises:
        AssertionError: it takes too long.
    """
    deadline = time.monotonic() + LONGEST_S
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def step_runs(stage: Stage, step: str) -> bool:
    """Whether a step is under way."""
    if ledger.latest(stage.runs, "local") is None:
        return False
    running = stage.ledger.state().running
    return running is not None and running["step"] == step


def end_all(stage: Stage) -> None:
    """End what a test has left."""
    for name in (ledger.KEEPER, ledger.STEP):
        if ledger.latest(stage.runs, "local") and (process := ledger.holder(stage.ledger.folder / name)):
            os.kill(process, signal.SIGKILL)
