"""Nodes that share a secret: who cannot sign, signs with another secret, or says again what was
recorded, joins, leads, fences and registers nobody.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from broker_rig import ask, config, connected, run, started, until
from failover_rig import Group
from saturnmq import aio
from saturnmq.broker.config import BrokerConfig
from saturnmq.cli import nodes
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol import fastjson, ha
from saturnmq.protocol.asking import connect
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.epochs import TERM
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.signing import LET_IN_MAX, UNSIGNED, LetIn, Seal, Signing, ask_signed
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import ConfigError, NoPermission, SignatureNeeded
from saturnmq.runtime.native import NativeRuntime

SECRET, OTHER = "the secret of the cluster", "the secret of strangers"
OURS = Signing(SECRET)
NEEDED = ResponseCode.SIGNATURE_NEEDED


@asynccontextmanager
async def group_of(
    runtime: NativeRuntime, root: Path, nameserver: Signing = OURS, **settings: Any
) -> AsyncIterator[Group]:
    """A nameserver, a master and a slave that share the secret."""
    group = Group(runtime, root, **{"replication_secret": SECRET, **settings})
    hand_over = nodes.hand_over(runtime, nameserver)
    group.nameserver = NameServer(runtime, "127.0.0.1", 0, hand_over, nameserver)
    async with group:
        yield group


# -- the secret ------------------------------------------------------------------------------------


def test_a_secret_is_long_and_told_to_nobody(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"replicationSecret has 7 characters.* 16 or more") as e:
        BrokerConfig.load("replicationSecret=hunter2\n", path="broker.conf")
    assert "hunter2" not in str(e.value)
    loaded = BrokerConfig.load(environ={"SATURNMQ_REPLICATION_SECRET": SECRET})
    assert loaded.signing == OURS
    assert SECRET not in repr(loaded) + repr(loaded.signing)
    assert not BrokerConfig.load().signing


def test_a_broker_shows_neither_its_secret_nor_its_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    async def body(runtime: NativeRuntime) -> None:
        secrets = {"replication_secret": SECRET, "etcd_password": "the password"}
        broker = await started(runtime, config(tmp_path, **secrets))
        client = await connected(runtime, broker)
        reply = await ask(client, RequestCode.GET_BROKER_CONFIG)
        lines = bytes(reply.body).decode().splitlines()
        assert "replicationSecret=******" in lines
        assert "etcdPassword=******" in lines
        assert "replicationSecretRequired=true" in lines
        assert "etcdUser=" in lines
        for code in (RequestCode.GET_BROKER_RUNTIME_INFO, RequestCode.REPLICA_STATE):
            assert SECRET.encode() not in bytes((await ask(client, code)).body)
        await broker.close()

    run(body)
    assert SECRET not in caplog.text


@pytest.mark.parametrize(("said", "required"), [(None, True), ("false", False), ("1", True)])
def test_processes_without_a_file_are_told_by_their_environment(said: Any, required: bool) -> None:
    environ = {"SATURNMQ_REPLICATION_SECRET": SECRET}
    if said is not None:
        environ["SATURNMQ_REPLICATION_SECRET_REQUIRED"] = said
    assert Signing.of(environ) == Signing(SECRET, required)
    assert not Signing.of({})
    with pytest.raises(ConfigError, match="true or false"):
        Signing.of({**environ, "SATURNMQ_REPLICATION_SECRET_REQUIRED": "maybe"})


# -- requests --------------------------------------------------------------------------------------


class Client:
    """A connection to a node, and what was said over it."""

    def __init__(self, endpoint: Endpoint, address: str) -> None:
        self.endpoint, self.address = endpoint, address
        self.said: list[Command] = []

    @classmethod
    async def to(cls, runtime: NativeRuntime, address: str) -> Client:
        return cls(await connect(runtime, *split_address(address)), address)

    async def plain(self, code: int, **ext: Any) -> Command:
        return await ask(self.endpoint, code, ext)

    async def signed(
        self, signing: Signing, code: int, to: str = "", body: bytes = b"", **ext: Any
    ) -> Command:
        async def say(command: Command) -> Command:
            self.said.append(command)
            return await self.endpoint.request(command, 5.0)

        texts = {name: str(value) for name, value in ext.items()}
        request = Command.request(code, texts, body)
        answer = await ask_signed(signing, to or self.address, request, say)
        return answer.command

    async def again(self, said: Command) -> Command:
        """What was recorded, bit for bit."""
        request = Command.request(said.code, dict(said.ext), said.body)
        return await self.endpoint.request(request, 5.0)


FENCE, PROMOTE = RequestCode.FENCE, RequestCode.PROMOTE


@pytest.mark.parametrize("code", [FENCE, PROMOTE, RequestCode.SLAVE_LEAVES])
def test_who_does_not_sign_fences_promotes_and_takes_leave_of_nobody(
    tmp_path: Path, code: RequestCode
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with group_of(runtime, tmp_path) as group:
            ext = {"epoch": 5 * TERM, "force": "true", "brokerAddr": group.slave.address}
            for broker in (group.master, group.slave):
                before = broker.replica_state()
                client = await Client.to(runtime, broker.address)
                reply = await client.plain(code, **ext)
                assert reply.code == NEEDED
                assert "replicationSecret" in reply.remark
                # A challenge alone is not enough, nor is one that it made up.
                challenge = reply.ext["saturnChallenge"]
                for guess in (challenge, "0" * 32):
                    reply = await client.plain(code, **ext, saturnChallenge=guess)
                    assert reply.code in (NEEDED, ResponseCode.NO_PERMISSION)
                reply = await client.signed(Signing(OTHER), code, **ext)
                assert reply.code == ResponseCode.NO_PERMISSION
                assert "not signed with the replicationSecret" in reply.remark
                after = broker.replica_state()
                assert (after["role"], after["epoch"]) == (before["role"], before["epoch"])
            assert await group.send_all(group.master, b"goes on") == [0]

    run(body)


def test_what_was_signed_counts_once_there_and_as_it_was(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with group_of(runtime, tmp_path) as group:
            master, role = group.master, group.master.context.role
            client = await Client.to(runtime, master.address)
            # For another node: a stranger passes the challenge on to whoever has the secret.
            reply = await client.signed(OURS, FENCE, to=group.slave.address, epoch=5 * TERM)
            assert reply.code == ResponseCode.NO_PERMISSION
            assert group.slave.address in reply.remark
            # Changed on its way.
            challenge = (await client.plain(FENCE, epoch=5 * TERM)).ext["saturnChallenge"]
            ext = {"epoch": str(5 * TERM), "saturnChallenge": challenge, "saturnTo": master.address}
            request = Command.request(FENCE, ext)
            OURS.sign_request(challenge, request)
            request.ext["epoch"] = str(6 * TERM)
            assert (await client.again(request)).code == ResponseCode.NO_PERMISSION
            assert (await client.again(request)).code == NEEDED, "the challenge is used up"
            assert master.replica_state()["role"] == "master"

            reply = await client.signed(OURS, FENCE, epoch=5 * TERM)
            assert reply.code == 0, reply.remark
            assert master.replica_state()["role"] == "fenced"
            assert OURS.signed_answer(client.said[-1].ext["saturnNonce"], reply)
            # Recorded: for this connection and another.
            reply = await client.signed(OURS, PROMOTE, epoch=5 * TERM, force="true")
            assert reply.code == 0, reply.remark
            recorded, epoch = client.said, role.promised_epoch
            for line in (client, await Client.to(runtime, master.address)):
                for said in recorded:
                    assert (await line.again(said)).code == NEEDED
            assert (master.replica_state()["role"], role.promised_epoch) == ("master", epoch)

    run(body)


def test_whoever_has_the_secret_promotes_hands_over_and_is_not_lied_to(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with group_of(runtime, tmp_path) as group:
            name = group.master.config.broker_name
            assert await group.send_all(group.master, b"one") == [0]
            servers = [group.nameserver.address]
            async with aio.Admin(servers) as stranger:
                with pytest.raises(SignatureNeeded, match="SATURNMQ_REPLICATION_SECRET"):
                    await stranger.promote(name, 1, force=True)
            async with aio.Admin(servers, replication_secret=OTHER) as stranger:
                with pytest.raises(NoPermission, match="does not sign its answer"):
                    await stranger.promote(name, 1, force=True)
            assert group.master.replica_state()["role"] == "master"
            async with aio.Admin(servers, replication_secret=SECRET) as operator:
                done = await operator.promote(name, 1)
                assert (done.master, done.handed_over) == (group.slave.address, True)
                await until(lambda: group.slave.context.copies_in_sync() == 2)
                done = await operator.hand_over(name)
                assert done.master == group.master.address
                assert [each.error for each in await operator.replicas(name)] == ["", ""]
            assert await group.send_all(group.master, b"two") == [0]

    run(body)


def test_a_nameserver_elects_nobody_at_a_strangers_word(tmp_path: Path) -> None:
    """It has the secret: what it asks for is done."""

    async def body(runtime: NativeRuntime) -> None:
        async with group_of(runtime, tmp_path) as group:
            await until(lambda: bool(group.slave.replication.registrar.registered))
            elect = {
                "brokerName": group.master.config.broker_name,
                "brokerId": 1,
                "designateElect": "true",
            }
            code = RequestCode.CONTROLLER_ELECT_MASTER
            client = await Client.to(runtime, group.nameserver.address)
            assert (await client.plain(code, **elect)).code == NEEDED
            assert group.master.replica_state()["role"] == "master"
            reply = await client.signed(OURS, code, **elect)
            assert reply.code == 0, reply.remark
            assert group.slave.replica_state()["role"] == "master"

    run(body)


def test_a_node_that_does_not_sign_its_state_is_not_heard(tmp_path: Path) -> None:
    """A stranger has the address of a slave, and tells of a master of a high epoch."""

    async def body(runtime: NativeRuntime) -> None:
        async with group_of(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"one") == [0]
            lie = {**group.slave.replica_state(), "epoch": 9 * TERM, "role": "master"}
            address = split_address(group.slave.address)
            await group.slave.close()
            await group.master.close()

            def tell(endpoint: Endpoint, request: Command) -> None:
                endpoint.send(request.reply(0, body=fastjson.dumps(lie)))

            liar = await runtime.listen(*address, lambda: Endpoint(runtime, tell, server=True))
            group.master = await group.start("m")
            assert group.master.context.role.promised_epoch < 9 * TERM
            assert group.master.replica_state()["role"] in ("unsure", "recovering")
            liar.close()
            group.slave = await group.start("s")
            await until(lambda: group.master.replica_state()["role"] == "master")

    run(body)


# -- registration ----------------------------------------------------------------------------------


def registration(address: str, epoch: int = 0, **ext: Any) -> tuple[dict[str, Any], bytes]:
    header = {
        "clusterName": "C",
        "brokerName": "broker-a",
        "brokerId": "0",
        "brokerAddr": address,
        "haServerAddr": "127.0.0.1:2",
        **ext,
    }
    version = {"counter": 1, "timestamp": 1, "stateVersion": epoch}
    body = {"topicConfigSerializeWrapper": {"dataVersion": version, "topicConfigTable": {}}}
    return header, json.dumps(body).encode()


def test_who_does_not_sign_registers_and_unregisters_nobody(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with group_of(runtime, tmp_path) as group:
            server, name = group.nameserver, group.master.config.broker_name
            identity = group.master.context.role.identity
            await until(lambda: server.routes.live(name, group.slave.address) is not None)
            stranger = await Client.to(runtime, server.address)
            ext, table = registration("127.0.0.1:1", 900 * TERM, saturnIdentity=identity)
            request = Command.request(RequestCode.REGISTER_BROKER, ext, table)
            assert (await stranger.again(request)).code == NEEDED
            reply = await stranger.signed(Signing(OTHER), request.code, body=table, **ext)
            assert reply.code == ResponseCode.NO_PERMISSION
            gone = {**ext, "brokerAddr": group.master.address}
            assert (await stranger.plain(RequestCode.UNREGISTER_BROKER, **gone)).code == NEEDED
            assert server.routes.live(name, "127.0.0.1:1") is None
            for broker in (group.master, group.slave):
                assert server.routes.live(name, broker.address) is not None
            # With the secret it counts, and recorded it does not count again.
            known = await Client.to(runtime, server.address)
            ext, table = registration("127.0.0.1:1", brokerName="broker-z")
            reply = await known.signed(OURS, request.code, body=table, **ext)
            assert reply.code == 0, reply.remark
            assert OURS.signed_answer(known.said[-1].ext["saturnNonce"], reply)
            known.endpoint.close()
            await until(lambda: server.routes.live("broker-z", "127.0.0.1:1") is None)
            assert (await stranger.again(known.said[-1])).code == NEEDED
            assert server.routes.live("broker-z", "127.0.0.1:1") is None

    run(body)


@pytest.mark.parametrize("secret", ["", OTHER])
def test_a_broker_that_cannot_sign_is_told_what_to_set(
    tmp_path: Path, secret: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        server = NameServer(runtime, "127.0.0.1", 0, signing=OURS)
        await server.start()
        names = (server.address,)
        broker = await started(
            runtime, config(tmp_path, nameservers=names, replication_secret=secret)
        )
        await until(lambda: "replicationSecret" in caplog.text)
        assert not broker.replication.registrar.registered
        await broker.close()
        await server.close()

    run(body)


@pytest.mark.parametrize("nameserver", [UNSIGNED, Signing(OTHER, is_required=False)])
def test_a_nameserver_that_does_not_sign_says_where_to_dial_and_deposes_nobody(
    tmp_path: Path, nameserver: Signing, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with group_of(runtime, tmp_path, nameserver) as group:
            assert await group.send_all(group.master, b"found it") == [0]
            name, role = group.master.config.broker_name, group.master.context.role
            ext, table = registration(
                "127.0.0.1:1", 900 * TERM, brokerName=name, saturnIdentity=role.identity
            )
            stranger = await Client.to(runtime, group.nameserver.address)
            request = Command.request(RequestCode.REGISTER_BROKER, ext, table)
            assert (await stranger.again(request)).code == 0
            for broker in (group.master, group.slave):
                await broker.replication.registrar.ask_all(5.0)
            assert (role.promised_epoch, group.master.replica_state()["role"]) == (
                role.log_epoch,
                "master",
            )
            stranger.endpoint.close()
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert await group.send_all(group.master, b"goes on") == [0]
            said = [line for line in caplog.messages if "the address to dial" in line]
            assert len(said) == 2, "each broker says it once"

    run(body)


# -- replication -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("secret", "words"), [("", "does not sign"), (OTHER, "another replicationSecret")]
)
def test_a_slave_that_cannot_sign_is_refused(tmp_path: Path, secret: str, words: str) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with group_of(runtime, tmp_path) as group:
            stranger = await group.start(
                "t",
                role="SLAVE",
                broker_id=2,
                replication_secret=secret,
                nameservers=(),
                ha_master_address=group.master.ha_address,
            )
            await until(lambda: words in stranger.replica_state()["trouble"])
            assert "set the same replicationSecret" in stranger.replica_state()["trouble"]
            assert await group.send_all(group.master, b"not for strangers") == [0]
            assert stranger.store.watermarks.appended == 0
            assert set(group.master.context.role.replicas) == {1}
            assert group.master.context.copies_in_sync() == 2
            await stranger.close()

    run(body)


@pytest.mark.parametrize("secret", ["", OTHER])
def test_a_master_that_cannot_sign_is_not_followed(tmp_path: Path, secret: str) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master = await started(
            runtime,
            config(
                tmp_path / "m", replication_secret=secret, replication_secret_required=not secret
            ),
        )
        slave = await started(
            runtime,
            config(
                tmp_path / "s",
                role="SLAVE",
                broker_id=1,
                ha_master_address=master.ha_address,
                replication_secret=SECRET,
            ),
        )
        await until(lambda: "replicationSecret" in slave.replica_state()["trouble"])
        assert slave.context.role.promised_epoch == 0, "nothing is promised to it"
        assert slave.context.role.replicas == {}
        await slave.close()
        await master.close()

    run(body)


class Wire(asyncio.Protocol):
    """One end of a connection, by hand."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.got = bytearray()
        self.closed = False
        self.on_bytes: Callable[[Wire], None] = lambda _: None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data
        self.on_bytes(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.closed = True

    def frames(self, of: str) -> list[ha.Control]:
        """The control frames that came; not the transfers among them."""
        inbox = ha.Inbox(max(len(self.got), 1))
        inbox.free()[: len(self.got)] = self.got
        inbox.filled(len(self.got))
        found = []
        while (frame := getattr(inbox, of)()) is not None:
            found.append(frame)
        return [frame for frame in found if isinstance(frame, ha.Control)]


async def dial(address: str) -> Wire:
    _, wire = await asyncio.get_running_loop().create_connection(Wire, *split_address(address))
    return wire


class Tap:
    """Passes on what a slave and its master say, and keeps it."""

    def __init__(self, master: str) -> None:
        self._master = master
        self.of_slave = b""
        self.of_master = b""

    async def start(self) -> Tap:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.address = f"{host}:{port}"
        return self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_connection(*split_address(self._master))

        async def pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, name: str) -> None:
            while data := await source.read(65536):
                setattr(self, name, getattr(self, name) + data)
                sink.write(data)
            sink.close()

        work = (pump(reader, there[1], "of_slave"), pump(there[0], writer, "of_master"))
        await asyncio.gather(*work)

    def close(self) -> None:
        self._server.close()


