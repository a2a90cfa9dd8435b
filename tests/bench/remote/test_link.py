"""An agent at the end of a pipe on this machine: the same program, archive and frames as over ssh."""

from __future__ import annotations

import errno
import gc
import importlib.util
import json
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from proving_ground.bench.agent import boot, serve
from proving_ground.bench.clusters.remote import carried
from proving_ground.bench.clusters.remote.cluster import AgentCluster
from proving_ground.bench.clusters.remote.link import Link
from proving_ground.bench.clusters.remote.node import Waiting
from proving_ground.bench.clusters.remote.pool import BOOT, LEASE_S, Member
from proving_ground.bench.protocols import Ability, ClusterError, ClusterRequest, ProcessSpec
from proving_ground.bench.spec import Trial

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="agents adopt orphans: Linux")


RUN = f"r{os.getpid()}"
"""An agent that starts ends what is left of its run on the machine, where these tests may run twice."""


class Pipes:
    """A pool of this machine: each node is an agent of its own."""

    name = "pipes"
    capacity: int | None = 9
    lease_s, wait_s = LEASE_S, 1800.0

    def __init__(self, work: Path, volume: str = "", python: str = sys.executable) -> None:
        self.work, self.volume, self.python = work, volume, python

    def abilities(self) -> Sequence[Ability]:
        return []

    def imitated(self) -> Sequence[str]:
        return ["nodes: all on this machine"]

    def plan(self, processes: Sequence[ProcessSpec], trial: Trial) -> str:
        return f"{len(processes)} of {trial.id}"

    def allocate(self, request: ClusterRequest, _ask: object, tell: Callable[[str], None]) -> Sequence[Member]:
        tell("two jobs are before it")
        argv = (self.python, "-c", BOOT)
        names = [f"n{number}" for number in range(1, request.nodes + 1)]
        return [Member(it, "here", "127.0.0.1", argv, str(self.work / request.run_id / it)) for it in names]

    def mistaken(self, why: str) -> bool:
        return "forbidden" in why

    def closed(self, why: str) -> bool:
        return "gate" in why

    def events(self) -> Sequence[dict[str, Any]]:
        return [{"about": "Pod/one", "reason": "Started", "at_t": 1.0}]

    def release(self) -> None:
        pass

    def clean(self, *, dry_run: bool) -> Sequence[str]:
        return [f"left: nothing {dry_run}"]


class Bed:
    """A cluster that is up, with what it emitted."""

    def __init__(self, tmp_path: Path, nodes: int = 1, python: str = sys.executable, run: str = "run") -> None:
        self.run = tmp_path / run
        self.events: list[dict[str, Any]] = []
        for name in ("events", "logs", "scratch"):
            (self.run / name).mkdir(parents=True)
        folder = Path("/tmp") / f"pg-test-{os.getpid()}-{tmp_path.name[-8:]}"  # a socket's path is short
        self.work = folder / RUN / "n1"
        self.cluster = AgentCluster(Pipes(folder, str(tmp_path / "volume"), python))
        request = ClusterRequest(RUN, nodes, 1, self.run / "scratch", volume_mb=1)
        try:
            self.cluster.setup(request, lambda event, **about: self.events.append({"event": event, **about}))
        except ClusterError:
            self.cluster.teardown()
            raise

    def spec(self, *argv: str, slot: int = 0, **env: str) -> ProcessSpec:
        files = (self.run / "events" / f"t1.n1.{slot}.jsonl", self.run / "logs" / f"t1.n1.{slot}.log")
        return ProcessSpec("n1", slot, argv, env, *files)

    def until_exit(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        for _ in range(3000):
            found += [(it.slot, it.code) for it in self.cluster.exits()]
            if found:
                return found
            self.cluster.sleep(0.01)
        raise AssertionError("nothing ended")

    def told(self, event: str) -> list[dict[str, Any]]:
        return [it for it in self.events if it["event"] == event]

    def break_connection(self) -> None:
        node = self.cluster._nodes["n1"]
        assert node.link._program
        os.kill(node.link._program.pid, signal.SIGKILL)


@pytest.fixture
def bed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Bed]:
    monkeypatch.setattr("proving_ground.bench.clusters.remote.carried.PRELOAD", "")  # torch is not what is tested
    if hasattr(request, "param"):
        monkeypatch.setattr(Pipes, "lease_s", request.param)
    it = Bed(tmp_path)
    yield it
    it.cluster.teardown()
    assert not it.work.exists(), "the agent leaves its folder behind"


