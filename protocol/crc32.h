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

#endif
