"""A broker that checks its users, in virtual time: requests of nobody, of a wrong user, of one that
were changed after they were signed, and of a guest who may use one topic and one group.

The guest may do what the requests do to its own topic and group. It gets no byte of the message
that lies in another topic, by whatever request, and changes nothing else. All others are refused.
"""

from __future__ import annotations

import asyncio
import json
import random
from typing import Any

from saturnmq.broker.access.model import Acl, Resource, Rule
from saturnmq.broker.access.table import super_user
from saturnmq.drills.fuzz.inprocess import Violation
from saturnmq.drills.fuzz.requests import Request, RequestMaker, codes_of
from saturnmq.drills.fuzz.scene import FuzzScene
from saturnmq.drills.sim.disk import SimDisk
from saturnmq.protocol.access_words import Action, Decision, PolicyType
from saturnmq.protocol.asking import connect
from saturnmq.protocol.codes import RequestCode, ResponseCode
from saturnmq.protocol.credentials import PASSED_ON, Credentials, sign
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.protocol.topics import is_system_topic
from saturnmq.runtime.door import split_address
from saturnmq.runtime.errors import ConnectionLost, RequestTimeout

C = RequestCode
Aimed = tuple[dict[str, str], bytes]
ROOT = Credentials("root", "the password of root")
GUEST = Credentials("guest", "the password of the guest")
TOPIC, GROUP = "orders", "readers"  # the guest's
OTHER = "bills"
OWN = frozenset({TOPIC, GROUP, f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"})
SECRET = b"a message that the guest must not read"
HALF = "UNIQ_KEY\x01U\x02TRAN_MSG\x01true\x02PGROUP\x01writers\x02"
ANSWER_S = 60.0  # of virtual time: a held pull is answered by then
SIGNERS = {"guest": 6, "nobody": 2, "stranger": 1, "changed": 2}
AIMED = 0.75  # of the requests name what is the guest's, or the other topic and its messages
BEYOND = 0.5  # of these
USUALLY = 0.3  # a request is as clients send it, but for its names
FREE = frozenset({C.REPLICA_STATE})  # asked without a user
CHECKING: dict[str, Any] = {
    "authentication": True,
    "authorization": True,
    "init_user": json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key}),
    "transaction_timeout_ms": 86_400_000,  # nobody is asked about the half, which stays
}


PULL = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "0", "queueOffset": "0"}
PULL |= {"maxMsgNums": "9", "sysFlag": "4", "subscription": "*", "suspendTimeoutMillis": "0"}
POP = {"consumerGroup": GROUP, "topic": TOPIC, "queueId": "-1", "maxMsgNums": "9"}
POP |= {"invisibleTime": "60000", "pollTime": "0", "initMode": "0", "exp": "*", "expType": "TAG"}
PLACE = {"topic": TOPIC, "group": GROUP, "queueId": "0"}
FOUND = {"topic": TOPIC, "key": "k", "maxNum": "9", "endTimestamp": str((1 << 62) - 1)}
RULES = {"policies": [{"entries": [{"resource": "*", "actions": ["All"], "decision": "Allow"}]}]}
BEAT = {
    "clientID": "c",
    "producerDataSet": [],
    "consumerDataSet": [
        {
            "groupName": GROUP,
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
            "subscriptionDataSet": [{"topic": TOPIC, "subString": "*", "subVersion": 1}],
        }
    ],
}
USUAL: tuple[Request, ...] = (  # as a client sends them
    (C.SEND_MESSAGE_V2, {"a": "p", "b": TOPIC, "e": "0", "g": "1"}, b"mine"),
    (C.HEART_BEAT, {}, json.dumps(BEAT).encode()),
    (C.PULL_MESSAGE, PULL, b""),
    (C.LITE_PULL_MESSAGE, PULL, b""),
    (C.PULL_MESSAGE, PULL | {"topic": f"%RETRY%{GROUP}"}, b""),
    (C.POP_MESSAGE, POP, b""),
    (C.PEEK_MESSAGE, POP, b""),
    (C.QUERY_MESSAGE, FOUND, b""),
    (C.VIEW_MESSAGE_BY_ID, {"topic": TOPIC, "offset": "0"}, b""),
    (C.CONSUMER_SEND_MSG_BACK, {"group": GROUP, "offset": "0", "delayLevel": "1"}, b""),
    (C.CONSUME_MESSAGE_DIRECTLY, {"consumerGroup": GROUP, "clientId": "c", "msgId": ""}, b""),
    (C.END_TRANSACTION, {"producerGroup": "", "tranStateTableOffset": "0"}, b""),
    (C.UPDATE_CONSUMER_OFFSET, {**PLACE, "consumerGroup": GROUP, "commitOffset": "1"}, b""),
    (C.INVOKE_BROKER_TO_RESET_OFFSET, {**PLACE, "timestamp": "0", "isForce": "true"}, b""),
    (C.DELETE_TOPIC_IN_BROKER, {"topic": OTHER}, b""),
    (C.DELETE_SUBSCRIPTIONGROUP, {"groupName": "writers"}, b""),
    (C.UPDATE_AND_CREATE_TOPIC, {"topic": OTHER, "readQueueNums": "9", "writeQueueNums": "9"}, b""),
    (C.UPDATE_BROKER_CONFIG, {}, b"autoCreateTopicEnable=false\n"),
    (C.READ_LOG, {"brokerName": "broker-a", "offset": "0", "size": "9999"}, b""),
    (C.GET_ALL_ACCESS, {}, b""),
    (C.AUTH_LIST_USER, {}, b""),
    (C.AUTH_CREATE_ACL, {"subject": "User:guest"}, json.dumps(RULES).encode()),
    (C.AUTH_UPDATE_USER, {"username": "guest"}, b'{"userType":"Super"}'),
)