def runs(pid: int) -> bool:
    """Whether a process is there and no mere entry that waits to be read."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def python(words: str) -> tuple[str, ...]:
    return ("python", "-c", words)


SAY = "import os,sys,time;f=open(os.environ['PROVING_GROUND_EVENTS'],'a',1)\n"


def test_a_run_that_waits_says_for_what_and_how_long_at_most(bed: Bed) -> None:
    assert bed.told("queued") == [{"event": "queued", "why": "two jobs are before it", "wait_s": 1800.0}]


class Queue(Pipes):
    """A pool whose engine has a queue, and whose site counts."""

    queued_s: float | None = 41.23456

    def accounts(self) -> dict[str, Any]:
        queued_s, self.queued_s = self.queued_s, None
        return {"begins": [], "why": "it is off"} if queued_s else {}


def test_how_long_it_waited_and_what_was_counted_is_told_where_an_engine_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proving_ground.bench.clusters.remote.carried.PRELOAD", "")
    monkeypatch.setattr("tests.bench.remote.test_link.Pipes", Queue)
    bed = Bed(tmp_path)
    for _ in range(2):
        bed.cluster.teardown()
    assert [it["queued_s"] for it in bed.told("cluster_up")] == [41.235]
    assert bed.told("accounting") == [{"event": "accounting", "engine": "pipes", "begins": [], "why": "it is off"}]


def test_events_logs_and_exit_come_home_in_this_order(bed: Bed) -> None:
    words = SAY + "print(json.dumps({'t':time.monotonic(),'event':'end','step':7}),file=f);print('bye');sys.exit(5)"
    bed.cluster.start(bed.spec(*python("import json\n" + words)))
    assert bed.until_exit() == [(0, 5)]
    (record,) = map(json.loads, (bed.run / "events/t1.n1.0.jsonl").read_text().splitlines())
    assert record["step"] == 7
    assert record["node_t"] == pytest.approx(record["t"], abs=0.5)  # one machine, one clock
    assert (bed.run / "logs/t1.n1.0.log").read_text() == "bye\n"


def test_inputs_of_the_run_are_carried_there_and_outputs_home(bed: Bed) -> None:
    config = bed.run / "scratch" / "t1.toml"
    config.write_text("steps = 3\n")
    other = bed.run / "events" / "t1.n1.launch.jsonl"
    words = "import sys,os;print(open(sys.argv[1]).read(), sys.argv[1]);open(os.environ['OTHER'],'w').write('{}\\n')"
    bed.cluster.start(bed.spec(*python(words), str(config), OTHER=str(other)))
    bed.until_exit()
    said = (bed.run / "logs/t1.n1.0.log").read_text()
    assert "steps = 3" in said
    assert str(bed.run) not in said
    assert other.read_text() == "{}\n"


def test_each_run_has_a_folder_of_its_own_on_the_volume(bed: Bed, tmp_path: Path) -> None:
    """Else a trainer goes on from the checkpoints that an earlier run left there."""
    bed.cluster.start(bed.spec(*python("import os; print(os.environ['PROVING_GROUND_VOLUME'])")))
    assert bed.until_exit() == [(0, 0)]
    assert (bed.run / "logs/t1.n1.0.log").read_text() == f"{tmp_path}/volume/{RUN}\n"


def test_a_resumed_run_does_not_find_what_its_failed_attempt_left_on_the_volume(tmp_path: Path) -> None:
    """Its trials have the same names: a trainer would take that attempt's checkpoints for its own."""
    pool = Pipes(tmp_path, "/shared")
    first, again = (
        AgentCluster(pool)._volume(ClusterRequest(RUN, 1, 1, tmp_path, volume_mb=1, sitting=sitting))
        for sitting in (1, 2)
    )
    assert (first, again) == (f"/shared/{RUN}", f"/shared/{RUN}.2")


def test_a_file_that_is_published_is_seen_and_seen_to_go(bed: Bed) -> None:
    control = bed.run / "scratch" / "control"
    control.mkdir()
    words = "import os,time,pathlib;p=pathlib.Path(os.environ['C'])/'hold.json'\nwhile not p.exists():time.sleep(.01)\n"
    words += "print(p.read_text(),flush=True)\nwhile p.exists():time.sleep(.01)"
    bed.cluster.start(bed.spec(*python(words), C=str(control)))
    (control / "hold.json").write_text("{1}")
    bed.cluster.publish(control / "hold.json")
    while not (bed.run / "logs/t1.n1.0.log").exists():
        bed.cluster.sleep(0.01)
    (control / "hold.json").unlink()
    bed.cluster.publish(control / "hold.json")
    assert bed.until_exit() == [(0, 0)]


def test_children_of_children_are_seen_signalled_and_end_with_the_node(bed: Bed) -> None:
    words = (
        "import subprocess,sys,time;subprocess.Popen([sys.executable,'-c','import time;time.sleep(99)']);time.sleep(99)"
    )
    pid = bed.cluster.start(bed.spec(*python(words)))
    while len(found := bed.cluster.processes("n1")) < 2:
        bed.cluster.sleep(0.01)
    child = next(it for it in found if it.pid != pid)
    bed.cluster.signal("n1", child.pid, signal.SIGSTOP)
    while next(it for it in bed.cluster.processes("n1") if it.pid == child.pid).state != "T":
        bed.cluster.sleep(0.01)
    assert bed.cluster.kill("n1", None, signal.SIGKILL) == [pid]
    assert bed.cluster.processes("n1") == []
    assert bed.until_exit() == [(0, -9)]


