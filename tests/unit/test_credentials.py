"""Signatures of RocketMQ's clients: what they cover, and in which order."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from broker_rig import run
from credentials_rig import is_signed_by
from hypothesis import assume, given
from hypothesis import strategies as st
from saturnmq import Credentials, SaturnError
from saturnmq.client.channels import Channels
from saturnmq.protocol.channel import Channel
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.credentials import (
    ACCESS_VARIABLE,
    SECRET_VARIABLE,
    SigningEndpoint,
    credentials_of,
    sign,
    signature,
    signed_fields,
)
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command, FrameDecoder, encode_head
from saturnmq.protocol.signing import Challenges, Signing, ask_signed
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import ConfigError
from saturnmq.runtime.native import NativeRuntime

ANN = Credentials("ann", "secret of ann")
names = st.text(st.characters(max_codepoint=0xD7FF), min_size=1, max_size=8)
fields = st.dictionaries(names, st.text(max_size=8), max_size=6)


def signed(credentials: Credentials, ext: dict[str, str], *body: bytes) -> dict[str, str]:
    command = Command(RequestCode.SEND_MESSAGE_V2, ext, *body[:1], more=body[1:])
    sign(command, credentials)
    return command.ext


# The signatures that AclClientRPCHook and AclSigner of RocketMQ 5.4.0 make.
@pytest.mark.parametrize(
    ("credentials", "ext", "body", "expected"),
    [
        (ANN, {}, b"", "3baVMvfbfyUytp4Elu6YVkey740="),
        (
            ANN,
            {"topic": "orders", "queueId": "3", "a": "g", "Zone": "x"},
            b"hello",
            "XTdRFQbIDbp2vBFUGp+4o07hsC4=",
        ),
        (
            Credentials("Jürgen", "Schlüssel", "token-1"),
            {"i": "KEYS\x01k\x02", "b": "größe", "_UNIQUE_KEY_QUERY": "true"},
            b"\x00\xff\x01",
            "Qfn44m2k3yHVRBqjHS5BP5mE0pA=",
        ),
    ],
)
def test_signatures_are_those_of_rocketmqs_clients(
    credentials: Credentials, ext: dict[str, str], body: bytes, expected: str
) -> None:
    sent = {**ext, "AccessKey": credentials.access_key}
    if credentials.security_token:
        sent["SecurityToken"] = credentials.security_token
    assert signature(credentials.secret_key, signed_fields(sent), [body]) == expected
    # Ours says what it is for, in one more field.
    made = signed(credentials, ext, body)
    theirs = made.pop("Signature")
    assert signature(credentials.secret_key, signed_fields(made), [body]) == theirs
    assert made.pop("saturnRequest") == f"310 {' '.join(sorted(sent))}"
    assert made == sent


def test_a_text_alone_is_signed_as_rocketmqs_signer_does() -> None:
    assert signature("secret of ann", b"20261128T120000Z") == "zptWDL09Kx2ovlSFw8ZTECa1XxM="


def test_the_clients_of_version_4_leave_a_field_out() -> None:
    ext = {"_UNIQUE_KEY_QUERY": "true", "a": "1", "Signature": "s"}
    assert signed_fields(ext, 399) == b"1"
    assert signed_fields(ext, 400) == signed_fields(ext) == b"true1"


@given(fields, st.lists(st.binary(max_size=9), max_size=3), st.randoms())
def test_the_order_of_the_fields_and_the_pieces_of_the_body_do_not_matter(
    ext: dict[str, str], pieces: list[bytes], random: object
) -> None:
    shuffled = list(ext.items())
    random.shuffle(shuffled)  # type: ignore[attr-defined]  # hypothesis gives a random.Random
    made = signed(ANN, ext, *pieces)
    assert signed(ANN, dict(shuffled), b"".join(pieces)) == made
    assert signed(ANN, made, *pieces) == made, "the old signature is not signed"


@given(fields, st.binary(max_size=9), names, st.text(max_size=8), st.binary(max_size=9))
def test_whatever_changes_changes_the_signature(
    ext: dict[str, str], body: bytes, name: str, value: str, other: bytes
) -> None:
    made = signed(ANN, ext, body)["Signature"]
    taken = ("AccessKey", "SecurityToken", "Signature")
    assume(name not in taken and value != ext.get(name, "") and other != body)
    # The values stand side by side, so two changes may cancel each other out: one does not.
    assert signed(ANN, {**ext, name: value}, body)["Signature"] != made
    assert signed(ANN, ext, other)["Signature"] != made
    assert signed(Credentials("ann", "secret of bob"), ext, body)["Signature"] != made
    assert signed(Credentials("bob", "secret of ann"), ext, body)["Signature"] != made
    assert signed(Credentials("ann", "secret of ann", "t"), ext, body)["Signature"] != made


def test_no_key_is_shown() -> None:
    shown = repr(Credentials("ann", "hunter2", "a token"))
    assert "ann" in shown
    assert "hunter2" not in shown
    assert "token'" not in shown


def test_no_signature_is_shown() -> None:
    command = Command.request(RequestCode.SEND_MESSAGE_V2, {"topic": "orders"})
    sign(command, Credentials("ann", "hunter2", "a token"))
    command.ext["saturnCallerSignature"] = "proof"
    shown = repr(command)
    assert "orders" in shown
    assert "ann" in shown
    for each in (command.ext["Signature"], "a token", "proof"):
        assert each not in shown


def test_credentials_that_make_no_sense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for keys in (("", "secret"), ("ann", ""), ("ann", None)):
        with pytest.raises(ConfigError, match="must be a text that is not empty"):
            Credentials(*keys)  # type: ignore[arg-type]  # one is none
    with pytest.raises(ConfigError, match=r"give a saturnmq\.Credentials") as refused:
        credentials_of(("ann", "hunter2"))  # type: ignore[arg-type]  # a pair
    assert "hunter2" not in str(refused.value)
    monkeypatch.setenv(ACCESS_VARIABLE, "ann")
    with pytest.raises(ConfigError, match=f"set both {ACCESS_VARIABLE} and {SECRET_VARIABLE}"):
        credentials_of(None)
    assert credentials_of(ANN) is ANN, "an application is asked first"
    monkeypatch.setenv(SECRET_VARIABLE, "secret of ann")
    assert credentials_of(None) == ANN


# -- connections -----------------------------------------------------------------------------------


def test_requests_are_signed_each_time_and_answers_are_not() -> None:
    async def body(runtime: NativeRuntime) -> None:
        came: list[Command] = []
        replies: asyncio.Queue[Command | SaturnError] = asyncio.Queue()

        def serve(endpoint: Endpoint, command: Command) -> None:
            command.body = bytes(command.body)
            came.append(command)
            endpoint.send(command.reply(), command)
            if command.code == 3:  # the server asks back, on the same connection
                endpoint.request_callback(Command.request(7), 5.0, replies.put_nowait)

        def asked(endpoint: Endpoint, command: Command) -> None:
            endpoint.send(command.reply(0, "the client's"), command)

        listener = await runtime.listen(
            "127.0.0.1", 0, lambda: Endpoint(runtime, serve, server=True)
        )
        endpoint = SigningEndpoint(runtime, asked, ANN)
        await runtime.connect(*split_address(listener.address), endpoint)
        command = Command.request(1, {"a": "1"}, b"body")
        await endpoint.request(command, 5.0)
        command.ext["a"], command.body = "2", b"another"
        await endpoint.request(command, 5.0)  # as after a failure
        endpoint.oneway(Command.request(2, {"a": "1"}))
        answers: asyncio.Queue[Command | SaturnError] = asyncio.Queue()
        endpoint.request_callback(Command.request(3), 5.0, answers.put_nowait)
        await answers.get()
        assert [each.code for each in came] == [1, 1, 2, 3]
        assert all(is_signed_by(ANN, each) for each in came)
        assert came[0].ext["Signature"] != came[1].ext["Signature"]
        reply = await replies.get()
        assert isinstance(reply, Command)
        assert (reply.remark, reply.ext) == ("the client's", {})
        endpoint.close()
        listener.close()

    run(body)


def test_the_secret_of_the_nodes_and_the_user_sign_the_same_request() -> None:
    nodes = Signing("the secret of the cluster")

    async def body(runtime: NativeRuntime) -> None:
        challenges = Challenges(nodes)

        def serve(endpoint: Endpoint, command: Command) -> None:
            assert is_signed_by(ANN, command)
            if challenges.admits(endpoint, command):
                endpoint.send(nodes.sign_answer(command, command.reply()), command)

        listener = await runtime.listen(
            "127.0.0.1", 0, lambda: Endpoint(runtime, serve, server=True)
        )
        endpoint = SigningEndpoint(runtime, None, ANN)
        await runtime.connect(*split_address(listener.address), endpoint)
        answer = await ask_signed(
            nodes, "there", Command.request(1), lambda each: endpoint.request(each, 5.0)
        )
        assert (answer.command.code, answer.is_proven) == (0, True), answer.command.remark
        endpoint.close()
        listener.close()

    run(body)


@contextlib.contextmanager
def dialled() -> Iterator[tuple[Channel, socket.socket]]:
    """A channel whose requests are signed, and the other end."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        channel = Channel(NativeRuntime(), address, 3.0, credentials=ANN)
        peer, _ = server.accept()
    with peer, contextlib.closing(channel):
        peer.settimeout(5.0)
        yield channel, peer


