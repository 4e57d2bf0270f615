"""Every command of RocketMQ 5.4.0's mqadmin, with what it must print at a cluster of ours.

`tests/interop/test_interop_mqadmin.py` runs them all, in this order, and compares docs/interop.md
with the table of the answers that it got (`row`, `table`). In a line and in its patterns `<name>`
stands for a value of the run, such as `<master>` for the master's address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from saturnmq.protocol.codes import RequestCode
from saturnmq.protocol.refusals import REASONS, refusal

_C = RequestCode
WORKS, REFUSED, LOCAL = "works", "not supported", "asks no server"


@dataclass(frozen=True)
class Case:
    """One call of mqadmin: its words, and patterns that its output must have."""

    words: str
    patterns: tuple[str, ...]
    answer: str = WORKS
    note: str = ""
    """The verb of `saturnmq` that does the same, or the reason."""
    endless: bool = False
    """The command repeats itself until it is stopped."""
    soon: bool = False
    """The output has them soon: the command is run again until it does."""

    @property
    def command(self) -> str:
        return self.words.split(" ", 1)[0]


def works(
    words: str,
    *patterns: str,
    verb: str = "",
    more: str = "",
    endless: bool = False,
    soon: bool = False,
) -> Case:
    """`more`: what else the table says, or why there is no verb."""
    note = "; ".join(part for part in (f"`saturnmq {verb}`" if verb else "", more) if part)
    return Case(words, patterns, WORKS, note or "-", endless, soon)


def also(words: str, *patterns: str, soon: bool = False) -> Case:
    """Another call of a command that is in the table already."""
    return Case(words, patterns, soon=soon)


def refused(words: str, code: RequestCode) -> Case:
    """RocketMQ's tool must print the typed error with its remark."""
    return Case(words, (r"CODE: 3\b", re.escape(refusal(code))), REFUSED, REASONS[code])


def local(words: str, pattern: str, reason: str) -> Case:
    return Case(words, (pattern,), LOCAL, reason)


