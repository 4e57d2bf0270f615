/* CRC-32 (IEEE) twice: slicing by eight for any machine, folding by PCLMULQDQ where the processor has it.
 *
 * Folding. The CRC is the remainder of the message, as a polynomial over GF(2), modulo P. A 128-bit block
 * A that lies n bits before another one may be replaced by adding A * (x^n mod P) to that other block:
 * two carry-less multiplications (one for each half of A) and two exclusive ors. So four registers
 * swallow 64 bytes a turn, each moved on by 512 bits; they are then folded into one by 128 bits each,
 * and the 16 bytes left have the same remainder as all that went in. Those are finished by table,
 * which costs a few nanoseconds and spares the Barrett reduction.
 *
 * This CRC is bit-reflected: bit 0 of a byte is the highest power. In that order the product of two
 * 64-bit values sits one bit too low, so the constants are reflected and shifted up by one, i.e.
 * K(n) = reflect64(x^(n-1) mod P) with n the distance + 64 for the half nearer to the message's begin.
 * They are computed at set-up from P alone.
 *
 * Joining. The CRC of A|B is crc(A) * x^(8 * |B|) + crc(B): a frame's CRC covers its body, whose CRC is
 * known already. (The inversions at both ends cancel out.)
 */
#include "crc32.h"

#include <string.h>

#define POLYNOMIAL 0xEDB88320u /* reflected */

static uint32_t table[8][256];
static int is_ready;
static int is_hardware;

static void fill_tables(void)
{
    for (uint32_t n = 0; n < 256; n++) {
        uint32_t crc = n;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? POLYNOMIAL : 0);
        table[0][n] = crc;
    }
    for (uint32_t n = 0; n < 256; n++)
        for (int k = 1; k < 8; k++)
            table[k][n] = (table[k - 1][n] >> 8) ^ table[0][table[k - 1][n] & 0xFF];
}

/* The state is kept inverted by the callers; this is the bare shift register. */
static uint32_t shift_in(uint32_t state, const uint8_t *data, size_t size)
{
    while (size >= 8) {
        uint32_t low = state ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 |
                                (uint32_t)data[3] << 24);
        state = table[7][low & 0xFF] ^ table[6][(low >> 8) & 0xFF] ^ table[5][(low >> 16) & 0xFF] ^
                table[4][low >> 24] ^ table[3][data[4]] ^ table[2][data[5]] ^ table[1][data[6]] ^
                table[0][data[7]];
        data += 8;
        size -= 8;
    }
    while (size--)
        state = (state >> 8) ^ table[0][(state ^ *data++) & 0xFF];
    return state;
}

uint32_t saturnmq_crc32_portable(uint32_t crc, const uint8_t *data, size_t size)
{
    return ~shift_in(~crc, data, size);
}

/* a * b mod P: for each power of x in a, highest last, b times that power. */
static uint32_t multiply_portable(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (uint32_t power = 0x80000000u; power; power >>= 1) {
        if (a & power)
            product ^= b;
        b = (b >> 1) ^ (b & 1 ? POLYNOMIAL : 0);
    }
    return product;
}

#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
#define HAS_FOLDING 1
#include <immintrin.h>

static uint64_t by_512[2], by_128[2];

/* x^power mod P, reflected in the low 32 bits: multiply by x `power` times. */
static uint32_t power_of_x(unsigned power)
{
    uint32_t value = 0x80000000u; /* 1 */
    while (power--)
        value = (value >> 1) ^ (value & 1 ? POLYNOMIAL : 0);
    return value;
}

static void fill_constants(void)
{
    /* reflect64 of a 32-bit remainder puts it in the upper half; the shift by one comes from the power. */
    by_512[0] = (uint64_t)power_of_x(512 + 64 - 1) << 32;
    by_512[1] = (uint64_t)power_of_x(512 - 1) << 32;
    by_128[0] = (uint64_t)power_of_x(128 + 64 - 1) << 32;
    by_128[1] = (uint64_t)power_of_x(128 - 1) << 32;
}

#define FOLDING __attribute__((target("pclmul,sse4.1")))

FOLDING static inline __m128i fold(__m128i block, __m128i constants, __m128i next)
{
    __m128i near_begin = _mm_clmulepi64_si128(block, constants, 0x00);
    __m128i near_end = _mm_clmulepi64_si128(block, constants, 0x11);
    return _mm_xor_si128(_mm_xor_si128(near_begin, near_end), next);
}

/* Loaded at n these choose: a shuffle that puts the first n bytes of a block at its end behind zeros
 * (at 16 + n: the others at its beginning before zeros), and a mask of the last n bytes. */
