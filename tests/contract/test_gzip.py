"""Packed answers: what they open to is limited, and so is what they cost while they open to nothing (G3)."""

from __future__ import annotations

import gzip
import random
from collections.abc import AsyncIterator, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streams.tools.connections import BadAnswer, Reply, TooLarge, read_beginning, read_body
from tests.support.raw_server import call_of, calling, code, floods, serving

EMPTY = gzip.compress(b"")
#: The head of a member, and a block of it that holds nothing.
HEAD, EMPTY_BLOCK = EMPTY[:10], b"\x00\x00\x00\xff\xff"
PIECE_BYTES = 64 << 10


class Packed:
    """A packed answer that comes in these pieces."""

    raw_headers = ((b"Content-Encoding", b"gzip"),)

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._left = list(pieces)
        self.read = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        while self._left:
            self.read += len(self._left[0])
            yield self._left.pop(0)


def packed(*pieces: bytes) -> Any:
    return cast(Reply, Packed(pieces))


def cut(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


async def test_G3_members_that_hold_nothing_are_counted() -> None:
    """They opened to no byte, so no cap ever struck, and each of them copied all that stood behind it: the loop stood still."""
    answer = packed(*[EMPTY * (PIECE_BYTES // len(EMPTY))] * 4)
    with pytest.raises(TooLarge, match="more than 1000 parts that hold next to nothing"):
        await read_body(answer, 5 << 20)
    assert answer.read == PIECE_BYTES - PIECE_BYTES % len(EMPTY)


async def test_G3_what_opens_to_nothing_is_read_no_further_than_what_opens_to_something() -> None:
    """Blocks without content, for ever: only the opened bytes were counted, and there were none."""
    answer = packed(HEAD, *[EMPTY_BLOCK * 13_000] * 64)
    with pytest.raises(TooLarge, match="packed as it is"):
        await read_body(answer, 1 << 20)
    assert answer.read < (1 << 20) + (1 << 18)
    with pytest.raises(TooLarge, match="packed as it is"):  # also where only the beginning is wanted: there is none
        await read_beginning(packed(HEAD, *[EMPTY_BLOCK * 13_000] * 64), 1 << 20)


async def test_G3_padding_behind_the_end_is_not_read_for_ever() -> None:
    with pytest.raises(TooLarge, match="packed as it is"):
        await read_body(packed(gzip.compress(b"{}"), *[bytes(PIECE_BYTES)] * 64), 1 << 20)


async def test_G3_a_large_answer_in_many_members_is_read_whole() -> None:
    """As those have it that pack block by block; the limit is for members that hold next to nothing."""
    blocks = [random.Random(seed).randbytes(1024) for seed in range(3000)]
    data = b"".join(gzip.compress(block, 1) for block in blocks)
    assert await read_body(packed(*cut(data, PIECE_BYTES)), len(blocks) * 1024) == b"".join(blocks)


@given(
    members=st.lists(st.binary(max_size=3000), min_size=1, max_size=5),
    size=st.integers(1, 9000),
    padding=st.integers(0, 9),
    room=st.sampled_from([-1, 0, 1, 100]),
)
async def test_G3_any_cut_opens_to_the_same(members: list[bytes], size: int, padding: int, room: int) -> None:
    whole = b"".join(members)
    bytes_max = max(len(whole) + room, 0)
    pieces = cut(b"".join(map(gzip.compress, members)) + bytes(padding), size)
    if bytes_max < len(whole):
        with pytest.raises(TooLarge):
            await read_body(packed(*pieces), bytes_max)
    else:
        assert await read_body(packed(*pieces), bytes_max) == whole
    assert await read_beginning(packed(*pieces), bytes_max) == whole[:bytes_max]


async def test_G3_data_that_end_within_a_member_are_no_answer() -> None:
    data = gzip.compress(b"[1]") + gzip.compress(b"[2]")
    with pytest.raises(BadAnswer, match="cut off"):
        await read_body(packed(*cut(data[:-9], 7)), 100)


async def test_G3_a_provider_that_sends_nothing_but_empty_members_ends_its_own_call_at_once() -> None:
    """It held the event loop, with its leases and heartbeats, until the call's time was over."""
    piece = EMPTY * 3000
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n\r\n"
    async with serving(floods(head, b"%x\r\n%s\r\n" % (len(piece), piece))) as server, calling(server) as caller:
        report = await caller.call(call_of())
    assert code(report) == "bad_response"
    assert report.seconds < 10.0
