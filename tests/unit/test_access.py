"""A broker that checks whose a request is, and whether its user may send it."""

from __future__ import annotations

import json
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from access_rig import ALICE, CHECKING, NODES, ROOT, allow, checking, create_user, signing
from broker_rig import ask, config, connected, pull, run, send, started, until
from saturnmq.broker.access import guard
from saturnmq.broker.broker import Broker
from saturnmq.broker.config import BrokerConfig
from saturnmq.protocol import fastjson
from saturnmq.protocol.asking import connect
from saturnmq.protocol.batch import encode_batch_item
from saturnmq.protocol.batches import BatchPart, decode_answers, encode_parts
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.credentials import (
    ACCESS_KEY,
    SIGNATURE,
    UNSIGNED_VERSION,
    Credentials,
    sign,
    signature,
    signed_fields,
)
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.kernels import decode_frames
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import AccessDenied, ConfigError, StoreDamaged, error_for
from saturnmq.runtime.native import NativeRuntime

C = RequestCode
NO = ResponseCode.NO_PERMISSION


def told(reply: Command) -> str:
    """The reason why a request was refused."""
    error = error_for(reply.code, reply.remark)
    assert isinstance(error, AccessDenied), (reply.code, reply.remark)
    assert not error.retriable
    return str(error)


def test_nobody_is_checked_without_the_setting(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, config(tmp_path))
        client = await connected(runtime, broker)
        assert (await send(client, b"x")).code == 0
        reply = await create_user(client, ALICE)
        assert (reply.code, "authenticationEnabled" in str(reply.remark)) == (NO, True)
        reply = await ask(client, C.GET_ALL_ACCESS)
        assert (reply.code, "checks no users" in str(reply.remark)) == (NO, True)
        await broker.close()

    run(body)


def test_a_request_needs_the_signature_of_a_user(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, checking(tmp_path))
        for name, why in [("", "names no user"), ("nobody", "'nobody' is not known")]:
            client = await signing(runtime, broker, Credentials(name, "x") if name else None)
            assert why in told(await send(client, b"x"))
            assert why in told(await ask(client, C.GET_BROKER_CONFIG))
        wrong = await signing(runtime, broker, Credentials("root", "another password"))
        assert "'root' is not known, or its signature is not right" in told(await send(wrong, b"x"))
        right = await signing(runtime, broker, ROOT)
        assert (await send(right, b"x")).code == 0
        assert (await pull(right, 0)).code == 0
        nodes = await signing(runtime, broker, NODES)
        assert (await ask(nodes, C.GET_BROKER_CONFIG)).code == 0
        await broker.close()

    run(body)


@pytest.mark.parametrize("change", ["value", "field", "body", "signature", "key", "time"])
def test_a_request_that_was_changed_on_the_way_is_refused(tmp_path: Path, change: str) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, checking(tmp_path))
        plain = await connected(runtime, broker)
        ext = {"username": "bob"}
        request = Command.request(C.AUTH_CREATE_USER, ext, b'{"password":"p"}')
        sign(request, ROOT)
        signed = dict(request.ext)
        match change:
            case "value":
                request.ext["username"] = "eve"
            case "field":
                request.ext["more"] = "x"
            case "body":
                request.body = b'{"password":"q"}'
            case "signature":
                request.ext[SIGNATURE] = request.ext[SIGNATURE][::-1]
            case "key":
                request.ext[ACCESS_KEY] = "nodes"
            case "time":
                request.ext["saturnCaller"] = "root"
        assert "is not right" in told(await plain.request(request, 10.0))
        again = Command.request(C.AUTH_CREATE_USER, signed, b'{"password":"p"}')
        assert (await plain.request(again, 10.0)).code == 0, "unchanged it is taken"
        await broker.close()

    run(body)


