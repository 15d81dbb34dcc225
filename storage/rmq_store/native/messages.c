/* Messages as columns, a row at a time: a frame is checked, taken apart and copied while its bytes are at hand. Of what is
   not ordinary (compressed bodies, IPv6 hosts, several topics, ...) nothing is made: the twin, rmq_store/format/
   frame_decoder.py, goes column by column and knows it all. */

#include "native.h"

#include "copy.h"
#include "frames.h"
#include "hosts.h"
#include "properties.h"
#include "text.h"

/* The years 1 to 9999, as in the twin. */
#define TIMESTAMP_MS_MIN (-62135596800000)
#define TIMESTAMP_MS_MAX 253402300799999

enum { BODIES, BORN_HOSTS, STORE_HOSTS, MSG_IDS, TAGS, KEYS, TEXT_COLUMNS };
enum { QUEUE_IDS, RECONSUME, FLAGS, SYS_FLAGS, NARROW_COLUMNS };
enum { QUEUE_OFFSETS, LOG_OFFSETS, BORN_TIMES, STORE_TIMES, WIDE_COLUMNS };

/* A column of bytes that is wanted, or of zeros. `valid` has a bit for each row that is there, if some may not be. */
typedef struct {
    Items offsets, values, valid;
    Target target;
} Texts;

/* The property map: how many pieces there are before each row, and their names and values. */
typedef struct {
    Items before, name_offsets, names, value_offsets, values;
    Target name, value;
    Py_ssize_t pieces, room;
} Map;

typedef struct {
    Source source;
    const int64_t *base;
    int raw;
    Name unique_key, crc, tags, keys;
    int32_t *narrow[NARROW_COLUMNS]; /* null where not wanted */
    int64_t *wide[WIDE_COLUMNS];
    Texts texts[TEXT_COLUMNS];
    Map map;
    HostText born_host, store_host;
    const uint8_t *topic; /* of the first row, if the caller names none; and so many bytes */
    int64_t topic_bytes;
    const int64_t *queue_offset; /* null: nobody's in particular */
    int queue_id;
} Batch;

static int is_wanted(const Batch *batch, int column)
{
    return batch->texts[column].target.data != NULL;
}

static int copy_host(Batch *batch, int column, HostText *last, int64_t position)
{
    if (!is_wanted(batch, column))
        return 1;
    write_host(last, batch->source.data + position);
    Source text = {last->text, TEXT_ROOM_BYTES};
    return copy_slice(&batch->texts[column].target, &text, 0, last->size);
}

/* Copy the value of the piece, or nothing if there is none: -1. */
static int copy_value(Batch *batch, int column, const Pieces *pieces, ptrdiff_t piece, Py_ssize_t row)
{
    Texts *texts = &batch->texts[column];
    if (piece < 0)
        return copy_slice(&texts->target, &batch->source, 0, 0);
    if (texts->valid.view.buf != NULL)
        ((uint8_t *)texts->valid.view.buf)[row / 8] |= (uint8_t)(1 << row % 8);
    return copy_slice(&texts->target, &batch->source, pieces->separators[piece] + 1, pieces->ends[piece]);
}

