/* Stored frames as new frames for another place. The twin, and the rules: format/batches/frame_copy.py.

   One pass over the rows: each frame is checked, copied and changed while its bytes are at hand, and its property
   string says what its queue and the index get. A batch with something that is not ordinary (IPv6 hosts, malformed
   UTF-8, very many properties, too many bytes of them) is refused as a whole: Python copies it, or says why not. */

#include "crc.h"
#include "frame_parts.h"
#include "frames.h"
#include "properties.h"

#define STORE_TIMESTAMP_AT 56
#define HOST_BYTES 8
/* What tells a CRC property from another one: name and separator. */
#define CRC_PREFIX_BYTES 9

static const Name CRC_NAME = {"__CRC32#", 8};
static const Name NO_NAME = {"", 0}; /* of each name the last one counts, as in Java's index */
static const Name SEEN_NAMES[SEEN] = {[UNIQUE_KEY] = {"UNIQ_KEY", 8}, [KEYS] = {"KEYS", 4}, [TAGS] = {"TAGS", 4}};

typedef struct {
    Items data, positions, sizes;                           /* bytes, int64 (n,), int64 (n,): where the frames lie */
    Items topic_codes, topic_offsets, topics, topic_hashes; /* int32 (n,), int64 (k + 1,), bytes, uint32 (k,) */
    Items queue_ids, sys_flags;                             /* int32 (n,) */
    Items reconsume_times, store_host;                      /* int32 (n,), bytes; or nothing: the frames' own */
    Items property_offsets, properties;                     /* int64 (n + 1,), bytes; or nothing: the frames' own */
    int has_crc, indexes_tags;
    Items offsets, frames, crcs, tags_codes; /* to be filled: int64 (n + 1,), bytes, uint32 (n,), int64 (n,) */
    Items hash_offsets, hashes;              /* to be filled: int32 (n + 1,), int32 */
    Out out;
    Hashes found;
} Copies;

typedef enum { COPIED, REFUSED, OUTSIDE } Outcome;

/* A property string, and the buffer that it lies in. */
typedef struct {
    const uint8_t *data;
    int64_t count, start, end;
} Stretch;

/* `data[start:end]` without a CRC property at its end. False: it does not lie in the data. */
static int cut_stretch(Stretch *string, const Items *data, int64_t start, int64_t end)
{
    if (start < 0 || end < start || end > data->count)
        return 0;
    *string = (Stretch){data->view.buf, data->count, start, end};
    if (end - start >= CRC_PROPERTY_BYTES
        && memcmp(string->data + end - CRC_PROPERTY_BYTES, CRC_RESERVED, CRC_PREFIX_BYTES) == 0)
        string->end -= CRC_PROPERTY_BYTES;
    return 1;
}

/* The property string of a row: the one that is given, or else the stored one, whose place is in `wide`. */
static int string_of(const Copies *copies, Py_ssize_t row, const int64_t *wide, Stretch *string)
{
    if (copies->property_offsets.view.obj == NULL)
        return cut_stretch(string, &copies->data, wide[PROPERTIES_START], wide[PROPERTIES_END]);
    const int64_t *given = (const int64_t *)copies->property_offsets.view.buf + row;
    return cut_stretch(string, &copies->properties, given[0], given[1]);
}

/* The topic that a copy goes to. False: it does not lie in the names. */
static int topic_of(const Copies *copies, Py_ssize_t row, int32_t *code, Slice *topic)
{
    *code = ((const int32_t *)copies->topic_codes.view.buf)[row];
    if (*code < 0 || *code >= copies->topic_hashes.count)
        return 0;
    const int64_t *offset = (const int64_t *)copies->topic_offsets.view.buf + *code;
    if (offset[0] < 0 || offset[1] < offset[0] || offset[1] > copies->topics.count)
        return 0;
    *topic = (Slice){(const uint8_t *)copies->topics.view.buf + offset[0], (size_t)(offset[1] - offset[0])};
    return topic->size <= TOPIC_BYTES_MAX;
}

