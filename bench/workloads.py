"""What runs on the nodes: the project's trainer, or any command of the user's. Called by `bench.plan` and `bench.run`.

Every process learns its place from the environment, as under torchrun: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR,
MASTER_PORT; and what the trial asks from PROVING_GROUND_STEPS and PROVING_GROUND_BATCH (samples a step on this node).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Any

from proving_ground.bench import lineage
from proving_ground.bench.agent import machine
from proving_ground.bench.agent.orders import SHARING, VOLUME_VARIABLE
from proving_ground.bench.bound import bound, sent
from proving_ground.bench.jobstate import EVERY_RANK, RANK_0, one_tells
from proving_ground.bench.nodes import shares_gpus
from proving_ground.bench.protocols import Node, ProcessSpec, TrialFiles, Workload
from proving_ground.bench.shell import counted
from proving_ground.bench.spec import Case, SpecError, Trial, build
from proving_ground.training.config import SIZES, Config, check_keys, from_dict, parts_of
from proving_ground.training.measuring.programs import from_table
from proving_ground.training.models import MODELS, OWN
from proving_ground.training.typed import ConfigError, Rule, unknown

TRAINER = ("python", "-m", "proving_ground.training")
PROFILES = Path(__file__).parent.parent / "training" / "profiles"
NO_CHECKPOINTS = {
    "checkpoint_dir": "", "checkpoint_every": 0, "checkpoint_interval_s": 0.0, "mtbf_s": 0.0, "eval_every": -1,
}  # fmt: skip
REPLAY_TIMEOUT_S = 3600.0  # for a rank of a replay that waits for a smaller world to have made its steps
OWNED = {
    "model": "the case's workload",
    "size": "the case's workload",
    "steps": "the case's steps",
    "epochs": "the case's steps",
    "global_batch": "the case's global_batch or batch_per_node",
    "seed": "the suite's seed",
}
"""Keys of the trainer that a plan decides → where a suite says them. Titles and figures would be wrong otherwise."""
OWNED_BY_PROGRAMS = {"rounds": "the case's steps"}


@dataclass(frozen=True)
class Trainer:
    """The trainer in `training/`, one process a node; with `paces`, the model whose recorded profile paces it."""

    model: str
    paces: str = ""
    size: str = "tiny"  # of a network that has a full one too

    @property
    def compute(self) -> str:
        """Real, or paced by a profile."""
        return "paced" if self.paces else "real"

    def profile(self, case: Case) -> Mapping[str, str] | None:
        """The profile that the case names, for paced compute; it must be one of this model.

        Raises:
            SpecError: it is none, or another model's.
        """
        if not self.paces:
            return None
        name = str(case.training.get("profile", f"{self.paces}-cpu"))
        profile = read_profile(name, f"case {case.name!r}")
        if profile["model"] != self.paces:
            raise SpecError(f"case {case.name!r}: profile {name!r} is of {profile['model']}, not of {self.paces}")
        origin = profile["origin"]
        how = "measured" if origin.get("measured", True) else "assumed"
        return {"name": name, "origin": f"{how} on {origin['device']} on {origin['date']}"}

    def admit(self, case: Case) -> None:
        """Refuse keys that the trainer does not have, and those that the plan decides."""
        admit(check_keys, OWNED, case)
        build(EntryTable, case.command, f"case {case.name!r}: command")

    def bound(self, trial: Trial) -> Mapping[str, Any] | None:
        """From profile, buckets and link rate alone; how the ranks of a node share its link is not known."""
        if not trial.profile or not trial.link_mbps or trial.ranks_per_node > 1:
            return None
        config, profile = self._checked(trial), read_profile(trial.profile["name"], f"case {trial.case!r}")
        keys = ("bucket_mb", "compression", "accumulate", "pace", "updates", "sync_every")
        settings = {key: getattr(config, key) for key in keys}
        load = trial.batch_per_node / profile["batch"]
        found = bound(
            profile, sent(profile, settings), trial.nodes, trial.link_mbps, config.pace, load / config.accumulate
        )
        waits_s = (profile["forward_s"] + profile["backward_s"]) * config.pace * load * (1 - 1 / config.accumulate)
        return {**asdict(found), "step_s": found.step_s + waits_s, "settings": {**settings, "load": load}}

    def check(self, trial: Trial) -> None:
        """Refuse keys that contradict each other, ranks that are no whole replicas, a warm-up that ends in a round."""
        config = self._checked(trial)
        try:
            parts_of(config, trial.ranks)
        except ConfigError as error:
            where = f"{counted(trial.nodes, 'node')} of {trial.ranks_per_node}"
            raise SpecError(f"case {trial.case!r}: {error} ({where})") from None
        if trial.warmup_steps % config.round_steps:
            raise SpecError(
                f"case {trial.case!r}: warmup_steps = {trial.warmup_steps}: must be a multiple of sync_every = "
                f"{config.sync_every}, so that whole rounds are measured"
            )

    def _checked(self, trial: Trial) -> Config:
        try:
            return from_dict(self._config(trial), f"case {trial.case!r}: training")
        except ConfigError as error:
            raise SpecError(str(error)) from None

    def _config(self, trial: Trial) -> dict[str, object]:
        config = {
            "model": self.model, "size": self.size, "steps": trial.steps, "global_batch": trial.global_batch,
            "seed": trial.seed, "threads": 1, "last_batch": "carry", "eval_every": -1, **trial.training,
        }  # fmt: skip
        if trial.mechanism:
            config = {"checkpoint_dir": f"${VOLUME_VARIABLE}/{trial.id}", "timeout_s": 0.0} | config
        if trial.role in ("replay", "reference"):
            config |= NO_CHECKPOINTS | {"timeout_s": REPLAY_TIMEOUT_S}
        return config | ({"profile": trial.profile["name"]} if trial.profile else {})

    def has_reference(self, trial: Trial) -> bool:
        """What is recorded of the first steps can be compared where fingerprints are asked for."""
        return not self.paces and self._checked(trial).fingerprint_every > 0

    def replays(self, trial: Trial) -> bool:
        """Float sums differ by the number of ranks; exact ones do not, and what is not recorded cannot be compared."""
        shrinks = trial.min_nodes is not None and trial.min_nodes < trial.nodes
        config = self._checked(trial)
        return shrinks and not self.paces and config.reduction == "float" and config.fingerprint_every > 0

    def processes(self, trial: Trial, nodes: Sequence[Node], files: TrialFiles) -> Sequence[ProcessSpec]:
        """One trainer on each node, all reading one config file."""
        command: tuple[str, ...] = ("run",)
        if trial.role == "replay":
            command = ("replay", "--lineage", str(lineage.file_of(trial, files)))
            if entry := trial.command.get("entry"):
                command += ("--entry", str(entry))
        if trial.role == "reference":  # one process makes the parts of all ranks
            command = ("reference", "--ranks", str(trial.ranks), *(("--seeded",) if trial.seeded else ()))
            trial, nodes = replace(trial, ranks_per_node=1), nodes[:1]
        return one_each(command, self._config(trial), trial, nodes, files)


@dataclass(frozen=True)
class Program:
    """A program of `training.measuring`, one process a node; its keys stand in the case's `training`."""

    name: str
    compute: str = "none"  # no training: nodes need no shares of the cores to be compared

    def profile(self, case: Case) -> None:
        """None: nothing paces it."""

    def admit(self, case: Case) -> None:
        """Refuse keys that the program does not have, and those that the plan decides."""
        admit(partial(from_table, self.name), OWNED_BY_PROGRAMS, case)
        build(EntryTable, case.command, f"case {case.name!r}: command")

    def bound(self, trial: Trial) -> None:
        """None: it takes no training steps."""

    def check(self, trial: Trial) -> None:
        """Nothing: `admit` has seen all of its keys."""

    def _settings(self, trial: Trial) -> dict[str, object]:
        return {**trial.training, "rounds": trial.steps}

    def replays(self, trial: Trial) -> bool:  # noqa: ARG002 - the protocol's signature
        """It does not learn."""
        return False

    def has_reference(self, trial: Trial) -> bool:  # noqa: ARG002 - the protocol's signature
        """Nothing is known of its steps."""
        return False

    def processes(self, trial: Trial, nodes: Sequence[Node], files: TrialFiles) -> Sequence[ProcessSpec]:
        """One process on each node, all reading one settings file."""
        return one_each((self.name,), self._settings(trial), trial, nodes, files)


