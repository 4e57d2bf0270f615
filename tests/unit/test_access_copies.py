"""Users and rules of a master and its slaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from access_rig import ALICE, CHECKING, ROOT, allow, checking, create_user, signing
from broker_rig import ask, pull, run, send, slave_config, started, until
from saturnmq.broker.access.table import super_user
from saturnmq.broker.broker import Broker
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.credentials import Credentials
from saturnmq.runtime.native import NativeRuntime

C = RequestCode
NO = ResponseCode.NO_PERMISSION


async def pair(
    runtime: NativeRuntime, root: Path, slave: dict[str, Any] = CHECKING, **master: Any
) -> tuple[Broker, Broker]:
    first = await started(runtime, checking(root / "m", **master))
    second = await started(runtime, slave_config(root / "s", first, **slave))
    await until(lambda: bool(second.replication.slave.master_address))
    return first, second


def access_of(broker: Broker) -> dict[str, Any]:
    return broker.ground.context.access.document()


def test_a_slave_takes_over_users_and_rules(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master, slave = await pair(runtime, tmp_path)
        root = await signing(runtime, master, ROOT)
        assert (await create_user(root, ALICE)).code == 0
        assert (await allow(root, ALICE, "Topic:orders", "Group:G")).code == 0
        assert (await send(root, b"x")).code == 0
        await until(lambda: access_of(slave) == access_of(master))
        await until(lambda: slave.store.watermarks.appended == master.store.watermarks.appended)
        reader = await signing(runtime, slave, ALICE)
        assert (await pull(reader, 0)).code == 0
        assert (await pull(reader, 0, consumerGroup="H")).code == NO
        info = fastjson.dumps({"userStatus": "disable"})
        assert (await ask(root, C.AUTH_UPDATE_USER, {"username": "alice"}, info)).code == 0
        await until(lambda: access_of(slave) == access_of(master))
        assert (await pull(reader, 0)).code == NO
        await slave.close()
        await master.close()

    run(body)


def test_a_slave_passes_changes_on_that_may_have_been_made(tmp_path: Path) -> None:
    """RocketMQ's tools send each change to the master and to each slave, in any order."""

    async def body(runtime: NativeRuntime) -> None:
        master, slave = await pair(runtime, tmp_path)
        at_master, at_slave = [await signing(runtime, each, ROOT) for each in (master, slave)]
        for end in (at_master, at_slave):
            reply = await create_user(end, ALICE)
            assert reply.code == 0, reply.remark
            reply = await allow(end, ALICE, "Topic:orders")
            assert reply.code == 0, reply.remark
        assert (await create_user(at_slave, Credentials("alice", "another"))).code == NO
        for end in (at_master, at_slave):
            gone = {"subject": "User:alice", "resource": "Topic:orders"}
            reply = await ask(end, C.AUTH_DELETE_ACL, gone)
            assert reply.code == 0, reply.remark
        for end in (at_slave, at_master):
            reply = await ask(end, C.AUTH_DELETE_USER, {"username": "alice"})
            assert reply.code == 0, reply.remark
        assert (await create_user(at_slave, ALICE)).code == 0
        assert master.ground.context.access.user("alice") is not None
        await until(lambda: access_of(slave) == access_of(master))
        await master.close()
        reply = await create_user(at_slave, Credentials("bob", "b"))
        assert reply.code != 0
        assert slave.ground.context.access.user("bob") is None
        await slave.close()

    run(body)


def test_only_a_super_user_makes_one_through_a_slave(tmp_path: Path) -> None:
    """The slave asks its master as a super user, and must not lend that."""

    async def body(runtime: NativeRuntime) -> None:
        master, slave = await pair(runtime, tmp_path)
        root = await signing(runtime, master, ROOT)
        await create_user(root, ALICE)
        await allow(root, ALICE, "Cluster:*")
        await until(lambda: access_of(slave) == access_of(master))
        alice = await signing(runtime, slave, ALICE)
        eve = Credentials("eve", "e")
        assert (await create_user(alice, eve, userType="Super")).code == NO
        assert master.ground.context.access.user("eve") is None
        assert (await create_user(alice, eve)).code == 0
        assert master.ground.context.access.user("eve") is not None
        await slave.close()
        await master.close()

    run(body)


