"""A role that is moved by other configurations instead of a promotion: two nodes would lead."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from broker_rig import run, until
from failover_rig import Group
from saturnmq.runtime.errors import ConfigError
from saturnmq.runtime.native import NativeRuntime

MASTERS = [
    {"role": "SYNC_MASTER", "in_sync_replicas": 2},
    {"role": "ASYNC_MASTER", "in_sync_replicas": 1},
]


async def all_of_it(group: Group) -> None:
    """The slave has the log of its master, and may be promoted."""
    end = group.master.store.watermarks.appended
    role = group.slave.context.role
    await until(lambda: group.slave.store.watermarks.appended == end and role.caught_up)


@pytest.mark.parametrize("changes", MASTERS, ids=lambda each: each["role"])
@pytest.mark.parametrize("lives", [True, False], ids=["master-lives", "master-stopped"])
def test_a_slave_does_not_start_with_the_configuration_of_a_master(
    tmp_path: Path, lives: bool, changes: dict[str, object]
) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"one") == [0]
            await all_of_it(group)
            address = group.slave.address
            await group.slave.close()
            if not lives:
                await group.master.close()
            as_slave = group.configs["s"]
            group.configs["s"] = replace(as_slave, broker_id=0, **changes)
            with pytest.raises(ConfigError) as refused:
                await group.start("s")
            assert f"{address} is slave 1 of broker-a" in str(refused.value)
            assert f"`saturnmq admin promote broker-a {address}`" in str(refused.value)

            group.configs["s"] = as_slave
            group.slave = await group.start("s")
            if not lives:
                group.master = await group.start("m")
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert await group.send_all(group.master, b"two") == [0]
            assert await group.bodies(group.master) == [b"one", b"two"]
            await all_of_it(group)

    run(body)


def test_a_copy_of_a_slave_gives_way_to_the_master_of_its_log(tmp_path: Path) -> None:
    """The record is of another address, so that the configuration counts; another slave would give
    its word."""

    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            other = await group.start("t", role="SLAVE", broker_id=2)
            await until(lambda: group.master.context.copies_in_sync() == 3)
            assert await group.send_all(group.master, b"one") == [0]
            await all_of_it(group)
            await group.slave.close()
            shutil.copytree(tmp_path / "s", tmp_path / "x")
            epoch = group.master.context.role.log_epoch
            copy = await group.start("x", role="SYNC_MASTER")
            await until(lambda: copy.replica_state()["role"] == "slave")
            assert await group.send_all(copy, b"refused") == [2]
            group.slave = await group.start("s")
            await until(lambda: group.master.context.copies_in_sync() >= 3)
            assert await group.send_all(group.master, b"two") == [0]
            assert group.master.context.role.log_epoch == epoch
            assert group.master.replica_state()["truncated"] == []
            await copy.close()
            await other.close()

    run(body)


def test_a_group_is_restored_from_one_copy_of_a_slave(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path) as group:
            assert await group.send_all(group.master, b"one") == [0]
            await all_of_it(group)
            await group.slave.close()
            await group.master.close()
            shutil.rmtree(tmp_path / "m")
            shutil.copytree(tmp_path / "s", tmp_path / "m")
            group.slave = await group.start("s")
            group.master = await group.start("m")
            await until(lambda: group.master.context.copies_in_sync() == 2)
            assert await group.send_all(group.master, b"two") == [0]
            assert await group.bodies(group.master) == [b"one", b"two"]

    run(body)