/* What others want of the properties. False: Python has to look at them. */
static int look_into(const Stretch *string, Slice *seen)
{
    int64_t starts[ROW_PIECES_MAX], separators[ROW_PIECES_MAX], ends[ROW_PIECES_MAX];
    Pieces pieces = {starts, separators, ends, 0, ROW_PIECES_MAX};
    uint64_t high = 0;
    split_row(string->data, string->count, string->start, string->end, &CRC_NAME, &pieces, &high);
    if (pieces.count > pieces.room
        || (high && !is_utf8(string->data + string->start, (size_t)(string->end - string->start))))
        return 0;
    keep_winners(&pieces, string->data, 0, &NO_NAME);
    set_none(seen);
    for (int name = 0; name < SEEN; name++) {
        ptrdiff_t piece = same_name(&pieces, string->data, 0, pieces.count, &SEEN_NAMES[name]);
        if (piece >= 0)
            seen[name] = (Slice){string->data + separators[piece] + 1, (size_t)(ends[piece] - separators[piece] - 1)};
    }
    return 1;
}

static void set_header(const Copies *copies, Py_ssize_t row, uint8_t *header, uint32_t frame_bytes, Slice topic)
{
    uint8_t *end = header + FRAME_HEADER_BYTES;
    put_word(header + TOTAL_SIZE_AT, frame_bytes);
    put_word(header + MAGIC_AT, magic_of(topic));
    put_word(header + QUEUE_ID_AT, ((const uint32_t *)copies->queue_ids.view.buf)[row]);
    put_long(header + QUEUE_OFFSET_AT, 0);
    put_long(header + PHYSICAL_OFFSET_AT, 0);
    put_word(header + SYS_FLAG_AT, ((const uint32_t *)copies->sys_flags.view.buf)[row]);
    put_long(header + STORE_TIMESTAMP_AT, 0);
    if (copies->store_host.view.obj != NULL)
        memcpy(header + STORE_HOST_POSITION, copies->store_host.view.buf, HOST_BYTES);
    if (copies->reconsume_times.view.obj != NULL)
        put_word(end + RECONSUME_TIMES_AT, ((const uint32_t *)copies->reconsume_times.view.buf)[row]);
    put_long(end + PREPARED_OFFSET_AT, 0);
}

/* Write the copy of a frame: header and body, `head_bytes` from `source` on, then the topic and the property string. */
static Outcome put_frame(Copies *copies, Py_ssize_t row, const uint8_t *source, int64_t head_bytes, Slice topic,
                         const Stretch *string)
{
    Out *out = &copies->out;
    int64_t string_bytes = string->end - string->start, crc_bytes = copies->has_crc ? CRC_PROPERTY_BYTES : 0;
    /* 4.9.1 .. 5.1.4 put none behind the last property; the CRC property needs it. */
    int lacks_separator = copies->has_crc && string_bytes && string->data[string->end - 1] != 2;
    int64_t property_bytes = string_bytes + lacks_separator + crc_bytes;
    int64_t size = head_bytes + topic_head_bytes(topic) + 2 + property_bytes;
    if (property_bytes > PROPERTIES_BYTES_MAX || size > INT32_MAX)
        return REFUSED;
    if (size > out->end - out->next)
        return OUTSIDE;
    uint8_t *frame = out->next, length[2] = {(uint8_t)(property_bytes >> 8), (uint8_t)property_bytes};
    put(out, source, (size_t)head_bytes);
    put_topic_head(out, topic);
    put(out, length, 2);
    put(out, string->data + string->start, (size_t)string_bytes);
    if (lacks_separator)
        put(out, "\x02", 1);
    if (copies->has_crc)
        put(out, CRC_RESERVED, CRC_PROPERTY_BYTES);
    set_header(copies, row, frame, (uint32_t)size, topic);
    uint32_t crc = copies->has_crc ? crc_extend(0, frame, (size_t)(size - crc_bytes)) : 0;
    ((uint32_t *)copies->crcs.view.buf)[row] = crc;
    ((int64_t *)copies->offsets.view.buf)[row + 1] = out->size;
    return COPIED;
}

