from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from saturnmq.client.consumer.rebalance import STRATEGIES, assign, sticky, strategy_of
from saturnmq.protocol.message import MessageQueue
from saturnmq.protocol.sharing import average
from saturnmq.runtime.errors import ConfigError


def queues(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", f"broker-{n % 3}", n // 3) for n in range(count)]


@pytest.mark.parametrize("name", STRATEGIES)
@given(count=st.integers(0, 40), members=st.integers(1, 12))
def test_every_queue_has_exactly_one_owner(name: str, count: int, members: int) -> None:
    clients = [f"client-{n}" for n in range(members)]
    how = strategy_of(name)
    shares = {client: assign(how, client, queues(count), clients) for client in clients}
    owners = Counter(queue for share in shares.values() for queue in share)
    assert owners == Counter(queues(count))
    if name != "CONSISTENT_HASH":
        sizes = [len(share) for share in shares.values()]
        assert max(sizes) - min(sizes) <= 1


def test_average_gives_runs_as_java_does() -> None:
    eight = sorted(queues(8))
    shares = [average(f"c{n}", eight, ["c0", "c1", "c2"]) for n in range(3)]
    assert [len(share) for share in shares] == [3, 3, 2]
    assert [queue for share in shares for queue in share] == eight


def test_by_circle_deals_queues_like_cards() -> None:
    eight = sorted(queues(8))
    assert assign(strategy_of("avg_by_circle"), "b", eight, ["a", "b", "c"]) == eight[1::3]


def test_sticky_moves_little_when_a_member_leaves() -> None:
    clients = [f"client-{n}" for n in range(6)]
    many = sorted(queues(60))
    before = {queue: client for client in clients for queue in sticky(client, many, clients)}
    after = {queue: client for client in clients[:5] for queue in sticky(client, many, clients[:5])}
    moved = sum(before[queue] != after[queue] for queue in many)
    assert 10 <= moved <= 25  # the ten of the one who left, and few others


def test_a_stranger_to_the_group_gets_nothing() -> None:
    for name in STRATEGIES:
        assert assign(strategy_of(name), "nobody", queues(4), ["a", "b"]) == []


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="AVG_BY_CIRCLE"):
        strategy_of("FAIR")


@pytest.mark.parametrize(
    ("name", "owners"),
    [
        ("AVG", "0000001111122222"),
        ("AVG_BY_CIRCLE", "0120120120120120"),
        ("CONSISTENT_HASH", "2100121210210100"),
    ],
)
def test_members_in_java_share_a_group_with_ours(name: str, owners: str) -> None:
    """Printed by the classes of RocketMQ 5.4.0: which client each queue goes to."""
    clients = ["192.0.2.1@1#10", "192.0.2.1@2#20", "192.0.2.7@DEFAULT"]
    sixteen = [
        MessageQueue("RTopic", name, n) for name in ("broker-a", "broker-b") for n in range(8)
    ]
    shares = [assign(strategy_of(name), client, sixteen, clients) for client in clients]
    found = "".join(
        str(next(n for n, share in enumerate(shares) if queue in share)) for queue in sixteen
    )
    assert found == owners


@pytest.mark.parametrize(
    ("clients", "queue_id", "owner"),
    [
        # A place of each begins with the same 4 bytes: the one who is entered last has it.
        (("client-6559", "client-7423"), 50, "client-7423"),
        # A place of each begins with the same 3 bytes, and the fourth tells them apart.
        (("client-172", "client-290"), 13, "client-172"),
    ],
)
def test_places_on_the_ring_are_the_first_four_bytes_of_a_hash(
    clients: tuple[str, str], queue_id: int, owner: str
) -> None:
    """As in RocketMQ: members in Java count no more and no fewer."""
    queue = MessageQueue("T", "a", queue_id)
    owners = [me for me in clients if assign(strategy_of("CONSISTENT_HASH"), me, [queue], clients)]
    assert owners == [owner]


def test_sticky_shares_are_the_same_in_every_version() -> None:
    """Members that disagree would share a queue, or leave one alone."""
    clients = ["192.0.2.1@1#10", "192.0.2.1@2#20", "192.0.2.7@DEFAULT"]
    sixteen = [MessageQueue("T", name, n) for name in ("broker-a", "broker-b") for n in range(8)]
    shares = [assign(strategy_of("STICKY"), client, sixteen, clients) for client in clients]
    found = "".join(
        str(next(n for n, share in enumerate(shares) if queue in share)) for queue in sixteen
    )
    assert found == "2221200111101020"
