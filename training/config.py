"""What a training run is told: one typed, frozen `Config`, from TOML or YAML, the environment and the command line.

Called by `training.__main__`, by `training.train()` and, for checking a suite before anything starts, by `bench`.
No torch here: the harness imports this module.
"""

from __future__ import annotations

import tomllib
from dataclasses import MISSING, Field, dataclass, field, fields
from math import frexp, isqrt
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from proving_ground.training import typed
from proving_ground.training.models import MODELS, OWN
from proving_ground.training.typed import SCALARS, ConfigError, Rule, hints, shown, unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = ["Config", "ConfigError", "from_dict", "load"]

PREFIX = "PROVING_GROUND_"
"""`PROVING_GROUND_LR=0.1` in the environment overrides `lr` of the file; names that are no key are left alone."""


SIZES = ("tiny", "full")
"""Of a network that has two."""
EVERY_STEP = "every_step"
"""`updates` unless told: gradients are summed over the ranks at every step."""


def key(
    default: Any,  # noqa: ANN401 - the value of a key is what its annotation says
    meaning: str,
    *,
    one_of: tuple[str, ...] = (),
    least: float | None = None,
    most: float | None = None,
    above: float | None = None,
) -> Any:  # noqa: ANN401 - same
    """One key of the configuration: its default, its meaning for people, and the values it may have."""
    return field(default=default, metadata={"meaning": meaning, "rule": Rule(one_of, least, most, above)})