def received(peer: socket.socket, count: int) -> list[Command]:
    decoder = FrameDecoder()
    found: list[Command] = []
    while len(found) < count:
        found += decoder.feed(peer.recv(1 << 16))
    return found


def test_requests_and_posts_of_a_channel_are_signed() -> None:
    with dialled() as (channel, peer):
        again = Command.request(1, {"a": "1"}, b"body")
        channel.ask_all([again, Command.request(2, {"b": "2"})], 5.0)
        again.ext["a"] = "changed"
        channel.ask(again, 5.0)
        assert not channel.post(Command.request(3, {"c": "3"}, b"posted"))
        came = received(peer, 4)
        assert [each.code for each in came] == [1, 2, 1, 3]
        assert all(is_signed_by(ANN, each) for each in came)


def test_a_request_that_is_repeated_on_a_new_connection_is_signed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ACCESS_VARIABLE, ANN.access_key)
    monkeypatch.setenv(SECRET_VARIABLE, ANN.secret_key)
    came: list[Command] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for is_last in (False, True):
                peer, _ = server.accept()
                with peer:
                    came.extend(received(peer, 1))
                    if is_last:
                        peer.sendall(encode_head(came[-1].reply()))
                        peer.recv(1)  # until the client closes

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        channels = Channels()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert channels.request(address, Command.request(1, {"a": "1"}), 5.0).code == 0
        channels.close_idle()
        thread.join(5.0)
    assert [is_signed_by(ANN, each) for each in came] == [True, True]
