"""Pods of one Indexed Job: `--cluster kubernetes:template=trainer-gpu,namespace=training`. One pod is one node.

The agent is each pod's command, carried in by a ConfigMap; `kubectl exec` into the pod is the line to it. A Service for
each index gives a node a name that stays when the Job replaces its pod. All of it belongs to the Job and goes with it.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import json
import re
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from string import ascii_lowercase
from typing import Annotated, Any

from proving_ground.bench.clusters.remote import stacks
from proving_ground.bench.clusters.remote.kubectl import UNREACHED, Kubectl, Manifest, refused
from proving_ground.bench.clusters.remote.pool import BOOT, Asked, Member, is_left, signature, work_folder
from proving_ground.bench.clusters.remote.programs import run_program
from proving_ground.bench.clusters.remote.ssh import Folder
from proving_ground.bench.clusters.remote.story import ServerClock, Story, seconds, when
from proving_ground.bench.clusters.remote.waits import (
    HIDDEN,
    INDEX,
    index_of,
    is_live,
    one_line,
    reasons,
    refuse_hopeless,
    telling,
)
from proving_ground.bench.clusters.remote.withheld import HOOKS, OWNER, RUN, hook, quota
from proving_ground.bench.protocols import Ability, ClusterError, ClusterRequest, ProcessSpec
from proving_ground.bench.spec import SpecError, Trial
from proving_ground.training.typed import Rule

LOOK_S = 0.5
LEASE_S = 720.0  # of agents: all lines to them go by the API server, which may be away for minutes
SLOW_S = 5.0  # after which a pod that only "is creating" is asked for its events
FRESH_S = 120.0  # a Job that cannot make a pod says so at each try, about one a minute at last
SHORTLY = "--request-timeout=5s"  # nobody waits for the answer
CARRIED, MOUNT = "proving-ground-agent", "/proving-ground"
START = f"import os;os.dup2(os.open('{MOUNT}/agent',0),0);{BOOT}"
"""Program of the pod's Python: what it gets on its standard input is in the ConfigMap."""
THE_HARNESS_OWN = re.compile(r"PROVING_GROUND_|((LOCAL_|GROUP_|NODE_)?RANK|(LOCAL_)?WORLD_SIZE|MASTER_(ADDR|PORT))$")
"""Variables that a template sets for a job without the harness: where it keeps its work, and which rank it is."""
CLAIMED = "/proving-ground-volume"
USER = 1000
PODGROUPS = "/apis/scheduling.k8s.io/v1beta1"  # by which the scheduler starts pods of a Job together

ZONE = "topology.kubernetes.io/zone"
OF_MACHINES = ("--field-selector", "involvedObject.kind=Node")
LEASES = "kube-node-lease"
RENEWALS = 4  # of a machine's lease, in the time that it lasts
ABILITIES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "pods": (("delete pods",), "the right to delete pods"),
    "eviction": (("create pods/eviction",), "the right to evict pods"),
    "machines": (("patch nodes",), "the right to cordon machines"),
    "all_pods": (("list pods --all-namespaces",), "the right to see the pods of others, who are spared"),
    "quotas": (("create resourcequotas", "delete resourcequotas"), "the right to make and delete quotas"),
    "webhooks": ((f"create {HOOKS}", f"delete {HOOKS}"), "the right to make and delete webhooks, across the cluster"),
    "containers": (("list pods",), "by the agent, which is the container's first process"),
    "power": ((f"get leases --namespace {LEASES}",), "by power=, and the right to see the machines' leases"),
    "api": ((), "by api="),
}
"""Ability → the rights that it takes, each as `kubectl auth can-i` has it; and in words."""
PROGRAMS = {"power": "no power= that switches machines off", "api": "no api= that takes the API server away"}
"""Ability that takes a program of the user's, an option of the same name → what is said without."""

