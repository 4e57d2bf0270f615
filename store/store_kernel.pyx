# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The loops over index items and queue entries, compiled; the reference of each stands in the module
that uses it: `indexfile.py`, `verify_index.py`, `lookup.py`, `sql_filter.py`, `cuts.py`."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from saturnmq.protocol.frame_kernel.layout cimport FRAME_BYTES_MIN, Slice, frame_properties
from saturnmq.protocol.sql92_kernel cimport UNSURE, YES, SqlProgram, Truth

cdef extern from *:
    """
    #define bswap32 __builtin_bswap32
    #define bswap64 __builtin_bswap64
    #define prefetch_to_write(address) __builtin_prefetch(address, 1)
    #define prefetch(address) __builtin_prefetch(address)
    """
    uint32_t bswap32(uint32_t) nogil
    uint64_t bswap64(uint64_t) nogil
    void prefetch_to_write(const void *) nogil
    void prefetch(const void *) nogil

cdef enum:
    AHEAD = 16  # items whose slots are on their way from memory
    FRAMES_AHEAD = 4
    WINDOW = 16 << 20  # bytes of the log that are asked for at once
    MANY = 64  # entries, a few microseconds; for fewer the GIL is kept
    CODES_MOST = 8  # tags that are compared one after the other
    FILLER_SIZE = 0x7FFFFFFF


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
    """As `index_items.fill_slots_reference`."""
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
    cdef int32_t wanted[CODES_MOST]
    cdef int32_t code
    cdef int few = 0, k
    if filtered and len(codes) <= CODES_MOST:
        for each in codes:
            if -0x80000000 <= each <= 0x7FFFFFFF:  # no low half is another number
                wanted[few] = each
                few += 1
        codes = None
    for i in range(number):
        physical = get64(&entries[20 * i])
        size = get32(&entries[20 * i + 8])
        if size == FILLER_SIZE and physical == 0:
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
        if filtered:
            code = get32(&entries[20 * i + 16])  # the lower half of the i64
            if codes is None:
                for k in range(few):
                    if code == wanted[k]:
                        break
                else:
                    continue
            elif code not in codes:
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


cdef enum Pause:
    AT_END
    ELSEWHERE  # the next frame is not in the window
    ASK_REFERENCE  # the program cannot decide about the next frame


cdef struct Sifting:
    const unsigned char *entries
    unsigned char *sifted
    int64_t count, at  # of the entries; those before `at` were looked at
    const unsigned char *window  # a view of the log from `first` to `last`
    int64_t first, last
    int64_t asked  # the entry that it was asked for: no other view has more of its frame
    int64_t visible, cached, max_count, max_bytes
    int64_t work, work_max, cold_work, message_work, byte_work
    Slice properties  # of the next frame


cdef inline void put_sifted(Sifting *s, int64_t code) noexcept nogil:
    memcpy(s.sifted + 20 * s.at, s.entries + 20 * s.at, 12)
    put64(s.sifted + 20 * s.at + 12, code)
    s.at += 1


cdef inline void put_message(Sifting *s, bint passed, int64_t work) noexcept nogil:
    """The next entry, which is one of a message, was decided."""
    cdef const unsigned char *entry = s.entries + 20 * s.at
    s.work += work + (s.cold_work if get64(entry) < s.cached else 0)
    if passed:
        s.max_count -= 1
        s.max_bytes -= get32(entry + 8)
    put_sifted(s, passed)


cdef inline void fetch_ahead(const Sifting *s) noexcept nogil:
    """Have the head and the end of a later frame brought from memory."""
    cdef const unsigned char *entry = s.entries + 20 * (s.at + FRAMES_AHEAD)
    cdef int64_t physical
    cdef int32_t size
    if s.at + FRAMES_AHEAD < s.count:
        physical, size = get64(entry), get32(entry + 8)
        if size >= FRAME_BYTES_MIN and s.first <= physical <= s.last - size:
            entry = s.window + (physical - s.first)
            prefetch(entry)
            prefetch(entry + 64)
            prefetch(entry + size - 1)
            prefetch(entry + max(size - 65, 0))
            prefetch(entry + max(size - 129, 0))
            prefetch(entry + max(size - 193, 0))


cdef Pause sift_on(Sifting *s, SqlProgram program) noexcept nogil:
    """Look at entries as far as it goes without Python."""
    cdef const unsigned char *entry
    cdef int64_t physical
    cdef int32_t size
    cdef Slice found
    cdef Truth truth
    while s.at < s.count:
        entry = s.entries + 20 * s.at
        physical, size = get64(entry), get32(entry + 8)
        if size == FILLER_SIZE and physical == 0:
            put_sifted(s, 0)
            continue
        if physical > s.visible - size or s.work >= s.work_max or s.max_count <= 0 or s.max_bytes <= 0:
            break
        found.at, found.size = NULL, 0
        if size >= FRAME_BYTES_MIN:
            if not s.first <= physical <= s.last - size and s.at != s.asked:
                return ELSEWHERE
            found = frame_properties(s.window + (physical - s.first), min(size, s.last - physical))
        fetch_ahead(s)
        truth = YES if found.at == NULL else program.decide(found.at, found.size)
        if truth == UNSURE:
            s.properties = found
            return ASK_REFERENCE
        put_message(s, truth == YES, s.message_work + s.byte_work * found.size)
    return AT_END


def sift_compiled(const unsigned char[::1] entries, SqlProgram program not None, judge, read, int64_t visible, int64_t cached, int64_t max_count, int64_t max_bytes, tuple costs):
    """As `sql_filter.sift_reference`; `judge` says of encoded properties what the reference thinks of
    them, and the work that it was."""
    cdef Sifting s
    cdef const unsigned char[::1] view
    cdef bint keeps_gil = entries.shape[0] < 20 * MANY
    cdef Pause pause
    cdef bytes sifted = PyBytes_FromStringAndSize(NULL, entries.shape[0])
    s.entries, s.count = &entries[0] if entries.shape[0] else NULL, entries.shape[0] // 20
    s.sifted, s.at = <unsigned char *>PyBytes_AS_STRING(sifted), 0
    s.window, s.first, s.last, s.asked = NULL, 0, 0, -1
    s.visible, s.cached, s.max_count, s.max_bytes = visible, cached, max_count, max_bytes
    s.work, (s.work_max, s.cold_work, s.message_work, s.byte_work) = 0, costs
    while True:
        if keeps_gil:
            pause = sift_on(&s, program)
        else:
            with nogil:
                pause = sift_on(&s, program)
        if pause == AT_END:
            return memoryview(sifted)[:20 * s.at]
        if pause == ELSEWHERE:
            s.first = s.last = get64(s.entries + 20 * s.at)
            s.window, s.asked = NULL, s.at
            found = read(s.first, max(WINDOW, get32(s.entries + 20 * s.at + 8)))
            if found is not None and len(found):
                view = found
                s.window, s.last = &view[0], s.first + view.shape[0]
        else:
            keeps_gil = True  # the reference will be asked again soon
            passed, work = judge(s.properties.at[:s.properties.size])
            put_message(&s, passed, work)
