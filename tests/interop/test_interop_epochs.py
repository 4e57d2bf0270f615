"""epochFileCheckpoint: RocketMQ's own classes read ours, identity and all, and we read theirs."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from interop_nodes import java
from saturnmq.store.disk import NativeDisk
from saturnmq.store.log.epochs import Epochs

PROGRAM = "EpochFile.java"
IDENTITY = "00112233445566778899aabbccddeeff"


@pytest.mark.quick
def test_rocketmq_reads_an_epoch_file_with_an_identity_and_we_read_what_it_writes(
    jars: Path, tmp_path: Path, figures: Counter[str]
) -> None:
    disk, root = NativeDisk(), str(tmp_path)
    epochs = Epochs(disk, root)
    epochs.open(100_000, 0)
    epochs.open(100_001, 4096)
    epochs.adopt(IDENTITY)
    file = tmp_path / "epochFileCheckpoint"
    assert IDENTITY in file.read_text()
    assert java(jars, PROGRAM, str(file))[-1] == "100000-0 100001-4096"
    damaged = tmp_path / "damaged"  # it has no backup that RocketMQ could read instead
    damaged.write_text(file.read_text().replace(IDENTITY, IDENTITY[::-1]))
    assert java(jars, PROGRAM, str(damaged))[-1] == ""  # so its CRC covers the identity, too
    (*_, added) = java(jars, PROGRAM, str(file), "100002", "8192")
    assert added.endswith("100002-8192")
    figures["entries of an epoch file"] += 3
    again = Epochs.load(disk, root, 10_000)
    assert [number for number, _ in again.entries] == [100_000, 100_001, 100_002]
    assert again.identity == ""  # RocketMQ drops it: the checkpoint and the role file have it
