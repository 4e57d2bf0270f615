/* CRC-32 (IEEE, as zlib and java.util.zip.CRC32): the chosen implementation and the portable one. */
#ifndef SATURNMQ_CRC32_H
#define SATURNMQ_CRC32_H

#include <stddef.h>
#include <stdint.h>

/* Chooses by the processor. Call once before the others; again is harmless. */
void saturnmq_crc32_setup(void);

/* 1 when carry-less multiplication is used. */
int saturnmq_crc32_is_hardware(void);

/* The CRC of `size` bytes, continuing `crc` (0 to begin). */
uint32_t saturnmq_crc32(uint32_t crc, const uint8_t *data, size_t size);

/* The same without special instructions. */
uint32_t saturnmq_crc32_portable(uint32_t crc, const uint8_t *data, size_t size);

/* What `size` more bytes do to a CRC: x^(8 * size) mod P. Worth keeping for the next time. */
uint32_t saturnmq_crc32_shift(size_t size);

/* The CRC of A and B one after the other, from the CRC of each and the shift of B's size. */
uint32_t saturnmq_crc32_join(uint32_t crc_a, uint32_t crc_b, uint32_t shift_b);
uint32_t saturnmq_crc32_join_portable(uint32_t crc_a, uint32_t crc_b, uint32_t shift_b);

#endif