def test_a_signal_is_dated_by_the_node_however_long_the_order_takes(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.cluster.start(bed.spec("sleep", "60"))
    call = bed.cluster._call

    def late(*about: Any, **more: Any) -> Any:
        time.sleep(0.3)
        return call(*about, **more)

    monkeypatch.setattr(bed.cluster, "_call", late)
    before = bed.cluster.now()
    bed.cluster.kill("n1", 0, signal.SIGKILL)
    while not (ended := bed.cluster.exits()):
        bed.cluster.sleep(0.01)
    error_s = bed.cluster._nodes["n1"].clock.error_s
    assert before + 0.3 <= bed.cluster.struck_t("n1") + error_s
    assert bed.cluster.struck_t("n1") <= (ended[0].t or 0.0)


def test_a_lost_connection_loses_nothing(bed: Bed) -> None:
    """What was said while nobody listened comes later, every line once, and the process never noticed."""
    words = "import time\nfor n in range(600):print(n,flush=True);time.sleep(.005)"
    bed.cluster.start(bed.spec(*python(words)))
    for _ in range(3):
        bed.cluster.sleep(0.1)
        bed.break_connection()
        while bed.cluster._nodes["n1"].link.state == "up":
            bed.cluster.sleep(0.01)
        while bed.cluster.away:
            bed.cluster.sleep(0.01)
    assert bed.until_exit() == [(0, 0)]
    assert (bed.run / "logs/t1.n1.0.log").read_text().split() == [str(n) for n in range(600)]
    assert len(bed.told("agent_lost")) == 3
    assert [it["same"] for it in bed.told("agent_back")] == [True] * 3
    assert bed.told("gap") == []


def test_nothing_is_sent_to_whom_has_not_said_how_much_has_arrived(bed: Bed) -> None:
    """Else what is sent before the answer is a gap: the one who asks would never get it."""
    bed.cluster.start(bed.spec(*python("import time\nfor n in range(200):print(n,flush=True);time.sleep(.01)")))
    bed.cluster.sleep(0.1)
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.connect(str(bed.work / "socket"))
        stranger.settimeout(0.5)
        with pytest.raises(TimeoutError):
            stranger.recv(1)
    assert bed.until_exit() == [(0, 0)]
    assert (bed.run / "logs/t1.n1.0.log").read_text().split() == [str(n) for n in range(200)]
    assert bed.told("gap") == []


def test_an_agent_that_ended_takes_its_processes_along_and_another_comes(bed: Bed) -> None:
    bed.cluster.start(bed.spec(*python("import time;time.sleep(99)")))
    before = bed.cluster._nodes["n1"].about["pid"]
    os.kill(before, signal.SIGKILL)
    assert bed.until_exit() == [(0, -9)]
    while bed.cluster.away:
        bed.cluster.sleep(0.01)
    assert bed.cluster._nodes["n1"].about["pid"] != before
    assert [it["same"] for it in bed.told("agent_back")] == [False]
    assert bed.told("node_lost")
    log = bed.run / "logs/t1.n1.0.log"
    before = log.read_text() if log.exists() else ""
    bed.cluster.start(bed.spec(*python("print('and on')")))
    assert bed.until_exit() == [(0, 0)]
    assert log.read_text() == before + "and on\n"  # nothing of the former one's comes a second time


def test_a_notice_reaches_the_processes_and_their_last_words_arrive(bed: Bed) -> None:
    words = (
        "import signal\ndef leave(*_):\n print('last words', flush=True); sys.exit(75)\n"
        "signal.signal(signal.SIGTERM, leave); print('ready', flush=True); time.sleep(60)"
    )
    bed.cluster.start(bed.spec(*python(SAY + words)))
    log = bed.run / "logs/t1.n1.0.log"
    while not (log.exists() and "ready" in log.read_text()):
        bed.cluster.sleep(0.02)
    before = bed.cluster._nodes["n1"].incarnation
    os.kill(int((bed.work / "pid").read_text()), signal.SIGTERM)
    assert bed.until_exit() == [(0, 75)]
    assert log.read_text() == "ready\nlast words\n"
    assert [it["node"] for it in bed.told("node_notice")] == ["n1"]
    assert bed.cluster.away == {"n1"}  # nothing is started there meanwhile
    while bed.cluster.away:
        bed.cluster.sleep(0.02)
    assert bed.cluster._nodes["n1"].incarnation != before
    assert bed.told("gap") == []  # it had said that it was all


def test_a_second_notice_waits_for_nobody(bed: Bed) -> None:
    words = "import signal,time;signal.signal(signal.SIGTERM, signal.SIG_IGN);print('ready',flush=True);time.sleep(99)"
    bed.cluster.start(bed.spec(*python(words)))
    log = bed.run / "logs/t1.n1.0.log"
    while not (log.exists() and "ready" in log.read_text()):
        bed.cluster.sleep(0.02)
    agent = int((bed.work / "pid").read_text())
    os.kill(agent, signal.SIGTERM)
    while not bed.told("node_notice"):
        bed.cluster.sleep(0.02)
    assert runs(agent)  # it waits for a process that does not care
    os.kill(agent, signal.SIGTERM)
    assert bed.until_exit() == [(0, -signal.SIGKILL)]


def test_what_is_forked_from_an_agent_hears_sigterm(bed: Bed) -> None:
    bed.cluster.start(bed.spec("sleep", "60"))
    bed.cluster.kill("n1", 0, signal.SIGTERM)
    assert bed.until_exit() == [(0, -signal.SIGTERM)]


def test_a_process_that_outlived_its_agent_is_ended_by_the_next(bed: Bed) -> None:
    """The kernel ends the children of an agent that is killed, and not theirs."""
    words = "import subprocess,time;print(subprocess.Popen(['sleep','999']).pid,flush=True);time.sleep(999)"
    bed.cluster.start(bed.spec(*python(words)))
    log = bed.run / "logs/t1.n1.0.log"
    while not log.exists():
        bed.cluster.sleep(0.01)
    child = Path(f"/proc/{log.read_text().strip()}")
    os.kill(bed.cluster._nodes["n1"].about["pid"], signal.SIGKILL)
    bed.until_exit()
    while bed.cluster.away:
        bed.cluster.sleep(0.01)
    while child.exists() and b"sleep" in child.joinpath("cmdline").read_bytes():
        time.sleep(0.01)


def test_a_request_that_comes_again_by_a_new_connection_is_done_once(bed: Bed) -> None:
    node = bed.cluster._nodes["n1"]
    about: dict[str, Any] = {"slot": 0, "argv": ["sleep", "0.5"], "env": {}, "log": "logs/t1.n1.0.log", "outputs": {}}
    number = node.ask("start", **about)
    asked = node._waiting[number]
    while number not in node.answers:
        bed.cluster.sleep(0.01)
    first = node.answers.pop(number)
    node._waiting[number] = asked  # as if the answer had been lost with the connection
    bed.break_connection()
    while number not in node.answers:
        bed.cluster.sleep(0.01)
    assert node.answers.pop(number) == first
    assert bed.until_exit() == [(0, 0)]
    bed.cluster.sleep(0.3)
    assert bed.cluster.exits() == []


def test_a_program_that_cannot_be_started_says_so_in_its_log(bed: Bed) -> None:
    bed.cluster.start(bed.spec("no-such-program"))
    assert bed.until_exit() == [(0, 127)]
    assert "cannot start no-such-program" in (bed.run / "logs/t1.n1.0.log").read_text()


@pytest.mark.parametrize("old", ["", "0123456789ab"])
def test_an_agent_that_a_killed_harness_left_gives_way_to_the_resumed_run_s(bed: Bed, tmp_path: Path, old: str) -> None:
    """It would answer the first questions of another harness with what it has told before."""
    left = bed.cluster.start(bed.spec(*python("import time;time.sleep(999)")))
    before = bed.cluster._nodes.pop("n1")
    before.link.end()
    os.utime(bed.work / "heard", (0, 0))
    if old:  # it was upgraded meanwhile
        (bed.work / "harness").write_text(json.dumps({"harness": "before", "version": old}))
    resumed = Bed(tmp_path, run="resumed")
    try:
        assert resumed.cluster._nodes["n1"].incarnation != before.incarnation
        assert not runs(left)
        (told,) = resumed.told("warning")
        which = f"of version {old}, ours is {carried.version()}" if old else "of this version"
        assert told["message"].startswith(
            f"n1: an agent {which} was there, left by a harness that is gone: it was ended"
        )
        resumed.cluster.start(resumed.spec(*python("print('here')")))
        assert resumed.until_exit() == [(0, 0)]
        assert (resumed.run / "logs/t1.n1.0.log").read_text() == "here\n"
        resumed.break_connection()
        resumed.cluster.start(resumed.spec("true"))
        assert resumed.until_exit() == [(0, 0)]
        assert len(resumed.told("warning")) == 1, "our own agent stays when we connect again"
    finally:
        resumed.cluster.teardown()


def test_an_agent_that_imports_says_beforehand_that_it_will_hear_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`clean`, of another run on that host, takes an agent that has heard of nobody for a while for left behind."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: True)
    (tmp_path / "heard").touch()
    code = f"import os\nheard_t = os.stat({str(tmp_path / 'heard')!r}).st_mtime\n"
    packed = carried._zipped([], {"proving_ground/preloaded.py": code.encode()})
    agent: Any = SimpleNamespace(work=tmp_path)
    try:
        assert serve.ServingAgent.code(agent, "proving_ground.preloaded", packed)
        during_t = sys.modules.pop("proving_ground.preloaded").heard_t
    finally:
        gc.unfreeze()
    assert during_t > time.time() + serve.IMPORT_S / 2
    assert (tmp_path / "heard").stat().st_mtime <= time.time() + 1


def test_a_full_disk_is_one_line_and_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(full))
    work = tmp_path / "root" / "run" / "n1"
    with pytest.raises(OSError, match="No space") as why:
        boot.settle({"work": str(work)}, b"")
    assert isinstance(why.value, OSError)
    says = f"{work}: No space left on device: free some there, or name another folder with work="
    assert boot.in_words(why.value, str(work)) == says
    assert not (tmp_path / "root").exists()