def test_a_signature_of_ours_is_for_one_kind_of_request(tmp_path: Path) -> None:
    """RocketMQ's is over values alone: under another code or other names they say another thing."""

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, checking(tmp_path))
        plain = await connected(runtime, broker)
        signed = Command.request(C.AUTH_GET_USER, {"username": "root"})
        sign(signed, ROOT)
        assert (await plain.request(signed, 10.0)).code == 0
        renamed = {
            "usernames" if name == "username" else name: signed.ext[name] for name in signed.ext
        }
        for code, ext in ((C.AUTH_DELETE_USER, signed.ext), (C.AUTH_GET_USER, renamed)):
            again = Command.request(code, dict(ext))
            assert "another kind of request" in told(await plain.request(again, 10.0))
        for user in (ROOT, NODES):  # as RocketMQ's clients sign
            fields = {ACCESS_KEY: user.access_key}
            fields[SIGNATURE] = signature(user.secret_key, signed_fields(fields))
            reply = await plain.request(Command.request(C.GET_BROKER_CONFIG, fields), 10.0)
            if user is ROOT:
                assert reply.code == 0
            else:
                assert "another kind of request" in told(reply), "nodes are all ours"
        await broker.close()

    run(body)


def test_old_clients_leave_a_field_out_of_what_they_sign(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, checking(tmp_path))
        plain = await connected(runtime, broker)
        fields = {"topic": "orders", "key": "k", "maxNum": "1", "_UNIQUE_KEY_QUERY": "true"}
        fields |= {"beginTimestamp": "0", "endTimestamp": "1", ACCESS_KEY: "root"}
        for version in (UNSIGNED_VERSION, UNSIGNED_VERSION + 1):
            text = signed_fields(fields, UNSIGNED_VERSION)
            ext = {**fields, SIGNATURE: signature(ROOT.secret_key, text)}
            request = Command(C.QUERY_MESSAGE, ext, version=version)
            reply = await plain.request(request, 10.0)
            is_old = version == UNSIGNED_VERSION
            assert reply.code == (ResponseCode.QUERY_NOT_FOUND if is_old else NO), reply
        await broker.close()

    run(body)


def test_a_user_may_do_what_a_rule_allows(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, checking(tmp_path))
        root, alice = await signing(runtime, broker, ROOT), await signing(runtime, broker, ALICE)
        assert "not known" in told(await send(alice, b"x"))
        assert (await create_user(root, ALICE)).code == 0
        assert told(await send(alice, b"x")) == (
            "access denied: no rule allows User:alice Pub of Topic:orders from 127.0.0.1"
        )
        assert (await allow(root, ALICE, "Topic:ord*", "Group:G")).code == 0
        assert (await send(alice, b"x")).code == 0
        assert (await pull(alice, 0)).code == 0
        assert "Group:H" in told(await pull(alice, 0, consumerGroup="H"))
        assert "Topic:bills" in told(await send(alice, b"x", topic="bills"))
        assert "Update of Cluster:DefaultCluster" in told(await create_user(alice, NODES))
        assert (await allow(root, ALICE, "Topic:orders", decision="Deny")).code == 0
        assert told(await send(alice, b"x")) == (
            "access denied: the rule for Topic:orders forbids User:alice Pub of Topic:orders from "
            "127.0.0.1"
        )
        assert (await send(alice, b"x", topic="orders2")).code == 0
        await broker.close()

    run(body)


def test_without_authorization_every_user_may_do_everything(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, checking(tmp_path, authorization=False))
        root, alice = await signing(runtime, broker, ROOT), await signing(runtime, broker, ALICE)
        assert (await create_user(root, ALICE)).code == 0
        assert (await send(alice, b"x")).code == 0
        reply = await create_user(alice, Credentials("eve", "p"), userType="Super")
        assert "only super users" in told(reply)
        await broker.close()

    run(body)


