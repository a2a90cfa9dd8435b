"""What the measuring programs beside the trainer are told: `pg training PROGRAM`.

Each does `rounds` rounds of all it measures, one `step` event a round, so that the harness can drive it like a trainer;
what was measured stands in `collective` and `measure` events. Called by `training.__main__` and, to check a suite
before anything starts, by `bench.workloads`: no torch here.
"""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any

from proving_ground.training import typed
from proving_ground.training.config import SIZES, ConfigError, key
from proving_ground.training.models import MODELS as NETWORKS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

OPS = ("all_reduce", "all_gather", "broadcast", "reduce_scatter")
MODELS = ("resnet18", "resnet50", "resnet152", "vit_b_16")
SIZED = [name for name, it in NETWORKS.items() if it.sized]


@dataclass(frozen=True)
class Collectives:
    """Latency and bandwidth of the library's collectives, by size."""

    rounds: int = key(5, "how often everything is measured", least=1)
    ops: tuple[str, ...] = key(OPS, "which collectives", one_of=OPS)
    sizes: tuple[int, ...] = key((4096, 1 << 20), "bytes of the whole, as in nccl-tests", least=4)
    device: str = key("auto", "auto: cuda where there is one", one_of=("auto", "cpu", "cuda"))
    backend: str = key("auto", "auto: nccl on cuda, else gloo", one_of=("auto", "gloo", "nccl"))
    timeout_s: float = key(60.0, "a collective that takes longer is an error", above=0)


@dataclass(frozen=True)
class Loading:
    """Samples a second from shards in a folder or in object storage, and the memory that takes."""

    rounds: int = key(5, "how often everything is read", least=1)
    address: str = key(
        "", "where the shards lie: a folder, or a URL such as s3://bucket/folder; empty: the node's disk"
    )
    data_mb: int = key(256, "size of the data, MiB; made when they are not there", least=1)
    shard_mb: int = key(16, "size of a shard, MiB", least=1)
    sample_kb: int = key(148, "size of a sample, KiB; 148: a decoded image of 224 × 224", least=1)
    batch: int = key(32, "samples of a step", least=1)
    prefetch: int = key(2, "shards that are fetched ahead", least=0)


@dataclass(frozen=True)
class Storing:
    """Seconds to save and to load a checkpoint, by its size."""

    rounds: int = key(3, "how often everything is saved and loaded", least=1)
    address: str = key("", "where they go: a folder, or a URL such as s3://bucket/folder; empty: the node's disk")
    sizes_mb: tuple[int, ...] = key((10, 100), "sizes of the state, MiB", least=1)
    device: str = key("cpu", "where the state is: what is copied before it is written", one_of=("auto", "cpu", "cuda"))


@dataclass(frozen=True)
class Memory:
    """Peak memory of real training steps, by model and batch; on a CPU each in a process of its own."""

    rounds: int = key(1, "how often everything is measured", least=1)
    models: tuple[str, ...] = key(("resnet18",), "which models, of torchvision", one_of=MODELS)
    batches: tuple[int, ...] = key((1, 4), "samples of a step", least=1)
    steps: int = key(2, "training steps of one measurement", least=1)
    device: str = key("auto", "auto: cuda where there is one", one_of=("auto", "cpu", "cuda"))


@dataclass(frozen=True)
class Plain:
    """Samples a second of a plain PyTorch loop in one process, to hold the trainer against."""

    rounds: int = key(5, "how often the rate is taken", least=1)
    model: str = key("resnet50", "which network", one_of=tuple(SIZED))
    size: str = key("tiny", "as published, or tiny", one_of=SIZES)
    batch: int = key(8, "samples of a step", least=1)
    steps: int = key(10, "steps of a round", least=1)
    loaders: int = key(2, "threads that read ahead", least=1)
    precision: str = key("fp32", "what forward and loss are computed in", one_of=("fp32", "bf16", "fp16"))
    ddp: bool = key(False, "in torch's DistributedDataParallel, as a loop for several GPUs has it")  # noqa: FBT003
    device: str = key("auto", "auto: cuda where there is one", one_of=("auto", "cpu", "cuda"))


Settings = Collectives | Loading | Storing | Memory | Plain

PROGRAMS: dict[str, type[Settings]] = {
    "collectives": Collectives,
    "loading": Loading,
    "storing": Storing,
    "memory": Memory,
    "plain": Plain,
}
"""Name on the command line → its settings; the code is in the module `training.<name>`, function `run`."""


def load(program: str, path: Path | None) -> Settings:
    """The settings in a TOML file, or the defaults.

    Raises:
        ConfigError: one line with the first thing that is wrong.
    """
    if path is None:
        return from_table(program, {}, program)
    try:
        table = tomllib.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
    return from_table(program, table, str(path))


def from_table(program: str, table: Mapping[str, Any], where: str) -> Settings:
    """Checked settings of a program from plain values; lists become tuples.

    Raises:
        ConfigError: an unknown key, a wrong type, a value that is not allowed, or sizes that do not fit.
    """
    made = typed.read(PROGRAMS[program], table, where)
    for name, value in vars(made).items():
        if value == ():
            raise typed.refused(where, name, [], typed.NOT_EMPTY)
    if isinstance(made, Loading) and (made.sample_kb > made.shard_mb * 1024 or made.shard_mb > made.data_mb):
        raise ConfigError(f"{where}: a sample must fit into a shard, a shard into the data")
    return made


def describe(program: str) -> str:
    """A program's keys with defaults and meanings, for `--help`."""
    rows = []
    for item in fields(PROGRAMS[program]):
        assert item.default is not MISSING  # noqa: S101 - every key has one
        default = list(item.default) if isinstance(item.default, tuple) else item.default
        rows.append(f"  {item.name:<11}{item.metadata['meaning']} (default {default!r})")
    return "\n".join(rows)
