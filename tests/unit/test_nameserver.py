"""The nameserver over real sockets: every code it serves, and brokers that vanish."""

import asyncio
import struct
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from saturnmq.nameserver import answers, settings
from saturnmq.nameserver import server as module
from saturnmq.nameserver.routes import RouteTable
from saturnmq.nameserver.server import NameServer, serve
from saturnmq.nameserver.watches import WATCH_BYTES, Watches
from saturnmq.protocol import fastjson
from saturnmq.protocol.asking import connect
from saturnmq.protocol.budget import Budget
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.limits import Limits
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.route import TopicConfig, TopicRoute
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import ConfigError
from saturnmq.runtime.native import NativeRuntime

BROKER = {
    "clusterName": "DefaultCluster",
    "brokerName": "broker-a",
    "brokerId": "0",
    "brokerAddr": "127.0.0.1:10911",
    "haServerAddr": "127.0.0.1:10912",
}
TOPICS = ("TBW102", "T", "U")
VERSION = {"counter": 1, "stateVersion": 0, "timestamp": 5}


def body(topics: tuple[str, ...] = TOPICS) -> bytes:
    table = {name: TopicConfig(name, 8, 8, 7).to_json() for name in topics}
    wrapper = {"dataVersion": VERSION, "topicConfigTable": table}
    return fastjson.dumps({"filterServerList": [], "topicConfigSerializeWrapper": wrapper})


async def ask(
    endpoint: Endpoint, code: int, ext: dict[str, str] | None = None, data: bytes = b""
) -> Command:
    return await endpoint.request(Command.request(code, ext, data), 5)


async def eventually(endpoint: Endpoint, code: int, ext: dict[str, str], wanted: int) -> Command:
    async with asyncio.timeout(5):
        while True:
            reply = await ask(endpoint, code, ext)
            if reply.code == wanted:
                return reply