Name = Annotated[str, Rule(pattern=r"[a-z0-9.:/@_-]*", words="a name as Kubernetes has them")]
Names = Annotated[str, Rule(pattern=r"[a-z0-9.:/@_-]*(\+[a-z0-9.:/@_-]+)*", words="names as Kubernetes has them: a+b")]
Count = Annotated[int, Rule(least=0, most=1000)]


@dataclass(frozen=True)
class KubernetesOptions:
    """What `--cluster kubernetes:…` says; the first option may stand without its name."""

    template: Names = field(default="", metadata={"help": "the PodTemplate that pods are made of; a+b: else b"})
    stack: Name = field(default="", metadata={"help": "of `pulumi up`: context, namespace and template are its own"})
    pool: Names = field(default="", metadata={"help": "of the stack's pools, a+b: else b; the first with GPUs without"})
    image: str = field(default="", metadata={"help": "instead: an image with Python, torch and NumPy"})
    gpus: Count = field(default=0, metadata={"help": "GPUs of each pod, without a template"})
    namespace: Name = field(default="", metadata={"help": "the context's own without"})
    context: str = field(default="", metadata={"help": "of your kubeconfig; the current one without"})
    claim: Name = field(default="", metadata={"help": "a volume claim that all pods share, for checkpoints"})
    volume: Folder = field(default="", metadata={"help": "where a template mounts it; the first claim's place without"})
    python: str = field(default="python3", metadata={"help": "Python in the image"})
    work: Folder = field(default="/tmp", metadata={"help": "where the agent keeps its files meanwhile"})  # noqa: S108
    wait_min: Annotated[int, Rule(least=1, most=10_000)] = field(
        default=15, metadata={"help": "how long pods may wait for machines, in minutes"}
    )
    next_min: Annotated[int, Rule(least=1, most=10_000)] = field(
        default=5, metadata={"help": "after which the next template or pool is tried, in minutes"}
    )
    time_min: Annotated[int, Rule(least=1, most=100_000)] = field(
        default=240, metadata={"help": "after which the Job ends whatever happens, in minutes"}
    )
    gang: bool = field(default=True, metadata={"help": "where Kubernetes can: no pod gets a machine before all can"})
    emulated: bool = field(default=False, metadata={"help": "true where several nodes are one machine"})
    power: str = field(
        default="", metadata={"help": "a program run as `POWER kill MACHINE` and `POWER restore MACHINE`"}
    )
    api: str = field(default="", metadata={"help": "a program run as `API stop` and `API start`, for the API server"})


@dataclass(frozen=True)
class Choice:
    """A PodTemplate that a run may be made of, and how many machines there are at most for it."""

    template: str
    most: int | None = None


class NoMachinesError(ClusterError):
    """There are none for a template, and there is another one."""


