"""A stack without the Pulumi CLI: the same objects, applied by kubectl. For stacks that are on a cluster and no cloud.

There is no file of states. What `infra.outputs` and `reap` need to know stands on the cluster itself, in one ConfigMap
that is written last: while it is not there, the stack is not up. `down` goes by the label that all of it carries, so it
takes away what an interrupted `up`, or one with another configuration, has left. Both can be repeated at any moment.
"""

from __future__ import annotations

import base64
import contextlib
import datetime as dt
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

from proving_ground.infra.cluster import facts as known
from proving_ground.infra.cluster.everything import manifests
from proving_ground.infra.cluster.facts import Facts
from proving_ground.infra.cluster.labels import MONITORING, TRAINING
from proving_ground.infra.cluster.manifest import PART_OF, thing
from proving_ground.infra.config import ROOT, load
from proving_ground.infra.exports import exports
from proving_ground.infra.life import StackError
from proving_ground.infra.passwords import KEPT, NO_WEBHOOK, VARIABLES
from proving_ground.infra.reading import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from proving_ground.infra.cluster.manifest import Manifest
    from proving_ground.infra.config import Environment

NOTE = "stack"  # the ConfigMap
DEFAULT = "default"  # the namespace that every cluster has
SAYS = "infra: no Pulumi CLI here: the same objects are applied by kubectl, and there is no file of states"
READY_S, GONE_S, ANSWER_S = 300, 300, 60
RUNS = ("Deployment", "DaemonSet", "StatefulSet")
OUTSIDE = ("persistentvolumes", "priorityclasses", "clusterrolebindings", "clusterroles")
"""Kinds of ours that are in no namespace, and so do not go with one."""
NOISE = re.compile(r"[EWI]\d{4} |Warning: ")  # lines of kubectl's own log
LABEL = ",".join(f"{name}={value}" for name, value in PART_OF.items())


def possible(environment: Environment) -> bool:
    """Whether a stack is to be had this way: no Pulumi CLI, but kubectl, and nothing in a cloud."""
    return shutil.which("pulumi") is None and shutil.which("kubectl") is not None and environment.azure is None


class DirectStack:
    """A stack on the cluster that the kubeconfig reaches; it implements `infra.life.Stack`."""

    def __init__(self, environment: Environment, say: Callable[[str], None]) -> None:
        self._environment, self._say = environment, say
        self._kubectl = Kubectl(environment.kubernetes.context)
        say(SAYS)

    def up(self) -> None:
        """Make it so, and wait until it works."""
        with alone(self._environment.name):
            facts = self._facts()
            objects = manifests(facts)
            self._kubectl.apply(objects)
            self._say(f"{len(objects)} objects applied")
            for item in objects if self._environment.kubernetes.wait else ():
                if item["kind"] in RUNS:
                    self._await(item)
            made = {"outputs": json.dumps(exports(facts), sort_keys=True)}
            self._kubectl.apply([thing("v1", "ConfigMap", NOTE, TRAINING, data=made)])

    def preview(self) -> None:
        """Say what `up` would do: the API server takes it all, and keeps none of it.

        What goes into a namespace that is not there yet the API server refuses: that is only read, by kubectl.
        """
        objects = manifests(self._facts())
        there = {it["metadata"]["name"] for it in self._kubectl.get("namespaces")["items"]}
        new = [it for it in objects if it["metadata"].get("namespace", DEFAULT) not in there]
        asked = self._kubectl.apply([it for it in objects if it not in new], "--dry-run=server")
        read = self._kubectl.read(new) if new else ""
        self._say(f"{asked}{read}".rstrip())

    def destroy(self, *, cluster_gone: bool = False) -> None:
        """Take all of it away, wait until it is gone; of a cluster that is no more there is nothing to take."""
        if cluster_gone:
            return
        with alone(self._environment.name):
            for kinds in ("namespaces", ",".join(OUTSIDE)):
                words = ("delete", kinds, "--selector", LABEL, "--ignore-not-found", f"--timeout={GONE_S}s")
                for line in self._kubectl.run(*words, timeout_s=GONE_S + ANSWER_S).splitlines():
                    self._say(line)

    def mend(self, *, force: bool = False) -> None:
        """Nothing: there is no file of states that could be wrong."""

    def waiting(self) -> str | None:
        """Never for machines: it makes none."""

    def set_waiting(self, reason: str | None) -> None:
        """Never."""

    def skus(self) -> dict[str, str]:
        """Nobody knows the sizes of machines that are somebody else's."""
        return {}

    def set_skus(self, skus: Mapping[str, str]) -> None:
        """There are none to choose."""

    def created(self) -> dt.datetime | None:
        """When its first namespace was made, by the API server's clock; None when there is nothing."""
        found = self._kubectl.get("namespaces", "--selector", LABEL)["items"]
        made = [dt.datetime.fromisoformat(item["metadata"]["creationTimestamp"]) for item in found]
        return min(made, default=None)

    def _facts(self) -> Facts:
        password = self._secret("grafana_password") or secrets.token_urlsafe(16)
        webhook = self._secret("webhook")
        return Facts(
            environment=self._environment,
            grafana_password=password,
            webhook=webhook if webhook and webhook != NO_WEBHOOK else None,
            rules=known.rules(),
            dashboards=known.dashboards(),
        )

    def _secret(self, name: str) -> str | None:
        """From the environment, else the one that the stack has; None where there is none."""
        if given := os.environ.get(VARIABLES[name]):
            return given
        path, key = KEPT[name]
        found = self._kubectl.get("secret", path.rpartition("/")[2], "--namespace", MONITORING, "--ignore-not-found")
        kept = found.get("data", {}).get(key)
        return base64.b64decode(kept).decode() if kept else None

    def _await(self, item: Manifest) -> None:
        """Wait until a workload's pods pass their probes."""
        metadata = item["metadata"]
        words = ("rollout", "status", f"{item['kind'].lower()}/{metadata['name']}", "-n", metadata["namespace"])
        try:
            self._say(self._kubectl.run(*words, f"--timeout={READY_S}s", timeout_s=READY_S + ANSWER_S).splitlines()[-1])
        except StackError as error:
            raise StackError(f"error: {metadata['namespace']}/{metadata['name']}: not ready: {error}") from None


