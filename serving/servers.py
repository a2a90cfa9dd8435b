"""End points on this machine: replicas of a model in one of two engines, HAProxy before them where there are several.

Called by `serving.commands` and `serving.load`. Everything listens on the loopback only, each replica in a process
group of its own, so that all of it ends with `running`, and one replica can be killed alone.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from proving_ground.bench.agent import kernel
from proving_ground.bench.servers import HERE, free_port, listens
from proving_ground.bench.tail import last_line
from proving_ground.serving import environment, left
from proving_ground.serving.mistakes import FailedError, ServingError

READY_S = 300.0  # about 10 s of processor time, most for imports; a machine may be busy
END_S = 10.0  # from SIGTERM to SIGKILL
WORKER_S = 20
"""A request may take so long; every half of it a worker looks whether its server was killed, and ends then."""
NUMBER_HEADER, SERVED = "X-Proving-Ground-Number", "served"
"""HAProxy's log says of each request with a number which replica it was sent to, also where that gave no answer."""
SOCKET = "haproxy.sock"
"""In the folder of the logs: where HAProxy says what it sees of the replicas (`serving.health`)."""
MLMODEL, SCORE = "MLmodel", "code/score.py"

AZUREML = "import sys; from azureml_inference_server_http.amlserver_linux import run; run(*sys.argv.pop().split())"
"""Its own command listens on every address of the machine; this is what it calls, with the address given."""


@dataclass(frozen=True)
class Engine:
    """One kind of server: its command for (bin, model, port), its variables, and where it answers."""

    command: Callable[[Path, Path, int], list[str]]
    variables: Callable[[Path], dict[str, str]]
    score: str  # path of its answers
    alive: str  # path that answers 200 once the model is loaded


def azureml(at: Path, model: Path, port: int) -> list[str]:
    """One worker; the model comes by variables."""
    del model
    return [str(at / "python"), "-c", AZUREML, f"{HERE} {port} 1"]


def azureml_variables(model: Path) -> dict[str, str]:
    """What the platform sets in an end point's container."""
    platform = {"AZUREML_ENTRY_SCRIPT": str(model / SCORE), "AZUREML_MODEL_DIR": str(model), "AML_APP_ROOT": "/"}
    return platform | {"WORKER_TIMEOUT": str(WORKER_S)}


def mlflow(at: Path, model: Path, port: int) -> list[str]:
    """MLflow's own command, in the environment that is there."""
    words = ["--model-uri", str(model), "--env-manager", "local", "--host", HERE, "--port", str(port), "--workers", "1"]
    return [str(at / "mlflow"), "models", "serve", *words]


ENGINES: dict[str, Engine] = {
    "azureml": Engine(azureml, azureml_variables, "/score", "/"),
    "mlflow": Engine(mlflow, lambda _: {}, "/invocations", "/ping"),
}


@dataclass(frozen=True)
class Replica:
    """One server process group."""

    name: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        """End all of it at once, as a machine that is gone would."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


@dataclass(frozen=True)
class EndPoint:
    """Replicas that answer, HAProxy where there are several, the address to ask, and the folder of the logs."""

    url: str
    replicas: Sequence[Replica]
    logs: Path
    proxy: Replica | None = None


@contextlib.contextmanager
def running(model: Path, engine: str, port: int, replicas: int, say: Callable[[str], None]) -> Iterator[EndPoint]:
    """An end point that answers; afterwards nothing of it is left.

    Raises:
        ServingError: no model, a port in use, no HAProxy for several replicas.
        FailedError: a server ends, or is not ready in time; the last line of its log.
    """
    if not (model / MLMODEL).is_file():
        raise ServingError(f"{model}: no model: {MLMODEL} is missing (pg serving register)")
    kind = ENGINES[engine]
    try:
        front = free_port(port)
    except OSError as error:
        raise ServingError(str(error)) from None
    proxy = found_proxy() if replicas > 1 else ""
    at = environment.ready(say)
    with contextlib.ExitStack() as stack:
        logs = stack.enter_context(left.folder("serving"))
        ports = [free_port(0) for _ in range(replicas)] if proxy else [front]
        environ = variables(at) | kind.variables(model)
        commands = {f"r{index}": (kind.command(at, model, it), it) for index, it in enumerate(ports, 1)}
        started = [
            stack.enter_context(started_group(name, number, logs, command, environ))
            for name, (command, number) in commands.items()
        ]
        for it in started:
            wait_ready(it, kind.alive)
        before = None
        if proxy:
            command = [proxy, "-db", "-f", str(write_proxy(logs, front, ports, kind.alive))]
            before = stack.enter_context(started_group("haproxy", front, logs, command, environ))
            wait_ready(before, kind.alive)
        yield EndPoint(f"http://{HERE}:{front}{kind.score}", started, logs, before)


def variables(at: Path) -> dict[str, str]:
    """The variables of a server: its own environment's programs first, no path of ours, no proxy, nothing sent out."""
    kept = {name: it for name, it in os.environ.items() if "proxy" not in name.lower() and name != "PYTHONPATH"}
    path = f"{at}{os.pathsep}{os.environ.get('PATH', '')}"
    own = {"MLFLOW_DISABLE_TELEMETRY": "true", "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"}
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(at.parent / "compiled")}
    return kept | own | compiled | {"PATH": path}  # the second start needs not compile, and the model is left alone