def test_listed_codes_are_not_checked(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        settings = checking(
            tmp_path,
            authentication_whitelist=("310", "12"),
            authorization_whitelist=("310", "11"),
        )
        broker = await started(runtime, settings)
        root, alice = await signing(runtime, broker, ROOT), await signing(runtime, broker, ALICE)
        assert (await create_user(root, ALICE)).code == 0
        plain = await connected(runtime, broker)
        assert (await send(plain, b"x")).code == 0
        assert "names no user" in told(await pull(plain, 0))
        assert (await pull(alice, 0)).code == 0
        query = {"topic": "orders", "key": "k", "maxNum": 1}
        assert "names no user" in told(await ask(plain, C.QUERY_MESSAGE, query)), "rules are asked"
        await broker.close()

    run(body)


def test_only_nodes_tell_of_other_users(tmp_path: Path) -> None:
    """The signature of a call is over its time alone: with it everything could be asked."""

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, checking(tmp_path))
        root = await signing(runtime, broker, ROOT)
        await create_user(root, ALICE)
        await allow(root, ALICE, "Topic:orders")
        proof = {
            "saturnCaller": "alice",
            "saturnCallerText": "20260101T000000Z",
            "saturnCallerSignature": signature(ALICE.secret_key, b"20260101T000000Z"),
            "saturnCallerHost": "10.0.0.1",
        }
        nodes = await signing(runtime, broker, NODES)
        assert (await send(nodes, b"x", **proof)).code == 0
        assert "Topic:bills from 10.0.0.1" in told(await send(nodes, b"x", topic="bills", **proof))
        for change in ({"saturnCaller": "root"}, {"saturnCaller": ""}, {"saturnCallerText": "x"}):
            assert told(await send(nodes, b"x", **(proof | change)))
        for client in (root, await signing(runtime, broker, None)):
            assert told(await send(client, b"x", **proof))
        await broker.close()

    run(body)


def test_passwords_of_super_users_are_shown_to_super_users(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, checking(tmp_path))
        root, alice = await signing(runtime, broker, ROOT), await signing(runtime, broker, ALICE)
        await create_user(root, ALICE)
        await allow(root, ALICE, "Cluster:*")
        for asker, seen in ((root, ROOT.secret_key), (alice, "")):
            one = json.loads((await ask(asker, C.AUTH_GET_USER, {"username": "root"})).body)
            users = json.loads((await ask(asker, C.AUTH_LIST_USER)).body)
            assert one["password"] == users[1]["password"] == seen
            assert users[0]["password"] == ALICE.secret_key
        assert "only super users" in told(await ask(alice, C.GET_ALL_ACCESS))
        assert (await ask(root, C.GET_ALL_ACCESS)).code == 0
        await broker.close()

    run(body)


HALF = "UNIQ_KEY\x01U\x02TRAN_MSG\x01true\x02PGROUP\x01P\x02"


def end_of(half: Command) -> dict[str, Any]:
    """The end of a transaction, which names another topic."""
    return {
        "producerGroup": "P",
        "topic": "public",
        "tranStateTableOffset": half.ext["queueOffset"],
        "commitLogOffset": int(half.ext["msgId"][16:], 16),
        "commitOrRollback": 8,
    }


async def alice_with(
    runtime: NativeRuntime, root: Path, *resources: str
) -> tuple[Broker, Endpoint, Endpoint]:
    """A broker, where alice may do everything with these; connections of root and of alice."""
    broker = await started(runtime, checking(root))
    super_user = await signing(runtime, broker, ROOT)
    await create_user(super_user, ALICE)
    await allow(super_user, ALICE, *resources)
    return broker, super_user, await signing(runtime, broker, ALICE)