NoNul = Annotated[str, Rule(pattern=r"[^\0]*", words="a text without NUL")]
Variable = Annotated[str, Rule(pattern="[A-Za-z_][A-Za-z0-9_]*", words="a variable's name: letters, digits and _")]
SECRET = re.compile(
    r"(^|_)(token|secret|passw(or)?d|credentials?|(api|access|account|private|secret)_?key)(_|$)", re.IGNORECASE
)
NO_SECRET = re.compile(r"\$|<|(true|false|none|[\d.e+-]+)$", re.IGNORECASE)
"""A variable that the environment has, a token of a text, a switch, a number."""
PLACES = ("_file", "_path", "_dir")


@dataclass(frozen=True)
class EntryTable:
    """What `[case.command]` says where the workload is one of this project's."""

    entry: NoNul = ""  # under `restart`: the function that is run in place of the trainer's, `module:name`


@dataclass(frozen=True)
class CommandTable:
    """What `[case.command]` says."""

    argv: tuple[NoNul, ...]
    env: Mapping[Variable, NoNul | int | float | bool] = field(default_factory=dict)
    pattern: Mapping[str, str] = field(default_factory=dict)
    cwd: NoNul = ""  # the folder that it is started in; empty: where the harness was
    tells: Annotated[str, Rule(pattern=f"{EVERY_RANK}|{RANK_0}", words=f"{EVERY_RANK!r} or {RANK_0!r}")] = EVERY_RANK