CASES = (
    # what is there, before anything is changed
    works("topicRoute -t orders", '"brokerName":"<broker>"', '"readQueueNums":4', '0:"<master>"',
          '1:"<slave>"', verb="topic describe"),
    also("topicRoute -t orders -l", r"<cluster> +<broker> .* 4 +4 +6 "),
    works("topicStatus -t orders", *(rf"<broker> +{n} +0 +2 " for n in range(4)),
          verb="topic describe"),
    works("topicClusterList -t orders", "^<cluster>$", verb="topic describe"),
    works("topicList", "^orders$", "^%RETRY%readers$", verb="topic list"),
    also("topicList -c", r"<cluster> +orders +readers"),
    works("clusterList", r"<broker> +0 +<master> +V5_4_0 .* true", r"<broker> +1 +<slave> .* true",
          verb="admin status"),
    also("clusterList -m", r"<broker> +0 +0 +\d+ +\d+"),
    works("brokerStatus -c <cluster>", r"<master> +brokerRole +: SYNC_MASTER",
          r"<slave> +brokerRole +: SLAVE", r"<master> +msgPutTotalTodayNow +: [1-9]",
          verb="admin status"),
    also("brokerStatus -b <slave>", r"brokerRole +: SLAVE"),
    works("haStatus -b <master>", r"#SlaveNum\s+1", r"#InSyncSlaveNum\s+1", r"<slave> .* OK",
          verb="admin replicas"),
    works("getBrokerEpoch -b <broker>", "#brokerAddr\\s+<master>", "#brokerAddr\\s+<slave>",
          r"EpochEntry\{epoch=\d+, startOffset=0, endOffset=[1-9]", verb="admin replicas --json"),
    works("getSyncStateSet -a <nameserver> -b <broker>", "#SyncStateSetNums\\s+2",
          "brokerAddress='<slave>', alive=true", verb="admin replicas"),
    works("getControllerMetaData -a <nameserver>", "#ControllerLeaderAddress\\s+<nameserver>",
          more="there is no controller: each nameserver answers as one"),
    works("getControllerConfig -a <nameserver>", r"listenPort +=  \d+",
          verb="admin nameserver-settings"),
    works("getNamesrvConfig", r"scanNotActiveBrokerInterval +=  5000",
          verb="admin nameserver-settings"),
    works("getBrokerConfig -b <master>", r"brokerName +=  <broker>", r"inSyncReplicas +=  2",
          verb="admin settings"),
    also("getBrokerConfig -c <cluster>", "Master: <master>", "Slave: <slave>"),
    works("producer -b <master>", r"group \(makers\) instance : clientId=<maker>,remoteIP=127",
          verb="admin producers"),
    works("producerConnection -g makers -t orders", "<maker> +127.0.0.1:\\d+ +JAVA +V5_4_0",
          verb="admin producers"),
    works("consumerConnection -g readers", "<reader> +127.0.0.1:\\d+ +JAVA +V5_4_0", r"orders +\*",
          "CONSUME_FROM_FIRST_OFFSET", verb="group describe"),
    works("consumerProgress -g readers", *(rf"orders +<broker> +{n} +2 +2 " for n in range(4)),
          "Consume Diff Total: 0", verb="group lag"),
    also("consumerProgress", r"^readers +1 +V5_4_0 +PUSH +CLUSTERING"),
    works("consumerStatus -g readers", "<reader>", "Rebalance OK", verb="group describe",
          more="with `-s` `saturnmq group stacks`"),
    also("consumerStatus -g readers -i <reader> -s", "#Consumer MQ Detail#",
         r"orders +<broker> +0 ", "#Consumer jstack#"),
    also("consumerStatus -g ours", "<ours>", "Rebalance OK"),
    also("consumerStatus -g ours -i <ours> -s", "#Consumer jstack#", r"thread MainThread \(\d+\)"),
    works("getConsumerStatus -g readers -t orders",
          *(rf"<reader> +<broker> +{n} +2 " for n in range(4)), verb="group describe"),
    works("consumer -g readers", "<reader>", "Rebalance OK", verb="group describe"),
    works("getConsumerConfig -g readers", r"groupName +=  readers", r"retryMaxTimes +=  16",
          verb="group describe"),
    works("brokerConsumeStats -b <master>", *(rf"orders +readers +<broker> +{n} +2 +2 +0 "
                                             for n in range(4)),
          "Diff Total: 0", verb="group lag"),
    works("statsAll -t orders", r"orders +readers +0 +\d+\.\d\d +\d+\.\d\d +8 +8",
          verb="group lag"),
    works("queryCq -t orders -q 0 -i 0 -c 5 -b <master>", "max: 2, min: 0", "idx: 1$",
          "physicOffset=\\d+, physicSize=[1-9]", verb="topic queue"),
    works("allocateMQ -t orders -i 10.0.0.1,10.0.0.2", '"10.0.0.1":\\[\\{"brokerName":"<broker>"',
          more="it computes shares only; `saturnmq group describe` shows those that members have"),
    # messages
    works("queryMsgById -t orders -i <id>", "Queue Offset: +0", r"Keys: +\[key-0\]",
          "consumerGroup=readers, trackType=CONSUMED", verb="message find --id",
          more="with `-g` and `-d` `saturnmq message consume-directly`"),
    also("queryMsgById -t orders -i <id> -g readers -d <reader>", "consumeResult=CR_SUCCESS"),
    also("queryMsgById -t orders -i <id> -g ours -d <ours>", "consumeResult=CR_SUCCESS"),
    works("queryMsgByKey -t orders -k key-3", r"^<unique-3> +\d +0 ", verb="message find --key"),
    works("queryMsgByUniqueKey -t orders -i <unique>", r"Keys: +\[key-0\]",
          "trackType=CONSUMED", verb="message find --id",
          more="with `-g` and `-d` `saturnmq message consume-directly`"),
    works("queryMsgByOffset -t orders -b <broker> -i 0 -o 1", "Queue Offset: +1", "Queue ID: +0",
          verb="message find --offset"),
    works("printMsg -t orders", *(rf"KEYS=key-{n}\b" for n in range(8)), verb="message find"),
    works("printMsgByQueue -t orders -a <broker> -i 0 -p true -f true", "queueId=0",
          r"Tag: polite +Count: 2", verb="message find"),
    works("consumeMessage -t orders -b <broker> -i 0 -o 0 -c 2", "Consume ok", "queueOffset=1",
          verb="consume"),
    works("sendMessage -t chat -p hello -k kk -c tt", r"<broker> +\d+ +SEND_OK", verb="produce"),
    also("sendMessage -t chat -p traced -k followed -m true", "SEND_OK"),
    works("queryMsgTraceById -i <last> -t RMQ_SYS_TRACE_TOPIC",
          r"^Pub +\S+ +[\d.]+ +\d{4}-\d\d-\d\d \S+ +\d+ms +success", soon=True,
          verb="message trace"),
    works("checkMsgSendRT -t chat -a 3 -s 10", r"<broker> +0 +true +\d+", r"Avg RT: \d",
          verb="bench latency"),
    works("sendMsgStatus -b <broker> -c 3", "sendStatus=SEND_OK", verb="admin probe"),
    works("clusterRT -a 2 -s 10 -i 1", r"<cluster> +<broker> +\d+\.\d\d +2 +0", endless=True,
          verb="bench"),
    # topics and groups
    works("updateTopic -c <cluster> -t made -r 3 -w 2", "create topic to <master> success",
          "readQueueNums=3, writeQueueNums=2", verb="topic create"),
    works("updateTopicList -b <master> -f <home>/topics.json", "to <master> success",
          verb="topic create"),
    also("topicStatus -t listed", *(rf"<broker> +{n} +0 +0 " for n in range(2))),
    works("updateTopicPerm -c <cluster> -t made -p 4", "from 6 to 4 in <master> success",
          verb="topic alter --perm"),
    works("updateOrderConf -t made -v <broker>:2 -m put", r"orderConf=\[<broker>:2\]",
          verb="topic create --order"),
    also("updateOrderConf -t made -m get", r"orderConf=\[<broker>:2\]"),
    works("updateSubGroup -c <cluster> -g made -r 5", "to <master> success", "retryMaxTimes=5",
          verb="group create"),
    works("updateSubGroupList -b <master> -f <home>/groups.json", "to <master> success",
          verb="group create"),
    also("getConsumerConfig -g listed", r"retryMaxTimes +=  3"),
    works("setConsumeMode -c <cluster> -t made -g made -m POP", r"consume mode\[POP\]",
          verb="group mode"),
    works("updateKvConfig -s ORDER_TOPIC_CONFIG -k chat -v <broker>:1", "success",
          verb="admin kv put"),
    also("updateOrderConf -t chat -m get", r"orderConf=\[<broker>:1\]"),
    works("deleteKvConfig -s ORDER_TOPIC_CONFIG -k chat", "success", verb="admin kv delete"),
    also("updateOrderConf -t chat -m get", r"CODE: 22"),
    # offsets
    works("cloneGroupOffset -s readers -d made -t orders", "clone group offset success",
          verb="group clone-offset"),
    also("brokerConsumeStats -b <master>", *(rf"orders +made +<broker> +{n} +2 +2 +0 "
                                            for n in range(4))),
    works("resetOffsetByTime -g made -t orders -s 0", *(rf"<broker> +{n} +0 " for n in range(4)),
          verb="group reset-offset"),
    also("resetOffsetByTime -g made -t orders -s 0 -b <master> -q 0 -o 1", "consumer offset to 1$"),
    also("resetOffsetByTime -g made -t orders -s 0 -b <master> -q 0 -o 7", "CODE: 29",
         "offset 7 is outside queue 0 of orders"),
    also("brokerConsumeStats -b <master>", r"orders +made +<broker> +0 +2 +1 +1 ", "Diff Total: 7"),
    works("resetOffsetByTimeOld -g made -t orders -s 4102444800000 -f true",
          *(rf"<broker> +{n} +2 +[01] +2 +2 " for n in range(4)), verb="group reset-offset"),
    also("brokerConsumeStats -b <master>", r"orders +made +<broker> +0 +2 +2 +0 ", "Diff Total: 0"),
    also("resetOffsetByTime -g made -t orders -s 0", "<broker> +0 +0 "),
    works("skipAccumulatedMessage -g made -t orders", *(rf"<broker> +{n} +2 " for n in range(4)),
          verb="group skip"),
    also("brokerConsumeStats -b <master>", r"orders +made +<broker> +0 +2 +2 +0 ", "Diff Total: 0"),
    # settings
    works("updateBrokerConfig -b <master> -k transactionCheckMax -v 7", "success",
          verb="admin set"),
    also("getBrokerConfig -b <master>", r"transactionCheckMax +=  7"),
    also("updateBrokerConfig -b <master> -k rocketmqHome -v /tmp", "CODE: 16",
         "rocketmqHome cannot be changed"),
    works("updateNamesrvConfig -k scanNotActiveBrokerInterval -v 6000", "success",
          verb="admin nameserver-set"),
    also("getNamesrvConfig", r"scanNotActiveBrokerInterval +=  6000"),
    also("updateNamesrvConfig -k configStorePath -v /tmp/x", "CODE: 16"),
    works("updateControllerConfig -a <nameserver> -k scanNotActiveBrokerInterval -v 5000",
          "success", verb="admin nameserver-set"),
    also("getControllerConfig -a <nameserver>", r"scanNotActiveBrokerInterval +=  5000"),
    works("wipeWritePerm -b <broker>", r"OK, \d+", verb="admin set"),
    also("topicRoute -t orders", '"perm":4,'),
    works("addWritePerm -b <broker>", r"OK, \d+", verb="admin set"),
    also("topicRoute -t orders", '"perm":6,'),
    # work for brokers
    works("deleteExpiredCommitLog -c <cluster>", "^success$", verb="admin clean"),
    also("brokerStatus -b <master>", "commitLogMinOffset +: <segment>$", soon=True),
    works("cleanExpiredCQ -c <cluster>", "^success$", verb="admin clean"),
    also("queryCq -t aged -q 0 -i 5 -c 1 -b <master>", "max: 6, min: 1$", soon=True),
    works("cleanUnusedTopic -c <cluster>", "^success$", verb="admin clean --unused"),
    also("topicStatus -t aged", "<broker> +0 +1 +6 "),  # it is in the table, and stays
    works("startMonitoring", "^$", verb="group lag",
          more="it repeats, for all groups, what that shows of one"),
    also("consumerConnection -g __MONITOR_CONSUMER", r"MonitorService_-?\d+ +127.0.0.1",
         r"OFFSET_MOVED_EVENT +\*"),
    works("exportMetadata -c <cluster> -f <home>/exported", "metadata.json success",
          verb="admin export"),
    works("exportConfigs -c <cluster> -f <home>/exported", "configs.json success",
          verb="admin export"),
    works("exportMetrics -c <cluster> -f <home>/exported", "metrics.json success",
          verb="admin status --json"),
    works("deleteSubGroup -c <cluster> -g made -r true", r"\[made\] from broker \[<master>\]",
          verb="group delete"),
    works("deleteTopic -c <cluster> -t made", r"\[made\] from cluster \[<cluster>\] success",
          r"\[made\] from NameServer success", verb="topic delete"),
    # refused
    Case("updateStaticTopic -c <cluster> -t fixed -qn 4",
         ("CODE: 3", "static topics are not supported"), REFUSED,
         "static topics: the queues of a topic belong to the brokers that have them"),
    local("remappingStaticTopic -c <cluster> -t orders", "(?i)exception",
          "it ends before it asks: there is no static topic"),
    refused("addBroker -c <master> -b /etc/broker.conf", _C.ADD_BROKER),
    refused("removeBroker -c <master> -b <cluster>:<broker>:0", _C.REMOVE_BROKER),
    refused("resetMasterFlushOffset -b <slave> -o 5", _C.RESET_MASTER_FLUSH_OFFSET),
    refused("cleanBrokerMetadata -a <nameserver> -bn <broker> -c <cluster> -b 1",
            _C.CLEAN_BROKER_DATA),
    refused("exportPopRecord -c <cluster>", _C.POP_ROLLBACK),
    refused("getColdDataFlowCtrInfo -b <master>", _C.GET_COLD_DATA_FLOW_CTR_INFO),
    refused("updateColdDataFlowCtrGroupConfig -b <master> -g readers -v 1000",
            _C.UPDATE_COLD_DATA_FLOW_CTR_CONFIG),
    refused("removeColdDataFlowCtrGroupConfig -b <master> -g readers",
            _C.REMOVE_COLD_DATA_FLOW_CTR_CONFIG),
    refused("setCommitLogReadAheadMode -b <master> -m 1", _C.SET_COMMITLOG_READ_MODE),
    refused("switchTimerEngine -b <master> -e R", _C.SWITCH_TIMER_ENGINE),
    refused("checkRocksdbCqWriteProgress -c <cluster> -n <nameserver> -t orders",
            _C.CHECK_ROCKSDB_CQ_WRITE_PROGRESS),
    refused("rocksDBConfigToJson -n <nameserver> -c <cluster> -t topics",
            _C.EXPORT_ROCKSDB_CONFIG_TO_JSON),
    local("exportMetadataInRocksDB -p <home>/exported -t topics", "RocksDB load error",
          "it reads files of RocksDB, which a broker of ours has none of"),
    local("dumpCompactionLog -f <home>/none", "not exist",
          "it reads files of a compacted topic, which a broker of ours has none of"),
    # users and rules, at a master that checks them, and at its slave
    works("createUser -b <guarded> -u one -p two", "create user to <guarded> success",
          verb="user create"),
    also("createUser -b <guarded-slave> -u one -p two", "to <guarded-slave> success"),
    also("createUser -b <guarded> -u one -p three", r"CODE: 16\b", "user one exists"),
    works("updateUser -b <guarded> -u one -p three", "update user to <guarded> success",
          verb="user alter"),
    works("getUser -b <guarded> -u one", "^one +three +Normal +enable", verb="user show"),
    works("listUser -b <guarded>", "^one +three +Normal", "^root +", verb="user list"),
    works("copyUser -f <guarded> -t <guarded-slave>", "copy user of one from <guarded> to",
          verb="user create", more="slaves take over users and rules by themselves"),
    works("createAcl -b <guarded> -s User:one -r Topic:x,Group:* -a Pub,Sub -i 10.0.0.0/8 -d Allow",
          "create acl to <guarded> success", verb="acl allow"),
    works("updateAcl -b <guarded-slave> -s User:one -r Topic:x -a Pub -d Deny",
          "update acl to <guarded-slave> success", verb="acl deny"),
    works("getAcl -b <guarded> -s User:one",
          r"^User:one +Custom +Topic:x +\[Pub\] +null +Deny",
          r"^User:one +Custom +Group:\* +\[Pub, Sub\] +\[10.0.0.0/8\] +Allow", verb="acl show"),
    works("listAcl -b <guarded> -s one", "^User:one +Custom +Topic:x", verb="acl list"),
    works("copyAcl -f <guarded> -t <guarded-slave>", "copy acl of User:one from <guarded> to",
          verb="acl allow", more="slaves take over users and rules by themselves"),
    works("deleteAcl -b <guarded> -s User:one -r Topic:x", "delete acl to <guarded> success",
          verb="acl delete"),
    works("deleteUser -b <guarded> -u one", "delete user to <guarded> success",
          verb="user delete"),
    also("createUser -b <master> -u one -p two", r"CODE: 16\b", "authenticationEnabled"),
    # at the end: the roles are others afterwards
    works("electMaster -a <nameserver> -b 1 -bn <broker> -c <cluster>",
          "#BrokerMasterAddr\\s+<slave>", verb="admin handover"),
)  # fmt: skip


