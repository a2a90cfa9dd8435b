"""A stack that `pulumi up` made, as options of `--cluster kubernetes:stack=NAME`.

Called by `remote.kubernetes`, and by `loop.money` for the pool alone.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

from proving_ground.bench.spec import SpecError
from proving_ground.infra import outputs
from proving_ground.infra.outputs import PoolOutput, StackOutputs
from proving_ground.infra.reading import ConfigError
from proving_ground.training.typed import unknown


def stack(name: str) -> StackOutputs:
    """What a stack exports, asked of the Pulumi CLI.

    Raises:
        SpecError: there is no such stack, or it is not up.
    """
    try:
        return outputs.load(name)
    except ConfigError as error:
        raise SpecError(f"cluster kubernetes: {error}") from None


def pool_of(found: StackOutputs, name: str) -> PoolOutput:
    """The pool of that name; without one the first that has GPUs, else the first.

    Raises:
        SpecError: the stack has none of that name.
    """
    pools = {it.name: it for it in found.pools}
    if name and name not in pools:
        raise SpecError(f"cluster kubernetes: {unknown('pool', name, pools)}")
    return pools[name] if name else next((it for it in found.pools if it.gpu), found.pools[0])


def reach(found: StackOutputs) -> tuple[Sequence[str], IO[bytes] | None]:
    """The words for kubectl that lead to the stack's cluster; a file to be kept open for as long as they are used.

    A kubeconfig of the stack's own is a secret: it lies in memory where the system can, and goes with this process.
    """
    if found.kubeconfig is None:
        return (("--context", found.context) if found.context else ()), None
    if sys.platform == "linux":
        file: IO[bytes] = os.fdopen(os.memfd_create("kubeconfig"), "w+b")
        path = f"/proc/{os.getpid()}/fd/{file.fileno()}"
    else:
        file = tempfile.NamedTemporaryFile()  # noqa: SIM115 - kept open by the caller
        path = file.name
    file.write(found.kubeconfig.encode())
    file.flush()
    return ("--kubeconfig", path), file