class Kubectl:
    """The command, with the context that the configuration names."""

    def __init__(self, context: str | None) -> None:
        self._command = ["kubectl", *(("--context", context) if context else ())]

    def apply(self, objects: list[Manifest], *words: str) -> str:
        """Server-side apply, in the objects' order; what others changed of ours is ours again."""
        how = ("--server-side", "--force-conflicts", "--field-manager=proving-ground")
        return self.run("apply", *how, *words, "-f", "-", text=listed(objects), timeout_s=READY_S)

    def read(self, objects: list[Manifest]) -> str:
        """What `apply` would say of objects that are new, without asking whether it would be allowed."""
        return self.run("create", "--dry-run=client", "-f", "-", text=listed(objects))

    def get(self, *words: str) -> dict[str, Any]:
        """Objects; empty where `--ignore-not-found` is among the words and there is none."""
        return dict(json.loads(self.run("get", *words, "-o", "json").strip() or "{}"))

    def run(self, *words: str, text: str = "", timeout_s: float = ANSWER_S) -> str:
        """What it prints.

        Raises:
            StackError: it refuses, or does not answer.
            ConfigError: there is no kubeconfig.
        """
        try:
            done = subprocess.run(
                [*self._command, *words], input=text, capture_output=True, text=True, check=False, timeout=timeout_s
            )
        except subprocess.TimeoutExpired:
            raise StackError(f"error: kubectl {words[0]}: no answer within {timeout_s:g} s") from None
        if "localhost:8080" in done.stderr:
            raise ConfigError("no kubeconfig: set KUBECONFIG, or name kubernetes.context")
        if done.returncode:
            raise StackError("\n".join(line for line in done.stderr.splitlines() if not NOISE.match(line)))
        return done.stdout


def listed(objects: list[Manifest]) -> str:
    """Objects as kubectl reads them."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})


def current_context() -> str | None:
    """The context that kubectl works on when nobody names one; None where the kubeconfig has none."""
    with contextlib.suppress(StackError):
        return Kubectl(None).run("config", "current-context").strip() or None
    return None


def ask(context: str | None) -> None:
    """See whether the cluster answers.

    Raises:
        ConfigError: there is no kubeconfig.
        StackError: it does not answer, or not to this user.
    """
    Kubectl(context).get("namespaces", "--selector", LABEL)


@contextlib.contextmanager
def alone(name: str) -> Iterator[None]:
    """No other `up` or `down` on the stack meanwhile, by this checkout.

    Raises:
        StackError: there is one.
    """
    cluster = hashlib.sha256(os.environ.get("KUBECONFIG", "").encode()).hexdigest()[:8]
    file = ROOT / ".proving-ground" / f"{name}-{cluster}.lock"
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StackError("error: another update is in progress, by kubectl on this machine") from None
        yield


def outputs_of(name: str) -> Mapping[str, Any]:
    """What a stack exports that was brought up without Pulumi.

    Raises:
        ConfigError: it is not up, or its cluster does not answer.
    """
    kubectl = Kubectl(load(name).kubernetes.context)
    try:
        note = kubectl.get("configmap", NOTE, "--namespace", TRAINING, "--ignore-not-found")
    except StackError as error:
        raise ConfigError(f"stack {name}: {' '.join(str(error).split())}") from None
    if not note:
        raise ConfigError(f"stack {name}: it is not up; run `pg infra up {name}` first")
    return dict(json.loads(note["data"]["outputs"]))
