/* One frame's fixed fields and lengths, checked. Layout and rules: rmq_store/format/frames/frame_check.py. */

#ifndef RMQ_FRAMES_H
#define RMQ_FRAMES_H

#include <stddef.h>
#include <stdint.h>

#include "native.h"
#include "prefetch.h"

/* With IPv4 hosts, up to the body; and a topic of no bytes with both its lengths. */
#define FRAME_HEADER_BYTES 88
#define FRAME_BYTES_MIN (FRAME_HEADER_BYTES + 1 + 2)
#define MAGIC_V1 0xDAA320A7u
#define MAGIC_V2 0xDAA320ABu
#define CRC_PROPERTY_BYTES 20

#define FRAME_COMPRESSED 0x1u
#define BORN_HOST_V6 0x10u
#define STORE_HOST_V6 0x20u

/* Where the hosts of a frame without an IPv6 host lie. */
#define BORN_HOST_POSITION 48
#define STORE_HOST_POSITION 64

/* Order of the rows of the two result arrays. */
enum { QUEUE_ID, FLAG, SYS_FLAG, BODY_CRC, RECONSUME_TIMES, NARROW_FIELDS };
enum {
    QUEUE_OFFSET,
    PHYSICAL_OFFSET,
    BORN_TIMESTAMP,
    STORE_TIMESTAMP,
    PREPARED_TRANSACTION_OFFSET,
    BODY_START,
    BODY_END,
    TOPIC_START,
    TOPIC_END,
    PROPERTIES_START,
    PROPERTIES_END,
    WIDE_FIELDS
};

/* Frames ahead whose bytes should be on their way: they lie anywhere, the processor cannot guess where. */
#define FRAMES_AHEAD 8
/* Most messages have no more. */
#define PROPERTIES_EXPECTED_BYTES 256

/* Send for the bytes of a frame, at least its first and last ones. */
PREFETCHING expect_frame(const uint8_t *data, int64_t count, int64_t position, int64_t size)
{
    if (position < 0 || size < FRAME_BYTES_MIN || position > count - size)
        return;
    expect_bytes(data, count, position, position + size);
    PREFETCH(data + position + size - 1);
    PREFETCH(data + position + size - 1 - CACHE_LINE_BYTES);
}

/* As `expect_frame`, where nobody looks at the body: send for what is before it, and for the properties behind it. */
PREFETCHING expect_ends(const uint8_t *data, int64_t count, int64_t position, int64_t size)
{
    if (position < 0 || size < FRAME_BYTES_MIN || position > count - size)
        return;
    int64_t behind = size - PROPERTIES_EXPECTED_BYTES;
    expect_bytes(data, count, position, position + FRAME_BYTES_MIN);
    expect_bytes(data, count, position + (behind < FRAME_BYTES_MIN ? FRAME_BYTES_MIN : behind), position + size);
}

/* Read the frame of `size` bytes at `position` of `count` bytes of data into row `row` of the fields, which have `rows`
   rows. `base`, if given, is the physical offset of the data's first byte. False: it is not a message there. */
int read_frame(const uint8_t *data, int64_t count, int64_t position, int64_t size, const int64_t *base, int32_t *narrow,
               int64_t *wide, ptrdiff_t row, ptrdiff_t rows);

/* The `base` that Python gives to `read_frame`; 0 for None, where the caller passes none. False: an error is set. */
int take_base(int64_t *base, PyObject *given);

#endif
