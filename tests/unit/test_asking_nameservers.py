"""A master that may be deposed asks its nameservers, and counts on what they know then."""

from __future__ import annotations

import asyncio

from saturnmq.broker.broker import Broker
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol import fastjson
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.epochs import TERM
from world_rig import Remote, World, run


async def succeed(successor: Remote, broker: Broker, epoch: int) -> None:
    """Another master registers under the name of this broker, in a later epoch."""
    version = {"counter": 1, "stateVersion": epoch, "timestamp": 5}
    topics = {name: {"perm": 6} for name in ("T", "U")}
    wrapper = {"dataVersion": version, "topicConfigTable": topics}
    ext = {
        "clusterName": broker.config.cluster_name,
        "brokerName": broker.broker_name,
        "brokerId": "0",
        "brokerAddr": "10.0.0.99:10911",
        "haServerAddr": "10.0.0.99:10912",
        "saturnIdentity": broker.context.role.identity,
    }
    body = fastjson.dumps({"topicConfigSerializeWrapper": wrapper})
    reply = await successor.ask(RequestCode.REGISTER_BROKER, ext, body)
    assert reply.code == 0, reply.remark


def test_an_answer_that_was_under_way_before_the_question_does_not_count_for_it() -> None:
    """It may have lain in the socket for as long as the asking node stood still."""

    async def body(world: World) -> None:
        node = world.node("nameserver")
        server = NameServer(node, node.ip, 9876)
        await server.start()
        broker = await world.broker(nameservers=(server.address,))
        registrar, heard = broker.replication.registrar, list[int]()
        await world.until(lambda: registrar.registered)
        registrar.on_master = lambda epoch, *_: heard.append(epoch)
        back, changes = (["nameserver"], [world.nodes[1].name]), server.routes.changes
        world.network.partition(*back)
        registrar.topics_changed()
        await world.until(lambda: server.routes.changes > changes)  # its answer is held back
        await succeed(await world.connect(server.address), broker, 2 * TERM)
        asking = asyncio.create_task(registrar.ask_all(2.0))
        await asyncio.sleep(0.1)
        world.network.mend(*back)
        await asking
        assert heard == [2 * TERM]

    run(body)