static Outcome copy_row(Copies *copies, Py_ssize_t row)
{
    int32_t narrow[NARROW_FIELDS], code;
    int64_t wide[WIDE_FIELDS], position = ((const int64_t *)copies->positions.view.buf)[row];
    int64_t size = ((const int64_t *)copies->sizes.view.buf)[row];
    const uint8_t *data = copies->data.view.buf;
    uint32_t flags = ((const uint32_t *)copies->sys_flags.view.buf)[row];
    Slice topic, seen[SEEN];
    Stretch string;
    if (!read_frame(data, copies->data.count, position, size, NULL, narrow, wide, 0, 1)
        || ((flags | (uint32_t)narrow[SYS_FLAG]) & (BORN_HOST_V6 | STORE_HOST_V6)))
        return REFUSED;
    if (!topic_of(copies, row, &code, &topic) || !string_of(copies, row, wide, &string))
        return OUTSIDE;
    if (!look_into(&string, seen))
        return REFUSED;
    Outcome outcome = put_frame(copies, row, data + position, wide[BODY_END] - position, topic, &string);
    if (outcome != COPIED)
        return outcome;
    ((int64_t *)copies->tags_codes.view.buf)[row] = tags_code(seen);
    if (is_indexed(flags))
        put_hashes(&copies->found, ((const uint32_t *)copies->topic_hashes.view.buf)[code], seen, copies->indexes_tags);
    ((int32_t *)copies->hash_offsets.view.buf)[row + 1] = (int32_t)copies->found.count;
    return copies->found.count > INT32_MAX ? REFUSED : COPIED;
}

/* How far it came: the number of rows, or the first row that is not `COPIED`. */
static Py_ssize_t copy_rows(Copies *copies, Outcome *outcome)
{
    const uint8_t *data = copies->data.view.buf;
    const int64_t *position = copies->positions.view.buf, *size = copies->sizes.view.buf;
    Py_ssize_t row = 0, rows = copies->positions.count;
    copies->out = (Out){copies->frames.view.buf, (uint8_t *)copies->frames.view.buf + copies->frames.count, 0};
    copies->found = (Hashes){copies->hashes.view.buf, 0, copies->hashes.count};
    *(int64_t *)copies->offsets.view.buf = *(int32_t *)copies->hash_offsets.view.buf = 0;
    for (*outcome = COPIED; row < rows; row++) {
        if (row + FRAMES_AHEAD < rows)
            expect_frame(data, copies->data.count, position[row + FRAMES_AHEAD], size[row + FRAMES_AHEAD]);
        *outcome = copy_row(copies, row);
        if (*outcome != COPIED)
            break;
    }
    return row;
}

/* -- what Python hands over --------------------------------------------------------------------------------------- */

static int take_frames(Copies *copies, PyObject *data, PyObject *positions, PyObject *sizes)
{
    return take_items(&copies->data, data, 1, READ_ITEMS, "data")
        && take_items(&copies->positions, positions, 8, READ_ITEMS, "positions")
        && take_n_items(&copies->sizes, sizes, 8, READ_ITEMS, "sizes", copies->positions.count);
}

/* (codes, offsets, bytes, hashes). */
static int take_topics(Copies *copies, PyObject *given)
{
    PyObject *codes, *offsets, *names, *hashes;
    return PyArg_ParseTuple(given, "OOOO:topics", &codes, &offsets, &names, &hashes)
        && take_n_items(&copies->topic_codes, codes, 4, READ_ITEMS, "topic codes", copies->positions.count)
        && take_items(&copies->topic_hashes, hashes, 4, READ_ITEMS, "topic hashes")
        && take_n_items(&copies->topic_offsets, offsets, 8, READ_ITEMS, "topic offsets", copies->topic_hashes.count + 1)
        && take_items(&copies->topics, names, 1, READ_ITEMS, "topics");
}

