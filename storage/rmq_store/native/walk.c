/* Sound frames one behind another, found by what they say of their own sizes. Rules: rmq_store/format/frames/frame_check.py. */

#include "native.h"

#include "big_endian.h"
#include "crc.h"
#include "frames.h"
#include "prefetch.h"

#define CRC_MASK 0x7FFFFFFFu
#define NAME_BYTES 9
#define DIGITS 10
#define AHEAD_BYTES 1024

static const uint8_t property_name[NAME_BYTES] = {'_', '_', 'C', 'R', 'C', '3', '2', '#', 1};

/* In how many bits the 20 bytes of `tail` are not named and ended as a CRC property is. */
static int differing_bits(const uint8_t *tail)
{
    int bits = 0;
    for (int place = 0; place <= NAME_BYTES; place++) {
        unsigned difference = place < NAME_BYTES ? tail[place] ^ property_name[place] : tail[CRC_PROPERTY_BYTES - 1] ^ 2u;
        for (; difference; difference &= difference - 1)
            bits++;
    }
    return bits;
}

static int has_crc(const uint8_t *frame, const uint8_t *tail)
{
    uint64_t stored = 0;
    for (int place = DIGITS; place--;) {
        uint8_t digit = tail[NAME_BYTES + place];
        if (digit < '0' || digit > '9')
            return 0;
        stored = 10 * stored + (digit - '0');
    }
    return (crc_extend(0, frame, (size_t)(tail - frame)) & CRC_MASK) == stored;
}

/* Whether the frame of `size` bytes at `position` is one that `check_frame` calls a message, if it must know its own
   offset (unless `base` is null), and must have a CRC property if `must_have_crc`. Its fields, if it is one. */
static int is_sound(const uint8_t *data, int64_t count, int64_t position, int64_t size, const int64_t *base,
                    int must_have_crc, int32_t narrow[NARROW_FIELDS], int64_t wide[WIDE_FIELDS])
{
    if (!read_frame(data, count, position, size, base, narrow, wide, 0, 1))
        return 0;
    const uint8_t *body = data + wide[BODY_START];
    size_t body_bytes = (size_t)(wide[BODY_END] - wide[BODY_START]);
    if (body_bytes && !must_have_crc && (crc_extend(0, body, body_bytes) & CRC_MASK) != (uint32_t)narrow[BODY_CRC])
        return 0;
    if (wide[PROPERTIES_END] - wide[PROPERTIES_START] < CRC_PROPERTY_BYTES)
        return !must_have_crc;
    const uint8_t *tail = data + position + size - CRC_PROPERTY_BYTES;
    int bits = differing_bits(tail);
    return bits == 0 ? has_crc(data + position, tail) : bits > 1 && !must_have_crc;
}

/* What follows a frame lies on the next pages: the processor does not send for those by itself. */
PREFETCHING send_for(const uint8_t *next, const uint8_t *end)
{
    const uint8_t *last = end - next > AHEAD_BYTES ? next + AHEAD_BYTES : end;
    for (; next < last; next += 64)
        PREFETCH(next);
}

/* What each frame must be, beside sound: at its place of a log, or of a queue. */
typedef struct {
    const int64_t *base;        /* null: anywhere in a log */
    int64_t crc_position;       /* from there on with a CRC property */
    int in_queue;
    int32_t queue_id;
    int64_t first_queue_offset; /* of the first frame; those behind it follow without a gap */
} Demand;

/* How many frames lie one behind another from `position` up to `stop`, as far as there is room for. */
static Py_ssize_t walk(const Items *data, int64_t position, int64_t stop, const Demand *demand, const Items *positions,
                       const Items *sizes)
{
    const uint8_t *bytes = data->view.buf;
    int32_t narrow[NARROW_FIELDS];
    int64_t wide[WIDE_FIELDS];
    Py_ssize_t row = 0;
    while (row < positions->count && 0 <= position && position < stop && position <= data->count - 4) {
        int64_t size = (int32_t)word_at(bytes + position);
        if (size > 0 && size < data->count - position)
            send_for(bytes + position + size, bytes + data->count);
        if (!is_sound(bytes, data->count, position, size, demand->base, demand->crc_position <= position, narrow, wide))
            break;
        /* Not the sum of both: it can overflow. */
        if (demand->in_queue
            && (narrow[QUEUE_ID] != demand->queue_id || wide[QUEUE_OFFSET] - demand->first_queue_offset != row))
            break;
        ((int64_t *)positions->view.buf)[row] = position;
        ((int64_t *)sizes->view.buf)[row++] = size;
        position += size;
    }
    return row;
}

