"""Why a pod does not run, in Kubernetes' words: of pods and events as the API server has them.

Called by `remote.kubernetes`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from proving_ground.bench.clusters.remote.kubectl import Manifest
from proving_ground.bench.clusters.remote.story import when
from proving_ground.bench.protocols import ClusterError
from proving_ground.bench.spec import SpecError

INDEX = "batch.kubernetes.io/job-completion-index"
OVER = ("Succeeded", "Failed")
HOPELESS = ("ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError")
"""Reasons for which a container waits that no time mends."""
USUAL = (None, "ContainerCreating", "PodInitializing")
OF_OTHERS = "minCount"  # a pod of a gang that waits for another one's machine
HIDDEN = "SchedulerError"  # all that 1.37 says with PodGroups where a claim is not there
RANDOM = re.compile(r"(pg-[a-z0-9-]+-\d+)-[a-z0-9]{5}\b")  # what the Job adds to a pod's name, anew at each try
LONGEST = 240
REPEATED = "(combined from similar events): "


def reasons(pods: Sequence[Manifest], nodes: int, events: Callable[[], Sequence[Manifest]]) -> dict[int, str]:
    """Index → why it has no pod that runs, for each that has none; empty where nobody says.

    `events` are asked for only where the pods themselves do not say: the newest of each object says most.
    """
    newest = sorted(pods, key=lambda it: str(it["metadata"].get("creationTimestamp")), reverse=True)
    waiting = {index: [it for it in newest if index_of(it) == index] for index in range(nodes)}
    waiting = {index: own for index, own in waiting.items() if not any(map(runs, own))}
    found = {index: next(filter(None, map(waits_for, filter(is_live, own))), "") for index, own in waiting.items()}
    if not all(found.values()):
        told = sorted(events(), key=when)
        for index, own in waiting.items():
            found[index] = found[index] or by_events(own, told) or next(filter(None, map(ended_by, own)), "")
    return found


def telling(whys: Iterable[str]) -> str:
    """The reason that says most: rather why one pod waits than that others wait for it; empty where nobody says."""
    known = list(filter(None, whys))
    return next((why for why in known if OF_OTHERS not in why), next(iter(known), ""))


def index_of(pod: Manifest) -> int:
    """Which of the Job's it is, from 0."""
    return int(pod["metadata"]["annotations"][INDEX])


def runs(pod: Manifest) -> bool:
    """Whether it does, as far as is known."""
    return pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]


def is_live(pod: Manifest) -> bool:
    """Whether it has not ended."""
    return pod["status"].get("phase") not in OVER


def waits_for(pod: Manifest) -> str:
    """Why a pod does not run, by its own status; empty where that says nothing."""
    if since := pod["metadata"].get("deletionTimestamp"):
        return f"Terminating since {since}: {by_condition(pod, 'DisruptionTarget', 'True')}".removesuffix(": ")
    for container in pod["status"].get("containerStatuses", []):
        state = container["state"].get("waiting", {})
        if state.get("reason") not in USUAL:
            return in_words(state)
    return by_condition(pod, "PodScheduled", "False")


def by_condition(pod: Manifest, kind: str, status: str) -> str:
    """What a condition of a pod says, where it is so; else empty."""
    known = [it for it in pod["status"].get("conditions", []) if (it["type"], it["status"]) == (kind, status)]
    return in_words(known[0]) if known else ""


def by_events(pods: Sequence[Manifest], told: Sequence[Manifest]) -> str:
    """What the newest event says for which a live pod waits; without such a pod, why the Job can make none."""
    live = {it["metadata"]["name"] for it in pods if is_live(it)}
    for event in reversed(told):
        about = event["involvedObject"]
        ours = about.get("name") in live if live else about.get("kind") == "Job"
        if ours and (event.get("type") == "Warning" or event.get("reason") == "Pulling"):
            return in_words(event)
    return ""


def ended_by(pod: Manifest) -> str:
    """How a pod ended that is over, by its kubelet or by whoever took it away."""
    limits = {it["name"]: it.get("resources", {}).get("limits", {}) for it in pod.get("spec", {}).get("containers", [])}
    for container in pod["status"].get("containerStatuses", []):
        if ended := container["state"].get("terminated"):
            memory = limits.get(container.get("name"), {}).get("memory")
            more = f" (its memory limit is {memory})" if ended.get("reason") == "OOMKilled" and memory else ""
            said = one_line(ended.get("message", "")) or f"exit status {ended.get('exitCode')}"
            return f"{ended.get('reason', '')}: {said}{more}"
    return in_words(pod["status"]) if pod["status"].get("reason") else ""


def refuse_hopeless(pod: Manifest) -> None:
    """Do not wait for a pod that no time mends.

    Raises:
        SpecError: it can never run as it is.
        ClusterError: it has ended.
    """
    for container in pod["status"].get("containerStatuses", []):
        waiting, ended = container["state"].get("waiting", {}), container["state"].get("terminated", {})
        if waiting.get("reason") in HOPELESS:
            raise SpecError(f"cluster kubernetes: image {container['image']}: {in_words(waiting)}")
        if ended and not ended.get("exitCode"):
            raise ClusterError("kubernetes: a pod ended before all of them ran")
        if ended:
            what = "a pod" if ended.get("reason") == "OOMKilled" else "the pod's Python"
            raise SpecError(f"cluster kubernetes: {what} does not start: {ended_by(pod)}")


def in_words(said: Manifest) -> str:
    """Reason and message, by whatever said them."""
    return f"{said.get('reason', '')}: {one_line(said.get('message') or '')}"


def one_line(message: str) -> str:
    """A message without line ends, and not longer than a line of a terminal or two; the same at each try."""
    words = RANDOM.sub(r"\1", " ".join(message.split()).removeprefix(REPEATED))
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 1]}…"
