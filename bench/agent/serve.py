"""The agent of a node on another machine: `python agent.pyz '{"…": …}'`, carried there by `bench.agent.boot`.

It listens at a socket that only its user can open; a bridge (`bench.agent.boot`, at the end of an ssh connection, say)
carries frames between there and the harness. It outlives a lost connection: what its processes write is kept, and sent
to whoever connects next. When nobody was heard of for as long as its lease, it ends all that it started, and itself.
"""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import fcntl
import gc
import importlib
import importlib.util
import io
import json
import os
import platform
import shutil
import signal
import socket
import struct
import sys
import time
import traceback
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proving_ground.bench.agent import machine, volume
from proving_ground.bench.agent.boot import in_words
from proving_ground.bench.agent.files import Outputs, inside, put
from proving_ground.bench.agent.left import end_marked
from proving_ground.bench.agent.node import NodeAgent
from proving_ground.bench.agent.orders import NodeSetup, Order
from proving_ground.bench.agent.processes import NodeProcess, processes, send
from proving_ground.bench.agent.wire import Unpacker, WireError, packed

LOOK_S = 0.01  # how often files are looked at while processes run
IDLE_S = 0.5
BEHIND = 2**22  # bytes that may wait to be sent before files are read on
ENDED_BY_TERM = 128 + signal.SIGTERM
FULL, FULL_BYTES = "the disk of {} is full: free some there, or name another folder with work=", 2**16
IMPORT_S = 120.0  # for which a harness waits at most
REMEMBERED = 200  # answers, for a request that comes again by a new connection


