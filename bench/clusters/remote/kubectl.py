"""Kubernetes' API by `kubectl`, with whatever login its configuration has. Called by `remote.kubernetes`."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from proving_ground.bench.protocols import ClusterError
from proving_ground.bench.spec import SpecError

Manifest = dict[str, Any]

COMMAND_S = 45.0  # for one command; the API server itself waits for a webhook for up to 30 s, and then says so
MISTAKES = re.compile(
    r"\((NotFound|Forbidden|Invalid|AlreadyExists|BadRequest|MethodNotAllowed)\)|Unauthorized|You must be logged in"
    r"|(context|cluster) \"?[^ ]*\"? does not exist|no context exists|no configuration has been provided"
    r"|exec: executable .* not found|error loading config file|provide credentials|exceeded quota"
)
"""What kubectl says where the caller has to change something; all else is a bad day of the cluster's."""
UNREACHED = re.compile(
    r"^(?!.*dialing backend).*("
    r"connection to the server [^ ]+ was refused|Unable to connect to the server|TLS handshake timeout"
    r"|server is currently unable to handle the request|apiserver not ready|etcdserver: )"
)
"""What it says where the API server is away, which tells nothing of a pod; a kubelet that is away is another matter."""
UNCONFIGURED = re.compile(r"localhost:8080|no configuration has been provided")
NOISE = re.compile(r"^(Warning: |[EWI]\d{4} )")  # lines of its log, and warnings of the API server


class Kubectl:
    """The command with the words that say which cluster and namespace."""

    def __init__(self, where: Sequence[str]) -> None:
        self.argv = ("kubectl", *where)

    def get(self, *words: str) -> Manifest:
        """An object, or a list of some; empty where there is none and `--ignore-not-found` is among the words."""
        return dict(json.loads(self.run("get", *words, "-o", "json") or "{}"))

    def create(self, *manifests: Mapping[str, Any]) -> None:
        """Have new objects."""
        items = {"apiVersion": "v1", "kind": "List", "items": list(manifests)}
        self.run("create", "-f", "-", "-o", "name", text=json.dumps(items))

    def says_yes(self, *words: str) -> bool:
        """Whether a question is answered with yes.

        Raises:
            SpecError, ClusterError: it is not answered.
        """
        done = self._done(words, None)
        if done.returncode and not done.stdout.startswith("no"):
            raise refused(done.stderr)
        return done.returncode == 0

    def answers(self, *words: str) -> bool:
        """Whether a command goes well."""
        return self._done(words, None).returncode == 0

    def namespace(self) -> str:
        """The namespace that objects without one are in."""
        if "--namespace" in self.argv:
            return self.argv[self.argv.index("--namespace") + 1]
        return self.run("config", "view", "--minify", "-o", "jsonpath={..namespace}").strip() or "default"

    def run(self, *words: str, text: str | None = None) -> str:
        """What a command prints; `text` is its standard input.

        Raises:
            SpecError: the API server refuses what was asked for, or there is no kubectl.
            ClusterError: it cannot be reached, or does not answer.
        """
        done = self._done(words, text)
        if done.returncode:
            raise refused(done.stderr)
        return done.stdout

    def _done(self, words: Sequence[str], text: str | None) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                [*self.argv, *words], input=text, capture_output=True, text=True, timeout=COMMAND_S, check=False,
                stdin=None if text is not None else subprocess.DEVNULL,
            )  # fmt: skip
        except FileNotFoundError:
            raise SpecError("cluster kubernetes: there is no kubectl on this machine") from None
        except subprocess.TimeoutExpired:
            raise ClusterError(f"kubernetes: kubectl {words[0]}: no answer within {COMMAND_S:g} s") from None


def refused(stderr: str) -> SpecError | ClusterError:
    """What kubectl complained of, as one line: the caller's mistake, or a bad day."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not NOISE.match(line.strip())]
    why = lines[-1] if lines else "no word why"
    if UNCONFIGURED.search(stderr):
        return SpecError("cluster kubernetes: no kubeconfig: set KUBECONFIG, or name a context= of yours")
    why = re.sub(r"^(error|Error from server): |^Error from server ", "", why)
    return SpecError(f"cluster kubernetes: {why}") if MISTAKES.search(stderr) else ClusterError(f"kubernetes: {why}")
