/* Slices of one buffer put one behind another into a new one, with the 32-bit offsets of Arrow's binary arrays. */

#ifndef RMQ_COPY_H
#define RMQ_COPY_H

#include "stream.h"

typedef struct {
    const uint8_t *data;
    int64_t size;
} Source;

typedef struct {
    uint8_t *data;
    int32_t *offset; /* of what was copied last; those of the next go behind it */
    int64_t size, room;
} Target;

/* Short slices are copied in blocks of constant size, where there is room for what that copies too much. */
#define COPY_BLOCK_BYTES 16

/* Copy `source[start:end]`, past the caches if it `streams`. False: it does not lie there, or there is no room for it. */
static inline int copy_slice_as(Target *target, const Source *source, int64_t start, int64_t end, int streams)
{
    if (start < 0 || start > end || end > source->size)
        return 0;
    int64_t size = end - start, room = target->room - target->size;
    if (size > room || target->size + size > INT32_MAX)
        return 0;
    uint8_t *to = target->data + target->size;
    const uint8_t *from = source->data + start;
    if (size <= 2 * COPY_BLOCK_BYTES && room >= 2 * COPY_BLOCK_BYTES && source->size - start >= 2 * COPY_BLOCK_BYTES) {
        memcpy(to, from, COPY_BLOCK_BYTES);
        if (size > COPY_BLOCK_BYTES)
            memcpy(to + COPY_BLOCK_BYTES, from + COPY_BLOCK_BYTES, COPY_BLOCK_BYTES);
    } else if (streams && size >= STREAM_BYTES_MIN) {
        stream(to, from, (size_t)size);
    } else {
        memcpy(to, from, (size_t)size);
    }
    target->size += size;
    *++target->offset = (int32_t)target->size;
    return 1;
}

static inline int copy_slice(Target *target, const Source *source, int64_t start, int64_t end)
{
    return copy_slice_as(target, source, start, end, 0);
}

#endif
