"""The wall clock of one process, moved while it runs: a small library put before libc.

It answers `clock_gettime(CLOCK_REALTIME)`, `gettimeofday` and `time` with the true time plus a
shift of nanoseconds that it reads from a mapped file of eight bytes; other clocks stay. Built from
the source below with the C compiler of this machine.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from pathlib import Path

from saturnmq.drills.failover.backend import DrillUnavailable

_VARIABLE = "DRILL_CLOCK_SHIFT"
_SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *shift;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("DRILL_CLOCK_SHIFT");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *page = mmap(0, sizeof *shift, PROT_READ, MAP_SHARED, file, 0);
    if (page != MAP_FAILED) shift = page;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    int failed = syscall(SYS_clock_gettime, clock, out);
    if (!failed && shift && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t now = out->tv_sec * 1000000000LL + out->tv_nsec + *shift;
        out->tv_sec = now / 1000000000LL;
        out->tv_nsec = now % 1000000000LL;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    out->tv_sec = now.tv_sec;
    out->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
"""


def why_not() -> str | None:
    """Why no clock can be moved here, or None."""
    if _compiler() is None:
        return "moving a process's clock needs a C compiler: install the package gcc"
    return None


def _compiler() -> str | None:
    return shutil.which("cc") or shutil.which("gcc")


class Clocks:
    """The library, and a shift for each node."""

    def __init__(self, directory: Path, names: list[str]) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        for name in names:
            self.shift(name, 0.0)
        self._library = directory / "clock.so"
        source = directory / "clock.c"
        source.write_text(_SOURCE)
        compiler = _compiler()
        if compiler is None:
            raise DrillUnavailable(why_not() or "")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(self._library), str(source)]
        done = subprocess.run(command, capture_output=True, check=False)
        if done.returncode:
            raise DrillUnavailable(f"{compiler} failed: {done.stderr.decode(errors='replace')}")

    def prefix(self, name: str) -> list[str]:
        """The prefix of a command line that makes it run on the node's clock."""
        return ["env", f"LD_PRELOAD={self._library}", f"{_VARIABLE}={self._directory / name}"]

    def shift(self, name: str, seconds: float) -> None:
        """Now; the bytes are written at once, so nobody reads half of them."""
        path = self._directory / name
        with open(path, "r+b" if path.exists() else "wb", buffering=0) as file:
            file.write(struct.pack("=q", int(seconds * 1e9)))
