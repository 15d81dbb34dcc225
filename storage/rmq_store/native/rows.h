/* The columns of a batch of messages, for the encoder: one walk over a row, whether it is measured or written. */

#ifndef RMQ_ROWS_H
#define RMQ_ROWS_H

#include "native.h"

/* Properties that the index or the queues want to see, besides the column or the entry that they come from. */
enum { UNIQUE_KEY, KEYS, TAGS, SEEN, UNSEEN = SEEN };

typedef struct {
    const uint8_t *text; /* null: there is none */
    size_t size;
} Slice;

/* n texts: int32 offsets (n + 1), bytes, and which are there: a bitmap from bit `first_bit` on, or nothing. */
typedef struct {
    Items offsets, data, validity;
    Py_ssize_t first_bit;
} Texts;

/* Take offsets (n + 1, int32), bytes, bitmap or None, first bit. `count` below 0: as many as there are. False with a
   Python error that names `name`; `release_texts` is needed in any case. */
int take_texts(Texts *texts, PyObject *object, const char *name, Py_ssize_t count);

void release_texts(Texts *texts);

/* Row `row` of the bytes behind int32 offsets. False if it does not lie in them. */
static inline int slice_at(const Items *offsets, const Items *data, Py_ssize_t row, Slice *slice)
{
    const int32_t *offset = (const int32_t *)offsets->view.buf + row;
    if (offset[0] < 0 || offset[1] < offset[0] || offset[1] > data->count)
        return 0;
    slice->text = (const uint8_t *)data->view.buf + offset[0];
    slice->size = (size_t)(offset[1] - offset[0]);
    return 1;
}

static inline int text_is_there(const Texts *texts, Py_ssize_t row)
{
    Py_ssize_t bit = texts->first_bit + row;
    return texts->validity.view.obj == NULL || (((const uint8_t *)texts->validity.view.buf)[bit >> 3] >> (bit & 7) & 1);
}

/* A column that becomes a property. */
typedef struct {
    Items name;
    Texts values;
    int seen;
} Named;

#define NAMED_MAX 16
#define HEADER_BYTES_MIN 88
#define PROPERTIES_BYTES_MAX 32767

/* What is known of a name in the map. */
typedef struct {
    Slice name;
    int is_left_out;
    int named; /* the column that stands before it where that has a value, or -1 */
    int seen;
} Entry;

/* Maps name the same properties row after row, mostly at the same place. */
#define KNOWN_ENTRIES 16

typedef struct {
    Py_ssize_t count;
    Items body_offsets, bodies;                             /* int64 (n + 1,) */
    Items topic_codes, topic_offsets, topics, topic_hashes; /* int32 (n,), (k + 1,), bytes, uint32 (k,) */
    Items sys_flags;                                        /* int32 (n,) */
    Named named[NAMED_MAX];
    int named_count;
    Items entry_offsets; /* int32 (n + 1,), or nothing */
    Texts names, values; /* of the entries */
    Texts left_out;      /* names of entries that are not stored */
    Entry known[KNOWN_ENTRIES];
    Items header;        /* the bytes before the body, as far as they are the same in all frames */
    Py_ssize_t body_bytes_max, unique_key_bytes;
    int has_crc, indexes_tags;
} Rows;

/* Take the tuple that native_encoder.py makes. False with a Python error; `release_rows` is needed in any case. */
int take_rows(Rows *rows, PyObject *object);

void release_rows(Rows *rows);

/* Bytes go to `next`, but never beyond `end`; while `next` is null they are only counted. */
typedef struct {
    uint8_t *next, *end;
    int64_t size;
} Out;

/* As memcpy, but most names and values are so short that to call it takes longer than to copy them. */
static inline void copy_short(uint8_t *to, const uint8_t *from, size_t size)
{
    if (size > 32 || size < 4) {
        memcpy(to, from, size);
    } else if (size >= 16) {
        memcpy(to, from, 16);
        memcpy(to + size - 16, from + size - 16, 16);
    } else if (size >= 8) {
        memcpy(to, from, 8);
        memcpy(to + size - 8, from + size - 8, 8);
    } else {
        memcpy(to, from, 4);
        memcpy(to + size - 4, from + size - 4, 4);
    }
}

static inline int put(Out *out, const void *data, size_t size)
{
    out->size += (int64_t)size;
    if (out->next == NULL)
        return 1;
    if (size > (size_t)(out->end - out->next))
        return 0;
    memcpy(out->next, data, size);
    out->next += size;
    return 1;
}

/* A property: name, separator, value, separator. */
static inline int put_property(Out *out, Slice name, Slice value)
{
    size_t size = name.size + value.size + 2;
    out->size += (int64_t)size;
    if (out->next == NULL)
        return 1;
    if (size > (size_t)(out->end - out->next))
        return 0;
    uint8_t *separator = out->next + name.size;
    copy_short(out->next, name.text, name.size);
    *separator = 1;
    copy_short(separator + 1, value.text, value.size);
    out->next += size;
    out->next[-1] = 2;
    return 1;
}

/* Topic and body of a row. False if they do not lie in their columns. */
int topic_and_body(const Rows *rows, Py_ssize_t row, int32_t *code, Slice *topic, Slice *body);

/* The property string of a row but for a new unique key and the CRC, and in `seen` what others want of it. `is_checked`:
   its texts were looked at before. False if it cannot be stored. */
int put_properties(Rows *rows, Py_ssize_t row, Out *out, Slice *seen, int is_checked);

#endif
