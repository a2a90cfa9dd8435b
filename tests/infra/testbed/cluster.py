"""A whole cluster under one folder: etcd, API server, controller manager, scheduler, and one node that runs pods."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from infra.cluster.images import IMAGES
from tests.infra.apiserver.server import Server, controlling, running, scheduling
from tests.infra.testbed import images, node


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Server]:
    """A cluster that has the images of stack `local`; `folder/kubeconfig` reaches it. Nothing of it is left afterwards.

    Raises:
        UnavailableError: something that it takes is not on this machine.
        RuntimeError: it does not come up.
    """
    names = {component: IMAGES[component] for component in images.PARTS}
    with (
        node.present(folder / "n1", names) as made,
        running(folder, made.link.host) as server,
        controlling(server, folder),
        scheduling(server, folder),
    ):
        made.join(server)
        yield server