@dataclass(frozen=True)
class Config:
    """Every key with its default; `pg training run --help` prints this table."""

    model: str = field(
        default="digits",
        metadata={
            "meaning": "what to train",
            "rule": Rule(tuple(MODELS), pattern=OWN, words="`package.module:Task` of your own"),
        },
    )
    size: str = key("tiny", "of the networks for images and text: for a CPU's seconds, or as published", one_of=SIZES)
    data: str = key("", "shards: a folder, s3://, abfs:// or file:///, a shipped set's name; empty: the model's own")
    cache_dir: str = key("", "folder for shards of a URL, may name $VARIABLES; ranks of a node can share it")
    cache_mb: int = key(1024, "MiB of shards in cache_dir; those not used for longest go first", least=1)
    profile: str = key("", "paced only: a recorded profile, by path or shipped name")
    pace: float = key(1.0, "paced only: every time of the profile is multiplied by this", above=0)
    store_s: float = key(
        0.0, "paced only: seconds for which a shared store is busy with one batch; all ranks wait for all", least=0
    )
    prefetch: int = key(0, "steps whose batches are read ahead of the step, by threads; 0: none", least=0, most=64)
    loaders: int = key(1, "threads that read ahead; more help where a store answers late", least=1, most=64)
    steps: int = key(0, "optimizer steps; 0: `epochs` decides", least=0)
    epochs: int = key(20, "passes over the training data", least=1)
    global_batch: int = key(64, "samples of one optimizer step over all ranks", least=1)
    last_batch: str = key(
        "short", "of an epoch: smaller, or filled up from the next (all steps equal)", one_of=("short", "carry")
    )
    reduction: str = key(
        "float",
        "exact: the same bits at every number of ranks, by integer sums over `shards`",
        one_of=("float", "exact"),
    )
    parallel: str = key(
        "ddp", "each rank holds the whole model; or fsdp: a part of each parameter (FSDP2)", one_of=("ddp", "fsdp")
    )
    replicas: int = key(1, "fsdp only: groups of ranks that each hold a whole model, cut over the group", least=1)
    shards: int = key(24, "exact only: parts of a global batch, of which a rank computes whole ones", least=1)
    updates: str = key(
        "every_step",
        "gradients are summed at every step; or ranks learn alone and average every `sync_every` steps",
        one_of=("every_step", "local_sgd", "diloco"),
    )
    sync_every: int = key(10, "local_sgd, diloco: steps of a round", least=1)
    outer_lr: float = key(0.7, "diloco only: learning rate of the outer step", above=0)
    outer_momentum: float = key(0.9, "diloco only: its Nesterov momentum", above=0)
    accumulate: int = key(1, "micro-batches a step; gradients are exchanged after the last only", least=1)
    micro_batch: int = key(0, "samples that go through the model at once at most; 0: as `accumulate` says", least=0)
    fit_memory: bool = key(  # what follows is tried before the first step
        False,  # noqa: FBT003
        "where memory does not suffice: a smaller micro_batch, then activation_checkpointing",
    )
    optimizer: str = key("sgd", "the update rule", one_of=("sgd", "adamw"))
    lr: float = key(0.05, "learning rate at `base_batch`", above=0)
    base_batch: int = key(64, "the global batch that `lr` is meant for", least=1)
    lr_scaling: str = key(
        "none", "lr × (global_batch / base_batch), its root, or as it is", one_of=("none", "linear", "sqrt")
    )
    lr_warmup_steps: int = key(0, "steps over which the learning rate grows linearly from 0", least=0)
    lr_schedule: str = key("constant", "what the learning rate does after warm-up", one_of=("constant", "cosine"))
    momentum: float = key(0.9, "sgd only", least=0)
    weight_decay: float = key(0.0, "decoupled with adamw, L2 with sgd", least=0)
    clip_norm: float = key(0.0, "largest gradient norm; 0: no clipping", least=0)
    norm: str = key("group", "digits and ResNets: normalisation between layers", one_of=("group", "batch"))
    dropout: float = key(0.0, "digits, vit, bert, gpt2: share of activations that are dropped", least=0)
    precision: str = key(
        "fp32", "what forward and loss are computed in; weights stay FP32", one_of=("fp32", "bf16", "fp16")
    )
    loss_scale: float = key(65_536.0, "fp16 only: what the loss is multiplied by at first; a power of two", least=1)
    loss_scale_steps: int = key(2_000, "fp16 only: steps without overflow after which the scale doubles", least=1)
    activation_checkpointing: bool = key(False, "compute a block's activations again instead of keeping them")  # noqa: FBT003
    count_flops: bool = key(False, "tell what a sample's forward and backward take, for the use of the hardware")  # noqa: FBT003
    peak_tflops: float = key(0.0, "count_flops: 10¹² operations a second of one device; 0: a known GPU's", least=0)
    compile: bool = key(False, "compile the model with torch.compile; the first step takes a minute")  # noqa: FBT003
    sync_batchnorm: bool = key(False, "batch statistics over all ranks; needs norm = batch, CUDA")  # noqa: FBT003
    bucket_mb: float = key(25.0, "size of a gradient bucket in MiB", above=0)
    compression: str = key("none", "what gradients travel as", one_of=("none", "fp16"))
    seed: int = key(0, "of weights and sample order", least=0)
    threads: int = key(1, "CPU threads of one process", least=1)
    device: str = key("auto", "auto: cuda where there is one", one_of=("auto", "cpu", "cuda"))
    backend: str = key("auto", "auto: nccl on cuda, else gloo", one_of=("auto", "gloo", "nccl"))
    timeout_s: float = key(
        60.0, "a collective that takes longer is an error; 0: max(2 s, 3 × the median step)", least=0
    )
    ledger: bool = key(False, "tell with every step which samples it was")  # noqa: FBT003
    fingerprint_every: int = key(0, "steps between fingerprints of the whole state; 0: none", least=0)
    deterministic: bool = key(True, "on a GPU, with fingerprints: the same bits again, as exact sums have them anyway")  # noqa: FBT003
    eval_every: int = key(0, "steps between evaluations; 0: at the end only; -1: never", least=-1)
    checkpoint_dir: str = key("", "folder of checkpoints, may name $VARIABLES; empty: none")
    checkpoint_every: int = key(0, "steps between checkpoints; 0: at the end only, if there is a folder", least=0)
    checkpoint_interval_s: float = key(0.0, "seconds between checkpoints, instead of steps", least=0)
    mtbf_s: float = key(
        0.0, "mean time between failures of the job: the checkpoint interval follows by Young and Daly", least=0
    )
    checkpoint_async: bool = key(True, "train on while a checkpoint is written")  # noqa: FBT003
    keep_checkpoints: int = key(5, "older ones are removed", least=1)
    resume: bool = key(True, "go on from the newest intact checkpoint in checkpoint_dir")  # noqa: FBT003

    @property
    def round_steps(self) -> int:
        """Steps from one exchange between the ranks to the next."""
        return 1 if self.updates == EVERY_STEP else self.sync_every