@contextlib.contextmanager
def started_group(
    name: str, port: int, logs: Path, command: Sequence[str], environ: Mapping[str, str]
) -> Iterator[Replica]:
    """A process and all that it starts; asked to end afterwards, then made to."""
    log = logs / f"{name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environ, cwd=logs, start_new_session=True,
            preexec_fn=partial(kernel.die_with_parent, os.getpid()),  # noqa: PLW1509 - no call that takes a lock
        )  # fmt: skip
    replica = Replica(name, port, process, log)
    try:
        yield replica
    finally:
        end(replica)


def end(replica: Replica) -> None:
    """SIGTERM to the first process, which ends its workers; then SIGKILL to whatever of the group is left."""
    replica.process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        replica.process.wait(END_S)
    replica.kill()
    replica.process.wait()


def wait_ready(replica: Replica, path: str) -> None:
    """Wait until it answers, and it is itself that does: another server may have taken the port meanwhile.

    Raises:
        FailedError: it has ended, or takes too long.
    """
    limit = time.monotonic() + READY_S
    while time.monotonic() < limit:
        if replica.process.poll() is not None:
            raise FailedError(f"{replica.name} ended with {replica.process.returncode}: {last_words(replica.log)}")
        if answers(f"http://{HERE}:{replica.port}{path}") and listens(replica.process.pid, replica.port):
            return
        time.sleep(0.1)
    raise FailedError(f"{replica.name} was not ready in {READY_S:.0f} s: {last_words(replica.log)}")


def last_words(log: Path) -> str:
    """The last line of a log."""
    return last_line(log) or "it said nothing"


def answers(url: str, timeout_s: float = 5.0) -> bool:
    """Whether a server answers 200 there."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", parts.path)
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def found_proxy() -> str:
    """The program HAProxy.

    Raises:
        ServingError: it is not installed.
    """
    found = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
    if not found:
        raise ServingError("several replicas need HAProxy before them, which is not installed: apt-get install haproxy")
    return found


def write_proxy(folder: Path, front: int, ports: Sequence[int], alive: str) -> Path:
    """HAProxy's configuration.

    A connection that a replica refuses goes to another one (`redispatch`); a request that was sent is never sent twice.
    One late answer to a check does not take a busy replica out; three do.
    """
    servers = "\n".join(
        f"  server r{number} {HERE}:{port} check inter 500ms fastinter 100ms fall 3 rise 2"
        for number, port in enumerate(ports, 1)
    )
    text = f"""\
global
  noreuseport
  log stdout format raw local0
  stats socket unix@{SOCKET} mode 600 level user
defaults
  mode http
  timeout connect 2s
  timeout client 60s
  timeout server 60s
  retries 3
  option redispatch 1
  retry-on conn-failure
  option httpchk GET {alive}
frontend front
  bind {HERE}:{front}
  log global
  http-request set-var(txn.number) req.hdr({NUMBER_HEADER})
  http-request set-log-level silent unless {{ req.hdr({NUMBER_HEADER}) -m found }}
  log-format "{SERVED} %[var(txn.number)] %s"
  default_backend replicas
backend replicas
  balance leastconn
{servers}
"""
    file = folder / "haproxy.cfg"
    file.write_text(text)
    return file
