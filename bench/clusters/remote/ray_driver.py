"""The one process that speaks with Ray: a program that `remote.ray` starts, and that ends with its input.

Questions come as lines of JSON on its standard input, and are answered by a line each, with the question's number. A
byte stream to an agent is a connection to its socket that names the agent's actor: what passes there is carried by
calls of that actor, so it goes where Ray's own calls go, with Ray's authentication and encryption. Nodes need none of
the project's code: the class of the actor is sent by value. It stands alone and imports nothing of the project.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

NAMESPACE = "proving-ground"
PIECE = 2**20
CONNECT_S = 10.0
ATTEMPTS = 4  # Ray's server for clients forks a process for each, which now and then dies at birth: told after 30 s
OPEN_S = 10.0  # for an actor to answer at all
LEFT_S = 60.0  # for all nodes to say what is left there: less than who asks waits
SETTLE_S = 1.0  # after which an agent that could not begin has ended
BESIDE = 8  # calls of one actor at a time: one reads for as long as nothing comes
SHARE = 0.001  # of a resource that every node has one of: it pins to a node's address, and takes nothing
DIES_WITH_US = "import ctypes;ctypes.CDLL(None).prctl(1,9);"
OWN_ID = "ray.io/node-id"  # a label that a node's next life has not
AWAY = "Ray does not answer"


class Shell:
    """The actor on a node: it keeps the agent, and carries the bytes of one bridge to it."""

    def __init__(self, python: str, boot: str, greeting: bytes) -> None:
        """Start the agent, which ends with this process however that ends."""
        import ray  # noqa: PLC0415 - the node's

        self.python, self.boot = python or sys.executable, boot
        self.number = 0
        self.line: Any = None
        with contextlib.suppress(OSError):
            os.nice(-os.nice(0))  # what it measures would wait for everybody else
        self.words = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the actor lives
        self.agent = self.started(DIES_WITH_US + boot, self.words, self.words)
        self.agent.stdin.write(greeting)
        self.agent.stdin.close()
        self.kill = ray.kill
        self.me = ray.get_runtime_context().current_actor
        threading.Thread(target=self.watch, daemon=True).start()

    def started(self, program: str, output: Any, complaints: Any) -> Any:  # noqa: ANN401 - files, or what Popen knows
        """A program of the node's Python."""
        environment = {key: value for key, value in os.environ.items() if key != "OMP_NUM_THREADS"}  # Ray's guess
        return subprocess.Popen(
            [self.python, "-c", program], stdin=subprocess.PIPE, stdout=output, stderr=complaints, bufsize=0,
            env=environment,
        )  # fmt: skip

    def watch(self) -> None:
        """An agent that has done its work takes its actor along; for any other end Ray starts both anew."""
        code = self.agent.wait()
        time.sleep(2 * SETTLE_S)  # `up` may want to know
        if code == 0:
            self.kill(self.me)
        os._exit(1)

    def up(self) -> dict[str, Any]:
        """What the agent said if it has ended at once, and how nice it is to others."""
        why = ""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.agent.wait(SETTLE_S)
            self.words.seek(0)
            why = (self.words.read().decode(errors="replace").strip() or "its agent ended at once").splitlines()[-1]
        return {"why": why, "nice": os.nice(0)}

    def open(self) -> int:
        """Have a bridge to the agent instead of the one before; the number of the connection."""
        self.close(self.number)
        self.line = self.started(self.boot, subprocess.PIPE, subprocess.DEVNULL)
        self.number += 1
        return self.number

    def write(self, number: int, content: bytes) -> None:
        """Pass bytes on to the bridge."""
        line = self.line
        while content and number == self.number:
            content = content[line.stdin.write(content) :]

    def read(self, number: int) -> bytes:
        """What the bridge says next, as soon as it does; nothing at its end."""
        line = self.line
        return os.read(line.stdout.fileno(), PIECE) if number == self.number else b""

    def close(self, number: int) -> None:
        """End the bridge."""
        if self.line and number == self.number:
            self.line.kill()
            self.line.wait()

    def end(self) -> None:
        """End the agent at once."""
        self.agent.kill()
        self.agent.wait()


def asked(program: str, words: Sequence[str]) -> list[dict[str, Any]]:
    """What a program says on a node, as lines of JSON; run there as a task."""
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


