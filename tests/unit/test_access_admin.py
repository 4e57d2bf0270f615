"""Users and access rules through an Admin: what it sends to which broker, and what it makes of the
answers; and the same over a broker of ours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from broker_rig import run
from saturnmq import Admin, Credentials, Message, Producer, aio
from saturnmq.client.admin.access import AclInfo, PolicyEntryInfo, UserInfo
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.errors import (
    AccessDenied,
    InvalidParameter,
    MalformedFrame,
    NoPermission,
    RouteNotFound,
    SaturnError,
)
from saturnmq.runtime.native import NativeRuntime
from served_rig import served

ROOT_USER = Credentials("root", "secret of root")
ANN = UserInfo("ann", "Normal", "enable", "hunter2")
RULE = PolicyEntryInfo("Custom", "Topic:orders", ("Pub", "Sub"), "Allow", ("10.0.0.0/8",))
ANN_JSON = {
    "username": "ann",
    "password": "hunter2",
    "userType": "Normal",
    "userStatus": "enable",
}
RULE_JSON = {
    "resource": "Topic:orders",
    "actions": ["Pub", "Sub"],
    "sourceIps": ["10.0.0.0/8"],
    "decision": "Allow",
}
ACL_JSON = {
    "subject": "User:ann",
    "policies": [{"policyType": "Custom", "entries": [RULE_JSON]}],
}


class Brokers:
    """A nameserver and three broker groups, at one address each; the third has a slave only, unless
    it is `led`."""

    def __init__(self) -> None:
        self.came: list[tuple[str, int, dict[str, str], Any]] = []
        self.bodies: dict[int, bytes] = {}
        self.refusing: dict[str, tuple[int, str]] = {}
        self.addresses: dict[str, str] = {}
        self.is_led = True

    def handler(self, name: str) -> Callable[[Endpoint, Command], None]:
        def serve(endpoint: Endpoint, command: Command) -> None:
            if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
                endpoint.send(command.reply(body=self.listed()), command)
            elif command.code > 3000:
                body = fastjson.loads(command.body) if command.body else None
                self.came.append((name, command.code, command.ext, body))
                answer = self.refusing.get(name, (ResponseCode.SUCCESS, None))
                endpoint.send(
                    command.reply(*answer, body=self.bodies.get(command.code, b"")), command
                )
            else:
                endpoint.send(command.reply(), command)

        return serve

    def listed(self) -> bytes:
        table = {
            name: {
                "brokerName": name,
                "cluster": "C",
                "brokerAddrs": {"0" if self.is_led or name != "c" else "1": address},
            }
            for name, address in self.addresses.items()
        }
        return bytes(fastjson.dumps({"brokerAddrTable": table}))

    def sent(self, code: RequestCode) -> tuple[dict[str, str], Any]:
        """The fields and the body of the one request, which all masters got."""
        assert [name for name, *_ in self.came] == ["a", "b", "c"]
        found = {repr(rest) for _, *rest in self.came}
        assert len(found) == 1
        _, sent, ext, body = self.came[0]
        assert sent == code
        self.came.clear()
        return ext, body

    def asked(self, code: RequestCode) -> dict[str, str]:
        """The fields of the one request, which one broker got."""
        ((_, sent, ext, body),) = self.came
        assert (sent, body) == (code, None)
        self.came.clear()
        return ext


@asynccontextmanager
async def cluster(runtime: NativeRuntime) -> AsyncIterator[tuple[Brokers, aio.Admin]]:
    brokers = Brokers()
    listeners = []
    for name in ("a", "b", "c"):
        handler = brokers.handler(name)
        listener = await runtime.listen(
            "127.0.0.1", 0, lambda handler=handler: Endpoint(runtime, handler, server=True)
        )
        listeners.append(listener)
        brokers.addresses[name] = listener.address
    async with aio.Admin(brokers.addresses["a"]) as admin:
        yield brokers, admin
    for listener in listeners:
        listener.close()


def over(test: Callable[[Brokers, aio.Admin], Any]) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with cluster(runtime) as (brokers, admin):
            await test(brokers, admin)

    run(body)


def test_a_change_goes_to_every_master_as_rocketmqs_tools_send_it() -> None:
    async def test(brokers: Brokers, admin: aio.Admin) -> None:
        ann = {"username": "ann"}
        repeated = {**ann, "saturnRepeated": "true"}
        assert await admin.create_user("ann", "hunter2") == ["a", "b", "c"]
        made = {**ann, "password": "hunter2", "userType": "Normal"}
        assert brokers.sent(RequestCode.AUTH_CREATE_USER) == (repeated, made)
        await admin.create_user("ann", "hunter2", kind="super")
        assert brokers.sent(RequestCode.AUTH_CREATE_USER)[1]["userType"] == "Super"
        await admin.update_user("ann", status="Disable")
        changed = {**ann, "userStatus": "disable"}
        assert brokers.sent(RequestCode.AUTH_UPDATE_USER) == (repeated, changed)
        assert await admin.delete_user("ann") == ["a", "b", "c"]
        assert brokers.sent(RequestCode.AUTH_DELETE_USER) == (ann, None)

        subject = {"subject": "User:ann"}
        rule = ["Topic:orders"], ["pub", "SUB"], "allow", ["10.0.0.0/8"]
        assert await admin.create_acl("ann", *rule) == ["a", "b", "c"]
        assert brokers.sent(RequestCode.AUTH_CREATE_ACL) == (subject, ACL_JSON)
        await admin.update_acl("User:ann", ["*", "Group:g"], ["All"], "Deny")
        ext, body = brokers.sent(RequestCode.AUTH_CREATE_ACL)
        entry = {"actions": ["All"], "decision": "Deny", "sourceIps": []}
        assert ext == subject
        assert body["policies"][0]["entries"] == [
            {"resource": "*", **entry},
            {"resource": "Group:g", **entry},
        ]
        await admin.delete_acl("ann")
        assert brokers.sent(RequestCode.AUTH_DELETE_ACL) == (subject, None)
        await admin.delete_acl("ann", "Topic:orders", "default")
        only = {**subject, "resource": "Topic:orders", "policyType": "Default"}
        assert brokers.sent(RequestCode.AUTH_DELETE_ACL) == (only, None)

    over(test)


def test_one_broker_is_asked_and_its_answer_read() -> None:
    async def test(brokers: Brokers, admin: aio.Admin) -> None:
        assert await admin.get_user("bob") is None
        assert brokers.asked(RequestCode.AUTH_GET_USER) == {"username": "bob"}
        assert await admin.list_users() == []
        assert brokers.asked(RequestCode.AUTH_LIST_USER) == {"filter": ""}
        assert await admin.get_acl("bob") is None
        assert brokers.asked(RequestCode.AUTH_GET_ACL) == {"subject": "User:bob"}
        assert await admin.list_acls("bo", "ord") == []
        filters = {"subjectFilter": "bo", "resourceFilter": "ord"}
        assert brokers.asked(RequestCode.AUTH_LIST_ACL) == filters
        brokers.bodies = {
            RequestCode.AUTH_GET_USER: fastjson.dumps(ANN_JSON),
            RequestCode.AUTH_LIST_USER: fastjson.dumps([ANN_JSON, {"username": "a"}]),
            RequestCode.AUTH_GET_ACL: fastjson.dumps(ACL_JSON),
            RequestCode.AUTH_LIST_ACL: fastjson.dumps([ACL_JSON, {"subject": "User:a"}]),
        }
        found = await admin.get_user("ann")
        assert found == ANN
        assert "hunter2" not in repr(found)
        assert await admin.list_users("a") == [UserInfo("a", "Normal", "enable", ""), ANN]
        assert await admin.get_acl("ann") == AclInfo("User:ann", (RULE,))
        assert await admin.list_acls() == [AclInfo("User:a", ()), AclInfo("User:ann", (RULE,))]

    over(test)


@pytest.mark.parametrize(
    "body",
    [b"{}", b"[1]", b'[{"username":1}]', b'[{"subject":"User:a","policies":[{"entries":[1]}]}]'],
)
def test_an_answer_that_is_no_list_of_its_kind_is_malformed(body: bytes) -> None:
    async def test(brokers: Brokers, admin: aio.Admin) -> None:
        brokers.bodies = {RequestCode.AUTH_LIST_USER: body, RequestCode.AUTH_LIST_ACL: body}
        with pytest.raises(MalformedFrame):
            await admin.list_users()
        with pytest.raises(MalformedFrame):
            await admin.list_acls()

    over(test)


def test_an_error_of_one_master_says_where_the_change_was_made() -> None:
    async def test(brokers: Brokers, admin: aio.Admin) -> None:
        brokers.refusing = {"b": (ResponseCode.NO_PERMISSION, "user ann exists")}
        with pytest.raises(NoPermission) as refused:
            await admin.create_user("ann", "hunter2")
        assert str(refused.value) == "user ann exists (at broker b; done at a, c)"
        assert len(brokers.came) == 3, "all were asked"
        brokers.refusing = dict.fromkeys("abc", (ResponseCode.INVALID_PARAMETER, "no"))
        with pytest.raises(InvalidParameter, match=r"^no \(at broker a; done nowhere\)$"):
            await admin.create_acl("ann", ["orders"], ["Pub"], "Allow")

    over(test)


def test_nothing_is_changed_while_a_group_has_no_master_but_reads_go_on() -> None:
    async def test(brokers: Brokers, admin: aio.Admin) -> None:
        brokers.is_led = False
        with pytest.raises(RouteNotFound, match="broker 'c' has no master now"):
            await admin.delete_user("ann")
        assert not brokers.came
        assert await admin.get_user("ann") is None
        brokers.addresses = {"c": brokers.addresses["c"]}
        assert await admin.list_users() == []
        assert [name for name, *_ in brokers.came] == ["a", "c"]
        brokers.addresses = {}
        with pytest.raises(RouteNotFound, match="no broker is registered"):
            await admin.list_users()

    over(test)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda admin: admin.create_user("ann", "p", kind="Sper"), "did you mean 'Super'"),
        (lambda admin: admin.create_user("ann", ""), "password of user ann is empty"),
        (lambda admin: admin.update_user("ann"), "give a password, a kind or a status"),
        (lambda admin: admin.update_user("ann", status="on"), "one of enable, disable"),
        (lambda admin: admin.create_acl("ann", ["*"], ["Pubs"], "Allow"), "did you mean 'Pub'"),
        (lambda admin: admin.create_acl("ann", ["*"], ["Pub"], "Yes"), "one of Allow, Deny"),
        (lambda admin: admin.create_acl("ann", [], ["Pub"], "Allow"), "no resource"),
        (lambda admin: admin.create_acl("ann", ["*"], [], "Allow"), "no action"),
        (lambda admin: admin.create_acl("ann", "*", ["Pub"], "Allow"), "give a list"),
        (lambda admin: admin.create_acl("ann", ["*"], "Pub", "Allow"), "give a list"),
        (lambda admin: admin.delete_acl("ann", "*", "Own"), "one of Custom, Default"),
    ],
)
def test_a_word_that_brokers_would_take_for_another_is_refused_here(
    call: Callable[[aio.Admin], Any], text: str
) -> None:
    async def test(brokers: Brokers, admin: aio.Admin) -> None:
        with pytest.raises(InvalidParameter, match=text):
            await call(admin)
        assert not brokers.came

    over(test)


# -- over a broker of ours -------------------------------------------------------------------------


@pytest.fixture
def nameserver(tmp_path: Path) -> Iterator[str]:
    first = '{"username":"root","password":"secret of root"}'
    with served(tmp_path, authentication=True, authorization=True, init_user=first) as address:
        yield address


def test_a_user_may_do_what_its_rules_say(nameserver: str) -> None:
    ann = Credentials("ann", "hunter2")
    with Admin(nameserver, credentials=ROOT_USER) as admin:
        admin.create_topic("orders")
        assert admin.create_user("ann", "hunter2") == ["broker-a"]
        with pytest.raises(NoPermission, match="ann"):
            admin.create_user("ann", "hunter3")
        assert admin.get_user("ann") == ANN
        assert [user.name for user in admin.list_users()] == ["ann", "root"]
        assert admin.list_users("oo")[0].kind == "Super"
        with Producer("p", nameserver, credentials=ann, delivery_timeout=5.0) as producer:
            with pytest.raises(AccessDenied):
                producer.send(Message("orders", b"1"))
            admin.create_acl("ann", ["Topic:orders"], ["pub", "sub"], "allow", ["127.0.0.0/8"])
            assert producer.send(Message("orders", b"2")).ok
            rules = admin.get_acl("ann")
            assert rules is not None
            assert admin.list_acls(resource="orders") == [rules]
            assert rules.entries[0].actions == ("Pub", "Sub")
            admin.update_acl("ann", ["Topic:orders"], ["pub"], "deny")
            with pytest.raises(AccessDenied):
                producer.send(Message("orders", b"3"))
        admin.delete_acl("ann", "Topic:orders")
        assert admin.get_acl("ann") is None
        admin.update_user("ann", kind="Super", password="hunter4")
        changed = admin.get_user("ann")
        assert changed == UserInfo("ann", "Super", "enable", "hunter4")
        with Admin(nameserver, credentials=Credentials("ann", "hunter4")) as again:
            again.update_user("ann", status="disable")
            with pytest.raises(SaturnError):
                again.list_users()
        admin.delete_user("ann")
        assert admin.get_user("ann") is None
    with Admin(nameserver) as admin, pytest.raises(AccessDenied):
        admin.list_users()


def test_a_consumer_that_is_denied_says_so_once_for_each_reason(nameserver: str) -> None:
    async def consume(admin: Admin) -> None:
        ann, errors = Credentials("ann", "hunter2"), list[SaturnError]()

        async def beat() -> list[str]:
            errors.clear()
            for _ in range(3):
                await consumer.core.heartbeat_now()
            assert all(isinstance(each, AccessDenied) for each in errors)
            return [str(each) for each in errors]

        consumer = aio.PullConsumer("readers", nameserver, credentials=ann, on_error=errors.append)
        consumer.subscribe("orders")
        async with consumer:
            (first,) = errors  # of the heartbeat at the start
            assert not await beat()
            assert "Group:readers" in str(first)
            admin.create_acl("ann", ["Group:readers"], ["Sub"], "Allow")
            (reason,) = await beat()
            assert "Topic:orders" in reason
            admin.create_acl("ann", ["Topic:orders"], ["Sub"], "Allow")
            assert not await beat()
            admin.delete_acl("ann", "Topic:orders")
            assert await beat() == [reason], "it is news again"

    with Admin(nameserver, credentials=ROOT_USER) as admin:
        admin.create_topic("orders")
        admin.create_user("ann", "hunter2")
        asyncio.run(consume(admin))
