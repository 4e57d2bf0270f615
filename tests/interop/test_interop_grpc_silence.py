"""RocketMQ's clients of version 5 for Java, Go and Node, when a network drops all packets and
closes nothing: calls end with an error, the broker holds nothing for them, and they go on when it
is back. Python's is in tests/cluster/test_grpc_silence.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from interop_grpc import CLIENTS, WAIT_S, Failed, GrpcClient
from silence_rig import IDLE_S, site_below, until

pytestmark = pytest.mark.timeout(240)

SEEN_S = 5.0  # more, until nothing is held for a connection that is silent
CALLS_S = 12.0  # three attempts of 3 s
GOES_ON_S = 10.0


@pytest.mark.parametrize("language", CLIENTS)
def test_a_client_that_was_cut_off_goes_on_when_its_network_is_back(
    language: str, tmp_path: Path
) -> None:
    (tmp_path / language).mkdir()
    with (
        site_below(tmp_path / "cluster") as site,
        CLIENTS[language](site.network.address, tmp_path / language) as client,
    ):
        client.tell("producer", "T")
        client.tell("push", "G", "T", "tag", "*")
        client.send("T", "before")
        assert [each.body for each in client.seen("G", 1)] == ["before"]
        until(lambda: site.held("G") == 1, WAIT_S)
        site.network.fall_silent()
        until(lambda: site.held("G") == 0, IDLE_S + SEEN_S)
        until(lambda: not sends(client, "nowhere"), CALLS_S)
        site.network.heal()
        until(lambda: sends(client, "after"), GOES_ON_S)
        until(lambda: "after" in [each.body for each in client.seen("G", 0)], GOES_ON_S)
        client.tell("leave", "G")


def sends(client: GrpcClient, body: str) -> bool:
    try:
        client.send("T", body)
    except Failed:
        return False
    return True
