"""Imports all that a first training step needs, and nothing else: for a fork server that starts ranks from itself.

Imported by the process that `bench.clusters` forks nodes' processes from; a rank forked from it is ready in a tenth of
the time. It must be safe to fork afterwards, so no thread may be left running: no tensor is computed with here, and
NumPy's linear algebra is kept from starting a pool.
"""

from __future__ import annotations

import importlib
import importlib.util
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before NumPy is imported

LAZY = ("torch._dynamo", "torch.utils.serialization.config")
"""What DDP, the optimizers and torch.save import at their first use: half the time of a cold start."""

WHERE_INSTALLED = ("torchft", "torchft.coordination")
"""What a live job imports at its first meeting."""

for name in (
    "proving_ground.training.loop",
    "proving_ground.training.models.digits",
    "proving_ground.training.models.stocks",
    *LAZY,
):
    importlib.import_module(name)
for name in WHERE_INSTALLED if importlib.util.find_spec("torchft") else ():
    importlib.import_module(name)