class ServingAgent(NodeAgent):
    """Serves one node until the harness says that it may end, or its lease runs out."""

    def __init__(self, node: NodeSetup, work: Path, lease_s: float, first_s: float) -> None:
        self.work, self.lease_s = work, lease_s
        self.patience_s = first_s  # the lease, once a harness was there
        self.incarnation = base64.b32encode(os.urandom(5)).decode().lower()
        self.outputs = Outputs(work / "out")
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(work / "socket"))
        self.listener.listen(8)
        self.listener.settimeout(0)
        self.line: socket.socket | None = None
        self.greeted = False  # whether whoever is at the line has said how much has arrived: nothing is sent before
        self._unpacker, self._unsent = Unpacker(), bytearray()
        self._exits: list[dict[str, Any]] = []  # that nobody has said to have heard of
        self._count = 0  # of exits
        self._answers: dict[int, bytes] = {}
        self._heard_t = self._noted_t = time.monotonic()
        (work / "pid").write_text(str(os.getpid()))
        (work / "heard").touch()
        self.over = False
        self.noticed = self.leaving = False  # whether the engine wants the node back; whether its processes know
        super().__init__(node)
        self.verbs: dict[str, Callable[..., Any]] = {
            "attach": self.attach, "clock": clock, "code": self.code, "put": self.put,
            "start": self.begin, "signal": timed(self.signal), "signal_all": timed(self.signal_all), "stop": self.stop,
            "processes": self.processes, "signal_pid": timed(self.signal_pid), "free_port": machine.free_port,
            "forget": self.outputs.forget, "sample": self.sample, "end": self.end, "volume": self.volume,
            "unresolved": unresolved, "crash": crash,
        }  # fmt: skip

    # --- the way home

    def own(self) -> list[int]:
        """Sockets are none of a child's business."""
        sockets = [self.listener.fileno(), *([self.line.fileno()] if self.line else [])]
        return [*sockets, *super().own()]

    def serve(self) -> None:
        """Do as asked until the end."""
        while not self.over:
            busy = self.running or self._unsent
            sources = [self.listener.fileno(), *([self.line.fileno()] if self.line else [])]
            self.wait(LOOK_S if busy else IDLE_S, *sources)
            self.reap()
            self._receive()
            if self.noticed:
                self._leave()
            # Only now: requests may have waited for this process.
            if time.monotonic() - self._heard_t > self.patience_s:
                break
            if self.greeted and len(self._unsent) < BEHIND:
                self._tell_of_files()
            self._flush()
        self.halt()
        self._last_words()
        shutil.rmtree(self.work, ignore_errors=True)
        with contextlib.suppress(OSError):  # other nodes and runs may have theirs there
            self.work.parent.rmdir()
            self.work.parent.parent.rmdir()
        self._hang_up()  # whoever sees the line end knows that nothing is left

    def _receive(self) -> None:
        with contextlib.suppress(BlockingIOError):
            line, _ = self.listener.accept()
            self._hang_up()
            line.settimeout(0)
            self.line, self._unpacker, self._unsent = line, Unpacker(), bytearray()
        if self.line is None:
            return
        try:
            more = self.line.recv(2**20)
            for message, blob in self._unpacker.feed(more):
                self._heard()
                self._do(message, blob)
            if not more:
                self._hang_up()
        except BlockingIOError:
            return
        except (OSError, WireError):
            self._hang_up()

    def _heard(self) -> None:
        """Somebody is there; once a second a file says so, for `bench.agent.left`."""
        self._heard_t, self.patience_s = time.monotonic(), self.lease_s
        if self._heard_t - self._noted_t > 1.0:
            self._noted_t = self._heard_t
            (self.work / "heard").touch()

    def _do(self, message: dict[str, Any], blob: bytes) -> None:
        """Carry out a request, once: whoever asks again gets the same answer."""
        number = int(message["id"])
        if number not in self._answers:
            arguments = dict(message.get("args", {}), **({"blob": blob} if blob else {}))
            try:
                answer: dict[str, Any] = {"ok": self.verbs[message["verb"]](**arguments)}
            except OSError as error:
                answer = {"error": in_words(error, str(self.work))}
            except Exception as error:  # noqa: BLE001 - whatever it is, who asked is told, and the node lives on
                answer = {"error": str(error) or type(error).__name__}
            self._answers[number] = packed({"re": number, **answer})
        self._unsent += self._answers[number]
        while len(self._answers) > REMEMBERED:
            del self._answers[next(iter(self._answers))]

    def _tell_of_files(self) -> bool:
        """Have what was appended sent, a piece of each file; whether there was something."""
        pieces = [packed({"file": name, "offset": offset}, more) for name, offset, more in self.outputs.appended()]
        self._unsent += b"".join(pieces)
        return bool(pieces)

    def _flush(self) -> None:
        if self.line and self._unsent:
            try:
                sent = self.line.send(self._unsent)
                del self._unsent[:sent]
            except BlockingIOError:
                return
            except OSError:
                self._hang_up()

    def _last_words(self) -> None:
        """What is still to be sent goes, if the line takes it; at the end that it is all."""
        if self.line:
            while self.greeted and self._tell_of_files():
                pass
            self._unsent += packed({"over": True})
            with contextlib.suppress(OSError):
                self.line.settimeout(1.0)
                self.line.sendall(self._unsent)

    def _hang_up(self) -> None:
        if self.line:
            with contextlib.suppress(OSError):
                self.line.close()
            self.line, self.greeted = None, False

    def ended(self, slot: int, pid: int, code: int) -> None:
        """Its last words first, then that it has ended."""
        t = time.monotonic()
        self._count += 1
        why = {"why": FULL.format(self.work)} if code and is_full(self.work) else {}
        self._exits.append({"n": self._count, "slot": slot, "pid": pid, "code": code, "t": t, **why})
        if self.greeted:
            self._tell_of_exit(self._exits[-1])

    def _tell_of_exit(self, ended: dict[str, Any]) -> None:
        while self._tell_of_files():
            pass
        self._unsent += packed({"exit": ended})

    # --- verbs

    def attach(self, arrived: dict[str, int], exits: int) -> dict[str, Any]:
        """A harness is here, with so much of each file and so many exits; what this node is."""
        self.outputs.again_from(arrived)
        self.greeted = True
        self._exits = [it for it in self._exits if it["n"] > exits]
        for it in self._exits:
            self._tell_of_exit(it)
        return {"incarnation": self.incarnation, "pid": os.getpid(), **about()}

    def code(self, preload: str, blob: bytes) -> bool:
        """Unpack what trainers import, and have it imported already where torch is; whether it is."""
        folder = self.work / "code"
        with zipfile.ZipFile(io.BytesIO(blob)) as archive:
            archive.extractall(folder)
        package: Any = sys.modules["proving_ground"]
        package.__path__.append(str(folder / "proving_ground"))  # the archive has but the agent of it
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        warm = bool(preload) and importlib.util.find_spec("torch") is not None
        if warm:
            later = time.time() + IMPORT_S  # until it is done nobody is heard, and `clean` is to let this node be
            os.utime(self.work / "heard", (later, later))
            try:
                importlib.import_module(preload)
            finally:
                (self.work / "heard").touch()
            gc.collect()
            gc.freeze()  # so that no child copies pages only to look for garbage
        return warm

    def put(self, name: str, blob: bytes = b"", there: bool = True) -> str:  # noqa: FBT001, FBT002 - a frame's field
        """Have an input of this name; its path."""
        return str(put(self.work / "in", name, blob if there else None))

    def begin(self, slot: int, argv: list[str], env: dict[str, str], log: str, outputs: dict[str, str]) -> int:
        """Start a process; `log` and the values of `outputs` are names of files that it writes. Its pid."""
        if self.leaving:
            raise OSError("the node is being taken away")
        variables = {name: self._here(value) for name, value in env.items()}
        variables |= {name: str(self.outputs.path(file)) for name, file in outputs.items()}
        words = tuple(self._here(it) for it in argv)
        return self.start(Order(slot, words, variables, str(self.outputs.path(log)) if log else None))

    def _here(self, word: str) -> str:
        """What an input is called on this node: `{in}` stands for their folder."""
        return word.replace("{in}", str(self.work / "in"))

    def sample(self) -> dict[str, Any]:
        """The machine's counters, and of how many cores they are."""
        return {**machine.counters(), "cores": os.cpu_count() or 1}

    def processes(self) -> list[dict[str, Any]]:
        """All that run on the node."""
        return [dataclasses.asdict(it) for it in processes(os.getpid(), isolated=False)]

    def signal_pid(self, process: dict[str, Any], number: int) -> None:
        """Signal exactly this process."""
        send(NodeProcess(**process), number)

    def volume(self, what: str, folder: str, **about: Any) -> Any:  # noqa: ANN401 - JSON
        """Do something to a folder of the shared volume, or look at it."""
        if self.node.volume is None:
            raise OSError("the run has no volume")
        return volume.DEEDS[what](inside(Path(self.node.volume), folder), **about)

    def end(self) -> None:
        """End everything."""
        self.over = True

    def notice(self, *_: object) -> None:
        """SIGTERM: the engine takes the node away soon. A second one: at once."""
        self.over, self.noticed = self.over or self.noticed, True

    def _leave(self) -> None:
        """Pass the notice on, once, to all processes and the harness; end with the last of them."""
        if not self.leaving:
            self.leaving = True
            self.signal_all(signal.SIGTERM)
            if self.greeted:
                self._unsent += packed({"notice": time.monotonic()})
        self.over = self.over or not self.running


