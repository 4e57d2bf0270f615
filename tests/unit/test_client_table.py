"""The table of connected clients, without a network; `validate` runs after every change."""

from typing import Any

import pytest
from saturnmq.broker import bodies
from saturnmq.broker.bodies import Heartbeat
from saturnmq.broker.tables.clients import ClientTable
from saturnmq.protocol import fastjson
from saturnmq.protocol.remoting import Command
from saturnmq.runtime.steps import at_once


class Connection:
    """It counts how often a group is asked whether this connection is a member."""

    looked_up = 0

    def __hash__(self) -> int:
        Connection.looked_up += 1
        return id(self)


def beat(client_id: str, producing: list[str], consuming: list[str]) -> Heartbeat:
    document = {
        "clientID": client_id,
        "producerDataSet": [{"groupName": name} for name in producing],
        "consumerDataSet": [{"groupName": name} for name in consuming],
    }
    return at_once(bodies.heartbeat(Command.request(34, {}, fastjson.dumps(document))))


def joined(
    table: ClientTable, client_id: str, producing: list[str], consuming: list[str]
) -> Connection:
    connection: Any = Connection()
    table.heartbeat(connection, "JAVA", 493, beat(client_id, producing, consuming), 0.0)
    table.validate()
    return connection  # type: ignore[no-any-return]  # it plays an endpoint


@pytest.mark.parametrize(
    "end", [{"everything": True}, {"producer_group": "P", "consumer_group": "C"}]
)
def test_the_end_of_a_connection_costs_nothing_for_the_groups_of_others(
    end: dict[str, Any],
) -> None:
    table = ClientTable(120.0)
    for number in range(300):
        joined(table, f"c{number}", [f"P{number}"], [f"C{number}"])
    one: Any = joined(table, "one", ["P"], ["C"])
    tool: Any = Connection()  # it never sent a heartbeat
    Connection.looked_up = 0
    assert table.remove(one, **end) == ["C"]
    assert table.remove(tool, **end) == []
    assert Connection.looked_up < 20
    table.validate()
    assert (len(table.producers), len(table.consumers), len(table)) == (300, 300, 600)
    assert table.producer("one") is None


def test_a_connection_leaves_the_groups_that_it_names_and_stays_in_the_others() -> None:
    table = ClientTable(120.0)
    other: Any = joined(table, "other", ["P"], ["C"])
    one: Any = joined(table, "one", ["P", "Q"], ["C", "D"])
    assert table.remove(one, producer_group="P", consumer_group="D") == ["D"]
    table.validate()
    assert {name: list(members) for name, members in table.producers.items()} == {
        "P": [other],
        "Q": [one],
    }
    assert {name: list(group.members) for name, group in table.consumers.items()} == {
        "C": [other, one]
    }
    assert table.producer("one") is one
    assert table.remove(one, producer_group="Q") == []
    table.validate()
    assert table.producer("one") is None
    assert table.remove(one, everything=True) == ["C"]
    assert table.remove(one, everything=True) == []
    table.validate()
    assert table.remove(other, everything=True) == ["C"]
    assert len(table) == 0