@dataclass(frozen=True)
class Command:
    """A trainer of the user's own: any command that writes the events, or prints lines that a pattern maps to them."""

    compute: str = "real"

    def profile(self, case: Case) -> None:
        """None: nothing is known of it."""

    def admit(self, case: Case) -> None:
        """Refuse a command that cannot be started or a pattern that is none."""
        where = f"case {case.name!r}: command"
        table = build(CommandTable, case.command, where)
        if not table.argv:
            raise SpecError(f"{where}: argv must be a list of words, not []")
        if case.training:
            raise SpecError(f"case {case.name!r}: training is for this project's workloads; a command has argv and env")
        refuse_secrets(table, where)
        if table.tells == RANK_0 and case.mechanism and not table.pattern:
            raise SpecError(f"{where}: tells = {RANK_0!r}: under a mechanism that takes a pattern, or every rank tells")
        for event, regex in table.pattern.items():
            check_pattern(event, regex, where)

    def check(self, trial: Trial) -> None:
        """Nothing: `admit` has seen all of it."""

    def bound(self, trial: Trial) -> None:
        """None: nothing is known of its gradients."""

    def replays(self, trial: Trial) -> bool:  # noqa: ARG002 - the protocol's signature
        """How it hands a state over is not known."""
        return False

    def has_reference(self, trial: Trial) -> bool:  # noqa: ARG002 - the protocol's signature
        """Nothing is known of its steps."""
        return False

    def processes(self, trial: Trial, nodes: Sequence[Node], files: TrialFiles) -> Sequence[ProcessSpec]:
        """One on each node, wrapped (`training.wrap`), which fills in $RANK, $PROVING_GROUND_STEPS … in its words."""
        patterns = [("--pattern", f"{event}={regex}") for event, regex in trial.command.get("pattern", {}).items()]
        place = ("--cwd", trial.command["cwd"]) if trial.command.get("cwd") else ()
        wrap = (*TRAINER, "wrap", *place, *chain.from_iterable(patterns))
        argv = (*wrap, *trial.command["argv"])
        own = {key: str(value) for key, value in trial.command.get("env", {}).items()}
        if one_tells(trial.command):  # its lines are about the whole job's samples
            own["PROVING_GROUND_SAMPLES"] = str(trial.global_batch)
        return [
            ProcessSpec(node.name, slot, argv, {**env, **as_elastic(env), **own}, *outputs(trial, node, slot, files))
            for node, slot, env in places(trial, nodes)
        ]


def as_elastic(env: Mapping[str, str]) -> dict[str, str]:
    """What torchrun sets beside rank, world size and address; frameworks tell by it that they need not start ranks."""
    rank, size, own = env["RANK"], env["WORLD_SIZE"], int(env["LOCAL_WORLD_SIZE"])
    node, nodes = str(int(rank) // own), str(int(size) // own)
    return {
        "NODE_RANK": node, "GROUP_WORLD_SIZE": nodes, "ROLE_NAME": "trainer", "ROLE_RANK": rank,
        "ROLE_WORLD_SIZE": size, "TORCHELASTIC_RESTART_COUNT": "0", "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "proving-ground",
    }  # fmt: skip


def admit(check: Callable[[Mapping[str, Any], str], object], owned: Mapping[str, str], case: Case) -> None:
    """Refuse a case's `training` that makes no sense.

    Raises:
        SpecError: a key that the plan decides, or what `check` refuses.
    """
    where = f"case {case.name!r}: training"
    for name in case.training:
        if name in owned:
            raise SpecError(f"{where}: {name} is decided by the plan; set {owned[name]} instead")
    try:
        check(case.training, where)
    except ConfigError as error:
        raise SpecError(str(error)) from None


def one_each(
    command: Sequence[str], table: Mapping[str, object], trial: Trial, nodes: Sequence[Node], files: TrialFiles
) -> list[ProcessSpec]:
    """`pg training COMMAND… --config …` on each node, with a table of settings."""
    config = files.scratch / f"{trial.id}.toml"
    # JSON's numbers, strings, booleans and lists are TOML's too.
    config.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items()))
    argv = (*TRAINER, *command, "--config", str(config))
    return [
        ProcessSpec(node.name, slot, argv, env, *outputs(trial, node, slot, files))
        for node, slot, env in places(trial, nodes)
    ]


