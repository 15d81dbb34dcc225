/* Texts of messages, UTF-8, for the other parts. */

#ifndef RMQ_TEXT_H
#define RMQ_TEXT_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    const uint8_t *bytes;
    size_t size;
} Text;

/* Whether this is text at all. */
int is_utf8(const uint8_t *text, size_t size);

/* Whether a text can be a part of a property: valid UTF-8 without the separators x01 and x02. */
int text_is_storable(const uint8_t *text, size_t size);

/* Java's String.hashCode of some text whose hash is `seed`, followed by `text`, which is valid UTF-8. */
uint32_t java_hash(uint32_t seed, const uint8_t *text, size_t size);

/* The non-negative hash that index entries hold: IndexFile.java (indexKeyHashMethod). */
uint32_t index_hash(uint32_t hash);

#endif
