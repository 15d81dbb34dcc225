/* Sending for bytes that will be read soon: they lie anywhere, the processor cannot guess where. */

#ifndef RMQ_PREFETCH_H
#define RMQ_PREFETCH_H

#include <stdint.h>

/* A function that does nothing else has no effect that a compiler knows of: it leaves calls of it out, unless it is a
   part of who calls it before anybody thinks about that. */
#if defined(__GNUC__)
#define PREFETCH(place) __builtin_prefetch(place)
#define PREFETCHING static inline __attribute__((always_inline)) void
#else
#define PREFETCH(place) ((void)(place))
#define PREFETCHING static inline void
#endif

#define CACHE_LINE_BYTES 64
/* Of more bytes the processor itself sends for the rest, when it sees where they are read. */
#define EXPECTED_BYTES 1024

/* Send for the bytes [start, end), if they lie in `count` bytes of data. */
PREFETCHING expect_bytes(const uint8_t *data, int64_t count, int64_t start, int64_t end)
{
    if (start < 0 || end > count)
        return;
    for (int64_t at = start; at < end && at < start + EXPECTED_BYTES; at += CACHE_LINE_BYTES)
        PREFETCH(data + at);
}

#endif
