/* CRC-32 as zlib's (reflected polynomial 0xEDB88320), for the other parts. */

#ifndef RMQ_CRC_H
#define RMQ_CRC_H

#include <stddef.h>
#include <stdint.h>

/* Make the tables; once per process, before any other of these functions, with the GIL held. */
void crc_prepare(void);

/* The CRC of what `crc` is the CRC of, followed by `data`. */
uint32_t crc_extend(uint32_t crc, const uint8_t *data, size_t size);

/* The register `crc` after `zero_bytes` more zero bytes: crc(a + b) = crc_shift(crc(a), |b|) ^ crc(b). */
uint32_t crc_shift(uint32_t crc, uint64_t zero_bytes);

/* What two numbers of 8 bytes, as Java writes them, add to the register in a text that is zero elsewhere. */
uint32_t crc_of_longs(uint64_t first, uint64_t second);

/* For many registers: crc_shift(crc, n) = crc_multiply(crc, crc_factor(n)). */
uint32_t crc_factor(uint64_t zero_bytes);
uint32_t crc_multiply(uint32_t crc, uint32_t factor);

#endif