/* Queue ids, sysFlag; reconsumeTimes, a host, (offsets, bytes) of properties, or None. */
static int take_changes(Copies *copies, PyObject *const given[5])
{
    Py_ssize_t rows = copies->positions.count;
    PyObject *offsets, *strings;
    return take_n_items(&copies->queue_ids, given[0], 4, READ_ITEMS, "queue ids", rows)
        && take_n_items(&copies->sys_flags, given[1], 4, READ_ITEMS, "sysFlag", rows)
        && (given[2] == Py_None
            || take_n_items(&copies->reconsume_times, given[2], 4, READ_ITEMS, "reconsumeTimes", rows))
        && (given[3] == Py_None || take_n_items(&copies->store_host, given[3], 1, READ_ITEMS, "storeHost", HOST_BYTES))
        && (given[4] == Py_None
            || (PyArg_ParseTuple(given[4], "OO:properties", &offsets, &strings)
                && take_n_items(&copies->property_offsets, offsets, 8, READ_ITEMS, "property offsets", rows + 1)
                && take_items(&copies->properties, strings, 1, READ_ITEMS, "properties")));
}

static int take_results(Copies *copies, PyObject *const given[6])
{
    Py_ssize_t rows = copies->positions.count;
    return take_n_items(&copies->offsets, given[0], 8, WRITE_ITEMS, "offsets", rows + 1)
        && take_items(&copies->frames, given[1], 1, WRITE_ITEMS, "frames")
        && take_n_items(&copies->crcs, given[2], 4, WRITE_ITEMS, "crcs", rows)
        && take_n_items(&copies->tags_codes, given[3], 8, WRITE_ITEMS, "tags codes", rows)
        && take_n_items(&copies->hash_offsets, given[4], 4, WRITE_ITEMS, "hash offsets", rows + 1)
        && take_items(&copies->hashes, given[5], 4, WRITE_ITEMS, "hashes");
}

static PyObject *copy_frames(PyObject *module, PyObject *arguments)
{
    PyObject *data, *positions, *sizes, *topics, *changes[5], *results[6], *result = NULL;
    Copies copies = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOO!OOOOOppOOOOOO:copy_frames", &data, &positions, &sizes, &PyTuple_Type,
                          &topics, &changes[0], &changes[1], &changes[2], &changes[3], &changes[4], &copies.has_crc,
                          &copies.indexes_tags, &results[0], &results[1], &results[2], &results[3], &results[4],
                          &results[5]))
        return NULL;
    if (take_frames(&copies, data, positions, sizes) && take_topics(&copies, topics) && take_changes(&copies, changes)
        && take_results(&copies, results)) {
        Outcome outcome;
        Py_ssize_t row;
        Py_BEGIN_ALLOW_THREADS
        row = copy_rows(&copies, &outcome);
        Py_END_ALLOW_THREADS
        if (outcome == OUTSIDE)
            PyErr_Format(PyExc_IndexError, "row %zd does not lie in what was given, or there is no room for it", row);
        else
            result = outcome == REFUSED ? Py_NewRef(Py_None) : PyLong_FromLongLong(copies.found.count);
    }
    Items *all[] = {&copies.data,           &copies.positions,       &copies.sizes,        &copies.topic_codes,
                    &copies.topic_offsets,  &copies.topics,          &copies.topic_hashes, &copies.queue_ids,
                    &copies.sys_flags,      &copies.reconsume_times, &copies.store_host,   &copies.property_offsets,
                    &copies.properties,     &copies.offsets,         &copies.frames,       &copies.crcs,
                    &copies.tags_codes,     &copies.hash_offsets,    &copies.hashes};
    for (size_t at = 0; at < sizeof all / sizeof all[0]; at++)
        release_items(all[at]);
    return result;
}

PyMethodDef copy_methods[] = {
    {"copy_frames", copy_frames, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