def is_full(folder: Path) -> bool:
    """Whether next to nothing can be written there: not even what a process would say of it."""
    with contextlib.suppress(OSError):
        disk = os.statvfs(folder)
        return disk.f_bavail * disk.f_frsize < FULL_BYTES
    return False


def crash() -> None:
    """End at once. In a container this is the first process, and the kernel ends all others there with it."""
    os._exit(128 + signal.SIGKILL)


def timed(deed: Callable[..., Any]) -> Callable[..., dict[str, Any]]:
    """The same, with when it was begun: an order has been on its way until then."""

    def do(**arguments: Any) -> dict[str, Any]:  # noqa: ANN401 - JSON
        t = time.monotonic()
        return {"t": t, "did": deed(**arguments)}

    return do


def clock() -> dict[str, float]:
    """The node's two clocks, read together."""
    return {"t": time.monotonic(), "wall_s": time.time()}


def about() -> dict[str, Any]:
    """What there is to know of this machine."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return {
        "host": socket.gethostname(), "python": platform.python_version(),
        "cores": machine.cores(), "gpus": machine.gpus(),
        "torch": importlib.util.find_spec("torch") is not None,
        "boot_id": boot.read_text().strip() if boot.exists() else "",
    }  # fmt: skip


def unresolved(names: list[str]) -> list[str]:
    """Those of the names that have no address here yet."""
    return [it for it in names if not _resolves(it)]


def _resolves(name: str) -> bool:
    try:
        return bool(socket.getaddrinfo(name, None, socket.AF_INET))
    except OSError:
        return False


def interface_of(address: str) -> str:
    """The network interface with an IPv4 address; empty where no interface has it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                asked = struct.pack("256s", name.encode()[:15])
                if socket.inet_ntoa(fcntl.ioctl(probe.fileno(), 0x8915, asked)[20:24]) == address:  # SIOCGIFADDR
                    return name
    return ""


def main() -> None:
    """Be the agent of the node that the argument describes."""
    told = json.loads(sys.argv[1])
    work = Path(told["work"])
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    end_marked(told["run"], told["node"])  # what an agent of this node left that was killed
    disk, temporary = work / "disk", work / "tmp"
    for folder in (disk, temporary, work / "in", work / "out"):
        shutil.rmtree(folder, ignore_errors=True)  # of an agent that was killed: nobody will ask for it
        folder.mkdir(parents=True)
    os.environ["TMPDIR"] = str(temporary)  # what libraries leave there goes with the rest
    if told["volume"]:
        Path(told["volume"]).mkdir(parents=True, exist_ok=True)
    setup = NodeSetup(
        told["node"], str(disk), volume=told["volume"] or None, interface=interface_of(told["address"]) or None
    )
    try:
        agent = ServingAgent(setup, work, float(told["lease_s"]), float(told["first_s"]))
        signal.signal(signal.SIGTERM, agent.notice)
        agent.serve()
    except BaseException:  # noqa: BLE001 - whatever it is, it is told in the agent's log
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(ENDED_BY_TERM if agent.leaving else 0)  # a Job of Kubernetes replaces what did not end well