class KubernetesPool:
    """A `Pool` of the pods of one Job."""

    name = "kubernetes"

    def __init__(self, options: KubernetesOptions) -> None:
        """Of a stack, what the options leave open is the stack's.

        Raises:
            SpecError: there is no such stack, or it has no such pool.
        """
        self.capacity: int | None = None  # an autoscaler may have more
        self.lease_s, self.wait_s = LEASE_S, 60.0 * options.wait_min
        way: Sequence[str] = ("--context", options.context) if options.context else ()
        self._choices = [Choice(it) for it in options.template.split("+")]
        if options.stack:
            found = stacks.stack(options.stack)
            pools = [stacks.pool_of(found, it) for it in options.pool.split("+")]
            self.capacity = max(it.max_nodes for it in pools)
            if not options.template and not options.image:
                self._choices = [Choice(it.pod_template, it.max_nodes) for it in pools]
            options = replace(options, namespace=options.namespace or found.namespace)
            reached, file = stacks.reach(found)
            if file:
                weakref.finalize(self, file.close)
            way = way or reached
        self.options = replace(options, template=self._choices[0].template)
        self.kubectl = Kubectl((*way, *(("--namespace", options.namespace) if options.namespace else ())))
        self._job, self._nodes, self._owned = "", 0, dict[str, Any]()
        self._withheld = 0  # times that pods were
        self.queued_s: float | None = None
        self._story: Story | None = None

    @property
    def volume(self) -> str:
        """Where pods have the folder that they share."""
        return self.options.volume or (CLAIMED if self.options.claim else claimed(self.pod))

    @cached_property
    def pod(self) -> Manifest:
        """The template of a pod: labels, annotations and spec.

        Raises:
            SpecError: there is none, or none was named; says which there are.
            ClusterError: the API server cannot be reached.
        """
        if self.options.image:
            return plain_pod(self.options)
        known = {it["metadata"]["name"]: it["template"] for it in self.kubectl.get("podtemplates")["items"]}
        if self.options.template in known:
            return dict(known[self.options.template])
        there = f"there are {', '.join(known)}" if known else "there is none; name an image= instead"
        named = f"no PodTemplate {self.options.template!r} in its namespace" if self.options.template else "which pods?"
        raise SpecError(f"cluster kubernetes: {named}: template= names a PodTemplate: {there}")

    def abilities(self) -> Sequence[Ability]:
        """A matter of rights."""
        return self._abilities

    @cached_property
    def _abilities(self) -> Sequence[Ability]:
        return list(map(self._ability, ABILITIES))

    def _ability(self, name: str) -> Ability:
        if name in PROGRAMS and not getattr(self.options, name):
            return Ability(name, yes=False, how=PROGRAMS[name])
        rights, how = ABILITIES[name]
        return Ability(name, yes=all(self.may(*right.split()) for right in rights), how=how)

    def may(self, *right: str) -> bool:
        """Whether the API server lets us."""
        return self.kubectl.says_yes("auth", "can-i", *right)

    def mistaken(self, why: str) -> bool:
        """By kubectl's words."""
        return isinstance(refused(why), SpecError)

    def closed(self, why: str) -> bool:
        """By kubectl's words: the API server could not be reached."""
        return bool(UNREACHED.search(why))

    def imitated(self) -> Sequence[str]:
        """As the options say: machines can be asked only once pods are there, and then it is seen to be so."""
        return ["nodes: several pods on one machine"] if self.options.emulated else []

    def plan(self, processes: Sequence[ProcessSpec], trial: Trial) -> str:
        """The manifests that would be sent, without the agent."""
        del processes
        parts = [self._manifest("RUN", trial.nodes), *belongings("RUN", trial.nodes, {}, b"(the agent)")]
        return "".join(f"{json.dumps(it, indent=1)}\n" for it in parts)

    def _manifest(self, name: str, nodes: int) -> Manifest:
        labels = {RUN: name, "app.kubernetes.io/part-of": "proving-ground"}
        return {
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {
                "name": name, "labels": labels, "annotations": {OWNER: signature()},
            },
            "spec": {
                "completionMode": "Indexed", "completions": nodes, "parallelism": nodes, "suspend": True,
                "backoffLimitPerIndex": 1000, "podReplacementPolicy": "Failed",
                "activeDeadlineSeconds": 60 * self.options.time_min, "ttlSecondsAfterFinished": 600,
                **self._together(nodes),
                "podFailurePolicy": {
                    "rules": [
                        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
                    ]
                },
                "template": self._template(name, labels),
            },
        }  # fmt: skip

    def _together(self, nodes: int) -> Manifest:
        """What has the scheduler place all pods or none, so that two runs never hold half of the machines each.

        Without it a run still begins only once all of its pods run, and gives up after `wait_min`.
        """
        if not (self.options.gang and self.has_gangs):
            return {}
        return {"scheduling": {"schedulingPolicy": {"gang": {"minCount": nodes}}}}

    @cached_property
    def has_gangs(self) -> bool:
        """Whether the API server has PodGroups: from 1.37 on, by the gates GenericWorkload and WorkloadWithJob."""
        return self.kubectl.answers("get", "--raw", PODGROUPS, SHORTLY)

    def _template(self, name: str, labels: Mapping[str, str]) -> Manifest:
        """The pod with the agent as its command, on a machine that no other of the run is on."""
        made = copy.deepcopy(self.pod)
        meta, spec = made.setdefault("metadata", {}), made["spec"]
        meta.pop("creationTimestamp", None)
        meta["labels"] = {**meta.get("labels", {}), **labels}
        first = spec["containers"][0]
        first["command"], first["args"] = [self.options.python, "-c", START], []
        first["env"] = [it for it in first.get("env", []) if not THE_HARNESS_OWN.match(it["name"])]
        mounts, volumes = [{"name": CARRIED, "mountPath": MOUNT, "readOnly": True}], []
        volumes.append({"name": CARRIED, "configMap": {"name": name}})
        if self.options.claim:
            mounts.append({"name": "proving-ground-volume", "mountPath": CLAIMED})
            volumes.append(
                {"name": "proving-ground-volume", "persistentVolumeClaim": {"claimName": self.options.claim}}
            )
        first["volumeMounts"] = [*first.get("volumeMounts", []), *mounts]
        spec["volumes"] = [*spec.get("volumes", []), *volumes]
        spec["restartPolicy"] = "Never"
        apart = {"labelSelector": {"matchLabels": {RUN: name}}, "topologyKey": "kubernetes.io/hostname"}
        own = spec.setdefault("affinity", {}).setdefault("podAntiAffinity", {})
        own.setdefault("requiredDuringSchedulingIgnoredDuringExecution", []).append(apart)
        return made

    def allocate(self, request: ClusterRequest, ask: Asked, tell: Callable[[str], None]) -> Sequence[Member]:
        """Have the pods of a template, or, where there are no machines for them in time, of the next one.

        Raises:
            SpecError: a pod can never run as it is.
            ClusterError: they do not run in time.
        """
        begin = time.monotonic()
        choices = [it for it in self._choices if it.most is None or it.most >= request.nodes]
        for number, choice in enumerate(choices):
            self._job = f"pg-{request.run_id.lower()}" + f"-{ascii_lowercase[number]}" * bool(number)
            self._choose(choice.template)
            try:
                members = self._made(request, ask, tell, last=choice is choices[-1])
            except NoMachinesError as why:
                tell(f"{why}; {choices[number + 1].template} is tried next")
                self.release()
            else:
                self.queued_s = time.monotonic() - begin
                return members
        raise ClusterError(f"kubernetes: no pool has {request.nodes} machines")

    def _choose(self, template: str) -> None:
        """Make pods of another template.

        Raises:
            SpecError: its pods have the volume elsewhere, and what has been told of it is not so.
        """
        before = self.volume
        if template != self.options.template:
            self.options = replace(self.options, template=template)
            self.__dict__.pop("pod", None)  # it was the other's
        if self.volume != before:
            raise SpecError(f"cluster kubernetes: {template} has its volume at {self.volume!r}, not at {before!r}")

    def _made(
        self, request: ClusterRequest, ask: Asked, tell: Callable[[str], None], *, last: bool
    ) -> Sequence[Member]:
        """Make the Job and wait until all of its pods run; none is used before."""
        work, self._nodes = work_folder(self.options.work, request), request.nodes
        asked_s = time.time()
        self.kubectl.create(self._manifest(self._job, request.nodes))
        answered_s, meta = time.time(), self.kubectl.get("job", self._job)["metadata"]
        self._story = Story(self._job, ServerClock.of_object(meta["creationTimestamp"], asked_s, answered_s), set())
        self._owned = {"apiVersion": "batch/v1", "kind": "Job", "name": self._job, "uid": meta["uid"]}
        agent = ask(Member("n{task}", "", "", (), work, "stay", first_s=60.0 * self.options.wait_min))
        self.kubectl.create(*belongings(self._job, request.nodes, self._owned, agent))
        self.kubectl.run("patch", "job", self._job, "--type=merge", "-p", '{"spec":{"suspend":false}}')
        hosts = self._hosts(request.nodes, tell, last=last)
        self._story.machines.update(hosts.values())
        container = self.pod["spec"]["containers"][0]["name"]
        labels = self._labels()
        return [
            Member(
                f"n{index + 1}", hosts[index], f"{self._job}-{index}", self._into(index, container), work, "not",
                zone=labels.get(hosts[index], {}).get(ZONE, ""), labels=labels.get(hosts[index], {}),
            )
            for index in range(request.nodes)
        ]  # fmt: skip

    def _labels(self) -> dict[str, dict[str, str]]:
        """Machine → its labels; of none where we may not see machines."""
        with contextlib.suppress(SpecError):
            return {
                it["metadata"]["name"]: it["metadata"].get("labels", {}) for it in self.kubectl.get("nodes")["items"]
            }
        return {}

    def _into(self, index: int, container: str) -> tuple[str, ...]:
        """The program that leads to the pod that is an index's now."""
        into = ("exec", "-i", "--pod-running-timeout=20s", f"service/{self._job}-{index}", "-c", container)
        return (*self.kubectl.argv, *into, "--", self.options.python, "-c", BOOT)

    def _hosts(self, nodes: int, tell: Callable[[str], None], *, last: bool) -> dict[int, str]:
        """Where each index runs, as soon as all do; why they do not is told whenever that changes.

        Raises:
            SpecError: a pod can never run as it is.
            NoMachinesError: they do not run before another template's turn.
            ClusterError: they do not run in time.
        """
        told, begin, most_min = "", time.monotonic(), self.options.wait_min if last else self.options.next_min
        while True:
            pods = self._pods()
            running = {index_of(it): it["spec"]["nodeName"] for it in pods if it["status"].get("phase") == "Running"}
            if len(running) == nodes:
                return running
            for it in pods:
                refuse_hopeless(it)
            waited_s = time.monotonic() - begin
            why = telling(self._reasons(pods, asked=waited_s > SLOW_S).values())
            why = (self._missing() if why.startswith(HIDDEN) else "") or why
            if waited_s > 60.0 * most_min:
                so_far = f"{len(running)} of {nodes} pods run after {most_min} min: {why}"
                if not last:
                    raise NoMachinesError(f"{self.options.template}: {so_far}")
                raise ClusterError(f"kubernetes: {so_far}; wait_min= allows for more")
            if why not in (told, ""):
                told = why
                tell(f"{len(running)} of {nodes} pods run: {why}")
            time.sleep(LOOK_S)

    def _missing(self) -> str:
        """A claim of the pods' that is not there, in kubectl's words; empty where all are, or we may not see them."""
        for volume in self._template(self._job, {})["spec"]["volumes"]:
            if claim := volume.get("persistentVolumeClaim", {}).get("claimName"):
                try:
                    self.kubectl.run("get", "persistentvolumeclaim", claim, "-o", "name")
                except SpecError as why:
                    if "not found" in str(why):
                        return str(why).removeprefix("cluster kubernetes: ")
        return ""

    def _pods(self, *more: str) -> list[Manifest]:
        return list(self.kubectl.get("pods", "-l", f"{RUN}={self._job}", *more)["items"])

    def waits(self) -> Mapping[str, str]:
        """Node → why it has no pod that runs, in Kubernetes' words."""
        found = self._reasons(self._pods(SHORTLY), asked=True)
        return {f"n{index + 1}": why for index, why in found.items() if why}

    def _reasons(self, pods: Sequence[Manifest], *, asked: bool) -> dict[int, str]:
        """Index → why it has no pod that runs; events are looked at only if they are asked for."""
        return reasons(pods, self._nodes, self._news if asked else list)

    def _news(self) -> list[Manifest]:
        """Kubernetes' events about the Job's pods, and what the Job itself has said lately."""
        found = [
            it
            for it in self.kubectl.get("events", SHORTLY)["items"]
            if str(it["involvedObject"].get("name", "")).startswith(self._job)
        ]
        now_s = time.time() + (self._story.clock.ahead_s if self._story else 0.0)
        return [it for it in found if it["involvedObject"]["kind"] != "Job" or now_s - seconds(when(it)) < FRESH_S]

    def machine(self, node: str) -> Mapping[str, Any]:
        """The pod that is this node's now; `id` is empty where there is none."""
        index = int(node.removeprefix("n")) - 1
        found = self.kubectl.get("pods", "-l", f"{RUN}={self._job},{INDEX}={index}")["items"]
        live = list(filter(is_live, found))
        if not live:
            return {"id": "", "name": "", "where": "", "state": ""}
        oldest = min(live, key=lambda it: str(it["metadata"]["creationTimestamp"]))
        meta, spec, status = (oldest[it] for it in ("metadata", "spec", "status"))
        state = "Terminating" if "deletionTimestamp" in meta else status.get("phase", "")
        return {"id": meta["uid"], "name": meta["name"], "where": spec.get("nodeName", ""), "state": state}

    def remove(self, name: str, way: str) -> None:
        """Delete a pod: `delete` with the notice that it asks for, `force` without, `evict` as a drain does."""
        if way == "evict":
            where = self.kubectl.namespace()
            about = {"name": name, "namespace": where}
            asked = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": about}
            path = f"/api/v1/namespaces/{where}/pods/{name}/eviction"
            self.kubectl.run("create", "--raw", path, "-f", "-", text=json.dumps(asked))
            return
        at_once = ("--grace-period=0", "--force") if way == "force" else ()
        self.kubectl.run("delete", "pod", name, "--wait=false", *at_once)

    def cordon(self, where: str, *, on: bool) -> None:
        """No new pods on a machine, or again; it is labelled meanwhile, so that `clean` finds it.

        Raises:
            ClusterError: somebody else has closed it.
        """
        if on and self.kubectl.get("node", where)["spec"].get("unschedulable"):
            raise ClusterError(f"kubernetes: {where} is cordoned already, and not by this run")
        if on:
            self._mark(where)
        self.kubectl.run("cordon" if on else "uncordon", where)
        if not on:
            self.kubectl.run("label", "node", where, f"{RUN}-")

    def _mark(self, where: str) -> None:
        self.kubectl.run("label", "node", where, f"{RUN}={self._job}", "--overwrite")

    def taint(self, where: str, *, on: bool) -> None:
        """NoExecute on a machine, or no more; it is labelled meanwhile, so that `clean` finds it.

        Raises:
            ClusterError: somebody else's pods are there, and would be evicted too.
        """
        if on and (others := self._others("--all-namespaces", "--field-selector", f"spec.nodeName={where}")):
            raise ClusterError(f"kubernetes: {where} has pods of others, which a taint would evict: {others[0]}")
        if on:
            self._mark(where)
            self.kubectl.run("taint", "node", where, f"{RUN}={self._job}:NoExecute", "--overwrite")
            return
        self.kubectl.run("taint", "node", where, f"{RUN}:NoExecute-")
        self.kubectl.run("label", "node", where, f"{RUN}-")

    def withhold(self, by: str, *, on: bool) -> None:
        """Have the Job get no pods: by a quota of none, which goes with the Job, or a webhook for its pods alone.

        Raises:
            ClusterError: somebody else's pods are in the namespace, and would get no others either.
        """
        if on and by == "quota" and (others := self._others()):
            raise ClusterError(f"kubernetes: its namespace has pods of others, for whom it would count: {others[0]}")
        if on:
            self._withheld += 1
            make = {"quota": quota, "webhook": hook}[by]
            self.kubectl.create(make(self._keeps_back, self._owned, self.kubectl.namespace()))
            return
        kind = HOOKS if by == "webhook" else "resourcequotas"
        self.kubectl.run("delete", kind, self._keeps_back, "--ignore-not-found", "--wait=false")

    @property
    def _keeps_back(self) -> str:
        """The name of what keeps pods back, another each time."""
        return f"{self._job}.{self._withheld}"

    def refusals(self) -> Sequence[Mapping[str, Any]]:
        """The Job controller's events that name what keeps pods back."""
        return [it for it in self.told(self._job) if self._keeps_back in it["message"]]

    def _others(self, *where: str) -> list[str]:
        """The pods somewhere that are not this run's and that go and come; those of DaemonSets stay."""
        found = self.kubectl.get("pods", *where)["items"]
        return [
            f"{it['metadata']['namespace']}/{it['metadata']['name']}"
            for it in found
            if is_live(it)
            and it["metadata"].get("labels", {}).get(RUN) != self._job
            and not {owner["kind"] for owner in it["metadata"].get("ownerReferences", [])} & {"DaemonSet", "Node"}
        ]

    def ended(self, name: str) -> Mapping[str, Any]:
        """By its kubelet: how the pod's first container ended, and which it was."""
        statuses = self.kubectl.get("pod", name, "--ignore-not-found").get("status", {}).get("containerStatuses", [])
        found = statuses[0]["state"].get("terminated", {}) if statuses else {}
        known = {"reason": "reason", "code": "exitCode", "at": "finishedAt", "container": "containerID"}
        return {key: found.get(theirs) for key, theirs in known.items()} if found else {}

    def told(self, name: str) -> Sequence[Mapping[str, Any]]:
        """Kubernetes' events about a pod, in the order of their moments, which it knows to a second."""
        found = self.kubectl.get("events", "--field-selector", f"involvedObject.name={name}")["items"]
        events = [
            {"at": when(it), "reason": it.get("reason", ""), "message": one_line(it.get("message") or "")}
            for it in found
        ]
        return sorted(events, key=lambda it: str(it["at"]))

    def events(self) -> Iterable[Mapping[str, Any]]:
        """Kubernetes' events about the Job, its pods and, where we may see them, the machines that it began on."""
        if self._story is None:
            return ()
        found = list(self.kubectl.get("events")["items"])
        with contextlib.suppress(SpecError):  # no right to see them: nodes' events are in this namespace
            found += self.kubectl.get("events", "--namespace", "default", *OF_MACHINES)["items"]
        return self._story.more(found)

    def power(self, where: str, *, on: bool) -> None:
        """By the program that `power=` names."""
        run_program("kubernetes", "power", self.options.power, "restore" if on else "kill", where)

    def pulse(self, where: str) -> Mapping[str, Any]:
        """The machine's lease, which its kubelet renews."""
        spec = self.kubectl.get("lease", where, "--namespace", LEASES)["spec"]
        return {"where": where, "at": spec["renewTime"], "every_s": spec["leaseDurationSeconds"] / RENEWALS}

    def control(self, *, on: bool) -> None:
        """By the program that `api=` names."""
        run_program("kubernetes", "api", self.options.api, "start" if on else "stop")

    def controlled(self) -> bool:
        """Whether the API server says that it is ready."""
        return self.kubectl.answers("get", "--raw", "/readyz", "--request-timeout=2s")

    def release(self) -> None:
        """Delete the Job, and with it all that belongs to it; safe twice."""
        if self._job:
            job, self._job = self._job, ""
            self._delete(job)

    def _delete(self, job: str) -> None:
        self.kubectl.run("delete", "job", job, "--ignore-not-found", "--cascade=background", "--wait=false")

    def clean(self, *, dry_run: bool) -> Sequence[str]:
        """Delete the Jobs of runs that were started here and whose harness is gone, and open what they had drained."""
        lines, in_use = [], set()
        for it in self.kubectl.get("jobs", "-l", RUN)["items"]:
            name, said = it["metadata"]["name"], it["metadata"].get("annotations", {}).get(OWNER, "/")
            left = is_left(said)
            if left and not dry_run:
                self._delete(name)
            lines.append(f"{'left' if left else f'in use by {said}, let be'}: job {name}")
            in_use |= set() if left else {name}
        for it in self.kubectl.get("nodes", "-l", RUN)["items"] if self.may("patch", "nodes") else ():
            where, job = it["metadata"]["name"], it["metadata"]["labels"][RUN]
            if job not in in_use:
                lines.append(f"left: machine {where}, cordoned by {job}")
                if not dry_run:
                    self._open(it)
        return [*lines, *self._clean_hooks(dry_run=dry_run)]

    def _clean_hooks(self, *, dry_run: bool) -> Iterator[str]:
        """Remove the webhooks of such runs; they belong to no namespace, and so to no Job."""
        for it in self.kubectl.get(HOOKS, "-l", RUN)["items"] if self.may("delete", HOOKS) else ():
            name = it["metadata"]["name"]
            if is_left(it["metadata"].get("annotations", {}).get(OWNER, "/")):
                yield f"left: webhook {name}"
                if not dry_run:
                    self.kubectl.run("delete", HOOKS, name, "--ignore-not-found", "--wait=false")

    def _open(self, machine: Manifest) -> None:
        """Let pods come to a machine again that a run had closed, in whatever way."""
        where, spec = machine["metadata"]["name"], machine["spec"]
        if any(it["key"] == RUN for it in spec.get("taints", [])):
            self.taint(where, on=False)
        if spec.get("unschedulable"):
            self.cordon(where, on=False)


