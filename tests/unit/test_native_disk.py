"""The real disk beyond what it has in common with the simulated one (test_doors.py): which names it
makes durable, and what it does when the kernel does less than it was asked for, or fails.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from saturnmq.runtime.errors import DirectoryLocked
from saturnmq.runtime.memory import memory_bytes
from saturnmq.store import files
from saturnmq.store.disk import Advice, NativeDisk
from saturnmq.store.files import MAPPED_WRITE

DISK = NativeDisk()


@pytest.fixture
def root(tmp_path: Path) -> str:
    return str(tmp_path)


@pytest.fixture
def synced(root: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was made durable, below `root`; a file without a name yet is `#`."""
    found: list[str] = []
    fsync = os.fsync

    def record(fd: int) -> None:
        path = os.path.relpath(os.readlink(f"/proc/self/fd/{fd}"), root)
        found.append(re.sub(r"#\d+ \(deleted\)$", "#", path))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", record)
    return found


def failing(code: int):
    def fail(*_arguments: object, **_options: object) -> None:
        raise OSError(code, os.strerror(code))

    return fail


# -- durable names --------------------------------------------------------------------------------


def test_new_directories_are_durable_unless_told_otherwise(root: str, synced: list[str]) -> None:
    DISK.make_dirs(f"{root}/a/b")
    assert synced == [".", "a"]
    DISK.make_dirs(f"{root}/a/b")
    DISK.make_dirs(f"{root}/c/d", durable=False)
    assert synced == [".", "a"]
    assert os.path.isdir(f"{root}/c/d")