class Driver:
    """A connection to Ray, made anew when it is lost."""

    def __init__(self, address: str) -> None:
        import ray  # noqa: PLC0415 - told in a line where it is missing

        self.ray, self.address = ray, address
        self._one_at_a_time = threading.Lock()
        if why := refusal(address):
            raise ConnectionRefusedError(why)
        self.connect()
        self.shell = ray.remote(Shell)

    def connect(self) -> None:
        """Connect, where it is not connected."""
        with self._one_at_a_time:
            if self.ray.is_initialized():
                return
            with contextlib.suppress(Exception):
                self.ray.shutdown()  # what is left of a lost connection would be in the way
            for left in reversed(range(ATTEMPTS)):
                try:
                    self._init()
                except ConnectionAbortedError:
                    if not left:
                        raise
                else:
                    return

    def _init(self) -> None:
        self.ray.init(self.address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)

    # --- questions

    def version(self) -> str:
        """Ray's; whoever has an answer knows that it is connected."""
        return str(self.ray.__version__)

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes that are alive and have something to compute with, in the order of their addresses."""
        every = self.ray.nodes()  # type: ignore[no-untyped-call]
        found = [
            {
                "id": it["NodeID"], "host": it["NodeManagerHostname"], "address": it["NodeManagerAddress"],
                "cpus": it["Resources"].get("CPU", 0), "gpus": it["Resources"].get("GPU", 0),
                "labels": {key: value for key, value in it.get("Labels", {}).items() if key != OWN_ID},
            }
            for it in every if it["Alive"]
        ]  # fmt: skip
        return sorted(
            (it for it in found if it["cpus"]),
            key=lambda it: ([word.zfill(3) for word in it["address"].split(".")], it["id"]),
        )

    def registered(self, host: str) -> list[str]:
        """The raylets that are known of a machine, alive or not."""
        every = self.ray.nodes()  # type: ignore[no-untyped-call]
        return sorted(it["NodeID"] for it in every if it["NodeManagerHostname"] == host)

    def start(self, agents: Sequence[Mapping[str, Any]], cpus: int, gpus: int, python: str, boot: str) -> None:
        """Have an actor on each of some nodes; it is not waited for."""
        for it in agents:
            where: dict[str, Any] = {"resources": {f"node:{it['address']}": SHARE}}
            if it["id"]:  # the address is another's, too
                strategy = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
                where = {"scheduling_strategy": strategy(it["id"], soft=False)}
            options = {"num_cpus": cpus, "num_gpus": gpus, "max_restarts": -1, "max_concurrency": BESIDE, **where}
            made = self.shell.options(name=it["name"], namespace=NAMESPACE, lifetime="detached", **options)
            made.remote(python, boot, it["greeting"].encode("latin-1"))

    def up(self, names: Sequence[str], wait_s: float) -> dict[str, dict[str, Any]]:
        """What those actors say of their agents that are up by now."""
        refs = {name: self.actor(name).up.remote() for name in names}
        ready, _ = self.ray.wait(list(refs.values()), num_returns=len(refs), timeout=wait_s)
        return {name: self.ray.get(ref) for name, ref in refs.items() if ref in ready}

    def named(self) -> list[str]:
        """The actors of all runs."""
        found = self.ray.util.list_named_actors(all_namespaces=True)
        return sorted(it["name"] for it in found if it["namespace"] == NAMESPACE)

    def kill(self, names: Sequence[str]) -> None:
        """End actors, and their agents before; one whose node is away is not started again."""
        there = []
        for name in names:
            with contextlib.suppress(ValueError):  # it has ended
                there.append(self.actor(name))
        with contextlib.suppress(Exception):
            self.ray.wait([it.end.remote() for it in there], num_returns=len(there), timeout=OPEN_S)
        for it in there:
            self.ray.kill(it)

    def left(self, program: str, words: Sequence[str]) -> dict[str, dict[str, Any]]:
        """What a program, which may be run twice, says on each node, or why it says nothing."""
        task = self.ray.remote(num_cpus=0, max_retries=ATTEMPTS - 1)(asked)
        refs = {
            it["host"]: task.options(resources={f"node:{it['address']}": SHARE}).remote(program, list(words))
            for it in self.nodes()
        }
        until = time.monotonic() + LEFT_S
        return {host: self.said(ref, until) for host, ref in refs.items()}

    def said(self, ref: Any, until: float) -> dict[str, Any]:  # noqa: ANN401 - Ray's reference
        """What comes of a task by a moment of `time.monotonic`, or why nothing does."""
        try:
            return {"found": self.ray.get(ref, timeout=max(0.0, until - time.monotonic())), "why": ""}
        except Exception as error:  # noqa: BLE001 - whatever it is, the other nodes are told
            return {"found": [], "why": in_a_line(error)}

    def actor(self, name: str) -> Any:  # noqa: ANN401 - Ray's handle
        """The actor of that name, whoever made it."""
        return self.ray.get_actor(name, namespace=NAMESPACE)

    # --- streams

    def listen(self, path: str) -> None:
        """Take connections, each a stream to the actor that it names."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(path)
        listener.listen(64)
        while True:
            line, _ = listener.accept()
            threading.Thread(target=self.serve, args=(line,), daemon=True).start()

    def serve(self, line: socket.socket) -> None:
        """Carry bytes between a connection and its actor until either ends."""
        with line:
            try:
                actor, number = self.opened(line.makefile("rb", buffering=0).readline().decode().strip())
            except Exception as error:  # noqa: BLE001 - whatever it is, who asks is told
                with contextlib.suppress(OSError):
                    line.sendall(json.dumps({"error": in_a_line(error)}).encode() + b"\n")
                return
            threading.Thread(target=self.carry_home, args=(actor, number, line), daemon=True).start()
            with contextlib.suppress(Exception):
                while more := line.recv(PIECE):
                    self.ray.get(actor.write.remote(number, more))
            with contextlib.suppress(Exception):
                actor.close.remote(number)

    def opened(self, name: str) -> tuple[Any, int]:
        """An actor with a new bridge to its agent."""
        self.connect()
        actor = self.actor(name)
        return actor, self.ray.get(actor.open.remote(), timeout=OPEN_S)

    def carry_home(self, actor: Any, number: int, line: socket.socket) -> None:  # noqa: ANN401 - Ray's handle
        """Pass on what an agent says."""
        with contextlib.suppress(Exception):
            while more := self.ray.get(actor.read.remote(number)):
                line.sendall(more)
        with contextlib.suppress(OSError):
            line.shutdown(socket.SHUT_RDWR)