def test_an_agent_that_another_harness_uses_or_an_engine_keeps_is_let_be_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(boot, "IN_USE_S", 0.1)
    monkeypatch.setattr(boot, "UP_S", 0.1)
    for name in ("socket", "heard"):
        (tmp_path / name).touch()
    (tmp_path / "harness").write_text('{"harness": "theirs", "version": "v1"}')
    later = time.time() + 999
    os.utime(tmp_path / "heard", (later, later))
    told = {"work": str(tmp_path), "harness": "ours", "version": "v2"}
    with pytest.raises(OSError, match="another harness is using the agent of this run here"):
        boot.reach({**told, "start": "here"}, b"")
    with pytest.raises(OSError, match=r"agent of another harness is there \(version v1, ours is v2\): end its job"):
        boot.reach({**told, "start": "not"}, b"")
    (tmp_path / "harness").unlink()
    assert boot.of_another(told) == "unknown"
    (tmp_path / "socket").unlink()
    assert boot.of_another(told) == ""


@pytest.mark.parametrize("bed", [1.0], indirect=True)
def test_an_agent_whose_harness_is_gone_ends_with_all_it_started(bed: Bed) -> None:
    """Nobody connects again, and the lease runs out."""
    pid = bed.cluster.start(bed.spec(*python("import time;time.sleep(999)")))
    bed.break_connection()
    while Path(f"/proc/{pid}").exists():  # the test's own limit ends this
        time.sleep(0.1)
    while Path(f"/proc/{bed.cluster._nodes['n1'].about['pid']}").exists():
        time.sleep(0.1)


def test_what_is_to_be_stopped_while_the_connection_is_down_is_stopped(bed: Bed) -> None:
    """Else a process of the trial before goes on beside those of the next."""
    words = "import time\nfor n in range(9999):print(n,flush=True);time.sleep(.01)"
    pid = bed.cluster.start(bed.spec(*python(words)))
    bed.cluster.sleep(0.2)
    bed.break_connection()
    bed.cluster.stop(0.1)
    assert bed.until_exit() == [(0, -signal.SIGTERM)]
    assert not Path(f"/proc/{pid}").exists()
    said = (bed.run / "logs/t1.n1.0.log").read_text().split()
    assert said == [str(n) for n in range(len(said))]
    assert not bed.told("gap")