class AccessTarget:
    """The target."""

    def __init__(self, seed: int) -> None:
        self._scene = FuzzScene(seed)
        self._seen = 0  # of the log
        self._asked: list[Command] = []  # requests that the guest got
        self._scene.run(lambda: self._prepare(seed))

    def close(self) -> None:
        self._scene.close()

    def turn(self, rng: random.Random) -> list[str]:
        usual = rng.random() < USUALLY
        code, ext, body = rng.choice(USUAL) if usual else RequestMaker(rng, self._codes).draw()
        if usual or rng.random() < AIMED:
            ext, body = self._aimed(rng, dict(ext), body)
        signer = rng.choices([*SIGNERS], [*SIGNERS.values()])[0]
        return [self._scene.run(lambda: self._sent(rng, signer, (code, ext, body)))]

    async def _prepare(self, seed: int) -> None:
        scene = self._scene
        self._broker = broker = await scene.broker(SimDisk(random.Random(seed)), **CHECKING)
        self._codes = codes_of(set(broker.parts.handlers))
        self._machine = scene.node("client")
        root = await self._connected(ROOT)
        for topic in (TOPIC, OTHER):
            ext = {"topic": topic, "readQueueNums": "2", "writeQueueNums": "2", "perm": "6"}
            made = await root.request(Command.request(C.UPDATE_AND_CREATE_TOPIC, ext), ANSWER_S)
            assert made.code == 0, made.remark
        self._places, self._ids = [], []
        for properties, flag in (("KEYS\x01k\x02UNIQ_KEY\x01V\x02", "0"), (HALF, "4")):
            ext = {"a": "writers", "b": OTHER, "e": "0", "f": flag, "g": "1", "i": properties}
            stored = await root.request(Command.request(C.SEND_MESSAGE_V2, ext, SECRET), ANSWER_S)
            assert stored.code == 0, stored.remark
            self._ids.append(stored.ext["msgId"])
            self._places.append(str(int(stored.ext["msgId"][16:], 16)))
        context = broker.ground.context
        guest = super_user(GUEST).changed({"userType": "Normal"})
        context.access.create_user(guest)
        mine = [Resource.read(f"Topic:{TOPIC}"), Resource.read(f"Group:{GROUP}")]
        rules = {each: Rule(each, (Action.ALL,), Decision.ALLOW) for each in mine}
        context.access.add_rules(Acl(guest.subject, {PolicyType.CUSTOM: rules}))
        marks = broker.store.watermarks
        while marks.dispatched < marks.appended:
            await asyncio.sleep(0.01)
        self._before = self._others()
        self._seen = broker.store.watermarks.appended
        self._link: Endpoint | None = None

    async def _connected(self, credentials: Credentials | None) -> Endpoint:
        host, port = split_address(self._broker.address)
        return await connect(self._machine, host, port, self._hear, credentials=credentials)

    def _hear(self, endpoint: Endpoint, request: Command) -> None:
        """The guest takes what the broker asks it."""
        self._asked.append(Command(request.code, {}, bytes(request.body)))
        endpoint.send(request.reply(0), request)

    def _aimed(self, rng: random.Random, ext: dict[str, str], body: bytes) -> Aimed:
        """The request with names that are there, and the places of the other topic's messages."""
        named = OTHER if rng.random() < BEYOND else TOPIC
        for name, value in [*ext.items()]:
            if name in ("offset", "commitLogOffset"):
                ext[name] = rng.choice(self._places)
            elif name == "tranStateTableOffset":
                ext |= {name: "0", "commitLogOffset": self._places[1]}
                ext["commitOrRollback"] = rng.choice(("8", "12"))
            elif name == "msgId":
                ext[name] = rng.choice(self._ids)
            elif name in ("producerGroup", "a"):
                ext[name] = "writers"
            elif name in ("group", "consumerGroup"):
                ext[name] = GROUP
            elif value == TOPIC or name in ("topic", "b"):
                ext[name] = named
        return ext, body.replace(TOPIC.encode(), named.encode()) if named == OTHER else body

    async def _sent(self, rng: random.Random, signer: str, request: Request) -> str:
        code, ext, body = request
        command = Command.request(code, dict(ext), body)
        if self._link is None or self._link.closed:
            self._link = await self._connected(None)
        match signer:
            case "guest":
                sign(command, GUEST)
            case "stranger":
                sign(command, Credentials(rng.choice(("guest", "root", "nobody")), "a guess"))
            case "changed":
                sign(command, rng.choice((GUEST, ROOT)))
                self._change(rng, command)
        try:
            reply = await self._link.request(command, ANSWER_S)
        except (ConnectionLost, RequestTimeout) as error:
            return type(error).__name__
        self._look(signer, request, reply)
        return f"{signer}: {reply.code}"

    def _change(self, rng: random.Random, command: Command) -> None:
        """Change what was signed."""
        ext = command.ext
        match rng.randrange(4):
            case 0:
                command.body = bytes(command.body) + b"x"
            case 1:
                ext["more"] = "x"
            case 2:
                name = rng.choice(sorted(ext.keys() - {PASSED_ON}))
                ext[name] += "x"
            case 3:
                ext["saturnCaller"] = "root"

    def _look(self, signer: str, request: Request, reply: Command) -> None:
        """Violation: somebody got, or changed, what is not theirs."""
        what = f"{request[0].name} of {signer} with {request[1]} and {request[2][:300]!r}"
        is_refused = reply.code == ResponseCode.NO_PERMISSION
        if signer != "guest" and not is_refused and request[0] not in FREE:
            raise Violation(f"{what} is answered {reply.code}: {reply.remark}")
        heard, self._asked = self._asked, []
        for told in (reply, *heard):
            if SECRET in bytes(told.body):
                raise Violation(f"{what} gets the message of another topic")
            if ROOT.secret_key.encode() in bytes(told.body):
                raise Violation(f"{what} gets a password")
        store, end = self._broker.store, self._broker.store.watermarks.appended
        written = store.read_log(self._seen, end - self._seen) if end > self._seen else b""
        if written is not None and SECRET in bytes(written):
            raise Violation(f"{what} copies the message of another topic")
        self._seen = end
        after = self._others()
        if after != self._before:
            changed = {name for name in after if after[name] != self._before[name]}
            raise Violation(f"{what} changes {', '.join(sorted(changed))} of others")

    def _others(self) -> dict[str, Any]:
        """All that is not the guest's."""
        broker = self._broker
        c, half = broker.ground.context, broker.messaging.half_log
        topics = c.topics.snapshot()["topicConfigTable"]
        groups = c.groups.snapshot()
        offsets = c.offsets.snapshot()["offsetTable"]
        lasts = {
            (topic, queue): last
            for topic, queue, last in broker.store.last_entries()
            if topic not in OWN and not is_system_topic(topic)
        }
        return {
            "topics": {name: row for name, row in topics.items() if name not in OWN},
            "groups": {
                name: row
                for name, row in groups["subscriptionGroupTable"].items()
                if name not in OWN
            },
            "what groups are forbidden": {
                name: row for name, row in groups["forbiddenTable"].items() if name not in OWN
            },
            "offsets": {
                name: row for name, row in offsets.items() if name.partition("@")[2] not in OWN
            },
            "messages": lasts,
            "users and rules": c.access.snapshot(),
            "settings": c.config,
            "the epoch": (c.role.state, c.role.promised_epoch),
            "transactions": half.table.is_open(half.table.current(0)),
        }
