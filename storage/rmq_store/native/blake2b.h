/* BLAKE2b of 16 bytes, without a key (RFC 7693), of texts that begin with the same block; for content keys. */

#ifndef RMQ_BLAKE2B_H
#define RMQ_BLAKE2B_H

#include <stddef.h>
#include <stdint.h>

#define BLAKE_BLOCK_BYTES 128
#define BLAKE_DIGEST_BYTES 16
#define BLAKE_LANES_MAX 8
#define BLAKE_PIECES 4

/* What stands behind the first block, in pieces; together at least a byte. */
typedef struct {
    struct {
        const uint8_t *bytes;
        size_t size;
    } pieces[BLAKE_PIECES];
} BlakeText;

/* How many texts this processor takes at once, at most BLAKE_LANES_MAX. */
int blake2b_lanes(void);

/* The state behind the first block. */
void blake2b_begin(uint64_t *state, const uint8_t *block);

/* The digests of 1 to `blake2b_lanes()` texts, one behind another. */
void blake2b_end(const uint64_t *state, const BlakeText *texts, int count, uint8_t *digests);

/* Choose the code for this processor; once per process, with the GIL held. */
void blake2b_prepare(void);

#endif
