"""A member of a group that checks users is elected: it promotes itself as the nodes' own user."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from access_rig import CHECKING
from broker_rig import run
from failover_rig import Group
from saturnmq.broker.replication.election import Campaign
from saturnmq.cli import nodes
from saturnmq.runtime.errors import SaturnError
from saturnmq.runtime.native import NativeRuntime

CAMPAIGN = Campaign(epoch=0)


def test_an_elected_member_promotes_itself_where_users_are_checked(tmp_path: Path) -> None:
    async def body(runtime: NativeRuntime) -> None:
        async with Group(runtime, tmp_path, **CHECKING) as group:
            me, others = group.slave.address, [group.master.address]
            settings = replace(group.configs["s"], etcd_endpoints=("127.0.0.1:1",))
            strange = replace(settings, inner_credentials='{"accessKey":"a","secretKey":"b"}')
            stranger, member = (nodes._ballot(each, runtime) for each in (strange, settings))
            with pytest.raises(SaturnError, match="access denied"):
                await stranger.promote("broker-a", me, others, CAMPAIGN)
            assert group.master.replica_state()["role"] == "master"
            await member.check("broker-a", me, others, False)
            await member.promote("broker-a", me, others, CAMPAIGN)
            assert group.slave.replica_state()["role"] == "master"

    run(body)