static int copy_properties(Batch *batch, int64_t start, int64_t end, Py_ssize_t row)
{
    int64_t starts[ROW_PIECES_MAX], separators[ROW_PIECES_MAX], ends[ROW_PIECES_MAX];
    Pieces pieces = {starts, separators, ends, 0, ROW_PIECES_MAX};
    const uint8_t *data = batch->source.data;
    uint64_t high = 0;
    split_row(data, batch->source.size, start, end, &batch->crc, &pieces, &high);
    if (pieces.count > pieces.room || (high && !is_utf8(data + start, (size_t)(end - start))))
        return 0;
    keep_winners(&pieces, data, 0, &batch->unique_key);
    if (is_wanted(batch, MSG_IDS)) {
        ptrdiff_t found = same_name(&pieces, data, 0, pieces.count, &batch->unique_key);
        if (found < 0 || !copy_value(batch, MSG_IDS, &pieces, found, row))
            return 0;
    }
    if (is_wanted(batch, TAGS)
        && !copy_value(batch, TAGS, &pieces, same_name(&pieces, data, 0, pieces.count, &batch->tags), row))
        return 0;
    if (is_wanted(batch, KEYS)
        && !copy_value(batch, KEYS, &pieces, same_name(&pieces, data, 0, pieces.count, &batch->keys), row))
        return 0;
    Map *map = &batch->map;
    if (map->name.data == NULL)
        return 1;
    if (pieces.count > map->room - map->pieces)
        return 0;
    for (ptrdiff_t piece = 0; piece < pieces.count; piece++)
        if (!copy_slice(&map->name, &batch->source, starts[piece], separators[piece])
            || !copy_slice(&map->value, &batch->source, separators[piece] + 1, ends[piece]))
            return 0;
    map->pieces += pieces.count;
    ((int32_t *)map->before.view.buf)[row + 1] = (int32_t)map->pieces;
    return 1;
}

/* The message at `position` into row `row` of all columns. False: it is none, or not an ordinary one. */
static int copy_message(Batch *batch, int64_t position, int64_t size, int with_properties, Py_ssize_t row)
{
    int32_t narrow[NARROW_FIELDS];
    int64_t wide[WIDE_FIELDS];
    const uint8_t *data = batch->source.data;
    if (!read_frame(data, batch->source.size, position, size, batch->base, narrow, wide, 0, 1))
        return 0;
    uint32_t flags = (uint32_t)narrow[SYS_FLAG];
    int64_t topic_bytes = wide[TOPIC_END] - wide[TOPIC_START];
    if (batch->topic == NULL) {
        batch->topic = data + wide[TOPIC_START];
        batch->topic_bytes = topic_bytes;
    }
    if (batch->queue_offset != NULL
        && (wide[QUEUE_OFFSET] != batch->queue_offset[row] || narrow[QUEUE_ID] != batch->queue_id))
        return 0;
    if (flags & (BORN_HOST_V6 | STORE_HOST_V6 | (batch->raw ? 0 : FRAME_COMPRESSED)) || topic_bytes != batch->topic_bytes
        || memcmp(data + wide[TOPIC_START], batch->topic, (size_t)topic_bytes) != 0
        || wide[BORN_TIMESTAMP] < TIMESTAMP_MS_MIN || wide[BORN_TIMESTAMP] > TIMESTAMP_MS_MAX
        || wide[STORE_TIMESTAMP] < TIMESTAMP_MS_MIN || wide[STORE_TIMESTAMP] > TIMESTAMP_MS_MAX)
        return 0;
    const int32_t narrow_values[] = {narrow[QUEUE_ID], narrow[RECONSUME_TIMES], narrow[FLAG], narrow[SYS_FLAG]};
    const int64_t wide_values[] = {wide[QUEUE_OFFSET], wide[PHYSICAL_OFFSET], 1000 * wide[BORN_TIMESTAMP],
                                   1000 * wide[STORE_TIMESTAMP]};
    for (int column = 0; column < NARROW_COLUMNS; column++)
        if (batch->narrow[column] != NULL)
            batch->narrow[column][row] = narrow_values[column];
    for (int column = 0; column < WIDE_COLUMNS; column++)
        if (batch->wide[column] != NULL)
            batch->wide[column][row] = wide_values[column];
    Target *bodies = &batch->texts[BODIES].target;
    if (is_wanted(batch, BODIES)
        && !copy_slice_as(bodies, &batch->source, wide[BODY_START], wide[BODY_END], bodies->room >= STREAM_FROM_BYTES))
        return 0;
    return copy_host(batch, BORN_HOSTS, &batch->born_host, position + BORN_HOST_POSITION)
        && copy_host(batch, STORE_HOSTS, &batch->store_host, position + STORE_HOST_POSITION)
        && (!with_properties || copy_properties(batch, wide[PROPERTIES_START], wide[PROPERTIES_END], row));
}

