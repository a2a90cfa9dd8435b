"""Frames: what is packed comes out, however it is cut; what is no frame is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proving_ground.bench.agent.wire import LARGEST, LENGTHS, Unpacker, WireError, packed

MESSAGES = st.lists(st.tuples(st.dictionaries(st.text(max_size=5), st.integers()), st.binary(max_size=40)), max_size=5)


@given(messages=MESSAGES, size=st.integers(min_value=1, max_value=50))
def test_what_is_packed_comes_out_however_the_stream_is_cut(
    messages: list[tuple[dict[str, int], bytes]], size: int
) -> None:
    stream, unpacker = b"".join(packed(*it) for it in messages), Unpacker()
    found = [it for at in range(0, len(stream), size) for it in unpacker.feed(stream[at : at + size])]
    assert found == messages


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        (b"Welcome to node 7! Have a nice day.", "not a frame"),
        (LENGTHS.pack(LARGEST + 1, 0), "not a frame"),
        (LENGTHS.pack(3, 0) + b"{1}", "not JSON"),
        (LENGTHS.pack(2, 0) + b"[]", "not an object"),
    ],
)
def test_what_is_no_frame_is_refused_and_quoted(stream: bytes, says: str) -> None:
    with pytest.raises(WireError, match=says):
        list(Unpacker().feed(stream))