/* Take the buffers of `given`: data, and places for positions and sizes. */
static int take_walk(PyObject *const given[3], Items *data, Items *positions, Items *sizes)
{
    return take_items(data, given[0], 1, READ_ITEMS, "data") && take_items(positions, given[1], 8, WRITE_ITEMS, "positions")
        && take_n_items(sizes, given[2], 8, WRITE_ITEMS, "sizes", positions->count);
}

static PyObject *walk_frames(PyObject *module, PyObject *arguments)
{
    PyObject *given[3], *base_given, *result = NULL;
    Items data = {0}, positions = {0}, sizes = {0};
    long long position, stop, crc_position;
    int64_t base;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OLLOLOO:walk_frames", &given[0], &position, &stop, &base_given, &crc_position,
                          &given[1], &given[2])
        || !take_base(&base, base_given))
        return NULL;
    if (take_walk(given, &data, &positions, &sizes)) {
        Demand demand = {base_given == Py_None ? NULL : &base, crc_position, 0, 0, 0};
        Py_ssize_t rows;
        Py_BEGIN_ALLOW_THREADS
        rows = walk(&data, position, stop, &demand, &positions, &sizes);
        Py_END_ALLOW_THREADS
        result = PyLong_FromSsize_t(rows);
    }
    release_items(&data);
    release_items(&positions);
    release_items(&sizes);
    return result;
}

/* The frames of one piece of the data behind another, as long as each piece is whole. Their number. */
static Py_ssize_t walk_pieces(const Items *data, const Items *pieces, int32_t queue_id, int64_t first_queue_offset,
                              const Items *positions, const Items *sizes)
{
    const int64_t *bounds = pieces->view.buf;
    Py_ssize_t rows = 0;
    for (Py_ssize_t piece = 0; piece + 1 < pieces->count; piece += 2) {
        int64_t start = bounds[piece], end = bounds[piece + 1];
        if (start < 0 || end < start || end > data->count || first_queue_offset > INT64_MAX - rows)
            break;
        Items places = *positions, lengths = *sizes;
        places.view.buf = (int64_t *)positions->view.buf + rows;
        lengths.view.buf = (int64_t *)sizes->view.buf + rows;
        places.count = lengths.count = positions->count - rows;
        Demand demand = {NULL, INT64_MAX, 1, queue_id, first_queue_offset + rows};
        Py_ssize_t found = walk(data, start, end, &demand, &places, &lengths);
        rows += found;
        const int64_t *last = (const int64_t *)positions->view.buf + rows - 1;
        if ((found ? *last + ((const int64_t *)sizes->view.buf)[rows - 1] : start) != end)
            break;
    }
    return rows;
}

static PyObject *walk_queue_frames(PyObject *module, PyObject *arguments)
{
    PyObject *given[3], *given_pieces, *result = NULL;
    Items data = {0}, pieces = {0}, positions = {0}, sizes = {0};
    long long first_queue_offset;
    int queue_id;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOiLOO:walk_queue_frames", &given[0], &given_pieces, &queue_id, &first_queue_offset,
                          &given[1], &given[2]))
        return NULL;
    if (first_queue_offset < 0) {
        PyErr_SetString(PyExc_ValueError, "a queue offset below 0");
        return NULL;
    }
    if (take_walk(given, &data, &positions, &sizes) && take_items(&pieces, given_pieces, 8, READ_ITEMS, "pieces")) {
        Py_ssize_t rows;
        Py_BEGIN_ALLOW_THREADS
        rows = walk_pieces(&data, &pieces, queue_id, first_queue_offset, &positions, &sizes);
        Py_END_ALLOW_THREADS
        result = PyLong_FromSsize_t(rows);
    }
    release_items(&data);
    release_items(&pieces);
    release_items(&positions);
    release_items(&sizes);
    return result;
}

PyMethodDef walk_methods[] = {
    {"walk_frames", walk_frames, METH_VARARGS, NULL},
    {"walk_queue_frames", walk_queue_frames, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
