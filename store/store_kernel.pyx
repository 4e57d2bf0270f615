# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The loops over index items and queue entries, compiled; the reference of each stands in the module
that uses it: `indexfile.py`, `verify_index.py`, `lookup.py`, `cuts.py`."""

from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

cdef extern from *:
    """
    #define bswap32 __builtin_bswap32
    #define bswap64 __builtin_bswap64
    #define prefetch_to_write(address) __builtin_prefetch(address, 1)
    """
    uint32_t bswap32(uint32_t) nogil
    uint64_t bswap64(uint64_t) nogil
    void prefetch_to_write(const void *) nogil

cdef enum:
    AHEAD = 16  # items whose slots are on their way from memory


cdef inline int32_t get32(const unsigned char *p) noexcept nogil:
    cdef uint32_t v
    memcpy(&v, p, 4)
    return <int32_t>bswap32(v)


cdef inline int64_t get64(const unsigned char *p) noexcept nogil:
    cdef uint64_t v
    memcpy(&v, p, 8)
    return <int64_t>bswap64(v)


cdef inline void put32(unsigned char *p, int32_t x) noexcept nogil:
    cdef uint32_t v = bswap32(<uint32_t>x)
    memcpy(p, &v, 4)


cdef inline void put64(unsigned char *p, int64_t x) noexcept nogil:
    cdef uint64_t v = bswap64(<uint64_t>x)
    memcpy(p, &v, 8)


def insert_items(unsigned char[::1] view, int64_t slots, int64_t limit, list header, const unsigned char[::1] items):
    """Insert items until the file is full: how many went in."""
    cdef int64_t begin_time = header[0], end_time = header[1], begin_offset = header[2]
    cdef int64_t end_offset = header[3], used = header[4], count = header[5]
    cdef int64_t base = 40 + 4 * slots, total = items.shape[0] // 20, done = 0, offset, stamp, seconds, at
    cdef int32_t key_hash, previous
    cdef uint32_t slots_32 = <uint32_t>slots  # 32-bit division is several times faster
    cdef unsigned char *file
    cdef const unsigned char *item
    if not 0 < slots <= 0x7FFFFFFF or count < 1 or view.shape[0] < base + 20 * limit:
        raise ValueError("the index file is shorter than its slots and items need")
    if total:
        file = &view[0]
        with nogil:
            while done < total and count < limit:
                item = &items[20 * done]
                key_hash = get32(item)
                if key_hash < 0:
                    with gil:
                        raise ValueError("a key hash is negative")
                offset = get64(item + 4)
                stamp = get64(item + 12)
                if done + AHEAD < total:
                    prefetch_to_write(file + 40 + 4 * <int64_t>(<uint32_t>get32(item + 20 * AHEAD) % slots_32))
                at = 40 + 4 * <int64_t>(<uint32_t>key_hash % slots_32)
                previous = get32(file + at)
                if not 0 < previous < count:
                    previous = 0
                seconds = (stamp - begin_time) // 1000 if begin_time > 0 and stamp > begin_time else 0
                if seconds > 0x7FFFFFFF:
                    seconds = 0x7FFFFFFF
                put32(file + at, <int32_t>count)
                at = base + 20 * count
                put32(file + at, key_hash)
                put64(file + at + 4, offset)
                put32(file + at + 12, <int32_t>seconds)
                put32(file + at + 16, previous)
                if count <= 1:
                    begin_offset = offset
                    begin_time = stamp
                if previous == 0:
                    used += 1
                count += 1
                end_offset = offset
                end_time = stamp
                done += 1
    header[:] = [begin_time, end_time, begin_offset, end_offset, used, count]
    return done


def fill_slots(unsigned char[::1] view, int64_t slots, int64_t count):
    """As `indexfile.fill_slots_reference`."""
    cdef int64_t base = 40 + 4 * slots, number, at, used = 0
    cdef uint32_t slots_32 = <uint32_t>slots
    cdef unsigned char *file
    if not 0 < slots <= 0x7FFFFFFF or count < 1 or view.shape[0] < base + 20 * count:
        raise ValueError("the index file is shorter than its slots and items need")
    file = &view[0]
    with nogil:
        memset(file + 40, 0, 4 * slots)
        for number in range(1, count):
            at = 40 + 4 * <int64_t>(<uint32_t>get32(file + base + 20 * number) % slots_32)
            used += get32(file + at) == 0
            put32(file + at, <int32_t>number)
    return used


def entries_before(const unsigned char[::1] entries, int64_t limit):
    """As `consumequeue.entries_before_reference`."""
    cdef int64_t number, offset
    cdef int32_t size
    cdef list found = []
    for number in range(entries.shape[0] // 20):
        size = get32(&entries[20 * number + 8])
        if 0 < size < 0x7FFFFFFF:
            offset = get64(&entries[20 * number])
            if 0 <= offset < limit:
                found.append(number)
    return found


def match_items(const unsigned char[::1] expected, const unsigned char[::1] items, int64_t begin_time):
    """As `verify_index.match_items_reference`."""
    cdef int64_t total = min(expected.shape[0], items.shape[0]) // 20, number = 0, since
    cdef const unsigned char *want
    cdef const unsigned char *have
    while number < total:
        want = &expected[20 * number]
        have = &items[20 * number]
        if get32(want) != get32(have) or get64(want + 4) != get64(have + 4):
            break
        if begin_time >= 0:
            since = (get64(want + 12) - begin_time) // 1000 if begin_time else 0
            if get32(have + 12) != max(0, min(since, <int64_t>0x7FFFFFFF)):
                break
        number += 1
    return number


def follow_chains(const unsigned char[::1] items, int32_t[::1] newest, int32_t number):
    """As `verify_index.follow_chains_reference`."""
    cdef int64_t total = items.shape[0] // 20, done
    cdef uint32_t slots = <uint32_t>newest.shape[0]
    cdef int32_t key_hash
    cdef const unsigned char *item
    if not slots:
        raise ValueError("an index file has slots")
    for done in range(total):
        item = &items[20 * done]
        key_hash = get32(item)
        if key_hash < 0 or newest[<uint32_t>key_hash % slots] != get32(item + 16):
            return done
        newest[<uint32_t>key_hash % slots] = number + <int32_t>done
    return total


def plan_reads(const unsigned char[::1] entries, int64_t max_count, int64_t max_bytes, tuple in_memory, tuple on_disk, int64_t cached, object codes, int64_t visible, int64_t start):
    """As `lookup.plan_reads_reference`."""
    cdef int64_t scanned = 0, count = 0, total = 0, removed = 0, run_start = -1, run_end = -1
    cdef int64_t last = start, physical, number = entries.shape[0] // 20, i
    cdef int64_t memory_count = min(max_count, <int64_t>in_memory[0])
    cdef int64_t memory_bytes = min(max_bytes, <int64_t>in_memory[1])
    cdef int64_t disk_count = min(max_count, <int64_t>on_disk[0])
    cdef int64_t disk_bytes = min(max_bytes, <int64_t>on_disk[1])
    cdef int32_t size
    cdef bint filtered = codes is not None
    cdef list runs = []
    for i in range(number):
        physical = get64(&entries[20 * i])
        size = get32(&entries[20 * i + 8])
        if size == 0x7FFFFFFF and physical == 0:
            scanned += 1
            continue
        if physical + size > visible:
            break
        if count:
            if physical >= cached:
                if count >= memory_count or total + size > memory_bytes:
                    break
            elif count >= disk_count or total + size > disk_bytes:
                break
        scanned += 1
        last = physical
        if physical < start:
            removed += 1
            continue
        if filtered and get32(&entries[20 * i + 16]) not in codes:  # the lower half of the i64
            continue
        if physical != run_end:
            if run_start >= 0:
                runs.append((run_start, run_end))
            run_start = physical
        run_end = physical + size
        count += 1
        total += size
    if run_start >= 0:
        runs.append((run_start, run_end))
    return scanned, count, removed, last, runs


def weigh_entries(const unsigned char[::1] entries, int64_t room):
    """As `cuts.weigh_entries_reference`."""
    cdef int64_t count = 0, total = 0, number = entries.shape[0] // 20
    cdef int32_t size
    while count < number:
        size = get32(&entries[20 * count + 8])
        if size < 0 or size == 0x7FFFFFFF:
            size = 0
        if total + size > room:
            break
        count += 1
        total += size
    return count, total
