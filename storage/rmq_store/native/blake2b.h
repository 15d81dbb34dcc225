/* BLAKE2b of 16 bytes, without a key (RFC 7693), of texts that begin with the same block; for batch_bodies.c. */

#ifndef RMQ_BLAKE2B_H
#define RMQ_BLAKE2B_H

#include <stddef.h>
#include <stdint.h>

#define BLAKE_BLOCK_BYTES 128
#define BLAKE_DIGEST_BYTES 16
#define BLAKE_HEAD_BYTES_MAX BLAKE_BLOCK_BYTES
#define BLAKE_LANES 4

/* What stands behind the first block: a head, then more; together at least a byte. */
typedef struct {
    const uint8_t *head, *more;
    size_t head_bytes, more_bytes;
} BlakeText;

/* The state behind the first block. */
void blake2b_begin(uint64_t *state, const uint8_t *block);

/* The digests of 1 to BLAKE_LANES texts, one behind another. */
void blake2b_end(const uint64_t *state, const BlakeText *texts, int count, uint8_t *digests);

/* Choose the code for this processor; once per process, with the GIL held. */
void blake2b_prepare(void);

#endif