NOT_SHARDED = (
    ("reduction", "float", "exact sums are of whole gradients"),
    ("updates", EVERY_STEP, "a rank that holds a part cannot learn alone"),
    ("compression", "none", "parts of gradients are summed as they are"),
    ("compile", False, "blocks are gathered between graphs"),
    ("fit_memory", False, "it tries a whole model in one process; `plan` tells what a rank needs"),
)
"""Keys that have one value where a model is cut over the ranks, and why."""
FOLDERS = {"checkpoint_dir", "cache_dir"}
"""Keys that may name $VARIABLES."""
KEYS: dict[str, Field[Any]] = {item.name: item for item in fields(Config)}


def load(path: Path | str | None = None, environ: Mapping[str, str] | None = None, sets: Iterable[str] = ()) -> Config:
    """The configuration of a file, overridden by the environment, overridden by `key=value` texts.

    Raises:
        ConfigError: one line with the first thing that is wrong.
    """
    given: dict[str, Any] = {}
    if path is not None:
        given |= {name: value_of(name, value, str(path)) for name, value in read(Path(path)).items()}
    for name in KEYS:
        if (text := (environ or {}).get(PREFIX + name.upper())) is not None:
            given[name] = from_text(name, text, PREFIX + name.upper())
    for item in sets:
        name, text = pair(item)
        given[name] = from_text(name, text, f"--set {item}")
    for name in FOLDERS & given.keys():
        given[name] = filled_in(name, given[name], environ or {})
    return from_dict(given)


def pair(text: str) -> tuple[str, str]:
    """`key=value` from a command line.

    Raises:
        ConfigError: it is none.
    """
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text}: must be key=value")
    return name.strip(), value.strip()


def filled_in(name: str, text: str, environ: Mapping[str, str]) -> str:
    """A folder with $NAMES of the environment filled in: where a volume lies is known on the node only.

    Raises:
        ConfigError: a name is not set.
    """
    try:
        return Template(text).substitute(environ)
    except (KeyError, ValueError) as error:
        raise ConfigError(f"{name} = {text!r}: {error} is not set in the environment") from None


def from_dict(given: Mapping[str, Any], where: str = "config") -> Config:
    """A checked configuration from plain values.

    Raises:
        ConfigError: an unknown key, a wrong type, a value that is not allowed, or keys that contradict each other.
    """
    return check(typed.read(Config, given, where))


def read(path: Path) -> dict[str, Any]:
    """The table in a .toml, .yaml or .yml file."""
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        table = parse(path, text)
    except ValueError as error:  # TOML's and (through `parse`) YAML's errors are ValueErrors
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: must be a table of keys, not {type(table).__name__}")
    return table


def parse(path: Path, text: str) -> Any:  # noqa: ANN401 - whatever the file holds
    """Text in the format that the file's suffix names."""
    if path.suffix == ".toml":
        return tomllib.loads(text)
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path}: must end in .toml, .yaml or .yml")
    import yaml  # noqa: PLC0415 - most runs have TOML, which needs no package

    try:
        return yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from None


def value_of(name: str, value: object, where: str) -> Any:  # noqa: ANN401 - the key's type decides
    """The value if key `name` may have it (a whole number passes for a number)."""
    if name not in KEYS:
        raise ConfigError(f"{where}: {unknown('key', name, KEYS)}")
    return typed.value_of(Config, name, value, where)


def check_keys(given: Mapping[str, object], where: str) -> None:
    """Refuse what no configuration can have; whether keys fit together is for `from_dict`.

    Raises:
        ConfigError: an unknown key, a wrong type, or a value that is not allowed.
    """
    for name, value in given.items():
        value_of(name, value, where)