def filled(text: str, values: Mapping[str, str], *, pattern: bool = False) -> str:
    """The text with the values of a run in their places."""

    def value(found: re.Match[str]) -> str:
        given = values.get(found[1])
        if given is None:
            return found[0]
        return re.escape(given) if pattern else given

    return re.sub(r"<([a-z0-9-]+)>", value, text)


Row = tuple[str, str]  # the answer, and the reason or the verb


def row(case: Case, output: str) -> Row:
    """What the output of a command says: the answer, and the reason if it was refused."""
    reason = re.search(
        r"CODE: 3\b.* is not supported: (.*?)(?: BROKER: .*)?$", output, re.MULTILINE
    )
    if reason is not None:
        return REFUSED, reason[1]
    if re.search(r"CODE: 3\b", output):
        return REFUSED, case.note
    return (LOCAL if case.answer == LOCAL else WORKS), case.note


def rows() -> dict[str, Row]:
    """What each command must answer."""
    return {case.command: (case.answer, case.note) for case in reversed(CASES) if case.note}


def table(answers: Mapping[str, Row]) -> str:
    """The table of all commands as docs/interop.md has it."""
    lines = ["| command | answer | reason, or the verb that does the same |", "|---|---|---|"]
    lines += [f"| `{name}` | {' | '.join(answers[name])} |" for name in sorted(answers)]
    return "\n".join(lines) + "\n"


def page_table(text: str) -> str:
    """The table of a page."""
    [written] = re.findall(r"^\| command \| answer \|.*\n(?:\|.*\n)+", text, re.MULTILINE)
    return str(written)