def in_a_line(error: BaseException) -> str:
    """What Ray says of a failure, without its stacks and colours."""
    words = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in words.splitlines() if line.strip()]
    if isinstance(error, ConnectionRefusedError):
        return " ".join(lines)
    if type(error).__name__ in ("ConnectionError", "RaySystemError", "RpcError"):
        return f"{AWAY}: {lines[0] if lines else type(error).__name__}"
    return f"{type(error).__name__}: {lines[-1] if 'Traceback' in words and lines else ' '.join(lines)}"


def refusal(address: str) -> str:
    """Why Ray's server for clients takes no call of ours; empty where it does, or there is none to be asked."""
    if not address.startswith("ray://"):
        return ""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_S).close()
    except (OSError, ValueError) as error:
        return f"{AWAY} at {address}: {error}"
    import grpc  # noqa: PLC0415 - Ray needs it for `ray://`
    from ray._private.grpc_utils import init_grpc_channel  # noqa: PLC0415 - with the token and certificates
    from ray.core.generated import ray_client_pb2, ray_client_pb2_grpc  # noqa: PLC0415 - same

    ask = ray_client_pb2.ClusterInfoRequest(type=ray_client_pb2.ClusterInfoType.PING)  # type: ignore[attr-defined]
    channel = init_grpc_channel(f"{host}:{port}")
    try:
        stub = ray_client_pb2_grpc.RayletDriverStub(channel)  # type: ignore[no-untyped-call]
        stub.ClusterInfo(ask, timeout=CONNECT_S)
    except grpc.RpcError as error:
        if error.code() != grpc.StatusCode.UNAVAILABLE:
            return f"{error.code().name}: {error.details()}"
        return f"{AWAY} at {address}, where somebody listens: is RAY_USE_TLS as it is there? ({error.details()})"
    finally:
        channel.close()
    return ""


def main() -> None:
    """Connect, then answer what is asked until the input ends."""
    address, path = sys.argv[1:]
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print is no answer
    try:
        driver = Driver(address)
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is told
        print(in_a_line(error), file=sys.stderr, flush=True)
        os._exit(1)
    threading.Thread(target=driver.listen, args=(path,), daemon=True).start()
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = {"ok": getattr(driver, question["verb"])(**question["about"])}
        except Exception as error:  # noqa: BLE001 - same
            answer = {"error": in_a_line(error)}
        print(json.dumps({"re": question["id"], **answer}), file=answers)
    shutil.rmtree(os.path.dirname(path), ignore_errors=True)  # noqa: PTH120 - of a harness that was killed
    os._exit(0)  # Ray would say good-bye to those who may be gone


if __name__ == "__main__":
    main()
