"""What Pulumi's engine does about a run over a state, and in which order: pure functions on `tests.infra.engine.Run`.

The rules are the engine's own (developer docs, "Resource registration" and "Dependency graphs"): what another resource
needs is made before it and goes after it; a resource needs its dependencies, its parent, its provider and what it is
deleted with.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tests.infra.engine import Registered, Run

REPLACING = ("location", "vmSize")
"""Inputs that Azure cannot change in place, of those that our configuration can change."""


def changes(before: Run, after: Run) -> dict[str, str]:
    """URN → create, update, replace or delete; what stays as it is, is left out."""
    found = {urn: "delete" for urn in before.resources if urn not in after.resources}
    replaced = _replaced(before, after)
    for urn, item in after.resources.items():
        if urn not in before.resources:
            found[urn] = "create"
        elif urn in replaced or changed(before.resources[urn], item):
            found[urn] = "replace" if urn in replaced else "update"
    return found


def changed(old: Registered, new: Registered) -> set[str]:
    """Inputs that differ, but for those that the program tells the engine to leave alone."""
    names = (old.inputs.keys() | new.inputs.keys()) - set(new.ignored)
    return {name for name in names if old.inputs.get(name) != new.inputs.get(name)}


def _replaced(before: Run, after: Run) -> set[str]:
    """What cannot be changed in place, and what has an input from there: an identity that is known only afterwards."""
    found: set[str] = set()
    for urn, item in after.resources.items():  # what is used was registered earlier
        if urn in before.resources and item.custom:
            forced = changed(before.resources[urn], item) & {*REPLACING, *item.replace_on_changes}
            if forced or item.used & found or _provider(item) in found:
                found.add(urn)
    return found


def needs(item: Registered) -> set[str]:
    """What must be there as long as the resource is."""
    return {*item.dependencies, *item.used, item.parent, item.deleted_with, _provider(item)} - {""}


def _provider(item: Registered) -> str:
    return item.provider.rpartition("::")[0]


def waves(run: Run, urns: Iterable[str]) -> Iterator[set[str]]:
    """The deletion of these: each wave at once, as soon as nothing that is left needs its resources."""
    left = set(urns)
    while left:
        needed = {need for urn in left for need in needs(run.resources[urn])}
        wave = left - needed
        assert wave, f"a cycle among {sorted(left)}"
        yield wave
        left -= wave


def gone_before(run: Run, first: str, last: str) -> bool:
    """Whether a destroy always deletes one resource, by name, before it begins with another: it needs that one."""
    named = {item.name: urn for urn, item in run.resources.items() if item.custom}
    return named[last] in needed_by(run, [named[first]]) - {named[first]}


def staying(run: Run) -> set[str]:
    """What `destroy --exclude-protected` leaves: the protected, and what these need."""
    return needed_by(run, [urn for urn, item in run.resources.items() if item.protect])


def needed_by(run: Run, urns: Iterable[str]) -> set[str]:
    """These, and what they need, and what that needs, to the end."""
    found: set[str] = set()
    waiting = list(urns)
    while waiting:
        urn = waiting.pop()
        if urn not in found:
            found.add(urn)
            waiting += needs(run.resources[urn]) & run.resources.keys()
    return found


def replacement(before: Run, after: Run) -> list[tuple[str, str]]:
    """(delete or create, name) in the engine's order: names are fixed, so each old one goes before the new one is made.

    Both providers say so themselves (`deleteBeforeReplace`). What goes with something else is not asked for.

    Raises:
        PermissionError: something protected is among them; the engine refuses before it begins.
    """
    replaced = _replaced(before, after)
    if kept := sorted(before.resources[urn].name for urn in replaced if before.resources[urn].protect):
        raise PermissionError(f"protected: {', '.join(kept)}")
    old, new = before.resources, after.resources
    gone = [urn for wave in waves(before, replaced) for urn in sorted(wave) if old[urn].deleted_with not in replaced]
    return [("delete", old[urn].name) for urn in gone] + [("create", new[urn].name) for urn in new if urn in replaced]