/* -- what Python hands over --------------------------------------------------------------------------------------- */

static int take_target(Target *target, Items *offsets, Items *values, PyObject *const given[2], Py_ssize_t rows)
{
    if (!take_items(offsets, given[0], 4, WRITE_ITEMS, "offsets") || !take_items(values, given[1], 1, WRITE_ITEMS, "values"))
        return 0;
    if (offsets->count < rows + 1) {
        PyErr_Format(PyExc_ValueError, "offsets: expected %zd items, got %zd", rows + 1, offsets->count);
        return 0;
    }
    *target = (Target){values->view.buf, offsets->view.buf, 0, values->count};
    *target->offset = 0;
    return 1;
}

/* None, or (offsets, values, valid or None). */
static int take_texts(Texts *texts, PyObject *given, Py_ssize_t rows)
{
    PyObject *parts[3];
    if (given == Py_None)
        return 1;
    if (!PyArg_ParseTuple(given, "OOO:texts", &parts[0], &parts[1], &parts[2])
        || !take_target(&texts->target, &texts->offsets, &texts->values, parts, rows))
        return 0;
    return parts[2] == Py_None || take_n_items(&texts->valid, parts[2], 1, WRITE_ITEMS, "valid", (rows + 7) / 8);
}

/* None, or (before, name_offsets, names, value_offsets, values). */
static int take_map(Map *map, PyObject *given, Py_ssize_t rows)
{
    PyObject *parts[5];
    if (given == Py_None)
        return 1;
    if (!PyArg_ParseTuple(given, "OOOOO:map", &parts[0], &parts[1], &parts[2], &parts[3], &parts[4])
        || !take_n_items(&map->before, parts[0], 4, WRITE_ITEMS, "before", rows + 1)
        || !take_target(&map->name, &map->name_offsets, &map->names, parts + 1, 0)
        || !take_target(&map->value, &map->value_offsets, &map->values, parts + 3, map->name_offsets.count - 1))
        return 0;
    *(int32_t *)map->before.view.buf = 0;
    map->room = map->name_offsets.count - 1;
    return 1;
}

/* None, or (topic, queue id, queue offsets). */
static int take_owner(Batch *batch, Items *offsets, PyObject *given, Py_ssize_t rows)
{
    const char *topic;
    PyObject *array;
    Py_ssize_t topic_bytes;
    if (given == Py_None)
        return 1;
    if (!PyArg_ParseTuple(given, "y#iO:owner", &topic, &topic_bytes, &batch->queue_id, &array)
        || !take_n_items(offsets, array, 8, READ_ITEMS, "queue_offsets", rows))
        return 0;
    batch->topic = (const uint8_t *)topic;
    batch->topic_bytes = topic_bytes;
    batch->queue_offset = offsets->view.buf;
    return 1;
}

static void release_batch(Batch *batch)
{
    for (int column = 0; column < TEXT_COLUMNS; column++) {
        release_items(&batch->texts[column].offsets);
        release_items(&batch->texts[column].values);
        release_items(&batch->texts[column].valid);
    }
    release_items(&batch->map.before);
    release_items(&batch->map.name_offsets);
    release_items(&batch->map.names);
    release_items(&batch->map.value_offsets);
    release_items(&batch->map.values);
}

