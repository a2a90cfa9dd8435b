"""`python -m tests.loop.acted …`: the loop with stand-ins for bench, chaos and report, which need a cluster.

`check`, `cost`, `up` and `down` are the real commands; so is the process that keeps the time. The stack `local` goes to
a stand-in for kubectl (`stage.py`). What a stand-in does is in the environment: how long it takes, how it ends.
"""

from __future__ import annotations

import os
import sys
from typing import Any, cast

from proving_ground.loop import cli, steps
from proving_ground.loop.steps import Known

ACT = """
import os, pathlib, sys, time
step, runs = sys.argv[1:]
time.sleep(float(os.environ.get(f"{step}_S", "0.1")))
folder = pathlib.Path(runs) / step / str(time.time_ns())
if os.environ.get(f"{step}_RECORDS", "yes") == "yes":
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "spec.json").write_text("{}")
    (folder / "seal.json").write_text(os.environ.get(f"{step}_SEAL", '{"complete": true}'))
print(f"{step} says this")
sys.exit(int(os.environ.get(f"{step}_STATUS", "0")))
"""


def act(step: str) -> Any:
    """A step that only takes time, and records a run."""
    return lambda known: [[sys.executable, "-c", ACT, step, str(cast("Known", known).runs)]]


def main() -> int:
    """The loop, with these steps."""
    cast("dict[str, Any]", steps.STEPS).update({name: act(name) for name in ("bench", "chaos", "report")})
    return cli.main(sys.argv[1:])


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)
