"""Posts inputs to an end point and reads its answer; both engines speak the same words. Called by `serving.check`."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any
from urllib.parse import SplitResult, urlsplit

from proving_ground.serving.mistakes import FailedError, ServingError

TIMEOUT_S = 60.0
Headers = Mapping[str, str]
NONE: Headers = MappingProxyType({})


@dataclass(frozen=True)
class Answer:
    """What came back: a status, and the document; of a refusal its message."""

    status: int
    document: Any

    @property
    def refused(self) -> bool:
        """Whether the end point says that the request is wrong."""
        return self.status == http.client.BAD_REQUEST

    @property
    def words(self) -> str:
        """What a refusal says, in a line."""
        found = self.document.get("message", self.document) if isinstance(self.document, dict) else self.document
        return " ".join(str(found).split())


def post(url: str, document: Any, headers: Headers = NONE) -> Answer:  # noqa: ANN401 - JSON
    """Ask an end point.

    Raises:
        ServingError: no address of an end point.
        FailedError: nobody answers.
    """
    parts, port = parts_of(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", port, timeout=TIMEOUT_S)
    path = f"{parts.path}?{parts.query}" if parts.query else parts.path
    try:
        connection.request("POST", path, json.dumps(document), {"Content-Type": "application/json", **headers})
        answer = connection.getresponse()
        return Answer(answer.status, read(answer.read()))
    except (OSError, http.client.HTTPException) as error:
        raise FailedError(f"{url}: does not answer: {error or type(error).__name__}") from None
    finally:
        connection.close()


def parts_of(url: str) -> tuple[SplitResult, int | None]:
    """An address in its parts, with the port.

    Raises:
        ServingError: it is none of an end point.
    """
    try:
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.path.strip("/"):
            return parts, parts.port
    except ValueError:
        pass
    raise ServingError(f"{url}: must be http://HOST:PORT/score (Azure ML) or http://HOST:PORT/invocations (MLflow)")


def read(content: bytes) -> Any:  # noqa: ANN401 - JSON
    """The document in an answer; what is none, as text."""
    try:
        return json.loads(content)
    except ValueError:
        return content.decode(errors="replace")