def test_a_message_that_is_named_by_its_place_needs_its_own_topic(tmp_path: Path) -> None:
    """A request names another topic beside it, or none."""

    async def body(runtime: NativeRuntime) -> None:
        broker, root, alice = await alice_with(runtime, tmp_path, "Topic:public", "Group:G")
        beat = {
            "clientID": "c",
            "producerDataSet": [],
            "consumerDataSet": [{"groupName": "G", "subscriptionDataSet": []}],
        }
        assert (await ask(alice, C.HEART_BEAT, {}, fastjson.dumps(beat))).code == 0
        for topic in ("secret", "public"):
            sent = await send(root, b"x", topic=topic)
            half = await send(root, b"x", topic=topic, i=HALF, f=4)
            assert (sent.code, half.code) == (0, 0)
            place = {"offset": int(sent.ext["msgId"][16:], 16), "group": "G", "topic": "public"}
            direct = {"consumerGroup": "G", "clientId": "c", "msgId": sent.ext["msgId"]}
            direct["topic"] = "public"
            answers = [
                await ask(alice, C.VIEW_MESSAGE_BY_ID, place),
                await ask(alice, C.CONSUMER_SEND_MSG_BACK, place | {"delayLevel": 1}),
                await ask(alice, C.END_TRANSACTION, end_of(half)),
            ]
            if topic == "secret":
                answers.append(await ask(alice, C.CONSUME_MESSAGE_DIRECTLY, direct))
                assert all("Topic:secret" in told(each) for each in answers)
            else:
                assert [each.code for each in answers] == [0, 0, 0], answers
            view = {"offset": int(half.ext["msgId"][16:], 16)}
            assert "HALF_TOPIC" in told(await ask(alice, C.VIEW_MESSAGE_BY_ID, view))
        await broker.close()

    run(body)


