"""Imports torch once and is then forked into every node's agent; a process of its own.

Started by `local.cluster`, in a session of its own so that Ctrl-C reaches the harness alone. Ends when the
harness' end of its pipe closes; the kernel ends the agents with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import importlib.util
import os
import socket
import sys
import traceback
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NoReturn

from proving_ground.bench.agent import kernel
from proving_ground.bench.agent.node import SHARED_MEMORY
from proving_ground.bench.agent.orders import Mount, NodeSetup
from proving_ground.bench.clusters.local import skew
from proving_ground.bench.clusters.local.agent import PipeAgent


def main() -> None:
    """Import, fork the agents as told, wait for the end."""
    control = Connection(int(sys.argv[1]))
    nodes: list[tuple[NodeSetup, int]]
    volume: Mount | None
    nodes, volume = control.recv()
    if volume:
        kernel.unshare(kernel.NEWNS)
        kernel.make_mounts_private()
        kernel.mount(volume.source, volume.target, volume.kind, kernel.MS_NOSUID | kernel.MS_NODEV, volume.options)
    preload(sys.argv[2])
    importlib.import_module("proving_ground.training")
    sys.path.insert(0, str(Path.cwd()))  # a user's own modules come first now, and none is taken for ours
    descriptors = [fd for node, pipe in nodes for fd in (pipe, node.network) if fd is not None]
    server = os.getpid()
    for node, pipe in nodes:
        if os.fork() == 0:
            kernel.die_with_parent(server)
            be_agent(node, pipe, {control.fileno(), *descriptors} - {pipe, node.network})
    for descriptor in descriptors:
        os.close(descriptor)
    with contextlib.suppress(EOFError, ConnectionError):
        control.recv()
    with contextlib.suppress(ChildProcessError):
        while True:  # their pipes have closed as well
            os.wait()


def preload(module: str) -> None:
    """Make the imports of `module` ready to be inherited; where torch is missing processes do their own imports."""
    if module and importlib.util.find_spec("torch"):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # so that no child copies pages only to look for garbage


def enter(node: NodeSetup) -> None:
    """Turn this process into the node: network, mounts, host name.

    Raises:
        OSError: the kernel refuses; names what.
    """
    if node.network is not None:
        kernel.setns(node.network, kernel.NEWNET)
        os.close(node.network)
    if node.clock:
        skew.use(os.environ[skew.PRELOAD_VARIABLE].split(os.pathsep)[0], node.clock)
    if node.isolated:
        kernel.unshare(kernel.NEWNS | kernel.NEWUTS | kernel.NEWIPC)
        kernel.make_mounts_private()
        socket.sethostname(node.name)
        kernel.mount("tmpfs", str(SHARED_MEMORY), "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV)
        for source, target in ((node.hosts, "/etc/hosts"), (node.empty, "/etc/resolv.conf")):
            if source and Path(target).exists():
                kernel.mount(source, target, flags=kernel.MS_BIND)
    if node.disk_mb is not None:
        kernel.mount("tmpfs", node.disk, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, f"size={node.disk_mb}m")


def be_agent(node: NodeSetup, pipe: int, others: Iterable[int]) -> NoReturn:
    """The forked child's life."""
    try:
        for descriptor in others:
            os.close(descriptor)
        harness = Connection(pipe)
        try:
            enter(node)
            agent = PipeAgent(node, harness)
        except OSError as error:
            harness.send(("error", str(error)))
            os._exit(1)
        harness.send(("ok", os.getpid()))
        agent.serve()
    except BaseException:  # noqa: BLE001 - the harness sees the pipe close; this says why
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