def test_a_slave_that_the_master_does_not_know_gets_no_tables(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        other = CHECKING | {"inner_credentials": '{"accessKey":"nodes","secretKey":"another"}'}
        master, slave = await pair(runtime, tmp_path, other)
        root = await signing(runtime, master, ROOT)
        assert (await send(root, b"x")).code == 0
        await create_user(root, ALICE)
        await until(lambda: slave.store.watermarks.appended == master.store.watermarks.appended)
        await until(lambda: "access denied" in slave.replication.table_sync.trouble)
        assert slave.ground.context.access.user("alice") is None
        await slave.close()
        await master.close()

    run(body)


def test_a_slave_keeps_its_users_if_the_master_checks_nobody(tmp_path: Path) -> None:
    """As while a running cluster is given users, node by node."""

    async def body(runtime: NativeRuntime) -> None:
        master, slave = await pair(runtime, tmp_path, authentication=False, authorization=False)
        plain = await signing(runtime, master, None)
        assert (await send(plain, b"x")).code == 0
        slave.ground.context.access.begin(super_user(ROOT))  # from a time as master
        await until(lambda: "orders" in slave.ground.context.topics)
        await slave.replication.table_sync.copy_now()
        reader = await signing(runtime, slave, ROOT)
        assert (await pull(reader, 0)).code == 0
        await slave.close()
        await master.close()

    run(body)


def test_the_first_user_is_the_masters_to_make(tmp_path: Path) -> None:
    """The password of the configuration may be an old one, which somebody has learned."""

    async def body(runtime: NativeRuntime) -> None:
        master, slave = await pair(runtime, tmp_path)
        root = await signing(runtime, master, ROOT)
        info = fastjson.dumps({"password": "new"})
        assert (await ask(root, C.AUTH_UPDATE_USER, {"username": "root"}, info)).code == 0
        await slave.close()
        await master.close()
        alone = await started(runtime, slave_config(tmp_path / "fresh", master, **CHECKING))
        old = await signing(runtime, alone, ROOT)
        assert (await pull(old, 0)).code == NO
        assert alone.ground.context.access.users() == []
        await alone.close()

    run(body)


def test_the_master_judges_what_a_slave_passes_on(tmp_path: Path) -> None:
    """A slave that cannot copy the tables still knows a user that has lost its rights."""

    async def body(runtime: NativeRuntime) -> None:
        master, slave = await pair(runtime, tmp_path)
        root = await signing(runtime, master, ROOT)
        await create_user(root, ALICE)
        await allow(root, ALICE, "Cluster:*")
        await until(lambda: access_of(slave) == access_of(master))
        slave.replication.table_sync.master_address = lambda: ""  # it copies no more
        assert (await ask(root, C.AUTH_DELETE_ACL, {"subject": "User:alice"})).code == 0
        alice = await signing(runtime, slave, ALICE)
        reply = await create_user(alice, Credentials("eve", "e"))
        assert (reply.code, "access denied" in str(reply.remark)) != (0, False)
        assert master.ground.context.access.user("eve") is None
        await slave.close()
        await master.close()

    run(body)


def test_a_master_that_lost_its_disk_takes_the_users_of_its_slave(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        master, slave = await pair(runtime, tmp_path)
        root = await signing(runtime, master, ROOT)
        await create_user(root, ALICE)
        await until(lambda: access_of(slave) == access_of(master))
        empty = await started(runtime, checking(tmp_path / "new"))
        assert empty.ground.context.access.user("alice") is None
        await empty.replication.table_sync.adopt(slave.address)
        assert empty.ground.context.access.user("alice") is not None
        for each in (slave, master, empty):
            await each.close()

    run(body)
