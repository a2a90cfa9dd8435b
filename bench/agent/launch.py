"""What a freshly forked child does to become a process of a node. Called by `bench.agent.node`, in the child.

`pg training …` runs right here, in a copy of a process that has torch imported already; everything else is
started the usual way.
"""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import NoReturn

from proving_ground.bench.agent import kernel
from proving_ground.bench.agent.orders import CLOCK_VARIABLE, DISK_VARIABLE, VOLUME_VARIABLE, NodeSetup, Order

WARM = "proving_ground.training"
"""The module whose imports are ready; `local.forkserver` makes them so."""

READ_AT_IMPORT = ("TORCH_", "PYTHON", "LD_", "KMP_", "MKL_")
"""Variables that a warm process has read already: an order that sets one gets a new interpreter instead."""


def environment(node: NodeSetup, order: Order) -> dict[str, str]:
    """What a process finds in its environment beside what the harness itself had."""
    own = {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", DISK_VARIABLE: node.disk}
    if node.volume:
        own[VOLUME_VARIABLE] = node.volume
    if node.clock:
        own[CLOCK_VARIABLE] = node.clock
    if node.interface:
        own["GLOO_SOCKET_IFNAME"] = node.interface
    return own | order.env


def become(node: NodeSetup, order: Order, agent: int, output: int, inherited: Sequence[int]) -> NoReturn:
    """Turn this child of the agent with the pid `agent` into the ordered process, writing to `output`."""
    code = 1
    try:
        _settle(node, agent, output, inherited)
        os.environ.update(environment(node, order))
        code = _run_warm(order) if is_warm(order) else _execute(order)
    except BaseException:  # noqa: BLE001 - whatever it is, it ends here and is told in the log
        traceback.print_exc()
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def is_warm(order: Order) -> bool:
    """Whether the order is for the module that is imported already, with nothing in its environment against that."""
    asked = tuple(order.argv[:3]) == ("python", "-m", WARM)
    return asked and sys.platform == "linux" and not any(name.startswith(READ_AT_IMPORT) for name in order.env)


def _settle(node: NodeSetup, agent: int, output: int, inherited: Sequence[int]) -> None:
    """Leave behind what belongs to the agent, and enter the node's control groups."""
    os.setpgid(0, 0)
    if not node.isolated:  # else the node's first process takes all others with it
        kernel.die_with_parent(agent)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    signal.signal(signal.SIGINT, signal.default_int_handler)
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(source, target)
    for descriptor in {null, output, *inherited} - {0, 1, 2}:
        os.close(descriptor)
    for name in node.groups:
        with open(name, "w") as members:  # noqa: PTH123 - no path arithmetic in a child
            members.write("0")
    if node.isolated:
        _see_own_processes()


def _see_own_processes() -> None:
    """Give /proc the node's process numbers, where the kernel lets us: libraries look themselves up there."""
    with suppress(OSError):
        kernel.unshare(kernel.NEWNS)
        kernel.mount("proc", "/proc", "proc", kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC)


def _execute(order: Order) -> int:
    program = sys.executable if order.argv[0] == "python" else order.argv[0]
    try:
        os.execvp(program, (program, *order.argv[1:]))  # noqa: S606 - no shell is what we want
    except OSError as error:
        print(f"cannot start {program}: {error.strerror}", file=sys.stderr)
        return 127  # as a shell says


def _run_warm(order: Order) -> int:
    sys.argv = [order.argv[2], *order.argv[3:]]
    if torch := sys.modules.get("torch"):  # it has read OMP_NUM_THREADS long ago
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    try:
        runpy.run_module(WARM, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        return _status(end.code)
    finally:
        atexit._run_exitfuncs()  # noqa: SLF001 - this process ends without the interpreter's own shutdown
    return 0


def _status(code: object) -> int:
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    print(code, file=sys.stderr)
    return 1