@cache
def read_profile(name: str, where: str) -> dict[str, Any]:
    """A recorded profile that ships with the trainer (`training/README.md` has the format).

    Raises:
        SpecError: there is none of that name.
    """
    known = sorted(path.stem for path in PROFILES.glob("*.json"))
    if name not in known:
        raise SpecError(f"{where}: {unknown('profile', name, known)}")
    profile: dict[str, Any] = json.loads((PROFILES / f"{name}.json").read_text())
    return profile


def check_pattern(event: str, regex: str, where: str) -> None:
    """A pattern maps printed lines to `step` events through named groups; `samples` is known without one."""
    try:
        groups = set(re.compile(regex).groupindex)
    except re.error as error:
        raise SpecError(f"{where}: pattern {event!r}: {error}") from None
    if event != "step" or "step" not in groups:
        raise SpecError(f"{where}: pattern {event!r}: needs step = a regular expression with the group <step>")


def refuse_secrets(table: CommandTable, where: str) -> None:
    """A suite is kept in every run's directory, sealed, and uploaded by tracking: no place for a password.

    Raises:
        SpecError: a variable or an argument is called like a secret.
    """
    options = (name.lstrip("-").replace("-", "_") for name, value in given(table.argv) if not NO_SECRET.match(value))
    found = next((it for it in (*table.env, *options) if SECRET.search(it) and not it.lower().endswith(PLACES)), None)
    if found:
        raise SpecError(
            f"{where}: {found} looks like a secret, and a run keeps its suite: export it where you start the run "
            "(processes have that environment), and leave it out here"
        )


def given(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(option, its value) of words such as `--lr=0.1` and `--lr 0.1`."""
    for word, following in zip(argv, (*argv[1:], ""), strict=True):
        name, sign, value = word.partition("=")
        if sign:
            yield name, value
        elif word.startswith("-") and following and not following.startswith("-"):
            yield word, following


def outputs(trial: Trial, node: Node, slot: int, files: TrialFiles) -> tuple[Path, Path]:
    """The event file and the log of one of a node's processes."""
    return files.event_file(trial.id, f"{node.name}.{slot}"), files.log_file(trial.id, f"{node.name}.{slot}")


def places(trial: Trial, nodes: Sequence[Node]) -> Iterable[tuple[Node, int, dict[str, str]]]:
    """(node, number of the process there, its environment) of each process, in rank order."""
    port, own = free_port(nodes[0]), trial.ranks_per_node
    gpus = SHARING if shares_gpus(trial.training) else {}
    for rank, (node, slot) in enumerate(product(nodes, range(own))):
        yield node, slot, {
            "RANK": str(rank), "WORLD_SIZE": str(len(nodes) * own),
            "LOCAL_RANK": str(slot), "LOCAL_WORLD_SIZE": str(own), "GROUP_RANK": str(rank // own),
            "MASTER_ADDR": nodes[0].address, "MASTER_PORT": str(port),
            "PROVING_GROUND_STEPS": str(trial.steps), "PROVING_GROUND_BATCH": str(-(-trial.batch_per_node // own)),
            "PROVING_GROUND_TRIAL": trial.id, **gpus,
        }  # fmt: skip


def free_port(node: Node) -> int:
    """A port for the rendezvous: on loopback one that nobody has; elsewhere the node's own."""
    return machine.free_port(node.address) if node.address.startswith("127.") else node.port


class Workloads(dict[str, Workload]):
    """By name; `package.module:Task` names the trainer with a model of the user's own."""

    def __contains__(self, name: object) -> bool:
        """Whether it is a row, or is written as a model of one's own."""
        return super().__contains__(name) or (isinstance(name, str) and re.fullmatch(OWN, name) is not None)

    def __missing__(self, name: str) -> Workload:
        if name not in self:
            raise KeyError(name)
        return Trainer(name)


WORKLOADS: Mapping[str, Workload] = Workloads(
    {
        "digits": Trainer("digits"),
        "stocks": Trainer("stocks"),
        "resnet18": Trainer("paced", paces="resnet18"),
        "resnet50": Trainer("paced", paces="resnet50"),
        "vit_b_16": Trainer("paced", paces="vit_b_16"),
        **{f"{name}-{size}": Trainer(name, size=size) for name, it in MODELS.items() if it.sized for size in SIZES},
        "collectives": Program("collectives"),
        "loading": Program("loading"),
        "storing": Program("storing"),
        "memory": Program("memory"),
        "plain": Program("plain"),
        "command": Command(),
    }
)
