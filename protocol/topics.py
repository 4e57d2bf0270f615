"""Names of topics and groups: the allowed ones, and the reserved ones.

RocketMQ's rules: characters `% | a-z A-Z 0-9 _ -`; a topic has at most 127 bytes, a retry or
dead-letter topic 255, a group 120. Both the client (before a request) and the broker (before a
write) check.
"""

from __future__ import annotations

import re

from saturnmq.runtime.errors import InvalidParameter

TOPIC_BYTES_MAX = 127
LONG_TOPIC_BYTES_MAX = 255
GROUP_BYTES_MAX = 120

RETRY_PREFIX = "%RETRY%"
DLQ_PREFIX = "%DLQ%"
SYSTEM_PREFIX = "rmq_sys_"
REVIVE_PREFIX = "rmq_sys_REVIVE_LOG_"  # records of pop: broker/pop/records.py
MEMBERS_PREFIX = "rmq_sys_SYNC_BROKER_MEMBER_"  # its route names the members of a group as they are

AUTO_CREATE_TOPIC = "TBW102"  # the template of automatically created topics
SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
ROCKSDB_HALF_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC"  # 5.4 makes both, used or not
ROCKSDB_OP_HALF_TOPIC = "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC = "OFFSET_MOVED_EVENT"
TIMER_TOPIC = "rmq_sys_wheel_timer"  # messages that wait for their time: broker/timer
CHECKPOINT_TOPIC = "CHECKPOINT_TOPIC"
BENCHMARK_TOPIC = "BenchmarkTest"
REPLY_SUFFIX = "_REPLY_TOPIC"
GROUPS_TOPIC = "rmq_sys_SATURN_GROUPS"  # markers of atomic batches: store/log/atomic_batches.py

SYSTEM_TOPICS = frozenset(
    {
        AUTO_CREATE_TOPIC,
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        ROCKSDB_HALF_TOPIC,
        ROCKSDB_OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
        BENCHMARK_TOPIC,
    }
)
NOT_SENDABLE = frozenset(
    {
        SCHEDULE_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        ROCKSDB_HALF_TOPIC,
        ROCKSDB_OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        GROUPS_TOPIC,
        TIMER_TOPIC,
    }
)
"""Topics only the broker itself writes; a client's send to one is answered with NoPermission."""

SYSTEM_GROUPS = frozenset(
    {
        "DEFAULT_PRODUCER",
        "DEFAULT_CONSUMER",
        "TOOLS_CONSUMER",
        "SCHEDULE_CONSUMER",
        "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER",
        "CLIENT_INNER_PRODUCER",
        "SELF_TEST_P_GROUP",
        "SELF_TEST_C_GROUP",
        "CID_ONS-HTTP-PROXY",
        "CID_ONSAPI_PERMISSION",
        "CID_ONSAPI_OWNER",
        "CID_ONSAPI_PULL",
        "CID_RMQ_SYS_TRANS",
    }
)

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")


def reply_topic(cluster: str) -> str:
    """The topic of replies to requests, in this cluster."""
    return cluster + REPLY_SUFFIX


def retry_topic(group: str) -> str:
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    return DLQ_PREFIX + group


def is_system_topic(topic: str) -> bool:
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_PREFIX)


def check_topic(topic: str) -> str:
    """`topic` itself; InvalidParameter names the fault of the name."""
    derived = topic.startswith((RETRY_PREFIX, DLQ_PREFIX))
    return _check("topic", topic, LONG_TOPIC_BYTES_MAX if derived else TOPIC_BYTES_MAX)


def check_group(group: str) -> str:
    """`group` itself; InvalidParameter names the fault of the name."""
    return _check("group", group, GROUP_BYTES_MAX)


def check_instance(name: str) -> str:
    """`name`, of a consumer, itself; InvalidParameter names the fault of the name."""
    return _check("instance", name, GROUP_BYTES_MAX)


def _check(what: str, name: str, bytes_max: int) -> str:
    if not isinstance(name, str):
        raise InvalidParameter(f"the {what} name is {name!r:.60}: give text")
    if not name:
        raise InvalidParameter(f"the {what} name is empty; give it 1 to {bytes_max} characters")
    if len(name) > bytes_max:
        raise InvalidParameter(
            f"{what} {name[:40]!r}... has {len(name)} characters; at most {bytes_max} are allowed"
        )
    if not _NAME.fullmatch(name):
        raise InvalidParameter(
            f"{what} {name!r} has a character outside a-z A-Z 0-9 _ - % |; rename it"
        )
    return name