def from_text(name: str, text: str, where: str) -> Any:  # noqa: ANN401 - the key's type decides
    """The value that a text from the environment or the command line means for key `name`."""
    kind = hints(Config)[name] if name in KEYS else str
    if kind is bool:
        return value_of(name, {"true": True, "false": False}.get(text.lower(), text), where)
    try:
        value = kind(text)
    except ValueError:
        raise ConfigError(f"{where}: {name} = {shown(text)}: must be {SCALARS[kind]}") from None
    return value_of(name, value, where)


def check(config: Config) -> Config:
    """The same configuration, if its keys fit together."""
    if config.model == "paced" and not config.profile:
        raise ConfigError("model = 'paced' needs a profile: a path, or a shipped name such as resnet50-cpu")
    if config.model == "paced" and (config.device == "cuda" or config.clip_norm):
        raise ConfigError(
            "model = 'paced' runs on the CPU and has no gradients to clip: leave device and clip_norm alone"
        )
    if problem := not_this_model(config) or not_this_precision(config):
        raise ConfigError(problem)
    for name, usual, not_so in (
        ("reduction", "float", not_exact), ("parallel", "ddp", not_sharded), ("updates", EVERY_STEP, not_local),
        ("replicas", 1, no_replicas),
    ):  # fmt: skip
        if (value := getattr(config, name)) != usual and (problem := not_so(config)):
            raise ConfigError(f"{name} = {value!r} {problem}")
    if bool(config.cache_dir) != ("://" in config.data):
        raise ConfigError(f"cache_dir = {config.cache_dir!r}: data at a URL needs a cache_dir, no other does")
    if config.loaders > 1 and not config.prefetch:
        raise ConfigError(f"loaders = {config.loaders} needs prefetch of at least 1: with 0 nothing is read ahead")
    said = [name for name in ("checkpoint_every", "checkpoint_interval_s", "mtbf_s") if getattr(config, name)]
    if said and not config.checkpoint_dir:
        raise ConfigError(f"{said[0]} = {getattr(config, said[0])} needs a checkpoint_dir")
    if len(said) > 1:
        raise ConfigError(f"{' and '.join(said)}: each says when a checkpoint is due; set one of them")
    return config


def not_this_model(config: Config) -> str:
    """Why the model cannot be trained as configured; empty when it can. A model of the user's own says so itself."""
    if (known := MODELS.get(config.model)) is None:
        return ""
    if config.sync_batchnorm and (config.norm != "batch" or not known.batch_norm):
        able = ", ".join(name for name, it in MODELS.items() if it.batch_norm)
        return f"sync_batchnorm = true needs norm = 'batch' and a model that has batch statistics: {able}"
    if config.size == "full" and not known.sized:
        return f"size = 'full': model = {config.model!r} has one size"
    if config.activation_checkpointing and (not known.blocks or config.norm == "batch"):
        able = ", ".join(name for name, it in MODELS.items() if it.blocks)
        return f"activation_checkpointing = true needs norm = 'group' and a model with blocks: {able}"
    if config.model == "paced" and (config.compile or config.fit_memory):
        return f"{'compile' if config.compile else 'fit_memory'} = true: model = 'paced' computes nothing"
    return ""


def not_this_precision(config: Config) -> str:
    """Why nothing can be trained in this precision; empty when it can."""
    if config.precision != "fp32" and config.model == "paced":
        return f"precision = {config.precision!r}: model = 'paced' computes nothing"
    if config.precision != "fp16":
        return ""
    if config.updates != EVERY_STEP:
        return "precision = 'fp16' needs updates = 'every_step': ranks that learn alone would skip other steps"
    return "" if frexp(config.loss_scale)[0] == 0.5 else f"loss_scale = {config.loss_scale:g}: must be a power of two"


