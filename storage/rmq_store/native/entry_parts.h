/* Pieces of an entry of a batch body, and of what a content key is made of. The twins are
   format/batches/batch_bodies.py and format/batches/content_keys.py, where the layouts are. */

#ifndef RMQ_ENTRY_PARTS_H
#define RMQ_ENTRY_PARTS_H

#include <string.h>

#include "big_endian.h"
#include "blake2b.h"

#define SEED_BYTES BLAKE_BLOCK_BYTES
#define DIGEST_BYTES BLAKE_DIGEST_BYTES
#define KEY_BYTES 16
#define PLACE_BYTES 16
#define ENTRY_HEAD_BYTES 20
#define UNIQUE_KEY_PREFIX "UNIQ_KEY\x01"
#define UNIQUE_KEY_PREFIX_BYTES 9
#define KEY_PROPERTY_BYTES (UNIQUE_KEY_PREFIX_BYTES + 2 * KEY_BYTES + 1)

static inline void put_entry_head(uint8_t *to, size_t entry_bytes, uint32_t flag, size_t body_bytes)
{
    put_word(to, (uint32_t)entry_bytes);
    put_long(to + 4, 0);
    put_word(to + 12, flag);
    put_word(to + 16, (uint32_t)body_bytes);
}

/* KEY_PROPERTY_BYTES: the key as UNIQ_KEY. */
static inline void put_key_property(uint8_t *to, const uint8_t *key)
{
    memcpy(to, UNIQUE_KEY_PREFIX, UNIQUE_KEY_PREFIX_BYTES);
    to += UNIQUE_KEY_PREFIX_BYTES;
    for (int byte = 0; byte < KEY_BYTES; byte++, to += 2) {
        to[0] = (uint8_t)"0123456789ABCDEF"[key[byte] >> 4];
        to[1] = (uint8_t)"0123456789ABCDEF"[key[byte] & 0xF];
    }
    *to = 2;
}

#endif
