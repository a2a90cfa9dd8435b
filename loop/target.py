"""Which cluster a loop works on: found once, and the same for all its commands, whatever the kubeconfig says by then.

A stack in a cloud knows its own. For the others it is the context that is the current one when the loop begins.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from proving_ground.infra import config, direct, life, stacks
from proving_ground.infra.life import StackError
from proving_ground.loop.ledger import Ledger

CONTEXT, FILES = "PROVING_GROUND_INFRA__KUBERNETES__CONTEXT", "KUBECONFIG"


class UnreachableError(RuntimeError):
    """The cluster cannot be asked: one line, with what to do."""


def find(stack: str) -> Mapping[str, str]:
    """The variables that name the cluster of a stack; empty where the stack knows its own.

    Raises:
        ConfigError: no Pulumi CLI where one is needed, or no kubeconfig.
        UnreachableError: the cluster does not answer, or not to this user.
    """
    environment = config.load(stack)
    if not direct.possible(environment):
        stacks.needed()
    if environment.azure or not shutil.which("kubectl"):
        return {}
    try:
        context = environment.kubernetes.context or direct.current_context()
        direct.ask(context)
    except StackError as error:
        raise UnreachableError(life.explained(error)[0]) from None
    files = os.pathsep.join(str(Path(it).absolute()) for it in os.environ.get(FILES, "").split(os.pathsep) if it)
    return {name: value for name, value in ((CONTEXT, context), (FILES, files)) if value}


def enter(it: Ledger) -> None:
    """Have this process, and all that it starts, work on the loop's cluster."""
    os.environ.update(it.state().target)
