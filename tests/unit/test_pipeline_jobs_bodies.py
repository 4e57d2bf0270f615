"""Jobs whose results outlive the log: a body that is damaged in the log is not taken for sound."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from cluster_rig import until
from pipeline_store_rig import SIZES, TOPICS, archived, damage_a_body, made, segments, where
from saturnmq import Admin, Message, Producer
from saturnmq.pipeline.access import Where
from saturnmq.pipeline.decoding import DamagedFrame
from saturnmq.pipeline.jobs.archive import archive
from saturnmq.pipeline.jobs.audit import audit
from saturnmq.pipeline.jobs.manifest import Archive
from saturnmq.pipeline.jobs.report import report
from saturnmq.pipeline.places import open_access
from served_rig import served


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return made(tmp_path / "store", 120, step_ms=100_000)


def test_an_archive_of_a_store_takes_no_damaged_body(root: Path, tmp_path: Path) -> None:
    damage_a_body(segments(root)[1])
    with pytest.raises(DamagedFrame, match="body CRC"):
        archived(root, tmp_path / "archive")
    done = archived(root, tmp_path / "archive", mode="DROPMALFORMED")
    assert (done.messages, done.not_there) == (119, 1)


def test_a_report_counts_a_message_with_a_damaged_body_as_missing(root: Path) -> None:
    damage_a_body(segments(root)[1])
    found = report(None, where(root), TOPICS)
    assert (found.messages, found.missing) == (119, 1)


def test_a_damaged_body_at_a_broker_is_archived_by_nobody_and_audited_as_damage(
    tmp_path: Path,
) -> None:
    with served(tmp_path / "broker") as nameserver:
        with Admin(nameserver) as admin, Producer(nameservers=nameserver) as producer:
            admin.create_topic("T", queues=1)
            for number in range(5):
                producer.send(Message("T", b"body %d" % number))
        place = Where.brokers(nameserver)
        with open_access(place) as access:
            until(lambda: [*access.bounds(["T"]).values()] == [(0, 5)], "all can be read")
        kept = str(tmp_path / "archive")
        assert archive(None, place, ["T"], kept).messages == 5
        assert audit(None, place, kept, sizes=SIZES).sound
        log = next(path for path in (tmp_path / "broker").rglob("commitlog/*") if path.is_file())
        body = damage_a_body(log)
        found = audit(None, place, kept, sizes=SIZES)
        [told] = [each for each in found.damage if each.what.startswith("cluster: ")]
        assert "body CRC" in told.what
        assert told.path == nameserver
        assert "here 4 messages" in "".join(each.what for each in found.damage)
        with pytest.raises(DamagedFrame, match="body CRC"):
            archive(None, place, ["T"], str(tmp_path / "other"))
        [file] = Archive(kept).manifests()[0].files
        assert body in pq.ParquetFile(Archive(kept).full(file)).read()["body"].to_pylist()