async def recorded(group: Group) -> Tap:
    """What a new slave and its master say to each other until that follows."""
    tap = await Tap(group.master.ha_address).start()
    slave = await group.start(
        "t", role="SLAVE", broker_id=2, ha_master_address=tap.address, nameservers=()
    )
    await until(lambda: group.master.context.copies_in_sync() == 3)
    await slave.close()
    tap.close()
    return tap


def test_what_a_slave_said_on_another_connection_joins_nobody(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with group_of(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"kept") == [0]
            tap = await recorded(group)
            assert b"kept" in tap.of_master, "it was sent the log"
            await until(lambda: group.master.context.copies_in_sync() == 2)
            wire = await dial(group.master.ha_address)
            wire.transport.write(tap.of_slave)
            await until(lambda: wire.closed)
            *_, last = wire.frames("next_of_master")
            assert last.kind is ha.Kind.REFUSE
            assert "replicationSecret" in last.document["why"]
            assert b"kept" not in wire.got

    run(body)


def test_what_a_master_said_on_another_connection_leads_nobody(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with group_of(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"kept") == [0]
            tap = await recorded(group)

            async def replay(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(tap.of_master)

            server = await asyncio.start_server(replay, "127.0.0.1", 0)
            host, port = server.sockets[0].getsockname()[:2]
            slave = await group.start(
                "u", role="SLAVE", broker_id=3, ha_master_address=f"{host}:{port}", nameservers=()
            )
            await until(lambda: "does not sign" in slave.replica_state()["trouble"])
            assert slave.store.watermarks.appended == 0
            assert slave.context.role.promised_epoch == 0
            await slave.close()
            server.close()

    run(body)


def test_a_frame_counts_in_its_place_from_its_sender_on_its_connection() -> None:
    def seal(signing: Signing = OURS, slave: str = "s", *, leads: bool = True) -> Seal:
        return Seal(signing, slave, "m", leads=leads)

    sender = seal(leads=False)
    first, second = sender.sign(ha.Kind.JOIN, b"one"), sender.sign(ha.Kind.JOIN, b"two")
    master = seal()
    assert master.is_right(ha.Kind.JOIN, b"one", first)
    assert master.is_right(ha.Kind.JOIN, b"two", second)
    assert not master.is_right(ha.Kind.JOIN, b"two", second), "said again"
    assert not seal().is_right(ha.Kind.JOIN, b"two", second), "the first is missing"
    assert not seal(leads=False).is_right(ha.Kind.JOIN, b"one", first), "thrown back"
    assert not seal().is_right(ha.Kind.REFUSE, b"one", first)
    assert not seal().is_right(ha.Kind.JOIN, b"One", first)
    assert not seal(slave="z").is_right(ha.Kind.JOIN, b"one", first), "another connection"
    assert not seal(Signing(OTHER)).is_right(ha.Kind.JOIN, b"one", first)


def test_no_part_of_what_is_signed_can_be_taken_for_another() -> None:
    assert OURS.digest("ab", "c") != OURS.digest("a", "bc")
    assert OURS.digest("a", "") != OURS.digest("a")


@pytest.mark.parametrize("then", ["join", "prove"])
def test_a_slave_that_proved_itself_signs_all_it_says_and_proves_itself_once(
    tmp_path: Path, then: str
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with group_of(runtime, tmp_path) as group:
            wire = await dial(group.master.ha_address)
            wire.transport.write(ha.encode_greeting(0))
            await until(lambda: bool(wire.frames("next_of_master")))
            (hello,) = wire.frames("next_of_master")
            assert hello.signature == b"", "it does not know yet for whom"
            seal = Seal(OURS, "5" * 32, hello.document["nonce"], leads=False)
            proof = ha.encode_control(ha.Kind.PROVE, {"nonce": "5" * 32}, seal)
            wire.transport.write(proof)
            await until(lambda: len(wire.frames("next_of_master")) == 2)
            _, second = wire.frames("next_of_master")
            assert seal.is_right(second.kind, second.text, second.signature)
            assert "nonce" not in second.document
            if then == "prove":
                wire.transport.write(proof)
            else:
                join = {**group.slave.replica_state(), "from": 0, "check": [0, 0, 0]}
                wire.transport.write(ha.encode_control(ha.Kind.JOIN, {**join, "brokerId": 7}))
            await until(lambda: wire.closed)
            assert 7 not in group.master.context.role.replicas

    run(body)


def test_the_words_of_a_refusal_are_taken_from_anybody_and_nothing_else(tmp_path: Path) -> None:
    """An id that a stranger gives is not taken: nobody else must have it."""

    async def body(runtime: NativeRuntime) -> None:
        async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            refusal = {"why": "not today", "freeId": 9, "differs": [0, 100]}
            writer.write(ha.encode_control(ha.Kind.REFUSE, refusal))

        server = await asyncio.start_server(refuse, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()[:2]
        settings = config(
            tmp_path,
            role="SLAVE",
            broker_id=1,
            ha_master_address=f"{host}:{port}",
            replication_secret=SECRET,
        )
        slave = await started(runtime, settings)
        await until(lambda: slave.replica_state()["trouble"] == "not today")
        assert slave.context.role.broker_id == 1
        await slave.close()
        server.close()

    run(body)


def test_nodes_of_rocketmq_cannot_sign_and_are_refused(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with group_of(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"kept") == [0]
            slave = await dial(group.master.ha_address)
            slave.transport.write(ha.encode_report(0))
            await until(lambda: slave.closed)
            assert bytes(slave.got) == b""
            assert "RocketMQ" in caplog.text

            async def heartbeat(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                writer.write(ha.encode_transfer_header(0, 4) + b"evil")

            server = await asyncio.start_server(heartbeat, "127.0.0.1", 0)
            host, port = server.sockets[0].getsockname()[:2]
            ours = await group.start(
                "t", role="SLAVE", broker_id=2, ha_master_address=f"{host}:{port}", nameservers=()
            )
            await until(lambda: "RocketMQ" in ours.replica_state()["trouble"])
            assert ours.store.watermarks.appended == 0
            await ours.close()
            server.close()

    run(body)


def test_a_master_copies_its_tail_back_from_a_slave_that_signs(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with group_of(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"one", b"two") == [0, 0]
            marks = group.slave.store.watermarks
            await until(lambda: marks.flushed == group.master.store.watermarks.appended)
            await group.slave.close()
            await group.master.close(clean=False)
            for file in (tmp_path / "m" / "commitlog").iterdir():
                file.unlink()
            group.master = await group.start("m")
            group.slave = await group.start("s")
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert await group.send_all(group.master, b"three") == [0]
            assert await group.bodies(group.master) == [b"one", b"two", b"three"]

    run(body)


# -- on the way there ------------------------------------------------------------------------------


@pytest.mark.parametrize("slave", ["", OTHER, SECRET])
@pytest.mark.parametrize("master", ["", SECRET])
def test_while_it_is_not_required_everybody_follows_everybody(
    tmp_path: Path, master: str, slave: str
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        lenient = Signing(SECRET, is_required=False)
        settings = {"replication_secret": master, "replication_secret_required": False}
        async with group_of(runtime, tmp_path, lenient, **settings) as group:
            other = await group.start("t", role="SLAVE", broker_id=2, replication_secret=slave)
            await until(lambda: group.master.context.copies_in_sync() == 3)
            assert await group.send_all(group.master, b"for all") == [0]
            servers = [group.nameserver.address]
            options = {"replication_secret": SECRET, "replication_secret_required": False}
            name = group.master.config.broker_name
            async with aio.Admin(servers, **options) as operator:
                done = await operator.hand_over(name, other.address)
            assert done.master == other.address
            assert (await group.send_all(other, b"there, too")) == [0]
            await other.close()

    run(body)


WRONG = [("", "does not sign"), (OTHER, "signs with another replicationSecret"), (SECRET, "")]


@pytest.mark.parametrize(("slave", "why"), WRONG)
def test_a_node_tells_whom_it_would_refuse_if_signatures_were_required(
    tmp_path: Path, slave: str, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        lenient = Signing(SECRET, is_required=False)
        settings = {"replication_secret": SECRET, "replication_secret_required": False}
        async with group_of(runtime, tmp_path, lenient, **settings) as group:
            master, name = group.master, group.master.config.broker_name
            other = await group.start("t", role="SLAVE", broker_id=2, replication_secret=slave)
            for _ in range(2):  # it comes again, and is told once
                await until(lambda: master.context.copies_in_sync() == 3)
                await until(lambda: bool(other.replication.registrar.registered))
                wanted = [f"{other.address} {why}"] if why else []
                assert master.replica_state()["letIn"] == wanted
                other.replication.slave.drop()
                await until(lambda: master.context.copies_in_sync() < 3)
            said = [r.message for r in caplog.records if r.message.startswith(other.address)]
            assert len(said) == len(set(said)) * 2 == 2 * bool(why), "of the nameserver and master"
            # An operator without the secret, and with it.
            client = await Client.to(runtime, master.address)
            ext = {"epoch": 1}
            await client.plain(FENCE, **ext)
            assert master.replica_state()["letIn"] == ["127.0.0.1 does not sign", *wanted]
            await client.signed(Signing(OTHER, is_required=False), FENCE, **ext)
            assert master.replica_state()["letIn"] == [
                "127.0.0.1 signs with another replicationSecret",
                *wanted,
            ]
            await client.signed(lenient, FENCE, **ext)
            assert master.replica_state()["letIn"] == wanted
            # All have it now.
            await other.close()
            group.configs["t"] = replace(group.configs["t"], replication_secret=SECRET)
            other = await group.start("t")
            await until(lambda: master.context.copies_in_sync() == 3)
            async with aio.Admin([group.nameserver.address]) as admin:
                told = {each.address: each.let_in for each in await admin.replicas(name)}
            assert told == dict.fromkeys([master.address, group.slave.address, other.address], ())
            await other.close()

    run(body)


@pytest.mark.parametrize(("master", "why"), WRONG)
def test_a_slave_tells_which_master_and_nameserver_it_would_not_believe(
    tmp_path: Path, master: str, why: str
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        theirs = Signing(master, is_required=False)
        settings = {"replication_secret": master, "replication_secret_required": False}
        async with group_of(runtime, tmp_path, theirs, **settings) as group:
            other = await group.start("t", role="SLAVE", broker_id=2, replication_secret=SECRET)
            await until(lambda: group.master.context.copies_in_sync() == 3)
            await until(lambda: bool(other.replication.registrar.registered))
            server = f"nameserver {group.nameserver.address} does not sign"
            wanted = [f"{group.master.address} {why}", server] if why else []
            assert other.replica_state()["letIn"] == wanted
            await other.close()

    run(body)


def test_no_more_than_a_hundred_are_noted(caplog: pytest.LogCaptureFixture) -> None:
    let_in = LetIn()
    for number in range(2 * LET_IN_MAX):
        let_in.note(f"10.0.0.1:{number}", "", "does not sign")
    let_in.note("evil\nname", "10.0.0.2", "does not sign")
    assert len(let_in.lines()) == LET_IN_MAX
    assert len(caplog.records) == LET_IN_MAX + 1
    let_in.note("10.0.0.1:7", "")
    let_in.note("evil\nname", "10.0.0.2", "does not sign")
    assert "10.0.0.2 does not sign" in let_in.lines()
    assert "10.0.0.1:7 does not sign" not in let_in.lines()


def test_without_a_secret_nothing_of_it_is_said(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with group_of(runtime, tmp_path, UNSIGNED, replication_secret="") as group:
            tap = await recorded(group)
            for said in (tap.of_slave, tap.of_master):
                assert b"nonce" not in said
                assert b"saturn" not in said
            wire = Wire()
            wire.got += tap.of_slave[16:]
            frames = wire.frames("next_of_slave")
            assert [frame.signature for frame in frames] == [b""] * len(frames)

    run(body)
