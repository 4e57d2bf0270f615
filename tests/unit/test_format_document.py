"""docs/internals/format.md against the code: offsets of fields, keys of tables, names, defaults."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest
from saturnmq.broker.config import BrokerConfig
from saturnmq.broker.exactly_once.sinks import Sink
from saturnmq.broker.replication.role import Role
from saturnmq.broker.tables.subscription_groups import DEFAULTS
from saturnmq.broker.tables.topics import Topic, system_topics
from saturnmq.protocol import fastjson
from saturnmq.protocol.frame import HEAD, TAIL
from saturnmq.protocol.ha import Kind
from saturnmq.store.config import StoreConfig
from saturnmq.store.derived import index_items
from saturnmq.store.derived.consumequeue import ENTRY
from saturnmq.store.log.truncated import Truncated
from saturnmq.store.recovery import checkpoint

INTERNALS = Path(__file__).parents[2] / "docs" / "internals"
TEXT = (INTERNALS / "format.md").read_text()
WORDS = {"i64": "q", "i32": "i", "u32": "I"}


def section(number: str) -> str:
    begin = re.search(rf"^#+ {re.escape(number)}\.? ", TEXT, re.MULTILINE)
    assert begin, number
    rest = TEXT[begin.end() :]
    end = re.search(r"^#", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def cells(number: str) -> list[list[str]]:
    rows = [line[1:-1].split("|") for line in section(number).splitlines() if line[:1] == "|"]
    return [[cell.strip(" `") for cell in row] for row in rows[2:]]


def fields(number: str) -> dict[int, str]:
    """The offsets of a table and its types, as struct writes them."""
    found = {}
    for offset, kind, *_ in cells(number):
        size = re.fullmatch(r"(\d+) B", kind)
        found[int(offset)] = f"{size[1]}s" if size else WORDS[kind]
    return found


def packed(layout: struct.Struct, start: int = 0) -> dict[int, str]:
    """The same of a layout that begins at `start`."""
    kinds = re.findall(r"\d+s|[a-zA-Z]", layout.format.lstrip(">"))
    offsets = [struct.calcsize(">" + "".join(kinds[:n])) for n in range(len(kinds))]
    return {start + at: kind for at, kind in zip(offsets, kinds, strict=True)}


def test_a_frame_is_laid_out_as_its_table_says() -> None:
    rows = {int(row[2]): row[1] for row in cells("2.1") if row[2]}
    head = {at: kind.replace("I", "i") for at, kind in packed(HEAD).items()}
    assert {at: WORDS[kind] for at, kind in rows.items() if at < HEAD.size} == head
    assert list(rows)[-5:] == [56, 64, 72, 76, 84]
    assert packed(TAIL, 72) == {72: "i", 76: "q", 84: "i"}


def test_the_checkpoint_is_laid_out_as_its_table_says() -> None:
    ours = packed(checkpoint._OURS, 64)
    crc = {64 + checkpoint._OURS.size: "I"}
    assert fields("1.5") == packed(checkpoint._ROCKETMQ) | ours | crc


def test_an_entry_of_a_queue_is_laid_out_as_its_table_says() -> None:
    assert fields("3.1") == packed(ENTRY)


def test_an_index_file_is_laid_out_as_its_table_says() -> None:
    header = {int(row[0]): WORDS[row[1]] for row in cells("4.1")[:6]}
    assert header == packed(index_items.HEADER)
    assert f"{index_items.ITEM.size} B for each item" in section("4.1")


def keys_in(text: str) -> set[str]:
    return set(re.findall(r'"(\w+)"', text))


def test_a_topic_has_the_fields_that_are_told() -> None:
    document = Topic("T", 1, 1).to_json()
    assert document.keys() <= keys_in(section("10.2"))


def test_the_broker_makes_the_system_topics_that_are_told() -> None:
    topics = system_topics(
        "CLUSTER", "BROKER", 8, delay_levels=18, auto=True, traces="RMQ_SYS_TRACE_TOPIC"
    )
    named = {*re.findall(r"`(\w+)`", section("10.2")), "CLUSTER", "BROKER"}
    assert {topic.name for topic in topics} <= named


def test_a_group_has_the_defaults_that_are_told() -> None:
    for key, value in DEFAULTS.items():
        assert f"`{key} {fastjson.dumps(value).decode()}`" in " ".join(section("10.4").split()), key


def test_the_role_has_the_keys_that_are_told() -> None:
    told = {key for row in cells("10.6") for key in re.findall(r"\w+", row[0])}
    assert told == Role(BrokerConfig()).document().keys()


def test_a_sink_has_the_keys_that_are_told() -> None:
    assert Sink(0, 0).to_json().keys() <= keys_in(section("10.7"))


def test_a_side_file_is_described_as_is_told() -> None:
    assert Truncated("", 0, 0).to_json().keys() <= keys_in(section("11"))


@pytest.mark.parametrize("kind", Kind)
def test_every_control_frame_is_explained(kind: Kind) -> None:
    assert f"| {int(kind)} {kind.name} | " in (INTERNALS / "protocol.md").read_text()


def test_the_defaults_of_settings_are_those_of_the_code() -> None:
    config, flat = StoreConfig(), " ".join(TEXT.split())
    for key, told in {
        "mappedFileSizeConsumeQueue": f"{config.consumequeue_segment_bytes:,} B",
        "maxMessageSize": f"{config.max_message_bytes >> 20} MiB",
        "fileReservedTime": f"{config.file_reserved_hours} h",
        "deleteFileBatchMax": f"{config.delete_batch_max}",
        "diskMaxUsedSpaceRatio": f"{config.disk_max_used_ratio} %",
        "diskSpaceCleanForciblyRatio": f"{config.disk_clean_forcibly_ratio} %",
        "diskSpaceWarningLevelRatio": f"{config.disk_warning_ratio} %",
        "accessMessageInMemoryMaxRatio": f"{config.access_in_memory_ratio} %",
        "maxMsgsNumBatch": f"{config.query_count}",
        "defaultQueryMaxNum": f"{config.unique_key_count}",
        "commitIntervalCommitLog": f"{config.commit_interval_ms} ms",
        "flushIntervalCommitLog": f"{BrokerConfig().flush_interval_ms} ms",
    }.items():
        assert re.search(rf"`{key}` \({re.escape(told)}[;)]", flat), key
