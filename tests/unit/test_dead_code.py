"""Nothing stands in the source that nobody uses (CONTRIBUTING.md); vulture looks."""

from __future__ import annotations

from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).parents[2]
SOURCES = (
    "runtime", "protocol", "store", "gateway", "nameserver", "broker", "client", "pipeline", "cli",
    "drills",
)  # fmt: skip
USERS = ("tests", "tools", "benchmarks", "examples")
# RocketMQ's tables as a whole: its codes, and the names that it reserves
TABLES = {"protocol/codes.py", "protocol/properties.py"}

# Who uses each of these, by file. The table may only shrink, but for names that others call.
USED_ELSEWHERE = {
    # asyncio and its buffers
    "broker/replication/ha_master.py": {"sizehint"},
    "broker/replication/ha_slave.py": {"sizehint"},
    "drills/fuzz/client.py": {"sizehint"},
    "drills/fuzz/replication.py": {"sizehint", "Replication"},
    "protocol/endpoint.py": {"sizehint"},
    "drills/sim/loop.py": {
        "_call_soon", "_clock_resolution", "_process_events", "_write_to_self", "event_list",
    },
    "drills/sim/network.py": {
        "can_write_eof", "get_protocol", "get_write_buffer_limits", "is_reading",
    },
    # reprlib
    "protocol/checked.py": {"maxdict", "maxlevel", "maxlist", "maxstring", "repr_int"},
    # modules' own hooks
    "client/names/__init__.py": {"__dir__", "__getattr__"},
    "gateway/v2.py": {"__getattr__"},
    # Spark
    "pipeline/listener.py": {
        "duration_ms", "onQueryIdle", "onQueryProgress", "onQueryStarted", "onQueryTerminated",
        "rows_per_s",
    },
    "pipeline/names/__init__.py": {"streamWriter"},
    # protobuf
    "broker/etcd/wire.py": {"type_name"},
    # found by name: requests of brokers
    "client/producer/transactions.py": {"check_transaction"},
    "client/server_requests.py": {"check_transaction"},
    # applications: fields and members of public classes
    "client/admin/topic_settings.py": {"last_update_ms"},
    "client/admin/group_admin.py": {"last_timestamp_ms"},
    "client/admin/group_settings.py": {"consume_timeout_min"},
    "client/consumer/results.py": {"SUSPEND_CURRENT_QUEUE_A_MOMENT"},
    "pipeline/columns.py": {"on_request"},
    # errors are made from their wire code
    "runtime/errors.py": {
        "FlushSlaveTimeout", "GoAway", "PullNotFound", "PullOffsetMoved",
        "PullRetryImmediately", "SlaveNotAvailable", "TopicExistAlready",
        "VersionNotSupported",
    },
    # RocketMQ's states of a read
    "store/derived/lookup.py": {"NO_MATCHED_LOGIC_QUEUE", "OFFSET_RESET"},
    # kept so that a forked child destroys nothing of its parent's
    "client/pool.py": {"_inherited"},
    # found by name: steps of a plan, targets of the fuzzer, rows of a report
    "drills/crash/workload.py": {
        "_die", "_fail_derived", "_fail_flush", "_fail_write", "_fill_disk", "_flush_beside",
        "_lose_power", "_put_group", "_put_half", "_save_config", "_truncate",
    },
    "drills/fuzz/blocking.py": {"Blocking"},
    "drills/fuzz/access.py": {"AccessTarget"},
    "drills/fuzz/grpc_port.py": {"GrpcPort"},
    "drills/fuzz/sql.py": {"Conditions"},
    "drills/kernel/power_cuts.py": {"seconds_of_load"},
    "drills/kernel/report.py": {"seconds_of_load"},
}  # fmt: skip


def unused() -> dict[str, set[str]]:
    vulture = Vulture(ignore_decorators=["@*.command", "@*.callback"])
    vulture.scavenge([str(ROOT / folder) for folder in (*SOURCES, *USERS)])
    found: dict[str, set[str]] = {}
    for item in vulture.get_unused_code(min_confidence=60):
        path = Path(item.filename).relative_to(ROOT)
        if path.parts[0] in SOURCES and str(path) not in TABLES:
            found.setdefault(str(path), set()).add(item.name)
    return found


def test_nothing_stands_in_the_source_that_nobody_uses() -> None:
    found = unused()
    dead = {path: names - USED_ELSEWHERE.get(path, set()) for path, names in found.items()}
    assert {path: names for path, names in dead.items() if names} == {}
    stale = {path: names - found.get(path, set()) for path, names in USED_ELSEWHERE.items()}
    assert {path: names for path, names in stale.items() if names} == {}, "drop them from the table"