def not_exact(config: Config) -> str:
    """Why a configuration cannot be trained exactly; empty when it can."""
    if config.model == "paced":
        return "needs a model that learns, not 'paced'"
    if config.global_batch % config.shards:
        fewer = max(count for count in divisors(config.global_batch) if count <= config.shards)
        more = -(-config.global_batch // config.shards) * config.shards
        return f"needs a batch that divides into {config.shards} shards: try global_batch = {more} or shards = {fewer}"
    for name, only in (("accumulate", 1), ("micro_batch", 0)):
        if (value := getattr(config, name)) != only:
            return f"needs {name} = {only}, not {value}: a rank computes its shards one by one as it is"
    if config.norm == "batch":
        return "needs norm = 'group': batch statistics are of one rank's samples"
    if config.compression != "none":
        return f"needs compression = 'none', not {config.compression!r}: FP16 sums depend on their order"
    return ""


def divisors(number: int) -> Iterator[int]:
    """All whole numbers that divide it."""
    for low in range(1, isqrt(number) + 1):
        if number % low == 0:
            yield from (low, number // low)


def not_sharded(config: Config) -> str:
    """Why a configuration cannot be trained with the model cut over the ranks; empty when it can."""
    if config.model in MODELS and not MODELS[config.model].blocks:
        able = ", ".join(name for name, it in MODELS.items() if it.blocks)
        return f"needs a model with blocks, not {config.model!r}: {able}"
    if config.norm == "batch":
        return "needs norm = 'group': batch statistics are of one rank's samples"
    for name, only, why in NOT_SHARDED:
        if (value := getattr(config, name)) != only:
            return f"needs {name} = {typed.shown(only)}, not {typed.shown(value)}: {why}"
    return ""


def no_replicas(config: Config) -> str:
    """Why a configuration has no replicas to be told of; empty when it can have some."""
    return "" if config.parallel == "fsdp" else "needs parallel = 'fsdp': otherwise every rank is one"


def parts_of(config: Config, ranks: int) -> int:
    """Over how many of so many ranks a model is cut; the others have the same parts.

    Raises:
        ConfigError: the ranks do not make up whole replicas.
    """
    if ranks % config.replicas:
        raise ConfigError(f"replicas = {config.replicas} does not divide {ranks} rank{'s' * (ranks > 1)}")
    return ranks // config.replicas


def not_local(config: Config) -> str:
    """Why a configuration cannot be trained by local updates; empty when it can."""
    for name in ("steps", "checkpoint_every", "eval_every", "fingerprint_every"):
        value = getattr(config, name)
        if value > 0 and value % config.sync_every:
            return f"needs {name} = {value} to be a multiple of sync_every ({config.sync_every}): else ranks differ"
    for name in ("checkpoint_interval_s", "mtbf_s"):
        if getattr(config, name):
            return f"needs checkpoint_every, not {name}: only the end of a round can be saved"
    if config.reduction == "exact":
        return "needs reduction = 'float': exact sums are of every step's gradients"
    if config.compression != "none":
        return f"needs compression = 'none', not {config.compression!r}"
    if config.norm == "batch":
        return "needs norm = 'group': batch statistics would differ between ranks"
    return ""


def describe() -> str:
    """All keys with defaults, allowed values and meanings, for `--help`."""
    rows = [(name, default_text(item), allowed_text(item), item.metadata["meaning"]) for name, item in KEYS.items()]
    return "\n".join(
        f"  {name:<26}{default:<11}{meaning}{allowed and f' ({allowed})'}" for name, default, allowed, meaning in rows
    )


def default_text(item: Field[Any]) -> str:
    """A key's default as it would stand in TOML."""
    assert item.default is not MISSING  # noqa: S101 - every key has one
    return (
        {True: "true", False: "false"}.get(item.default, str(item.default))
        if isinstance(item.default, bool)
        else repr(item.default)
    )


def allowed_text(item: Field[Any]) -> str:
    """What a key may be, in words."""
    rule: Rule = item.metadata["rule"]
    if rule.one_of and rule.words:
        return f"{', '.join(rule.one_of)}, or {rule.words}"
    return ", ".join(rule.one_of) if rule.one_of else rule.range if rule.bounded else ""


def table() -> str:
    """All keys as the Markdown table of README.md."""
    rows = [(name, default_text(item), allowed_text(item), item.metadata["meaning"]) for name, item in KEYS.items()]
    lines = [f"| `{name}` | `{default}` | {allowed} | {meaning} |" for name, default, allowed, meaning in rows]
    return "\n".join(["| key | default | may be | meaning |", "|---|---|---|---|", *lines])
