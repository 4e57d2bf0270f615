"""Files that a command writes under a name that its user gave."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from saturnmq.cli.output import write_file


def test_a_file_is_written_whole_or_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cluster.json"
    write_file(file, "before")
    file.chmod(0o600)
    write_file(file, "after")
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("after", 0o600)

    whole = Path.write_text

    def half(path: Path, text: str, **options: str) -> int:
        whole(path, text[: len(text) // 2], **options)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_text", half)
    with pytest.raises(OSError, match=r"No space left on device: '.*cluster\.json'"):
        write_file(file, "a longer text")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [
        ("cluster.json", "after")
    ]


def test_a_file_that_is_none_is_written_in_place(tmp_path: Path) -> None:
    file, link = tmp_path / "file", tmp_path / "link"
    link.symlink_to(file)
    write_file(link, "through the link")
    assert (link.is_symlink(), file.read_text()) == (True, "through the link")
    write_file(Path(os.devnull), "nowhere")
    assert not Path(os.devnull).is_file()
    with pytest.raises(OSError, match=r"/nowhere/file"):
        write_file(tmp_path / "nowhere/file", "text")
