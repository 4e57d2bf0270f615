"""Requests that are posted on a channel: as much as the socket takes, and the answers that are
there."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import socket
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from saturnmq.protocol.channel import Channel, _behind
from saturnmq.protocol.remoting import Command, FrameDecoder, encode_head
from saturnmq.runtime.errors import ConnectionLost, MalformedFrame
from saturnmq.runtime.native import NativeRuntime


class Ends(NamedTuple):
    channel: Channel
    peer: socket.socket


@pytest.fixture
def ends() -> Iterator[Ends]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8192)
        channel = Channel(NativeRuntime(), f"127.0.0.1:{server.getsockname()[1]}", 3.0)
        channel._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 65536)
        peer, _ = server.accept()
    peer.settimeout(5.0)
    with peer:
        yield Ends(channel, peer)
    channel.close()


def answer(opaque: int, body: bytes = b"") -> bytes:
    reply = Command(310, {}, b"").reply(0, ext={"n": str(opaque)}, body=body)
    reply.opaque = opaque
    return bytes(encode_head(reply)) + body


def taken(channel: Channel, count: int = 1) -> list[tuple[int, bytes]]:
    """The next answers, so many at least; one may need several reads."""
    found: list[tuple[int, bytes]] = []
    while len(found) < count:
        readable = select.poll()
        readable.register(channel, select.POLLIN)
        there = readable.poll(5000)
        assert there, f"{len(found)} of {count} answers came"
        found += [(each.opaque, bytes(each.body)) for each in channel.take()]
    return found


def test_a_channel_with_a_number_above_1023_tells_whether_it_is_alive() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] != resource.RLIM_INFINITY and before[1] < 2048:
        pytest.skip("this machine allows no such descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, before[1]))
    with contextlib.ExitStack() as files:
        files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, before)
        while files.enter_context(open(os.devnull)).fileno() < 1024:
            pass
        server = files.enter_context(socket.create_server(("127.0.0.1", 0)))
        channel = Channel(NativeRuntime(), f"127.0.0.1:{server.getsockname()[1]}", 3.0)
        files.callback(channel.close)
        peer, _ = server.accept()
        assert channel.fileno() > 1023
        assert channel.is_alive()
        peer.close()
        assert not channel.is_alive()


def test_what_the_socket_does_not_take_follows(ends: Ends) -> None:
    sent = []
    rest: list[object] = []
    for number in range(10_000):
        command = Command(310, {"e": str(number)}, b"%08d" % number * 512)
        command.opaque = number
        rest = ends.channel.post(command)
        sent.append((number, command.body))
        if rest:
            break
    assert rest, "the socket has no end"
    assert ends.channel.post_rest(rest) == rest
    decoder, came = FrameDecoder(), list[tuple[int, bytes]]()
    while len(came) < len(sent):
        came += [(each.opaque, bytes(each.body)) for each in decoder.feed(ends.peer.recv(65536))]
        if rest:
            rest = ends.channel.post_rest(rest)
    assert (came, rest, decoder.pending) == (sent, [], 0)


def test_what_the_socket_does_not_take_of_several_parts(ends: Ends) -> None:
    parts = [bytes(range(256)) * 2_000, b"head", b"body"]
    rest = ends.channel.post_rest(parts)
    assert len(rest) == 3
    came = b""
    while len(came) < sum(map(len, parts)):
        came += ends.peer.recv(65536)
        rest = ends.channel.post_rest(rest) if rest else []
    assert (came, rest) == (b"".join(parts), [])


def test_the_rest_begins_behind_the_last_byte_that_was_sent() -> None:
    parts = [b"head", b"", b"body", b"more"]
    for sent in range(13):
        assert b"".join(_behind(parts, sent)) == b"headbodymore"[sent:]


def test_an_answer_ends_the_rest_of_a_connection(ends: Ends) -> None:
    ends.channel._now = lambda: 1e9
    assert ends.channel.idle_s() > 1e6
    ends.peer.sendall(answer(1))
    assert taken(ends.channel) == [(1, b"")]
    assert ends.channel.idle_s() == 0.0


def test_answers_come_in_any_order_and_in_pieces(ends: Ends) -> None:
    assert ends.channel.take() == []
    ends.peer.sendall(answer(7) + answer(3, b"three"))
    assert taken(ends.channel, 2) == [(7, b""), (3, b"three")]
    whole = answer(1, b"one") + answer(2, b"two") * 3
    for cut in range(1, len(whole), 5):
        ends.peer.sendall(whole[:cut])
        before = []
        if cut >= len(answer(1, b"one")):
            before = taken(ends.channel)
        ends.peer.sendall(whole[cut:])
        after = taken(ends.channel, 4 - len(before))
        assert before + after == [(1, b"one"), *[(2, b"two")] * 3]


def test_an_answer_larger_than_the_buffer(ends: Ends) -> None:
    large = bytes(range(256)) * 300
    ends.peer.sendall(answer(1, b"x") + answer(2, large[:20_000]))
    assert taken(ends.channel, 2) == [(1, b"x"), (2, large[:20_000])]
    for number in range(40):
        ends.peer.sendall(answer(number, large[: number * 997]))
        assert taken(ends.channel) == [(number, large[: number * 997])]


def test_requests_of_the_peer_are_dropped(ends: Ends) -> None:
    request = Command(40, {}, b"")
    ends.peer.sendall(bytes(encode_head(request)) + answer(5))
    assert taken(ends.channel) == [(5, b"")]


def test_the_end_of_a_connection(ends: Ends) -> None:
    ends.peer.sendall(answer(1)[:-1])
    ends.peer.close()
    with pytest.raises(ConnectionLost, match="closed by the peer"):
        taken(ends.channel)

    def post_much() -> None:
        for _ in range(1000):
            ends.channel.post(Command(310, {}, b"x" * 4096))

    with pytest.raises(ConnectionLost, match="request 310"):
        post_much()


def test_nonsense_is_no_frame(ends: Ends) -> None:
    ends.peer.sendall(b"\x7f" * 64)
    with pytest.raises(MalformedFrame):
        taken(ends.channel)