def belongings(job: str, nodes: int, owned: Mapping[str, Any], agent: bytes) -> Iterator[Manifest]:
    """What a Job needs and owns: the agent, and a name for each of its nodes."""
    meta = {"labels": {RUN: job}, **({"ownerReferences": [dict(owned)]} if owned else {})}
    yield {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": job, **meta},
        "binaryData": {"agent": base64.b64encode(agent).decode()},
    }  # fmt: skip
    for index in range(nodes):
        yield {
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": f"{job}-{index}", **meta},
            "spec": {
                "clusterIP": "None", "publishNotReadyAddresses": True, "selector": {RUN: job, INDEX: str(index)},
            },
        }  # fmt: skip


def plain_pod(options: KubernetesOptions) -> Manifest:
    """A pod of an image alone, as `restricted` namespaces take it."""
    gpus = {"nvidia.com/gpu": str(options.gpus)}
    return {
        "spec": {
            "automountServiceAccountToken": False,
            "securityContext": {
                "runAsNonRoot": True, "runAsUser": USER, "runAsGroup": USER, "fsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "containers": [
                {
                    "name": "trainer", "image": options.image,
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                    "volumeMounts": [
                        {"name": "memory", "mountPath": "/dev/shm"},  # noqa: S108 - loaders' workers share memory there
                        {"name": "temporary", "mountPath": options.work},
                    ],
                    **({"resources": {"limits": gpus}} if options.gpus else {}),
                }
            ],
            "volumes": [
                {"name": "memory", "emptyDir": {"medium": "Memory"}}, {"name": "temporary", "emptyDir": {}},
            ],
        }
    }  # fmt: skip


def claimed(template: Manifest) -> str:
    """Where a template's first container mounts the first of its volume claims; empty without one."""
    claims = {it["name"] for it in template["spec"].get("volumes", []) if "persistentVolumeClaim" in it}
    mounts = template["spec"]["containers"][0].get("volumeMounts", [])
    return next((str(it["mountPath"]) for it in mounts if it["name"] in claims), "")
