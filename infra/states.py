"""What an exported state says, and what is changed in it before it is put back; plain data. For `infra.stacks`.

A killed command leaves in it what it had begun. The engine forgets that at the next `up`, or keeps it for ever; both
lose track of objects that exist.
"""

from __future__ import annotations

from typing import Any

State = dict[str, Any]
OBJECT = "kubernetes:"
"""How the type of a Kubernetes object begins."""


def begun(state: State) -> list[dict[str, Any]]:
    """Operations that a killed command noted before it did them."""
    return (state["deployment"] or {}).get("pending_operations") or []


def half_made(state: State) -> list[str]:
    """What it may have made outside of the cluster, where making it again is refused."""
    made = [it["resource"] for it in begun(state) if it["type"] == "creating"]
    return [it["urn"] for it in made if not it["type"].startswith(OBJECT)]


def adopted(state: State) -> State | None:
    """The state with the objects in it that may have been made on the cluster, for a comparison to keep or to drop.

    None where there are none. Their names are known before they are made, so nobody has to be asked.
    """
    objects = [it["resource"] for it in begun(state) if it["type"] == "creating" and _on_cluster(it["resource"])]
    deployment = state["deployment"] or {}
    known = {item["urn"] for item in deployment.get("resources") or []}
    new = [{**item, "id": _identity(item), "outputs": item["inputs"]} for item in objects if item["urn"] not in known]
    if not new:
        return None
    left = [it for it in begun(state) if it["resource"] not in objects]
    return _with(state, [*(deployment.get("resources") or []), *new], left)


def without_cluster(state: State) -> State:
    """The state without Kubernetes objects, neither whole nor half made."""
    kept = [item for item in state["deployment"].get("resources", []) if not _on_cluster(item)]
    return _with(state, kept, [it for it in begun(state) if not _on_cluster(it["resource"])])


def _with(state: State, resources: list[dict[str, Any]], pending: list[dict[str, Any]]) -> State:
    return {**state, "deployment": {**state["deployment"], "resources": resources, "pending_operations": pending}}


def _on_cluster(resource: dict[str, Any]) -> bool:
    return str(resource["type"]).startswith(OBJECT)


def _identity(resource: dict[str, Any]) -> str:
    """As the Kubernetes provider makes it: the name, after the namespace where there is one."""
    metadata = resource["inputs"]["metadata"]
    return "/".join(metadata[key] for key in ("namespace", "name") if key in metadata)
