"""shared/frames.py: lines become messages, bad ones are counted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pfsup.config.errors import ProtocolError
from pfsup.shared.frames import MAX_LINE_BYTES, Frames, decode, encode

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda v: st.lists(v) | st.dictionaries(st.text(), v),
    max_leaves=20,
)


@given(st.lists(st.dictionaries(st.text(), JSON, max_size=4), max_size=5), st.integers(1, 50))
def test_messages_survive_any_cutting_of_the_stream(messages: list[dict[str, object]], size: int):
    stream = b"".join(encode(message) for message in messages)
    frames = Frames()
    read = [m for i in range(0, len(stream), size) for m in frames.feed(stream[i : i + size])]
    assert read == messages
    assert frames.bad == 0


@given(st.binary(max_size=2000))
def test_garbage_never_raises_and_the_next_line_is_read(garbage: bytes):
    frames = Frames()
    frames.feed(garbage + b"\n")
    assert frames.feed(encode({"type": "beat"})) == [{"type": "beat"}]


NOT_PLAIN = (
    b'{"a":NaN}',
    b'{"a":[1e999]}',
    b'{"a":9223372036854775808}',
    b'{"a":' + b"9" * 5000 + b"}",
    b'{"a":"\\ud800"}',
    b'{"\\ud800":1}',
    b'{"a":' + b"[" * 32 + b"]" * 32 + b"}",
)
"""Python can read most of them, and then not write them for every reader."""


@pytest.mark.parametrize("line", [b"[1]", b"7", b'"text"', b"\xff\xfe", b"{", b"[" * 60_000, b"null", *NOT_PLAIN])
def test_a_line_that_is_no_plain_object_is_counted(line: bytes):
    frames = Frames()
    assert frames.feed(line + b"\n") == []
    assert (frames.bad, frames.overflowed) == (1, False)


def test_a_blank_line_is_nothing():
    frames = Frames()
    assert frames.feed(b"\n  \n\r\n") == []
    assert frames.bad == 0


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_over_the_limit_ends_the_stream_and_frees_its_memory(end: bytes):
    frames = Frames()
    assert frames.feed(b"x" * (MAX_LINE_BYTES + 1) + end) == []
    assert frames.overflowed
    assert "pending=0" in repr(frames)
    assert frames.feed(encode({"type": "beat"})) == []


def test_a_line_at_the_limit_is_read():
    text = "x" * (MAX_LINE_BYTES - len(encode({"a": ""})))
    assert Frames().feed(encode({"a": text})) == [{"a": text}]


def test_a_message_over_the_limit_is_refused_with_its_size():
    with pytest.raises(ProtocolError, match=f"the limit is {MAX_LINE_BYTES}"):
        encode({"a": "x" * MAX_LINE_BYTES})


def test_what_is_not_json_is_written_as_text_or_refused():
    assert json.loads(encode({"a": frozenset({1})})) == {"a": "frozenset({1})"}
    with pytest.raises(ProtocolError, match="not JSON"):
        encode({"a": float("nan")})


def test_decode_takes_one_object():
    assert decode(b'{"a":1}') == {"a": 1}
    assert decode(b"{} {}") is None