def test_a_request_that_its_handler_judges_again_is_proven_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signature is over the whole body, which may have megabytes."""
    made: list[bytes] = []

    def counted(secret: str, text: bytes, body: Sequence[bytes] = ()) -> str:
        made.append(text)
        return signature(secret, text, body)

    async def body(runtime: NativeRuntime) -> None:
        broker, _, alice = await alice_with(runtime, tmp_path, "Topic:public")
        item = bytearray()
        encode_batch_item(item, b"x", b"")
        sent = encode_parts([BatchPart("public", 0, 0, 1, bytes(item))])
        monkeypatch.setattr(guard, "signature", counted)
        for number in (1, 2):
            reply = await ask(alice, C.SEND_BATCHES, {"c": "TBW102", "d": 4}, sent)
            assert [each.code for each in decode_answers(reply.body, 1)] == [0]
            assert len(made) == number
        await broker.close()

    run(body)


def test_each_batch_of_a_request_needs_its_topic(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker, _, alice = await alice_with(runtime, tmp_path, "Topic:public")
        item = bytearray()
        encode_batch_item(item, b"x", b"")
        names = ("public", "secret", "public")
        parts = [BatchPart(name, 0, 0, 1, bytes(item)) for name in names]
        ext = {"c": "TBW102", "d": 4}
        reply = await ask(alice, C.SEND_BATCHES, ext, encode_parts(parts))
        assert [each.code for each in decode_answers(reply.body, 3)] == [0, NO, 0]
        assert "secret" not in broker.ground.context.topics
        plain = await connected(runtime, broker)
        assert "names no user" in told(await ask(plain, C.SEND_BATCHES, ext, encode_parts(parts)))
        await broker.close()

    run(body)


def test_a_producer_is_asked_about_transactions_of_its_topics_only(tmp_path: Path) -> None:
    """The question has the whole message, and anybody may call a group its own."""

    async def body(runtime: NativeRuntime) -> None:
        settings = checking(tmp_path, transaction_timeout_ms=50, transaction_check_ms=50)
        broker = await started(runtime, settings)
        root = await signing(runtime, broker, ROOT)
        await create_user(root, ALICE)
        await allow(root, ALICE, "Topic:public")
        asked: list[str] = []

        def hear(_: Endpoint, command: Command) -> None:
            asked.append(decode_frames(bytes(command.body), True)[0].topic)

        host, port = split_address(broker.address)
        alice = await connect(runtime, host, port, hear, credentials=ALICE)
        beat = {"clientID": "c", "producerDataSet": [{"groupName": "P"}], "consumerDataSet": []}
        assert (await ask(alice, C.HEART_BEAT, {}, fastjson.dumps(beat))).code == 0
        for topic in ("secret", "public"):
            assert (await send(root, b"x", topic=topic, i=HALF, f=4)).code == 0
        await until(lambda: "public" in asked)
        checks = broker.messaging.check_backs
        await until(lambda: checks.unanswerable > 0)
        assert "secret" not in asked
        await broker.close()

    run(body)


def test_users_and_rules_are_managed_and_kept(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, checking(tmp_path))
        root, alice = await signing(runtime, broker, ROOT), await signing(runtime, broker, ALICE)
        assert (await create_user(root, ALICE)).code == 0
        reply = await create_user(root, ALICE)
        assert (reply.code, "user alice exists" in str(reply.remark)) == (NO, True)
        assert (await allow(root, ALICE, "Topic:orders", "Group:G")).code == 0
        ext = {"subject": "User:alice", "resource": "Group:G"}
        assert (await ask(root, C.AUTH_DELETE_ACL, ext)).code == 0
        assert (await ask(root, C.AUTH_DELETE_ACL, {"subject": "User:bob"})).code == NO
        file = tmp_path / "config" / "access.json"
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        await broker.close()
        broker = await started(runtime, checking(tmp_path))
        root, alice = await signing(runtime, broker, ROOT), await signing(runtime, broker, ALICE)
        assert (await send(alice, b"x")).code == 0
        assert "Group:G" in told(await pull(alice, 0))
        rules = await ask(root, C.AUTH_GET_ACL, {"subject": "User:alice"})
        assert json.loads(rules.body) == {
            "subject": "User:alice",
            "policies": [
                {
                    "policyType": "Custom",
                    "entries": [
                        {"resource": "Topic:orders", "actions": ["All"], "decision": "Allow"}
                    ],
                }
            ],
        }
        listed = await ask(root, C.AUTH_LIST_ACL, {"resourceFilter": "bills"})
        assert listed.body == b""
        users = json.loads((await ask(root, C.AUTH_LIST_USER)).body)
        assert [each["username"] for each in users] == ["alice", "root"]
        assert users[0]["userType"] == "Normal"
        change = {"username": "alice"}
        info = fastjson.dumps({"userStatus": "disable"})
        assert (await ask(root, C.AUTH_UPDATE_USER, change, info)).code == 0
        assert "'alice' is disabled" in told(await send(alice, b"x"))
        info = fastjson.dumps({"userStatus": "enable", "password": "new"})
        assert (await ask(root, C.AUTH_UPDATE_USER, change, info)).code == 0
        assert "is not right" in told(await send(alice, b"x"))
        renewed = await signing(runtime, broker, Credentials("alice", "new"))
        assert (await send(renewed, b"x")).code == 0
        assert (await ask(root, C.AUTH_DELETE_USER, change)).code == 0
        assert "not known" in told(await send(renewed, b"x"))
        assert (await create_user(root, ALICE)).code == 0
        assert "no rule" in told(await send(alice, b"x")), "its rules went with it"
        assert (await ask(root, C.AUTH_GET_USER, {"username": "bob"})).body == b""
        await broker.close()

    run(body)


def test_only_super_users_manage_super_users(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, checking(tmp_path))
        root, alice = await signing(runtime, broker, ROOT), await signing(runtime, broker, ALICE)
        await create_user(root, ALICE)
        await allow(root, ALICE, "Cluster:*")
        eve = Credentials("eve", "p")
        assert "only super users" in told(await create_user(alice, eve, userType="super"))
        assert (await create_user(alice, eve)).code == 0
        for name, info in [("eve", {"userType": "Super"}), ("root", {"password": "mine"})]:
            body = fastjson.dumps(info)
            reply = await ask(alice, C.AUTH_UPDATE_USER, {"username": name}, body)
            assert "only super users" in told(reply)
        assert "only super users" in told(
            await ask(alice, C.AUTH_DELETE_USER, {"username": "root"})
        )
        assert (await ask(alice, C.AUTH_DELETE_USER, {"username": "eve"})).code == 0
        await broker.close()

    run(body)


def test_the_first_user_is_made_once(tmp_path: Path) -> None:
    """A password that was changed since is not set back by the configuration."""

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, checking(tmp_path))
        root = await signing(runtime, broker, ROOT)
        info = fastjson.dumps({"password": "new"})
        assert (await ask(root, C.AUTH_UPDATE_USER, {"username": "root"}, info)).code == 0
        await broker.close()
        broker = await started(runtime, checking(tmp_path))
        assert "is not right" in told(await send(await signing(runtime, broker, ROOT), b"x"))
        await broker.close()

    run(body)


@pytest.mark.parametrize("change", ["rule", "user", "stranger"])
def test_a_table_that_cannot_be_read_refuses_the_start(tmp_path: Path, change: str) -> None:
    """A rule that forbids must not be left out."""

    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, checking(tmp_path))
        root = await signing(runtime, broker, ROOT)
        await create_user(root, ALICE)
        await allow(root, ALICE, "Topic:secret", decision="Deny")
        await broker.close()
        file = tmp_path / "config" / "access.json"
        document = json.loads(file.read_text())
        match change:
            case "rule":
                entry = document["acls"]["User:alice"]["policies"][0]["entries"][0]
                entry["decision"] = "Denied"
            case "user":
                document["users"]["alice"]["userStatus"] = "off"
            case "stranger":
                del document["users"]["alice"]
        file.write_text(json.dumps(document))
        with pytest.raises(StoreDamaged, match=r"access\.json was not written by a broker"):
            await started(runtime, checking(tmp_path))

    run(body)


def test_members_of_a_group_with_a_secret_prove_themselves_otherwise(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        plain_ext = {"brokerAddr": "127.0.0.1:1"}
        for secret, expected in [("", NO), ("0123456789abcdef", ResponseCode.SIGNATURE_NEEDED)]:
            settings = checking(tmp_path / str(len(secret)), replication_secret=secret)
            broker = await started(runtime, settings)
            plain = await connected(runtime, broker)
            assert (await ask(plain, C.SLAVE_LEAVES, plain_ext)).code == expected
            assert (await ask(plain, C.REPLICA_STATE)).code == 0
            await broker.close()

    run(body)


def test_settings_that_are_shown_hide_the_passwords(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, checking(tmp_path))
        root = await signing(runtime, broker, ROOT)
        text = bytes((await ask(root, C.GET_BROKER_CONFIG)).body).decode()
        assert "initAuthenticationUser=******" in text
        assert "innerClientAuthenticationCredentials=******" in text
        assert "password" not in text.replace("etcdPassword", "")
        await broker.close()

    run(body)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"authentication": False}, "set both"),
        ({"init_user": "root"}, "initAuthenticationUser must be"),
        ({"init_user": '{"username":"root"}'}, "initAuthenticationUser must be"),
        ({"init_user": '{"username":"root","password":""}'}, "initAuthenticationUser must be"),
        ({"inner_credentials": "[]"}, "innerClientAuthenticationCredentials must be"),
        ({"inner_credentials": '{"accessKey":1,"secretKey":"x"}'}, "must be"),
    ],
)
def test_settings_that_would_check_nobody_are_refused(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        replace(BrokerConfig(), **(CHECKING | changes))
    assert "password'" not in str(refused.value)


def test_a_client_that_asks_one_way_is_refused_in_silence(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        broker = await started(runtime, checking(tmp_path))
        plain: Endpoint = await connected(runtime, broker)
        plain.oneway(Command.request(C.SEND_MESSAGE_V2, {"a": "P", "b": "orders"}, b"x"))
        assert "names no user" in told(await send(plain, b"x"))
        assert broker.store.watermarks.appended == 0
        await broker.close()

    run(body)
