"""Scripted members of one group, registered with a real nameserver, for what a client does with
them: each is a log that is a number, and becomes what it is asked to become."""

from __future__ import annotations

import asyncio
import contextlib

from saturnmq.client.admin.admin import Admin
from saturnmq.nameserver.server import NameServer
from saturnmq.protocol import fastjson
from saturnmq.protocol.asking import connect
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.door import split_address
from saturnmq.runtime.native import NativeRuntime

GROUP = "broker-0"


class Deaf:
    """Who hears no answer."""

    @staticmethod
    def send(reply):
        pass


class Member:
    """A node whose log is a number; what it is asked to become it becomes."""

    def __init__(self, group, broker_id, end):
        self.group = group
        self.broker_id = broker_id
        self.role = "slave" if broker_id else "master"
        self.epoch = 1
        self.epochs = [[1, 0]]
        self.end = end
        self.asked = []
        self.refuse = {}  # code -> remark
        self.refused = []
        self.silent_once = []  # codes that are done the next time, and not answered
        self.lacks = ""
        self.full = ""
        self.unanswered = 0  # bytes whose senders wait; one question after it is fenced fewer
        self.priority = None  # of an election
        self.renamed = ""  # the address that it tells once it was fenced

    async def start(self, host="127.0.0.1"):
        self.listener = await self.group.runtime.listen(
            host, 0, lambda: Endpoint(self.group.runtime, self.serve, server=True)
        )
        self.address = self.listener.address
        return self

    def serve(self, endpoint, command):
        code = RequestCode(command.code)
        if code in self.refuse:
            self.refused.append(code)
            if self.refuse[code] != "silence":
                endpoint.send(command.reply(16, self.refuse[code]))
            return
        if code in self.silent_once:
            self.silent_once.remove(code)
            endpoint = Deaf
        if code is RequestCode.GET_BROKER_CONFIG:
            lines = f"brokerName={self.group.name}\nbrokerElectionPriority={self.priority}\n"
            endpoint.send(command.reply(body=lines.encode()))
            return
        if code is not RequestCode.REPLICA_STATE:
            self.asked.append(code)
            epoch = int(command.ext["epoch"])
            if epoch < self.epoch + (code is RequestCode.FENCE):
                endpoint.send(command.reply(16, f"epoch {epoch} is not above {self.epoch}"))
                return
            self.epoch = epoch
            if code is RequestCode.PROMOTE:
                self.role = "master"
                self.epochs.append([epoch, self.end])
                self.group.waited = [member.unanswered for member in self.group.members]
            elif self.role != "slave":
                self.role = "fenced"
            self.address = self.renamed or self.address
        elif self.role == "slave" and self.group.replicates:
            master = self.group.members[0]
            self.end = min(master.end, self.end + 100)
        elif self.role == "fenced" and self.group.answers:
            self.unanswered = max(0, self.unanswered - 10)
        endpoint.send(command.reply(body=fastjson.dumps(self.state())))

    def state(self):
        slaves = {str(m.broker_id): m.address for m in self.group.members if m.broker_id}
        behind = {str(m.broker_id): self.end - m.end for m in self.group.members if m is not self}
        return {
            "brokerName": self.group.name,
            "brokerId": self.broker_id,
            "address": self.address,
            "role": self.role,
            "epoch": self.epoch,
            "epochs": self.epochs,
            "start": 0,
            "end": self.end,
            "confirmed": self.end - self.unanswered,
            "noFailover": None if self.priority is None else "",
            "required": self.group.required,
            "caughtUp": self.lacks != "never caught up",
            "replicas": slaves,
            "inSync": [i for i, lag in behind.items() if lag <= 50] if self.is_master else [],
            "lagBytes": behind if self.is_master else {},
            "lagMs": dict.fromkeys(behind, 5) if self.is_master else {},
            "truncated": [{"from": 3, "to": 7, "epoch": 1, "file": "f", "timeMs": 9}],
            "refuses": "" if self.is_master else "no master",
            "full": self.full,
        }

    @property
    def is_master(self):
        return self.role == "master"


class Group:
    """Members that are registered with a nameserver, the master first."""

    def __init__(self, runtime, ends, required, name=GROUP):
        self.runtime = runtime
        self.name = name
        self.required = required
        self.replicates = True
        self.waited = []  # the `unanswered` of each when the last one was promoted
        self.answers = True  # a fenced master hears what its senders wait for
        self.members = [Member(self, number, end) for number, end in enumerate(ends)]

    async def start(self, *, beside=None, masters_host="127.0.0.1"):
        """With a nameserver, or at that of another group."""
        if beside is None:
            self.nameserver = NameServer(self.runtime, "127.0.0.1", 0)
            await self.nameserver.start()
        else:
            self.nameserver = beside.nameserver
        for member in self.members:
            await member.start("127.0.0.1" if member.broker_id else masters_host)
            ext = {
                "clusterName": "C",
                "brokerName": self.name,
                "brokerId": str(member.broker_id),
                "brokerAddr": member.address,
            }
            link = await connect(self.runtime, *split_address(self.nameserver.address))
            await link.request(Command.request(RequestCode.REGISTER_BROKER, ext), 5)
            member.link = link

    async def lose(self, member):
        """The member's process is gone."""
        member.listener.close()
        member.link.abort()
        member.refuse = dict.fromkeys(RequestCode, "silence")
        self.replicates = False

    def masters(self):
        return [member for member in self.members if member.is_master]


def run(test, ends=(100, 100), required=2, lost=(), masters_host="127.0.0.1"):
    async def main():
        async with asyncio.timeout(30), contextlib.AsyncExitStack() as stack:
            group = Group(NativeRuntime(), ends, required)
            await group.start(masters_host=masters_host)
            stack.push_async_callback(group.nameserver.close)
            for number in lost:
                await group.lose(group.members[number])
            admin = Admin(group.nameserver.address, runtime=group.runtime)
            await test(group, await stack.enter_async_context(admin))

    asyncio.run(main())
