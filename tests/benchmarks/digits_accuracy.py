"""The digits' test accuracy by seed and number of ranks: `python -m tests.benchmarks.digits_accuracy [OUT]`.

Every run trains `training/configs/digits.toml` for real, over Gloo on this machine. What was measured is kept after
every run: an interrupted validation goes on where it was; a changed config starts again. Fails when the bar is missed.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from proving_ground.training.config import load
from tests.training.ranks import sets, start

COMMAND = "python -m tests.benchmarks.digits_accuracy"
CONFIG = Path("training/configs/digits.toml")
OUT = Path("reports/measured/accuracy.json")
SEEDS, NODES = range(5), (1, 2, 4)
BAR, SPREAD = 0.97, 0.005
"""Every run reaches BAR; the means by number of ranks lie within SPREAD of each other."""


def measure(seed: int, nodes: int) -> dict[str, Any]:
    """Train once; the accuracy that rank 0 told last."""
    with tempfile.TemporaryDirectory() as folder:
        job = start(Path(folder), nodes, ["--config", str(CONFIG), *sets(seed=seed)])
        if any(job.wait(600)):
            sys.exit(f"seed {seed}, {nodes} ranks: failed:\n{job.printed()}")
        seconds = job.events(0, "end")[0]["t"] - job.events(0, "ready")[0]["t"]
        accuracy = job.events(0, "eval")[-1]["value"]
    return {"seed": seed, "nodes": nodes, "accuracy": round(accuracy, 6), "seconds": round(seconds, 1)}


def kept(out: Path, config: dict[str, Any]) -> list[dict[str, Any]]:
    """What was measured before with the same config."""
    document = json.loads(out.read_text()) if out.exists() else {}
    return list(document["runs"]) if document.get("config") == config else []


def verdict(runs: list[dict[str, Any]]) -> tuple[bool, str]:
    """Whether the bar is reached, and the figures."""
    means = [sum(run["accuracy"] for run in runs if run["nodes"] == nodes) / len(SEEDS) for nodes in NODES]
    worst, spread = min(run["accuracy"] for run in runs), max(means) - min(means)
    words = ", ".join(f"{nodes}: {mean:.2%}" for nodes, mean in zip(NODES, means, strict=True))
    return worst >= BAR and spread <= SPREAD, f"means by ranks {words}; apart {spread:.2%}; worst run {worst:.2%}"


def main(out: Path) -> None:
    """Measure what is missing, keep it, judge."""
    config = asdict(load(CONFIG))
    runs = kept(out, config)
    for seed in SEEDS:
        for nodes in NODES:
            if any((run["seed"], run["nodes"]) == (seed, nodes) for run in runs):
                continue
            runs.append(measure(seed, nodes))
            print(runs[-1], flush=True)
            out.parent.mkdir(parents=True, exist_ok=True)
            out.write_text(json.dumps({"command": COMMAND, "config": config, "runs": runs}, indent=1) + "\n")
    reached, words = verdict(runs)
    print(words)
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else OUT)
