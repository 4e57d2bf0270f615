"""Pelts a running broker or nameserver with requests of the schema, and looks what it does.

The first requests are those of the corpus. A round is `ROUND` requests of one seed, some under way
at a time. Every round the node must be alive, serve and have had no unforeseen failure; in the end
its store must be sound. FENCE and PROMOTE are left out of the rounds: a node that was fenced
refuses what else there is to try (the tests try them).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from saturnmq.drills.figures import STOP_MS_MAX, runtime_information
from saturnmq.drills.fuzz import corpus
from saturnmq.drills.fuzz.requests import RequestMaker
from saturnmq.protocol import checked
from saturnmq.protocol.asking import connect
from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.endpoint import Endpoint
from saturnmq.protocol.headers import HEADERS
from saturnmq.protocol.remoting import MAX_FRAME, Command
from saturnmq.runtime.door import Runtime, split_address
from saturnmq.runtime.errors import RequestTimeout, SaturnError

ROUND = 2_000
AT_ONCE = 100
ANSWER_S = 2.0  # a pull may be held for longer: it is left
ALIVE_S = 10.0
LEFT_OUT = {RequestCode.FENCE, RequestCode.PROMOTE}
OF_NAMESERVERS = set(HEADERS) & {
    RequestCode.REGISTER_BROKER,
    RequestCode.UNREGISTER_BROKER,
    RequestCode.BROKER_HEARTBEAT,
    RequestCode.QUERY_DATA_VERSION,
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_BROKER_MEMBER_GROUP,
    RequestCode.PUT_KV_CONFIG,
    RequestCode.GET_KV_CONFIG,
    RequestCode.DELETE_KV_CONFIG,
    RequestCode.GET_KVLIST_BY_NAMESPACE,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER,
    RequestCode.ADD_WRITE_PERM_OF_BROKER,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_TOPICS_BY_CLUSTER,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    RequestCode.DELETE_TOPIC_IN_NAMESRV,
    RequestCode.UPDATE_NAMESRV_CONFIG,
    RequestCode.GET_NAMESRV_CONFIG,
    RequestCode.CONTROLLER_GET_METADATA_INFO,
    RequestCode.CONTROLLER_ELECT_MASTER,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
}


@dataclass
class FuzzReport:
    """The report of one target."""

    target: str
    requests: int = 0
    held: int = 0  # not answered in time
    lost: int = 0  # connections that the node closed
    answers: Counter[int] = field(default_factory=Counter)  # by response code
    longest_busy_stop_ms: int = 0
    longest_stop_ms: int = 0
    memory_mb: int = 0
    violations: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        return {**self.__dict__, "answers": {str(c): n for c, n in sorted(self.answers.items())}}

    def rows(self) -> list[tuple[str, str]]:
        return [
            ("requests", f"{self.requests:,}"),
            ("held", f"{self.held:,}"),
            ("connections closed by it", f"{self.lost:,}"),
            *((f"answered {code}", f"{count:,}") for code, count in sorted(self.answers.items())),
            ("most memory", f"{self.memory_mb} MB"),
            ("longest stop of its loop", f"{self.longest_stop_ms} ms"),
            ("of processor time", f"{self.longest_busy_stop_ms} ms"),
        ]


class Fuzzer:
    """The fuzzer of one node, which runs in another process."""

    def __init__(self, runtime: Runtime, address: str, target: str) -> None:
        self._runtime = runtime
        self._address = address
        self.report = FuzzReport(target)
        self._is_broker = target == "broker"
        codes = set(HEADERS) - OF_NAMESERVERS if self._is_broker else OF_NAMESERVERS
        self._codes = [code for code in HEADERS if code in codes - LEFT_OUT]

    async def run(self, seeds: range, go_on: Callable[[FuzzReport], bool]) -> None:
        """The corpus, then a round of each seed while `go_on`, until there is a violation."""
        await self._kept(seeds[0])
        await self._look(seeds[0])
        for seed in [] if self.report.violations else seeds:
            await self._round(seed)
            await self._look(seed)
            if self.report.violations or not go_on(self.report):
                return

    async def _kept(self, seed: int) -> None:
        """Ask all of the corpus, one after the other."""
        report = self.report
        for kept in corpus.OF_BROKERS if self._is_broker else corpus.OF_NAMESERVERS:
            endpoint = await self._connected()
            report.requests += 1
            try:
                asked = Command.request(kept.code, kept.ext, kept.body)
                answer = await endpoint.request(asked, ANSWER_S)
            except RequestTimeout:
                report.held += 1
            except SaturnError:
                report.lost += 1
            else:
                report.answers[answer.code] += 1
                if kept.refused and answer.code == 0:
                    again = f"again: saturnmq drill fuzz {report.target} --seed {seed}"
                    report.violations.append(f"it takes {kept.what}; {again}")
            endpoint.close()

    async def _round(self, seed: int) -> None:
        maker = RequestMaker(random.Random(seed), self._codes)
        endpoint = await self._connected()
        for _ in range(ROUND // AT_ONCE):
            if endpoint.closed:
                self.report.lost += 1
                endpoint = await self._connected()
            asked = []
            for _ in range(AT_ONCE):
                code, ext, body = maker.draw()
                asked.append(endpoint.request(Command.request(code, ext, body), ANSWER_S))
            self.report.requests += len(asked)
            for answer in asked:
                try:
                    self.report.answers[(await answer).code] += 1
                except RequestTimeout:
                    self.report.held += 1
                except SaturnError:  # with its connection
                    continue
        endpoint.close()

    async def _connected(self) -> Endpoint:
        endpoint = await connect(self._runtime, *split_address(self._address))
        endpoint.max_header = MAX_FRAME
        return endpoint

    async def _look(self, seed: int) -> None:
        """Whether the node serves, and how it is."""
        report = self.report
        again = f"again: saturnmq drill fuzz {report.target} --seed {seed}"
        try:
            told = await runtime_information(self._runtime, self._address, ALIVE_S)
        except (SaturnError, OSError) as error:
            report.violations.append(f"it does not serve any more: {error}; {again}")
            return
        report.longest_stop_ms = checked.integer(told, "longestStopMs")
        report.longest_busy_stop_ms = checked.integer(told, "longestBusyStopMs")
        if checked.integer(told, "unforeseenFailures", 0):  # which a nameserver does not count
            last = checked.text(told, "lastUnforeseenFailure")
            report.violations.append(f"it failed in a way that nobody foresaw: {last}; {again}")
        if report.longest_busy_stop_ms > STOP_MS_MAX:
            report.violations.append(
                f"its loop stood still for {report.longest_busy_stop_ms} ms of processor time, "
                f"{STOP_MS_MAX} are allowed; {again}"
            )