static PyObject *copy_messages(PyObject *module, PyObject *arguments)
{
    PyObject *given[4], *base_offset, *columns[NARROW_COLUMNS + WIDE_COLUMNS], *texts[TEXT_COLUMNS], *map, *ends, *result = NULL;
    Items data = {0}, positions = {0}, sizes = {0}, offsets = {0}, numbers[NARROW_COLUMNS + WIDE_COLUMNS] = {{{0}, 0}}, end = {0};
    Batch batch = {0};
    int64_t base;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOpO(y#y#y#y#)(OOOOOOOO)(OOOOOO)OO:copy_messages", &given[0], &given[1], &given[2],
                          &base_offset, &batch.raw, &given[3], &batch.unique_key.name, &batch.unique_key.bytes,
                          &batch.crc.name, &batch.crc.bytes, &batch.tags.name, &batch.tags.bytes, &batch.keys.name,
                          &batch.keys.bytes,
                          &columns[0], &columns[1], &columns[2], &columns[3], &columns[4], &columns[5], &columns[6],
                          &columns[7], &texts[0], &texts[1], &texts[2], &texts[3], &texts[4], &texts[5], &map, &ends)
        || !take_base(&base, base_offset))
        return NULL;
    batch.base = base_offset == Py_None ? NULL : &base;
    if (!take_items(&data, given[0], 1, READ_ITEMS, "data") || !take_items(&positions, given[1], 8, READ_ITEMS, "positions")
        || !take_n_items(&sizes, given[2], 8, READ_ITEMS, "sizes", positions.count)
        || !take_n_items(&end, ends, 8, WRITE_ITEMS, "ends", TEXT_COLUMNS + 3))
        goto done;
    Py_ssize_t rows = positions.count;
    if (!take_owner(&batch, &offsets, given[3], rows))
        goto done;
    for (int column = 0; column < NARROW_COLUMNS + WIDE_COLUMNS; column++) {
        size_t item_bytes = column < NARROW_COLUMNS ? 4 : 8;
        if (columns[column] == Py_None)
            continue;
        if (!take_n_items(&numbers[column], columns[column], item_bytes, WRITE_ITEMS, "column", rows))
            goto done;
        if (column < NARROW_COLUMNS)
            batch.narrow[column] = numbers[column].view.buf;
        else
            batch.wide[column - NARROW_COLUMNS] = numbers[column].view.buf;
    }
    for (int column = 0; column < TEXT_COLUMNS; column++)
        if (!take_texts(&batch.texts[column], texts[column], rows))
            goto done;
    if (!take_map(&batch.map, map, rows))
        goto done;
    batch.source = (Source){data.view.buf, data.count};
    const int64_t *position = positions.view.buf, *size = sizes.view.buf;
    int with_properties = batch.map.name.data != NULL || is_wanted(&batch, MSG_IDS) || is_wanted(&batch, TAGS)
                       || is_wanted(&batch, KEYS);
    int with_bodies = is_wanted(&batch, BODIES);
    Py_ssize_t row = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; row < rows; row++) {
        if (row + FRAMES_AHEAD < rows && with_bodies)
            expect_frame(batch.source.data, batch.source.size, position[row + FRAMES_AHEAD], size[row + FRAMES_AHEAD]);
        else if (row + FRAMES_AHEAD < rows)
            expect_ends(batch.source.data, batch.source.size, position[row + FRAMES_AHEAD], size[row + FRAMES_AHEAD]);
        if (!copy_message(&batch, position[row], size[row], with_properties, row))
            break;
    }
    end_streams();
    Py_END_ALLOW_THREADS
    for (int column = 0; column < TEXT_COLUMNS; column++)
        ((int64_t *)end.view.buf)[column] = batch.texts[column].target.size;
    ((int64_t *)end.view.buf)[TEXT_COLUMNS] = batch.map.pieces;
    ((int64_t *)end.view.buf)[TEXT_COLUMNS + 1] = batch.map.name.size;
    ((int64_t *)end.view.buf)[TEXT_COLUMNS + 2] = batch.map.value.size;
    result = row < rows || rows == 0 ? Py_NewRef(Py_None)
                                     : PyBytes_FromStringAndSize((const char *)batch.topic, (Py_ssize_t)batch.topic_bytes);
done:
    release_items(&data);
    release_items(&positions);
    release_items(&sizes);
    release_items(&end);
    release_items(&offsets);
    for (int column = 0; column < NARROW_COLUMNS + WIDE_COLUMNS; column++)
        release_items(&numbers[column]);
    release_batch(&batch);
    return result;
}

PyMethodDef message_methods[] = {
    {"copy_messages", copy_messages, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