#define ALL 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF
static const uint8_t shuffles[48] = {ALL, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, ALL};
static const uint8_t masks[32] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, ALL};

/* `size` >= 16. */
FOLDING static uint32_t fold_in(uint32_t state, const uint8_t *data, size_t size)
{
    const __m128i *blocks = (const __m128i *)data;
    __m128i a = _mm_xor_si128(_mm_loadu_si128(blocks), _mm_cvtsi32_si128((int)state));
    __m128i constants = _mm_loadu_si128((const __m128i *)by_128);
    if (size >= 64) {
        __m128i b = _mm_loadu_si128(blocks + 1);
        __m128i c = _mm_loadu_si128(blocks + 2);
        __m128i d = _mm_loadu_si128(blocks + 3);
        __m128i far = _mm_loadu_si128((const __m128i *)by_512);
        blocks += 4;
        size -= 64;
        while (size >= 64) {
            a = fold(a, far, _mm_loadu_si128(blocks));
            b = fold(b, far, _mm_loadu_si128(blocks + 1));
            c = fold(c, far, _mm_loadu_si128(blocks + 2));
            d = fold(d, far, _mm_loadu_si128(blocks + 3));
            blocks += 4;
            size -= 64;
        }
        a = fold(fold(fold(a, constants, b), constants, c), constants, d);
    } else {
        blocks += 1;
        size -= 16;
    }
    while (size >= 16) {
        a = fold(a, constants, _mm_loadu_si128(blocks));
        blocks += 1;
        size -= 16;
    }
    if (size) { /* the register moves on by what is left: its first bytes are folded into the block at the end */
        __m128i first = _mm_shuffle_epi8(a, _mm_loadu_si128((const __m128i *)(shuffles + size)));
        __m128i others = _mm_shuffle_epi8(a, _mm_loadu_si128((const __m128i *)(shuffles + 16 + size)));
        const uint8_t *end = (const uint8_t *)blocks + size;
        __m128i last = _mm_and_si128(_mm_loadu_si128((const __m128i *)(end - 16)),
                                     _mm_loadu_si128((const __m128i *)(masks + size)));
        a = fold(first, constants, _mm_or_si128(others, last));
    }
    uint8_t rest[16];
    _mm_storeu_si128((__m128i *)rest, a);
    return shift_in(0, rest, sizeof rest);
}

FOLDING static uint32_t multiply_hardware(uint32_t a, uint32_t b)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b), 0);
    uint64_t bits[2];
    _mm_storeu_si128((__m128i *)bits, product);
    /* The upper powers lie in the low half: they are reduced by as many zeros shifted in. */
    uint64_t all = bits[0] << 1;
    uint32_t upper = (uint32_t)all;
    return (uint32_t)(all >> 32) ^ table[3][upper & 0xFF] ^ table[2][(upper >> 8) & 0xFF] ^
           table[1][(upper >> 16) & 0xFF] ^ table[0][upper >> 24];
}
#endif

static uint32_t multiply(uint32_t a, uint32_t b)
{
#ifdef HAS_FOLDING
    if (is_hardware)
        return multiply_hardware(a, b);
#endif
    return multiply_portable(a, b);
}

uint32_t saturnmq_crc32_shift(size_t size)
{
    uint32_t result = 0x80000000u; /* 1 */
    uint32_t square = 0x00800000u; /* x^8, then its square, and so on */
    for (; size; size >>= 1) {
        if (size & 1)
            result = multiply(result, square);
        square = multiply(square, square);
    }
    return result;
}

uint32_t saturnmq_crc32_join(uint32_t crc_a, uint32_t crc_b, uint32_t shift_b)
{
    return multiply(crc_a, shift_b) ^ crc_b;
}

uint32_t saturnmq_crc32_join_portable(uint32_t crc_a, uint32_t crc_b, uint32_t shift_b)
{
    return multiply_portable(crc_a, shift_b) ^ crc_b;
}

void saturnmq_crc32_setup(void)
{
    if (is_ready)
        return;
    fill_tables();
#ifdef HAS_FOLDING
    fill_constants();
    __builtin_cpu_init();
    is_hardware = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
#endif
    is_ready = 1;
}

int saturnmq_crc32_is_hardware(void)
{
    return is_hardware;
}

uint32_t saturnmq_crc32(uint32_t crc, const uint8_t *data, size_t size)
{
#ifdef HAS_FOLDING
    if (is_hardware && size >= 16)
        return ~fold_in(~crc, data, size);
#endif
    return saturnmq_crc32_portable(crc, data, size);
}
