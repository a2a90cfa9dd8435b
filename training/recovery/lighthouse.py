"""The coordinator of live jobs, torchft's: how soon it misses a member. Called by `training.recovery.live_commands`.

No torch here: `--help` and a mistake need none.
"""

from __future__ import annotations

import os
import time

from proving_ground.training.config import ConfigError

os.environ.setdefault("RUST_LOG", "error")  # before torchft is imported: it tells of every request
HEARTBEAT_S = 0.1
EXPIRY_S = 0.35  # a member without a heartbeat for so long is dead, unless the coordinator is told otherwise
STRAGGLE_S = 2.0  # how long the others wait for a member that lives and does not come
TICK_S = 0.02  # how often the coordinator looks


def serve(port: int, least: int, expiry_s: float = EXPIRY_S) -> None:
    """Be the coordinator of live jobs of at least so many nodes, until the process is ended.

    A member is dead after `expiry_s` without a heartbeat; more than `STRAGGLE_S` makes no difference.

    Raises:
        RuntimeError: the port is taken.
        ConfigError: an expiry that makes no sense.
    """
    if not 2 * HEARTBEAT_S <= expiry_s <= STRAGGLE_S:
        raise ConfigError(f"--expiry {expiry_s:g}: must be from {2 * HEARTBEAT_S:g} to {STRAGGLE_S:g}")
    from torchft.coordination import LighthouseServer  # noqa: PLC0415 - not on every platform

    _server = LighthouseServer(
        bind=f"0.0.0.0:{port}", min_replicas=least, join_timeout_ms=int(STRAGGLE_S * 1000),
        quorum_tick_ms=int(TICK_S * 1000), heartbeat_timeout_ms=int(expiry_s * 1000),
    )  # fmt: skip
    while True:
        time.sleep(3600)
