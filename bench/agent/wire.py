"""Frames on a byte stream: a JSON object, and bytes beside it. Nothing that arrives is unpickled or executed.

Eight bytes of lengths (of the object, of the bytes; big endian), then both. Used at both ends.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

LENGTHS = struct.Struct(">II")
LARGEST = 2**26  # bytes of either part: an archive of code is 1 MB


class WireError(ValueError):
    """What arrived is no frame; the stream cannot be used any further."""


def packed(message: dict[str, Any], blob: bytes = b"") -> bytes:
    """One frame as bytes."""
    words = json.dumps(message, separators=(",", ":")).encode()
    return LENGTHS.pack(len(words), len(blob)) + words + blob


class Unpacker:
    """Takes bytes as they come, and gives frames as soon as they are whole."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, more: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
        """The frames that are complete now.

        Raises:
            WireError: the other end says something else; quotes how it begins.
        """
        self._bytes += more
        while len(self._bytes) >= LENGTHS.size:
            words, blob = LENGTHS.unpack_from(self._bytes)
            if words > LARGEST or blob > LARGEST:
                raise WireError(f"not a frame: {bytes(self._bytes[:60])!r}")
            end = LENGTHS.size + words + blob
            if len(self._bytes) < end:
                return
            message = _object(bytes(self._bytes[LENGTHS.size : LENGTHS.size + words]))
            tail = bytes(self._bytes[LENGTHS.size + words : end])
            del self._bytes[:end]
            yield message, tail


def _object(words: bytes) -> dict[str, Any]:
    try:
        message = json.loads(words)
    except ValueError as error:
        raise WireError(f"not JSON: {words[:60]!r}: {error}") from None
    if not isinstance(message, dict):
        raise WireError(f"not an object: {words[:60]!r}")
    return message
