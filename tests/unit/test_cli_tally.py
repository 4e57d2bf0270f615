"""The counting of the main job: it must notice what it is there to notice."""

import tempfile
from pathlib import Path

import pytest
from saturnmq.cli import flights
from saturnmq.cli.launcher import LauncherError, LocalCluster
from saturnmq.cli.main import app
from saturnmq.cli.tally import Delays, GroupTally, LongestGap, Sends
from typer.testing import CliRunner

SLICE = Path(__file__).parents[1] / "data" / "flights-slice.csv"


def departures() -> list[flights.Departure]:
    return flights.read(SLICE)


def test_slice_is_read_whole_and_typed():
    found = departures()
    assert len(found) == 1404
    assert {d.origin for d in found} == {"EWR", "JFK", "LGA"}
    assert found[0].key == "UA1545-2013-01-01"
    assert found[0].tail == "N14228"
    assert any(d.tail is None for d in found)
    assert any(d.delay is None for d in found)


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (slice(0, 1), "has no departures"),
        (slice(1, 3), "no file of departures .KeyError: 'year'"),
        (slice(0, 0), "no file of departures"),
    ],
    ids=["header only", "no header", "empty"],
)
def test_a_file_without_departures_is_named(tmp_path, lines, why):
    file = tmp_path / "other.csv"
    file.write_text("".join(SLICE.read_text().splitlines(keepends=True)[lines]))
    with pytest.raises(flights.FlightsUnavailable, match=why):
        flights.read(file)


def test_a_demo_whose_cluster_does_not_start_leaves_no_files(tmp_path, monkeypatch):
    def fails(home, settings):
        (home / "files").write_text("large")
        raise LauncherError("no disk")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(LocalCluster, "up", fails)
    done = CliRunner().invoke(app, ["demo", "--flights", str(SLICE)])
    assert isinstance(done.exception, LauncherError)
    assert list(tmp_path.iterdir()) == []


def test_complete_delivery_loses_nothing():
    found = departures()
    sends, group = Sends(len(found)), GroupTally("all", None, len(found))
    for number, departure in enumerate(found):
        sends.acknowledge(number, float(number))
        assert group.delivered(number, departure, float(number))
    assert group.lost(found, sends.acked) == 0
    assert (group.disorder, group.duplicates, group.foreign) == (0, 0, 0)


def test_an_acknowledged_departure_that_never_came_is_lost():
    found = departures()
    sends, group = Sends(len(found)), GroupTally("all", None, len(found))
    for number, departure in enumerate(found):
        sends.acknowledge(number, 0.0)
        if number != 700:
            group.delivered(number, departure, 0.0)
    assert group.lost(found, sends.acked) == 1


def test_a_departure_that_was_never_acknowledged_is_not_lost():
    found = departures()
    assert GroupTally("all", None, len(found)).lost(found, Sends(len(found)).acked) == 0


def test_a_second_delivery_is_a_duplicate_and_no_disorder():
    found = departures()
    group = GroupTally("all", None, len(found))
    first = next(n for n, d in enumerate(found) if d.tail)
    tail = found[first].tail
    second = next((n for n, d in enumerate(found) if d.tail == tail and n > first), None)
    for number in filter(lambda n: n is not None, (first, second, first)):
        group.delivered(number, found[number], 0.0)
    assert group.duplicates == 1
    assert group.disorder == 0


def test_a_first_delivery_behind_a_later_one_of_the_same_aircraft_is_disorder():
    by_tail: dict[str, list[int]] = {}
    found = departures()
    for number, departure in enumerate(found):
        if departure.tail:
            by_tail.setdefault(departure.tail, []).append(number)
    early, late = next(numbers for numbers in by_tail.values() if len(numbers) > 1)[:2]
    group = GroupTally("all", None, len(found))
    group.delivered(late, found[late], 0.0)
    group.delivered(early, found[early], 0.0)
    assert group.disorder == 1


def test_a_delivery_that_the_filter_should_have_dropped_is_counted():
    found = departures()
    group = GroupTally("jfk-lga", frozenset({"JFK", "LGA"}), len(found))
    newark = next(n for n, d in enumerate(found) if d.origin == "EWR")
    assert not group.delivered(newark, found[newark], 0.0)
    assert group.foreign == 1


def test_gap_is_the_longest_pause():
    gap = LongestGap()
    for now in (1.0, 1.5, 4.0, 4.1):
        gap.seen(now)
    assert gap.longest == 2.5


def test_delays_are_means_per_airport_and_hour():
    delays = Delays()
    one = next(d for d in departures() if d.delay is not None)
    delays.add(one._replace(origin="JFK", hour=7, delay=10.0))
    delays.add(one._replace(origin="JFK", hour=7, delay=20.0))
    delays.add(one._replace(origin="EWR", hour=8, delay=None))
    assert delays.rows() == [(7, {"JFK": 15.0})]