def served(main: Callable[[NativeRuntime, NameServer, Endpoint], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(20):
            runtime = NativeRuntime()
            server = NameServer(runtime, "127.0.0.1", 0)
            await server.start()
            client = await connect(runtime, *split_address(server.address))
            await main(runtime, server, client)
            client.close()
            await server.close()

    asyncio.run(limited())


def test_broker_registers_is_routed_to_and_vanishes_with_its_connection() -> None:
    async def main(runtime: NativeRuntime, server: NameServer, client: Endpoint) -> None:
        broker = await connect(runtime, *split_address(server.address))
        assert (await ask(broker, 103, BROKER, body())).code == 0
        route = await ask(client, 105, {"topic": "T"})
        assert bytes(route.body) == fastjson.dumps(
            {
                "brokerDatas": [
                    {
                        "brokerAddrs": {"0": "127.0.0.1:10911"},
                        "brokerName": "broker-a",
                        "cluster": "DefaultCluster",
                        "enableActingMaster": False,
                    }
                ],
                "filterServerTable": {},
                "queueDatas": [
                    {
                        "brokerName": "broker-a",
                        "perm": 7,
                        "readQueueNums": 8,
                        "topicSysFlag": 0,
                        "writeQueueNums": 8,
                    }
                ],
            }
        )
        slave = BROKER | {"brokerId": "1", "brokerAddr": "127.0.0.1:20911"}
        link = await connect(runtime, *split_address(server.address))
        joined = await ask(link, 103, slave, body())
        assert joined.ext == {"haServerAddr": "127.0.0.1:10912", "masterAddr": "127.0.0.1:10911"}
        broker.abort()
        link.abort()
        gone = await eventually(client, 105, {"topic": "T"}, 17)
        assert "No topic route info" in str(gone.remark)
        server.routes.validate()

    served(main)


async def told(events: asyncio.Queue[tuple[int, object]]) -> tuple[int, object]:
    async with asyncio.timeout(5):
        return await events.get()


def listening(events: asyncio.Queue[tuple[int, object]]) -> Callable[[Endpoint, Command], None]:
    def handle(endpoint: Endpoint, command: Command) -> None:
        assert command.is_oneway
        events.put_nowait((command.code, fastjson.loads(command.body) if command.body else None))

    return handle


def test_watchers_are_told_once_per_change_of_their_topics() -> None:
    async def main(runtime: NativeRuntime, server: NameServer, client: Endpoint) -> None:
        events: asyncio.Queue[tuple[int, object]] = asyncio.Queue()
        address = split_address(server.address)
        watcher = await connect(runtime, *address, listening(events))
        for topic in ("T", "U", "not yet"):
            assert (await ask(watcher, 105, {"topic": topic, "saturnWatch": "true"})).code == 17
        broker = await connect(runtime, *address)
        await ask(broker, 103, BROKER, body())
        assert await told(events) == (390010, ["T", "U"])
        await ask(broker, 103, BROKER, body())
        await ask(client, 216, {"topic": "U"})
        assert await told(events) == (390010, ["U"])
        broker.abort()
        assert await told(events) == (390010, ["T"])
        watcher.abort()
        other = await connect(runtime, *address)
        await ask(other, 103, BROKER, body())
        assert events.empty()

    served(main)


def test_a_deposed_master_is_told_and_is_not_taken_again() -> None:
    async def main(runtime: NativeRuntime, server: NameServer, client: Endpoint) -> None:
        def announcement(epoch: int) -> bytes:
            table = {name: TopicConfig(name, 8, 8, 7).to_json() for name in TOPICS}
            version = VERSION | {"stateVersion": epoch}
            wrapper = {"dataVersion": version, "topicConfigTable": table}
            return fastjson.dumps({"topicConfigSerializeWrapper": wrapper})

        events: asyncio.Queue[tuple[int, object]] = asyncio.Queue()
        address = split_address(server.address)
        old = await connect(runtime, *address, listening(events))
        new = await connect(runtime, *address)
        assert (await ask(old, 103, BROKER, announcement(1))).ext == {"saturnEpoch": "1"}
        promoted = BROKER | {"brokerAddr": "127.0.0.1:20911", "haServerAddr": "127.0.0.1:20912"}
        assert (await ask(new, 103, promoted, announcement(2))).ext == {"saturnEpoch": "2"}
        assert await told(events) == (390011, None)
        assert (await ask(old, 103, BROKER, announcement(1))).ext == {
            "saturnEpoch": "2",
            "masterAddr": "127.0.0.1:20911",
            "haServerAddr": "127.0.0.1:20912",
        }
        route = fastjson.loads((await ask(client, 105, {"topic": "T"})).body)
        assert route["brokerDatas"][0]["brokerAddrs"] == {"0": "127.0.0.1:20911"}

    served(main)


def test_clusters_members_versions_and_topic_lists() -> None:
    async def main(runtime: NativeRuntime, server: NameServer, client: Endpoint) -> None:
        assert (await ask(client, 904, BROKER)).code == 0
        unknown = await ask(client, 322, BROKER, fastjson.dumps(VERSION))
        assert unknown.ext == {"changed": "true"}
        await ask(client, 103, BROKER, body())
        info = fastjson.loads((await ask(client, 106)).body)
        assert info["clusterAddrTable"] == {"DefaultCluster": ["broker-a"]}
        assert info["brokerAddrTable"]["broker-a"]["brokerAddrs"] == {"0": "127.0.0.1:10911"}
        member = fastjson.loads((await ask(client, 901, BROKER)).body)
        assert member["brokerMemberGroup"]["brokerAddrs"] == {"0": "127.0.0.1:10911"}
        same = await ask(client, 322, BROKER, fastjson.dumps(VERSION))
        assert (same.ext, fastjson.loads(same.body)) == ({"changed": "false"}, VERSION)
        other = await ask(client, 322, BROKER, fastjson.dumps(VERSION | {"counter": 2}))
        assert other.ext == {"changed": "true"}
        for code, ext, topics in (
            (206, {}, sorted(TOPICS)),
            (224, {"cluster": "DefaultCluster"}, sorted(TOPICS)),
            (224, {"cluster": "nowhere"}, []),
            (304, {}, ["DefaultCluster", "broker-a"]),
        ):
            assert fastjson.loads((await ask(client, code, ext)).body)["topicList"] == topics
        assert (await ask(client, 205, BROKER)).ext == {"wipeTopicCount": "3"}
        assert (await ask(client, 327, BROKER)).ext == {"addTopicCount": "3"}
        assert (await ask(client, 216, {"topic": "U"})).code == 0
        assert (await ask(client, 105, {"topic": "U"})).code == 17
        assert (await ask(client, 104, BROKER)).code == 0
        assert (await ask(client, 105, {"topic": "T"})).code == 17

    served(main)


def test_a_route_is_encoded_once_until_a_route_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    route = RouteTable.route

    def counted(table: RouteTable, topic: str) -> TopicRoute:
        made.append(topic)
        return route(table, topic)

    monkeypatch.setattr(RouteTable, "route", counted)

    async def main(runtime: NativeRuntime, server: NameServer, client: Endpoint) -> None:
        async def told() -> Any:
            return fastjson.loads((await ask(client, 105, {"topic": "T"})).body)

        await ask(client, 103, BROKER, body())
        slave = {**BROKER, "brokerId": "1", "brokerAddr": "127.0.0.1:10921"}
        changes: list[tuple[int, dict[str, str], bytes]] = [
            (103, slave, body()),
            (205, BROKER, b""),
            (327, BROKER, b""),
            (104, slave, b""),
        ]
        before = await told()
        for code, ext, sent in changes:
            made.clear()
            assert [await told() for _ in range(3)] == [before] * 3
            assert not made
            assert (await ask(client, code, ext, sent)).code == 0
            after = await told()
            assert after != before, f"code {code} changes the route"
            assert after == fastjson.loads(fastjson.dumps(server.routes.route("T").to_json()))
            before = after
        monkeypatch.setattr(answers, "ROUTES_BYTES_MAX", 0)
        made.clear()
        for topic in ("U", "T", "U"):
            assert (await ask(client, 105, {"topic": topic})).code == 0
        assert made == ["U", "T", "U"], "no more is kept than is allowed"

    served(main)


def test_key_value_configuration_reaches_registering_brokers() -> None:
    async def main(runtime: NativeRuntime, server: NameServer, client: Endpoint) -> None:
        entry = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "broker-a:4"}
        assert (await ask(client, 219, entry)).code == 22
        assert len((await ask(client, 103, BROKER, body())).body) == 0
        assert (await ask(client, 101, entry)).code == 22
        assert (await ask(client, 100, entry)).code == 0
        assert (await ask(client, 101, entry)).ext == {"value": "broker-a:4"}
        answer = await ask(client, 103, BROKER, body())
        assert fastjson.loads(answer.body) == {"table": {"T": "broker-a:4"}}
        assert (await ask(client, 102, entry)).code == 0
        assert fastjson.loads((await ask(client, 219, entry)).body) == {"table": {}}
        assert b"listenPort=" in bytes((await ask(client, 319)).body)
        assert (await ask(client, 318, {}, b"listenPort=1\n")).code == 16

    served(main)


@pytest.mark.parametrize(
    ("code", "ext", "data", "answer"),
    [
        (7777, {}, b"", 3),
        (105, {}, b"", 29),
        (105, {"topic": "unknown"}, b"", 17),
        (103, {}, b"", 29),
        (103, BROKER, b"{broken", 1),
        (103, BROKER | {"bodyCrc32": "5"}, b"{}", 1),
        (103, BROKER, body(("T",)), 1),
        (322, BROKER, b"[[[", 1),
    ],
)
def test_bad_requests_get_typed_answers_and_the_connection_lives(
    code: int, ext: dict[str, str], data: bytes, answer: int
) -> None:
    async def main(runtime: NativeRuntime, server: NameServer, client: Endpoint) -> None:
        reply = await ask(client, code, ext, data)
        assert reply.code == answer
        assert reply.remark
        assert (await ask(client, 206)).code == 0

    served(main)


@pytest.mark.parametrize("code", [322, 1006])
def test_bodies_larger_than_anybody_needs_are_refused_before_they_are_read(code: int) -> None:
    async def main(runtime: NativeRuntime, server: NameServer, client: Endpoint) -> None:
        begun = time.thread_time()
        reply = await ask(client, code, BROKER, b"{" + b"1:1," * (1 << 20))
        assert time.thread_time() - begun < 1.0
        assert reply.code == 1
        assert "bytes of JSON, the limit is" in str(reply.remark)

    served(main)


def test_malformed_frame_costs_its_sender_the_connection_and_nobody_else() -> None:
    async def main(runtime: NativeRuntime, server: NameServer, client: Endpoint) -> None:
        host, port = split_address(server.address)
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(struct.pack(">i", 1 << 30))
        assert await reader.read() == b""
        writer.close()
        assert (await ask(client, 206)).code == 0

    served(main)


def test_port_in_use_is_a_clear_error_and_serve_reports_its_address() -> None:
    async def main(runtime: NativeRuntime, server: NameServer, client: Endpoint) -> None:
        host, port = split_address(server.address)
        with pytest.raises(ConfigError, match="choose another port"):
            await NameServer(runtime, host, port).start()
        ready: asyncio.Future[str] = runtime.create_future()
        task = runtime.spawn(serve(runtime, host, 0, ready.set_result))
        other = await connect(runtime, *split_address(await ready))
        assert (await ask(other, 206)).code == 0
        task.cancel()

    served(main)


MANY = tuple(f"topic-{number}" for number in range(10_000))


def test_a_registration_with_many_topics_is_read_beside_others_and_those_behind_it_wait() -> None:
    async def main(runtime: NativeRuntime, server: NameServer, client: Endpoint) -> None:
        broker = await connect(runtime, *split_address(server.address))
        large = asyncio.ensure_future(ask(broker, 103, BROKER, body(MANY)))
        fewer = asyncio.ensure_future(ask(broker, 103, BROKER | {"saturnWhole": "true"}, newer()))
        await asyncio.sleep(0)
        little = asyncio.ensure_future(ask(client, 106))
        done, _ = await asyncio.wait([large, fewer, little], return_when=asyncio.FIRST_COMPLETED)
        assert done == {little}
        assert (await large).code == (await fewer).code == 0
        found = fastjson.loads((await ask(client, 206)).body)["topicList"]
        assert set(found) == set(TOPICS)
        bad = await ask(broker, 103, BROKER, b"{" * (1 << 17))
        assert bad.code == 1, bad.remark
        broker.close()

    def newer() -> bytes:
        return body().replace(b'"counter":1', b'"counter":2')

    served(main)


def test_a_registration_whose_connection_is_closed_meanwhile_leaves_no_route() -> None:
    async def main(runtime: NativeRuntime, server: NameServer, client: Endpoint) -> None:
        broker = await connect(runtime, *split_address(server.address))
        broker.oneway(Command.request(103, BROKER, body(MANY)))
        broker.close()
        while not server._reading:
            await asyncio.sleep(0)
        while server._reading:
            await asyncio.sleep(0.005)
        assert fastjson.loads((await ask(client, 206)).body)["topicList"] == []

    served(main)


def test_routes_and_watches_have_a_part_of_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROUTE_BYTES", 4 << 20)

    async def main(runtime: NativeRuntime) -> None:
        server = NameServer(runtime, "127.0.0.1", 0, limits=Limits(memory_bytes=64 << 20))
        await server.start()
        address = split_address(server.address)
        client, first, second = [await connect(runtime, *address) for _ in range(3)]
        assert (await ask(first, 103, BROKER, body())).code == 0
        other = BROKER | {"brokerName": "broker-b", "brokerAddr": "127.0.0.1:10921"}
        refused = await ask(second, 103, other, body())
        assert refused.code == 2
        assert "of routes: memoryBudgetBytes / 4" in str(refused.remark)
        assert (await ask(first, 103, BROKER, body())).code == 0, "nothing of it is new"
        assert (await ask(client, 105, {"topic": "T"})).code == 0
        first.close()
        await eventually(client, 105, {"topic": "T"}, 17)
        while (await ask(second, 103, other, body())).code:  # counted anew when it scans
            await asyncio.sleep(0.01)
        await server.close()

    async def limited() -> None:
        async with asyncio.timeout(20):
            await main(NativeRuntime())

    monkeypatch.setattr(settings, "SCAN_INTERVAL_MS", 50)
    asyncio.run(limited())


def test_a_broker_of_rocketmqs_tells_single_topics_and_only_its_own() -> None:
    async def main(runtime: NativeRuntime, server: NameServer, client: Endpoint) -> None:
        broker = await connect(runtime, *split_address(server.address))
        assert (await ask(broker, 103, BROKER, body())).code == 0

        def told(name: str, **more: int) -> bytes:
            queues = {"readQueueNums": 4, "writeQueueNums": 2, "perm": 6, **more}
            return fastjson.dumps({"queueDatas": [{"brokerName": name, **queues}]})

        one = {"topic": "%RETRY%G"}
        assert (await ask(client, 217, one, told("broker-a", topicSysFlag=3))).code == 0
        [queues] = TopicRoute.from_json(fastjson.loads((await ask(client, 105, one)).body)).queues
        assert (queues.read_queues, queues.write_queues, queues.sys_flag) == (4, 2, 3)
        assert (await ask(client, 217, one, told("broker-a", perm=4))).code == 0
        [queues] = server.routes.route("%RETRY%G").queues
        assert (queues.perm, queues.sys_flag) == (4, 0)
        unknown = await ask(client, 217, one, told("broker-b"))
        assert unknown.code == 29
        assert "no master of broker broker-b is registered here" in str(unknown.remark)
        for bad in (b"", b"7", b'{"queueDatas":[{"brokerName":"broker-a","perm":-1}]}'):
            assert (await ask(client, 217, one, bad)).code == 29
        assert (await ask(client, 217, {"topic": "a/b"}, told("broker-a"))).code == 29
        # one of ours has an identity: it speaks over the connection of its registration alone
        ours = BROKER | {"brokerName": "ours", "brokerAddr": "127.0.0.1:20911"}
        link = await connect(runtime, *split_address(server.address))
        assert (await ask(link, 103, ours | {"saturnIdentity": "a" * 32}, body())).code == 0
        assert (await ask(client, 217, one, told("ours"))).code == 16
        assert [queues.broker_name for queues in server.routes.route("%RETRY%G").queues] == [
            "broker-a"
        ]
        server.routes.validate()

    served(main)


def test_topics_of_units_are_listed_by_their_flags() -> None:
    async def main(runtime: NativeRuntime, server: NameServer, client: Endpoint) -> None:
        broker = await connect(runtime, *split_address(server.address))
        flags = {"plain": 0, "unit": 1, "sub": 2, "both": 3}
        table = {
            name: TopicConfig(name, 8, 8, 7, sys_flag=flag).to_json()
            for name, flag in flags.items()
        }
        wrapper = {"dataVersion": VERSION, "topicConfigTable": table}
        registration = fastjson.dumps({"topicConfigSerializeWrapper": wrapper})
        assert (await ask(broker, 103, BROKER, registration)).code == 0
        expected = {311: ["both", "unit"], 312: ["both", "sub"], 313: ["sub"]}
        for code, topics in expected.items():
            assert fastjson.loads((await ask(client, code)).body) == {"topicList": topics}

    served(main)


def test_a_watch_for_which_there_is_no_memory_is_none() -> None:
    memory = Budget(2 * WATCH_BYTES, "all")
    watches = Watches(memory)
    one, other = Endpoint(NativeRuntime(), None), Endpoint(NativeRuntime(), None)
    for endpoint, topic in ((one, "a"), (one, "a"), (one, "b"), (other, "a")):
        watches.add(endpoint, topic)
    assert watches.of(["a", "b"]) == {one: ["a", "b"]}
    watches.forget(one)
    assert memory.used == 0
    watches.add(other, "a")
    assert watches.of(["a", "b"]) == {other: ["a"]}