def test_a_directory_that_another_makes_first_is_taken(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = os.mkdir

    def raced(path: str, mode: int) -> None:
        mkdir(path, mode)
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", raced)
    DISK.make_dirs(f"{root}/a/b")
    assert os.path.isdir(f"{root}/a/b")


def test_a_new_segment_is_durable_unless_told_otherwise(root: str, synced: list[str]) -> None:
    DISK.create_segment(f"{root}/0", 4096).close()
    assert synced in (["#", "."], ["0", "."])  # without O_TMPFILE it has its name at once
    DISK.create_segment(f"{root}/1", 4096, durable=False).close()
    assert len(synced) == 2


def test_written_files_are_durable_with_their_names(root: str, synced: list[str]) -> None:
    DISK.write_file(f"{root}/abort", b"1")
    assert synced == ["abort", "."]
    DISK.replace_file(f"{root}/checkpoint", b"1")
    DISK.replace_file(f"{root}/checkpoint", b"2")
    assert synced[2:] == ["checkpoint.tmp", "."] * 2


def test_a_backup_that_a_crash_left_half_made_is_made_anew(root: str) -> None:
    DISK.replace_file(f"{root}/f", b"1")
    DISK.write_file(f"{root}/f.bak.tmp", b"of a crash")
    DISK.replace_file(f"{root}/f", b"2")
    assert DISK.read_file(f"{root}/f.bak") == b"1"
    assert [entry.name for entry in DISK.list(root)] == ["f", "f.bak"]


def test_a_rename_is_durable_in_both_directories(root: str, synced: list[str]) -> None:
    DISK.make_dirs(f"{root}/there", durable=False)
    DISK.write_file(f"{root}/f", b"1")
    synced.clear()
    DISK.rename(f"{root}/f", f"{root}/there/f")
    assert synced == ["there", "."]
    DISK.rename(f"{root}/there/f", f"{root}/there/g")
    assert synced[2:] == ["there"]


def test_a_removal_is_durable_unless_told_otherwise(root: str, synced: list[str]) -> None:
    for name in ("a", "b"):
        DISK.make_dirs(f"{root}/{name}/0")
        DISK.write_file(f"{root}/{name}/0/f", b"1")
        DISK.write_file(f"{root}/{name}/f", b"1")
    synced.clear()
    DISK.remove_tree(f"{root}/a")
    assert synced == ["a", "a/0", "a", "."]
    DISK.remove_tree(f"{root}/b", durable=False)
    assert len(synced) == 4
    assert DISK.list(root) == []
    DISK.remove_tree(f"{root}/a")  # nothing is there


def test_a_tree_loses_its_last_names_first(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "213":
        DISK.write_file(f"{root}/{name}", b"")
    gone: list[str] = []
    unlink = os.unlink

    def record(path: str) -> None:
        gone.append(os.path.basename(path))
        unlink(path)

    monkeypatch.setattr(os, "unlink", record)
    DISK.remove_tree(root)
    assert gone == ["3", "2", "1"]


def test_a_path_without_a_directory_is_one_of_the_present_one(
    root: str, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root)
    DISK.write_file("f", b"1")
    assert synced == ["f", "."]


def test_a_listing_tells_when_a_file_was_changed(root: str) -> None:
    DISK.write_file(f"{root}/f", b"123")
    os.utime(f"{root}/f", ns=(0, 1_700_000_000_123_999_999))
    [entry] = DISK.list(root)
    assert entry == ("f", 3, False, 1_700_000_000_123)


@pytest.mark.parametrize("named", [False, True])
def test_what_is_made_is_its_owners_alone_whatever_the_umask_is(
    root: str, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0)
    try:
        if named:
            without_unnamed_files(monkeypatch, errno.EOPNOTSUPP)
        DISK.make_dirs(f"{root}/a/b")
        DISK.create_segment(f"{root}/a/b/0", 4096).close()
        DISK.lock(f"{root}/a/lock").release()
        DISK.write_file(f"{root}/a/abort", b"")
        for content in (b"1", b"2"):
            DISK.replace_file(f"{root}/a/role.json", content)
    finally:
        os.umask(before)
    modes = {
        p.relative_to(root).as_posix(): p.stat().st_mode & 0o777 for p in Path(root).rglob("*")
    }
    files = ("a/b/0", "a/lock", "a/abort", "a/role.json", "a/role.json.bak")
    assert modes == {"a": 0o700, "a/b": 0o700} | dict.fromkeys(files, 0o600)


def test_what_others_could_read_until_now_goes_on_and_is_theirs_no_more_when_it_is_replaced(
    root: str,
) -> None:
    os.chmod(root, 0o755)
    for name in ("0", "role.json"):
        Path(root, name).write_bytes(bytes(4096))
        os.chmod(f"{root}/{name}", 0o644)
    DISK.open_segment(f"{root}/0", 4096).close()
    DISK.replace_file(f"{root}/role.json", b"{}")
    assert os.stat(f"{root}/role.json").st_mode & 0o777 == 0o600
    assert DISK.read_file(f"{root}/role.json") == b"{}"


def test_a_warm_segment_takes_no_page_fault_when_it_is_written(root: str) -> None:
    pages = 1000
    segment = DISK.create_segment(f"{root}/0", pages * 4096)
    segment.advise(Advice.WARM)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for page in range(pages):
        segment.view[page * 4096] = 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < pages / 2
    segment.close()


# -- a kernel that does less, or fails ------------------------------------------------------------


def without_unnamed_files(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Some file systems know no O_TMPFILE."""
    real = os.open

    def refusing(path: str, flags: int, *mode: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(code, os.strerror(code))
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", refusing)


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL])
def test_where_files_need_names_a_segment_has_its_own_at_once(
    root: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_unnamed_files(monkeypatch, code)
    segment = DISK.create_segment(f"{root}/0", 8192)
    segment.write(8190, b"ok")
    segment.close()
    assert DISK.read_file(f"{root}/0") == bytes(8190) + b"ok"
    with pytest.raises(FileExistsError):
        DISK.create_segment(f"{root}/0", 8192)
    assert DISK.read_file(f"{root}/0") == bytes(8190) + b"ok"
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        DISK.create_segment(f"{root}/1", 8192)
    assert [entry.name for entry in DISK.list(root)] == ["0"]


def test_a_segment_for_which_there_is_no_room_leaves_nothing(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
    before = os.listdir("/proc/self/fd")
    with pytest.raises(OSError, match="No space"):
        DISK.create_segment(f"{root}/0", 8192)
    assert DISK.list(root) == []
    assert len(os.listdir("/proc/self/fd")) == len(before)
    monkeypatch.setattr(os, "open", failing(errno.EACCES))
    with pytest.raises(PermissionError):
        DISK.create_segment(f"{root}/0", 8192)


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("step", ["mapping", "sync", "directory"])
def test_a_segment_whose_making_fails_at_any_step_can_be_made_again(
    root: str, step: str, named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:
        without_unnamed_files(monkeypatch, errno.EOPNOTSUPP)
    before = os.listdir("/proc/self/fd")
    with monkeypatch.context() as patch:
        if step == "mapping":
            patch.setattr(mmap, "mmap", failing(errno.ENOMEM))
        elif step == "sync":
            patch.setattr(os, "fsync", failing(errno.EIO))
        else:
            patch.setattr(NativeDisk, "sync_dir", failing(errno.EMFILE))
        with pytest.raises(OSError, match=r"Cannot allocate|Input/output|Too many open"):
            DISK.create_segment(f"{root}/0", 8192)
    assert DISK.list(root) == []
    assert len(os.listdir("/proc/self/fd")) == len(before)
    DISK.create_segment(f"{root}/0", 8192).close()


@pytest.mark.parametrize(
    ("call", "work"),
    [
        ("posix_fallocate", lambda root: DISK.create_segment(f"{root}/1", 8192)),
        ("fsync", lambda root: DISK.create_segment(f"{root}/1", 8192)),
        ("fsync", lambda root: DISK.write_file(f"{root}/1", b"x")),
        ("fsync", lambda root: DISK.replace_file(f"{root}/1", b"x")),
        ("fsync", DISK.sync_dir),
        ("fsync", lambda root: DISK.lock(f"{root}/1")),
        ("pwrite", lambda root: DISK.lock(f"{root}/1")),
        ("pread", lambda root: DISK.open_readonly(f"{root}/0").read(0, 1)),
        ("preadv", lambda root: DISK.open_readonly(f"{root}/0").read_into(0, memoryview(b"x"))),
        ("pwrite", lambda root: DISK.open_segment(f"{root}/0", 8192).write(0, bytes(8192))),
        ("pwrite", lambda root: DISK.open_segment(f"{root}/0", 8192).zero(0, 8192)),
        ("fdatasync", lambda root: DISK.open_segment(f"{root}/0", 8192).flush(0, 8192)),
        ("posix_fallocate", lambda root: DISK.create_mapped(f"{root}/1", 8192, 4096)),
        ("posix_fallocate", lambda root: DISK.make_room(f"{root}/0", 0, 8192)),
        ("fdatasync", lambda root: DISK.sync_file(f"{root}/0")),
        ("pread", lambda root: DISK.open_mapped(f"{root}/0", 8192).read(0, 1)),
    ],
)
def test_an_error_names_its_file(
    root: str, call: str, work: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    DISK.create_segment(f"{root}/0", 8192).close()
    monkeypatch.setattr(os, call, failing(errno.EIO))
    with pytest.raises(OSError, match=root):
        work(root)
    monkeypatch.undo()
    DISK.lock(f"{root}/1").release()


def test_a_segment_has_all_of_its_blocks(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    allocate = os.posix_fallocate

    def record(fd: int, start: int, size: int) -> None:
        asked.append((start, size))
        allocate(fd, start, size)

    monkeypatch.setattr(os, "posix_fallocate", record)
    DISK.create_segment(f"{root}/0", 8192).close()
    assert asked == [(0, 8192)]


@pytest.mark.parametrize("most", [1, 700, 1 << 20])
def test_short_reads_and_writes_are_continued(
    root: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = DISK.create_segment(f"{root}/0", 16384)
    segment.view[:] = b"\xff" * 16384
    pread, pwrite = os.preadv, os.pwrite
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: pread(fd, [into[0][:most]], at))
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:most], at))
    data = bytes(n % 251 for n in range(MAPPED_WRITE + 1))
    segment.write(1000, data)
    segment.zero(10_000, 12_000)
    expected = bytearray(b"\xff" * 16384)
    expected[1000 : 1000 + len(data)] = data
    expected[10_000:12_000] = bytes(2000)
    assert segment.view == expected
    buffer = memoryview(bytearray(4000))
    assert segment.read_into(900, buffer) == 4000
    assert buffer == expected[900:4900]
    assert segment.read_into(16384 - 5, buffer) == 5
    assert segment.read(900, 4000) == expected[900:4900]
    segment.close()


def test_only_small_pieces_are_written_through_the_mapping(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = DISK.create_segment(f"{root}/0", 16384)
    calls: list[int] = []
    pwrite = os.pwrite

    def record(fd: int, data: bytes, at: int) -> int:
        calls.append(len(data))
        return pwrite(fd, data, at)

    monkeypatch.setattr(os, "pwrite", record)
    for size in (1, MAPPED_WRITE, MAPPED_WRITE + 1):
        segment.write(5, b"x" * size)
    assert calls == [MAPPED_WRITE + 1]
    segment.close()


def test_what_is_written_of_a_file_are_the_ranges_that_the_file_system_tells(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    DISK.write_file(f"{root}/f", bytes(100))
    ranges = [(10, 20), (50, 60)]

    def lseek(_fd: int, at: int, whence: int) -> int:
        if whence == os.SEEK_DATA:
            for start, end in ranges:
                if at < end:
                    return max(at, start)
            raise OSError(errno.ENXIO, "nothing but a hole")
        return next(end for start, end in ranges if start <= at < end)

    file = DISK.open_readonly(f"{root}/f")
    monkeypatch.setattr(os, "lseek", lseek)
    assert file.written(0) == [(10, 20), (50, 60)]
    assert file.written(15) == [(15, 20), (50, 60)]
    assert file.written(20) == [(50, 60)]
    assert file.written(60) == []
    ranges.append((90, 100))
    assert file.written(0) == [(10, 20), (50, 60), (90, 100)]
    assert file.written(100) == []
    monkeypatch.setattr(os, "lseek", failing(errno.EIO))
    assert file.written(100) == []  # nothing has to be asked
    with pytest.raises(OSError, match="Input/output"):
        file.written(99)
    file.close()


def test_a_sync_that_fails_is_told_unless_the_file_was_closed(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = DISK.create_segment(f"{root}/0", 4096)
    for code in (errno.EIO, errno.EBADF):
        monkeypatch.setattr(os, "fdatasync", failing(code))
        with pytest.raises(OSError, match=re.escape(os.strerror(code))):
            segment.flush(0, 1)
        segment.flush(1, 1)  # nothing to make durable
    monkeypatch.undo()
    fdatasync = os.fdatasync

    def closed_before(fd: int) -> None:
        segment.close()
        fdatasync(fd)

    monkeypatch.setattr(os, "fdatasync", closed_before)
    segment.flush(0, 1)
    monkeypatch.undo()
    segment.flush(0, 1)
    assert segment.in_place()


def test_a_file_that_is_gone_replaced_or_cut_is_not_in_place(root: str) -> None:
    DISK.make_dirs(f"{root}/d")
    path = f"{root}/d/0"
    segment = DISK.create_segment(path, 4096)
    assert segment.in_place()
    os.truncate(path, 4095)
    assert not segment.in_place()
    os.truncate(path, 4096)
    assert segment.in_place()
    DISK.rename(path, f"{root}/d/1")
    assert not segment.in_place()
    DISK.create_segment(path, 4096).close()
    assert not segment.in_place()
    DISK.remove_tree(f"{root}/d")
    assert not segment.in_place()
    DISK.write_file(f"{root}/d", b"a file in place of the directory")
    assert not segment.in_place()
    segment.close()


def test_a_look_at_its_place_asks_for_no_times(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = DISK.create_segment(f"{root}/0", 4096)
    monkeypatch.setattr(os, "fstat", failing(errno.EIO))
    monkeypatch.setattr(os, "stat", failing(errno.EIO))
    assert segment.in_place()
    monkeypatch.undo()
    segment.close()


def test_a_file_of_which_nobody_knows_where_it_is_is_told(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = DISK.create_segment(f"{root}/0", 4096)
    assert segment.in_place()
    monkeypatch.setattr("saturnmq.store.files._identity", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        segment.in_place()
    monkeypatch.undo()
    segment.close()


def test_the_page_cache_forgets_exactly_a_range(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = DISK.create_segment(f"{root}/0", 16384)
    asked: list[tuple[int, ...]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda _fd, *rest: asked.append(rest))
    segment.forget(4096, 12288)
    assert asked == [(4096, 8192, os.POSIX_FADV_DONTNEED)]
    segment.close()


def test_memory_that_cannot_be_locked_is_told_with_the_way_out(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = DISK.create_segment(f"{root}/0", 8192)
    calls: list[tuple[str, int, tuple[int, ...]]] = []

    class Library:
        answer = 0

        def mlock2(self, _start: ctypes.c_void_p, size: ctypes.c_size_t, *flags: int) -> int:
            return self.called("mlock2", size, flags)

        def munlock(self, _start: ctypes.c_void_p, size: ctypes.c_size_t, *flags: int) -> int:
            return self.called("munlock", size, flags)

        def called(self, name: str, size: ctypes.c_size_t, flags: tuple[int, ...]) -> int:
            calls.append((name, size.value, flags))
            ctypes.set_errno(errno.ENOMEM)
            return self.answer

    monkeypatch.setattr(files, "_LIBC", Library())
    segment.advise(Advice.LOCK)
    segment.advise(Advice.UNLOCK)
    assert calls == [("mlock2", 8192, (1,)), ("munlock", 8192, ())]  # 1: when they are touched
    Library.answer = -1
    with pytest.raises(OSError, match=r"cannot lock 8192 bytes.*ulimit -l") as refused:
        segment.advise(Advice.LOCK)
    assert (refused.value.errno, refused.value.filename) == (errno.ENOMEM, f"{root}/0")
    segment.close()


def test_the_room_of_a_file_system_is_what_its_users_have(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `df` counts it: of 1000 blocks 50 are kept for root."""
    told = SimpleNamespace(f_blocks=1000, f_bfree=650, f_bavail=600, f_frsize=4096, f_bsize=1 << 20)
    monkeypatch.setattr(os, "statvfs", {root: told}.__getitem__)
    assert DISK.free_space(root) == (950 * 4096, 600 * 4096)


def test_the_memory_is_that_of_the_machine_at_most() -> None:
    with open("/proc/meminfo") as file:
        kilobytes = int(next(line for line in file if line.startswith("MemTotal")).split()[1])
    assert DISK.memory_bytes() == memory_bytes() <= 2 * (kilobytes << 10)


# -- the lock -------------------------------------------------------------------------------------

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "r+b")
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, int(sys.argv[2]), int(sys.argv[3]))
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("start", "taken"), [(0, True), (1, False)])
def test_the_lock_is_the_first_byte_of_its_file(root: str, start: int, taken: bool) -> None:
    """As RocketMQ takes it."""
    path = f"{root}/lock"
    DISK.write_file(path, b"lock")
    command = [sys.executable, "-c", HOLD, path, "1" if taken else "100", str(start)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        assert DISK.locked(path) is taken
        before = len(os.listdir("/proc/self/fd"))
        if taken:
            with pytest.raises(DirectoryLocked, match=re.escape(root)):
                DISK.lock(path)
            assert len(os.listdir("/proc/self/fd")) == before
        else:
            DISK.lock(path).release()
        other.communicate()
    DISK.lock(path).release()


def test_a_lock_by_another_name_is_the_same_lock(root: str) -> None:
    os.symlink(root, f"{root}/again")
    lock = DISK.lock(f"{root}/lock")
    with pytest.raises(DirectoryLocked):
        DISK.lock(f"{root}/again/lock")
    assert DISK.locked(f"{root}/again/lock")
    lock.release()
    again = DISK.lock(f"{root}/again/lock")
    lock.release()  # it is another's now
    assert DISK.locked(f"{root}/lock")
    again.release()
    assert not DISK.locked(f"{root}/lock")


def test_memory_can_be_asked_for_what_it_holds_and_to_hold_more(tmp_path: Path) -> None:
    disk = NativeDisk()
    segment = disk.create_segment(str(tmp_path / f"{0:020d}"), 4 << 20)
    segment.write(0, b"x" * (4 << 20))
    segment.flush(0, 4 << 20)
    assert segment.is_cached(0, 4 << 20)
    segment.forget(0, 4 << 20)
    if segment.is_cached(3 << 20, 4 << 20):
        pytest.skip("this file system is in memory, or cannot tell")
    segment.cache(3 << 20, (3 << 20) + 5)
    assert segment.is_cached(3 << 20, (3 << 20) + 5)
    assert segment.is_cached((3 << 20) + 3, (3 << 20) + 5), "a part of a page"
    assert not segment.is_cached(0, 4 << 20), "one page of all is there"
    segment.cache(0, 4 << 20)
    assert segment.is_cached(0, 4 << 20)
    segment.forget(2 << 20, 3 << 20)
    assert not segment.is_cached(0, 4 << 20), "a part of all is missing"
    assert segment.is_cached(0, 2 << 20)
    segment.cache(2 << 20, 3 << 20)
    segment.close()
    segment.cache(0, 4 << 20)  # nobody reads it any more
