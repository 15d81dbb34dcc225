/* Copying past the caches: for what would not be in them any more when somebody looks. Its places need not be read before
   they are written, which they are otherwise, a line at a time. */

#ifndef RMQ_STREAM_H
#define RMQ_STREAM_H

#include <stdint.h>
#include <string.h>

#define LINE_BYTES 64
/* Below, most lines would be written by halves. */
#define STREAM_BYTES_MIN 256
/* Less than this stays in the caches. */
#define STREAM_FROM_BYTES (1 << 20)

#if defined(__SSE2__)
#include <emmintrin.h>

/* As `memcpy`, of STREAM_BYTES_MIN or more; nobody else may look before `end_streams`. */
static inline void stream(uint8_t *to, const uint8_t *from, size_t size)
{
    size_t before = (size_t)(-(uintptr_t)to % LINE_BYTES);
    memcpy(to, from, before);
    for (to += before, from += before, size -= before; size >= LINE_BYTES; size -= LINE_BYTES) {
        for (const uint8_t *end = from + LINE_BYTES; from < end; to += 16, from += 16)
            _mm_stream_si128((__m128i *)to, _mm_loadu_si128((const __m128i *)from));
    }
    memcpy(to, from, size);
}

static inline void end_streams(void)
{
    _mm_sfence();
}
#else
static inline void stream(uint8_t *to, const uint8_t *from, size_t size)
{
    memcpy(to, from, size);
}

static inline void end_streams(void)
{
}
#endif

#endif