def test_what_a_node_runs_that_was_given_up_ends_when_it_is_back(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proving_ground.bench.clusters.remote.node.LOST_S", 0.2)
    monkeypatch.setattr("proving_ground.bench.clusters.remote.node.AGAIN_S", 1.0)
    pid = bed.cluster.start(bed.spec(*python("import time\nprint('here',flush=True)\ntime.sleep(999)")))
    log = bed.run / "logs/t1.n1.0.log"
    while not log.exists() or not log.read_text():
        bed.cluster.sleep(0.01)
    node = bed.cluster._nodes["n1"]
    node._tried_t = time.monotonic() + 1.0  # it is tried again a while after it is given up
    bed.break_connection()
    assert bed.until_exit() == [(0, -signal.SIGKILL)]
    assert Path(f"/proc/{pid}").exists()
    while bed.cluster.away or runs(pid):  # it is told to stop as soon as it is back
        bed.cluster.sleep(0.01)
    assert bed.cluster.exits() == []  # its end was told already
    assert (bed.run / "logs/t1.n1.0.log").read_text() == "here\n"
    bed.cluster.start(bed.spec(*python("print('and on')")))
    assert bed.until_exit() == [(0, 0)]
    assert (bed.run / "logs/t1.n1.0.log").read_text() == "here\nand on\n"


@pytest.mark.parametrize(("says", "lost"), [("the gate is shut", False), ("no such machine", True)])
def test_a_node_is_not_lost_while_all_ways_are_closed(
    bed: Bed,
    monkeypatch: pytest.MonkeyPatch,
    says: str,
    lost: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    monkeypatch.setattr("proving_ground.bench.clusters.remote.node.LOST_S", 2.0)
    monkeypatch.setattr("proving_ground.bench.clusters.remote.node.AGAIN_S", 0.1)
    bed.cluster.start(bed.spec(*python("import time;time.sleep(6)")))
    node = bed.cluster._nodes["n1"]
    way, node.link._argv = node.link._argv, ["sh", "-c", f"echo {says} >&2; exit 1"]
    bed.break_connection()
    bed.cluster.sleep(4.0)
    monkeypatch.setattr(
        "proving_ground.bench.clusters.remote.node.LOST_S", 60.0
    )  # the way is open again: a boot takes its time
    node.link._argv = way
    assert bed.until_exit() == [(0, -signal.SIGKILL if lost else 0)]
    assert bool(bed.told("node_lost")) is lost
    while bed.cluster.away:
        bed.cluster.sleep(0.01)


def test_what_a_lost_node_took_along_is_told_once(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many trials end after that: a second word of it would be one of another loss."""
    monkeypatch.setattr("proving_ground.bench.clusters.remote.node.LOST_S", 0.5)
    monkeypatch.setattr("proving_ground.bench.clusters.remote.node.AGAIN_S", 0.1)
    bed.cluster.start(bed.spec(*python("import time\nprint('here',flush=True)\ntime.sleep(999)")))
    while not (bed.run / "logs/t1.n1.0.log").exists():
        bed.cluster.sleep(0.01)
    link = bed.cluster._nodes["n1"].link
    way, link._argv = link._argv, ["sh", "-c", "exit 1"]
    bed.break_connection()
    assert bed.until_exit() == [(0, -signal.SIGKILL)]
    for _ in range(2):
        bed.cluster.stop(0.1)
    assert len(bed.told("gap")) == 1
    link._argv = way
    while bed.cluster.away:
        bed.cluster.sleep(0.01)


def test_a_connection_that_brings_nothing_any_more_is_made_anew(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a power cut, of which no packet tells."""
    while bed.cluster.away:
        bed.cluster.sleep(0.01)
    monkeypatch.setattr("proving_ground.bench.clusters.remote.node.SILENT_S", 1.0)
    monkeypatch.setattr("proving_ground.bench.clusters.remote.node.ASK_CLOCK_S", 0.2)
    node = bed.cluster._nodes["n1"]
    os.kill(node.about["pid"], signal.SIGSTOP)
    while not bed.told("agent_lost"):
        bed.cluster.sleep(0.01)
    os.kill(node.about["pid"], signal.SIGCONT)
    assert bed.told("agent_lost")[0]["why"] == "no word for 1 s"
    while not bed.told("agent_back"):
        bed.cluster.sleep(0.01)
    assert {it["same"] for it in bed.told("agent_back")} == {True}


def test_what_the_engine_noted_is_told_at_the_end_of_a_trial(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    bed.cluster.stop(0.1)
    assert bed.told("engine_event") == [{"event": "engine_event", "about": "Pod/one", "reason": "Started", "at_t": 1.0}]

    def silent(_: Pipes) -> Sequence[dict[str, Any]]:
        raise ClusterError("no answer")

    monkeypatch.setattr(Pipes, "events", silent)
    bed.cluster.stop(0.1)
    assert bed.told("warning")[-1]["message"] == "the engine's own events are not to be had: no answer"


class Mute(Pipes):
    """A pool whose engine has time-outs, and does not say them."""

    def timeouts(self) -> dict[str, float]:
        raise ClusterError("no answer")


def test_a_run_that_is_up_goes_on_though_the_engine_does_not_say_its_time_outs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proving_ground.bench.clusters.remote.carried.PRELOAD", "")
    monkeypatch.setattr("tests.bench.remote.test_link.Pipes", Mute)
    found = Bed(tmp_path)
    try:
        assert found.told("warning")[-1]["message"] == "the engine's time-outs are not to be had: no answer"
        assert found.told("cluster_up")
    finally:
        found.cluster.teardown()


class Owing(Pipes):
    """A pool whose engine says what a node waits for."""

    wait_s = 3.0

    def waits(self) -> dict[str, str]:
        return {"n1": "no room", "n2": "it is there"}


@pytest.mark.parametrize("comes", [True, False])
def test_a_trial_waits_for_a_node_that_the_engine_owes_and_says_why_but_not_forever(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    comes: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    monkeypatch.setattr("proving_ground.bench.clusters.remote.carried.PRELOAD", "")
    monkeypatch.setattr("tests.bench.remote.test_link.Pipes", Owing)
    monkeypatch.setattr("proving_ground.bench.clusters.remote.absent.SOON_S", 60.0)  # a boot is no absence
    bed = Bed(tmp_path)
    monkeypatch.setattr("proving_ground.bench.clusters.remote.absent.SOON_S", 0.2)
    try:
        node = bed.cluster._nodes["n1"]
        way, node.link._argv = node.link._argv, ["sh", "-c", "echo no way >&2; exit 1"]
        bed.break_connection()
        capsys.readouterr()  # what the run itself had to wait for
        while not (waits := [it for it in bed.told("queued") if "node" in it]):
            bed.cluster.exits()
            bed.cluster.sleep(0.05)
        assert waits == [{"event": "queued", "node": "n1", "why": "no room"}]
        assert capsys.readouterr().err == "pipes: n1 waits: no room\n"
        if comes:
            node.link._argv = way
            bed.cluster.shape(None, None)
            assert not bed.cluster.away
            return
        with pytest.raises(ClusterError, match=r"pipes: n1 has not come back for 0\.05 min: no room; wait_min="):
            bed.cluster.shape(None, None)
        bed.cluster.exits()  # said once: what comes then is the end of the run
        node.link._argv = way
    finally:
        bed.cluster.teardown()


class Ending(Pipes):
    """A pool whose engine may end all nodes, put them into a queue, or keep them."""

    wait_s = 1800.0
    said, queue = "", ""
    given: frozenset[str] = frozenset()

    def waits(self) -> dict[str, str]:
        return {"n1": self.queue} if self.queue else {}

    def lost(self) -> frozenset[str]:
        return self.given

    def over(self) -> str:
        return self.said


@pytest.fixture
def ending(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Bed, Ending]]:
    monkeypatch.setattr("proving_ground.bench.clusters.remote.carried.PRELOAD", "")
    monkeypatch.setattr("tests.bench.remote.test_link.Pipes", Ending)
    it = Bed(tmp_path)
    assert isinstance(it.cluster.pool, Ending)
    yield it, it.cluster.pool
    it.cluster.teardown()


def end_agent(bed: Bed) -> None:
    """As an engine does: all is gone, and no way leads there any more."""
    bed.cluster._nodes["n1"].link._argv = ["sh", "-c", "echo no such job >&2; exit 1"]
    os.kill(int((bed.work / "pid").read_text()), signal.SIGTERM)


def test_a_job_that_has_ended_ends_the_run_at_once_with_all_that_was_said(
    ending: tuple[Bed, Ending], monkeypatch: pytest.MonkeyPatch
) -> None:
    bed, engine = ending
    bed.cluster.start(bed.spec(*python("import time\nprint('here',flush=True)\ntime.sleep(99)")))
    log = bed.run / "logs/t1.n1.0.log"
    while not log.exists():
        bed.cluster.sleep(0.01)
    end_agent(bed)
    time.sleep(1.0)  # nobody listens meanwhile
    engine.said = "job 7 was cancelled (CANCELLED by 0)"
    until, came = bed.cluster._until, list[bool]()

    def noted(done: Callable[[], bool], seconds: float) -> bool:
        came.append(until(done, seconds))
        return came[-1]

    monkeypatch.setattr(bed.cluster, "_until", noted)
    with pytest.raises(ClusterError, match=r"^pipes: job 7 was cancelled \(CANCELLED by 0\)$"):
        bed.cluster.exits()
    bed.cluster.exits()  # said once: what comes then is the end of the run
    bed.cluster.stop(5.0)
    bed.cluster.teardown()
    assert came
    assert all(came), "somebody was waited for who does not come any more"
    assert log.read_text() == "here\n"
    assert [it["why"] for it in bed.told("node_lost")] == [engine.said]
    assert bed.told("gap") == []  # all had been sent, and it was read


def test_what_is_asked_of_a_node_of_a_job_that_ends_is_answered_with_how(ending: tuple[Bed, Ending]) -> None:
    bed, engine = ending
    os.kill(int((bed.work / "pid").read_text()), signal.SIGSTOP)
    engine.said = "job 7 was cancelled"
    with pytest.raises(ClusterError, match="n1: the node was lost: job 7 was cancelled"):
        bed.cluster.processes("n1")
    os.kill(int((bed.work / "pid").read_text()), signal.SIGKILL)
    shutil.rmtree(bed.work)


def test_a_job_that_ends_with_the_run_s_own_agents_is_no_loss(ending: tuple[Bed, Ending]) -> None:
    bed, engine = ending
    engine.said = "job 7 is over (COMPLETED)"
    bed.cluster.teardown()
    assert not bed.told("node_lost")


def test_a_job_that_is_queued_again_is_waited_for_and_no_machine_that_it_has_lost(
    ending: tuple[Bed, Ending], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bed, engine = ending
    monkeypatch.setattr("proving_ground.bench.clusters.remote.absent.SOON_S", 0.2)
    end_agent(bed)
    while not bed.cluster.away:
        bed.cluster.sleep(0.01)
    engine.given = frozenset({"n1"})
    bed.cluster.shape(None, None)  # it is not given back: whatever is left goes on
    engine.given, engine.queue, engine.wait_s = frozenset(), "job 7 is pending: Priority", 3.0
    assert bed.cluster._absent
    bed.cluster._absent.wait_s = 3.0
    capsys.readouterr()
    with pytest.raises(ClusterError, match=r"n1 has not come back for 0\.05 min: job 7 is pending: Priority; wait"):
        bed.cluster.shape(None, None)
    assert capsys.readouterr().err == "pipes: n1 waits: job 7 is pending: Priority\n"


def test_a_node_that_nothing_is_waited_for_with_is_no_reason_to_give_up_those_that_train(
    ending: tuple[Bed, Ending],
) -> None:
    """Its agent has ended by itself, and the job goes on."""
    bed, _ = ending
    assert bed.cluster._absent
    bed.cluster._absent.wait_s = 0.1
    end_agent(bed)
    while not bed.cluster.away:
        bed.cluster.sleep(0.01)
    bed.cluster.sleep(0.5)
    bed.cluster.exits()


@pytest.mark.parametrize("queue", ["job 7 is pending: BeginTime", ""])
def test_what_becomes_of_a_node_that_leaves_is_told_as_soon_as_it_is_known(
    ending: tuple[Bed, Ending], monkeypatch: pytest.MonkeyPatch, queue: str
) -> None:
    bed, engine = ending
    monkeypatch.setattr("proving_ground.bench.clusters.remote.cluster.TAKEN_S", 0.5)
    assert bed.cluster.fate("n1") == "", "it is there"
    end_agent(bed)
    while not bed.cluster.away:
        bed.cluster.sleep(0.01)
    engine.queue = queue
    assert bed.cluster.fate("n1") == queue
    engine.said = "job 7 was cancelled"
    with pytest.raises(ClusterError, match="job 7 was cancelled"):
        bed.cluster.fate("n1")
    assert bed.cluster.fate("n1") == "", "said once"


SAYS_AND_ENDS = """
import json, sys
from proving_ground.bench.agent.wire import packed
sys.stdin.buffer.readline()
sys.stdout.buffer.write(json.dumps({"ok": 1}).encode() + b"\\n")
sys.stdout.buffer.flush()
sys.stdin.buffer.read(1)
sys.stdout.buffer.write(packed({"over": True}))
"""


def test_last_words_are_heard_though_something_was_to_be_said_to_whom_has_ended() -> None:
    """A question about the time is due every two seconds; the program may have ended just before."""
    link = Link([sys.executable, "-c", SAYS_AND_ENDS], lambda: b"greeting\n")
    link.open()
    link.flush()
    while link.state == "booting":
        assert list(link.received()) == []
    link.send({"a": 1})
    assert link._program
    link._program.wait()
    for _ in range(2):
        link.send({"verb": "clock"})
    assert list(link.received()) == [({"over": True}, b"")]
    assert list(link.received()) == []
    assert (link.state, link.why) == ("down", "the connection ended")
    link.end()


def test_who_was_not_listened_to_for_a_while_was_not_silent(bed: Bed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness may be busy with an engine's slow commands: what has come meanwhile is read first."""
    bed.cluster.start(bed.spec(*python("import time\nfor n in range(300):print(n,flush=True);time.sleep(.01)")))
    bed.cluster.sleep(0.2)
    monkeypatch.setattr("proving_ground.bench.clusters.remote.node.SILENT_S", 0.5)
    time.sleep(1.0)
    bed.cluster.pump(0.0)
    assert not bed.told("agent_lost")
    monkeypatch.undo()
    assert bed.until_exit() == [(0, 0)]


def test_an_agent_that_crashes_takes_its_node_along(bed: Bed) -> None:
    pid = bed.cluster.start(bed.spec(*python("import time\nprint('here',flush=True)\ntime.sleep(999)")))
    while not (bed.run / "logs/t1.n1.0.log").exists():
        bed.cluster.sleep(0.01)
    before = bed.cluster._nodes["n1"].incarnation
    bed.cluster.crash("n1")
    while bed.cluster._nodes["n1"].incarnation == before or bed.cluster.away:
        bed.cluster.sleep(0.01)
    assert not runs(pid)
    assert bed.until_exit() == [(0, -signal.SIGKILL)]
    assert len(bed.told("gap")) == len(bed.told("node_lost")) == 1


def test_a_request_that_is_long_past_costs_no_agent_its_life(bed: Bed) -> None:
    """Its answer is older than all that are remembered."""
    node = bed.cluster._nodes["n1"]
    numbers = [node.ask("clock") for _ in range(300)]
    while numbers[-1] in node._waiting:
        bed.cluster.sleep(0.01)
    node._waiting[3] = Waiting({"id": 3, "verb": "clock", "args": {}}, b"", (0.0, 0.0))
    before = node.incarnation
    bed.break_connection()
    while 3 in node._waiting:
        bed.cluster.sleep(0.01)
    assert node.incarnation == before


def test_what_a_verb_raises_is_told_and_the_agent_lives_on(bed: Bed) -> None:
    node = bed.cluster._nodes["n1"]
    with pytest.raises(ClusterError, match="n1: 'int' object has no attribute"):
        bed.cluster._call(node, "put", b"x", name=5)
    assert bed.cluster.processes("n1") == []


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="nothing is imported where there is no torch")
def test_a_trainer_that_cannot_be_imported_there_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proving_ground.bench.clusters.remote.carried.PRELOAD", "no_such_module")
    with pytest.raises(ClusterError, match="n1: No module named 'no_such_module'"):
        Bed(tmp_path)


def test_a_folder_that_others_can_enter_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "work" / "run").mkdir(parents=True, mode=0o755)
    told = {"work": str(tmp_path / "work" / "run" / "n1"), "run": "r", "node": "n1", "harness": "h", "version": "v"}
    with pytest.raises(OSError, match="work is not a folder of this user's alone: remove it"):
        boot.settle(told, b"")
    (tmp_path / "work").chmod(0o700)
    assert boot.settle(told, b"")[1].endswith("agent.pyz")


def test_a_connection_that_breaks_while_the_cluster_comes_up_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proving_ground.bench.clusters.remote.carried.PRELOAD", "")
    wrapper = tmp_path / "python"
    tried = f"if [ ! -e {tmp_path}/tried ]; then touch {tmp_path}/tried; echo broken pipe >&2; exit 255; fi"
    wrapper.write_text(f'#!/bin/sh\n{tried}\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    bed = Bed(tmp_path, python=str(wrapper))
    try:
        bed.cluster.start(bed.spec("true"))
        assert bed.until_exit() == [(0, 0)]
    finally:
        bed.cluster.teardown()


def other_python(version: str) -> str:
    """An interpreter of that version, where this machine has one."""
    known = [str(it) for it in Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    known += filter(None, [shutil.which(f"python{version}")])
    if not known:
        pytest.skip(f"there is no Python {version} on this machine")
    return known[0]


def test_the_agent_runs_on_python_3_9(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proving_ground.bench.clusters.remote.carried.PRELOAD", "")
    bed = Bed(tmp_path, python=other_python("3.9"))
    try:
        bed.cluster.start(bed.spec(*python("import sys;print(sys.version_info[:2])")))
        assert bed.until_exit() == [(0, 0)]
        assert (bed.run / "logs/t1.n1.0.log").read_text() == "(3, 9)\n"
        assert bed.cluster.processes("n1") == []
    finally:
        bed.cluster.teardown()


def test_a_python_that_is_too_old_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"n1: Python 3\.8: the agent needs 3\.9 or newer"):
        Bed(tmp_path, python=other_python("3.8"))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("sh", "-c", "echo no route to it >&2; exit 255"), "no route to it"),
        (("no-such-program",), "No such file or directory"),
        (("sh", "-c", "echo Last login: yesterday"), "the connection ended"),
    ],
)
def test_a_node_that_cannot_be_reached_is_one_line(tmp_path: Path, argv: tuple[str, ...], says: str) -> None:
    class Wrong(Pipes):
        def allocate(self, request: ClusterRequest, *_: object) -> Sequence[Member]:
            del request
            return [Member("n1", "there", "127.0.0.1", argv, str(tmp_path / "n1"))]

    cluster = AgentCluster(Wrong(tmp_path))
    with pytest.raises(ClusterError, match=f"n1: .*{says}") as why:
        cluster.setup(ClusterRequest(RUN, 1, 1, tmp_path / "scratch"), lambda *_, **__: None)
    assert "\n" not in str(why.value)
    cluster.teardown()


class Elsewhere(Pipes):
    """A pool that says where a node is that has come back; or nothing."""

    where: str | None = "127.0.0.2"
    asked = 0

    def member(self, name: str) -> Member | None:
        self.asked += 1
        if self.where is None:
            raise ClusterError("it does not say")
        return Member(name, "there", self.where, (), "", zone="z2")


def test_a_node_that_comes_back_elsewhere_has_another_address_and_is_away_until_it_is_known(
    bed: Bed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proving_ground.bench.clusters.remote.cluster.PLACE_S", 0.05)
    bed.cluster.pool = pool = Elsewhere(bed.cluster.pool.work)  # type: ignore[attr-defined]
    (before,) = bed.cluster.present()
    bed.cluster.sleep(0.2)
    assert not pool.asked, "nothing was lost"
    pool.where = None
    bed.cluster.crash("n1")
    while not pool.asked:
        bed.cluster.sleep(0.01)
    assert bed.cluster.away == {"n1"}
    assert bed.cluster.present() == [before]
    pool.where = "127.0.0.2"
    while bed.cluster.away:
        bed.cluster.sleep(0.01)
    (now,) = bed.cluster.present()
    assert (now.host, now.address, now.zone) == ("there", "127.0.0.2", "z2")
    assert [it["address"] for it in bed.told("node")] == ["127.0.0.1", "127.0.0.2"]
    asked = pool.asked
    bed.break_connection()
    while len(bed.told("agent_back")) < 2:
        bed.cluster.sleep(0.01)
    assert pool.asked == asked, "the same agent is at the same place"


def test_a_node_that_comes_back_to_the_same_place_keeps_its_port(bed: Bed) -> None:
    bed.cluster.pool = pool = Elsewhere(bed.cluster.pool.work)  # type: ignore[attr-defined]
    pool.where = "127.0.0.1"
    (before,) = bed.cluster.present()
    bed.cluster.crash("n1")
    while not bed.told("agent_back") or bed.cluster.away:
        bed.cluster.sleep(0.01)
    (now,) = bed.cluster.present()
    assert (now.address, now.port, now.host) == (before.address, before.port, "there")
