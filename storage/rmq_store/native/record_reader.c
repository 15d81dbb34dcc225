/* Records of Kafka's record batches (magic 2) into the buffers of Arrow columns. The twin is
   bridge/record_batches/batches_python.py.

   Source: DefaultRecord.readFrom and DefaultRecordBatch of Kafka's clients; ByteUtils for the variable-length numbers. */

#include "native.h"

#include "copy.h"

/* In the order of batches_python.REASONS. */
enum {
    SOUND,
    RECORD_CUT,
    NUMBER_LONG,
    RECORD_REST,
    HEADERS_NEGATIVE,
    NAME_MISSING,
    OFFSETS_WRONG,
    BATCH_REST,
    NO_ROOM
};

/* The records of one batch, as its header describes them. */
enum { START, END, COUNT, BASE_OFFSET, LAST_DELTA, BASE_TIMESTAMP, TIMESTAMP_TYPE, MAX_TIMESTAMP, REGION_FIELDS };

/* Bytes from `at` to `end`; what went wrong first stays in `reason`. */
typedef struct {
    const uint8_t *at, *end;
    int reason;
} Reader;

typedef struct {
    int64_t timestamp_delta;
    int32_t offset_delta, header_count;
    const uint8_t *key, *value; /* null: there is none */
    int32_t key_bytes, value_bytes;
} Record;

/* What the rows have in all, or have had so far. */
enum { ROWS, KEY_BYTES, VALUE_BYTES, HEADERS, NAME_BYTES, HEADER_VALUE_BYTES, TOTALS };

/* Columns to fill. */
typedef struct {
    int64_t *offsets, *timestamps;
    int8_t *types;
    int32_t *header_offsets;
    Target keys, values, names, header_values;
    uint8_t *key_bits, *value_bits, *header_value_bits;
    int64_t rows, headers, row_room, header_room;
    int64_t key_nulls, value_nulls, header_value_nulls;
} Columns;

static uint64_t failed(Reader *reader, int reason)
{
    if (reader->reason == SOUND)
        reader->reason = reason;
    return 0;
}

static uint64_t read_number_slowly(Reader *reader, int bytes_max)
{
    uint64_t value = 0;
    for (int byte = 0; byte < bytes_max; byte++) {
        if (reader->at == reader->end)
            return failed(reader, RECORD_CUT);
        uint8_t next = *reader->at++;
        value |= (uint64_t)(next & 0x7F) << (7 * byte);
        if (next < 0x80)
            return value;
    }
    return failed(reader, NUMBER_LONG);
}

/* As Java's readVarint: bits above the 32nd are lost. */
static inline int32_t read_int(Reader *reader)
{
    uint32_t raw;
    if (reader->at < reader->end && *reader->at < 0x80)
        raw = *reader->at++;
    else
        raw = (uint32_t)read_number_slowly(reader, 5);
    return (int32_t)(raw >> 1 ^ (0u - (raw & 1)));
}

static inline int64_t read_long(Reader *reader)
{
    uint64_t raw;
    if (reader->at < reader->end && *reader->at < 0x80)
        raw = *reader->at++;
    else
        raw = read_number_slowly(reader, 10);
    return (int64_t)(raw >> 1 ^ (0u - (raw & 1)));
}

/* A length and so many bytes; null with a negative length. */
static inline const uint8_t *read_bytes(Reader *reader, int32_t *size)
{
    *size = read_int(reader);
    if (reader->reason != SOUND || *size < 0)
        return NULL;
    if (*size > reader->end - reader->at) {
        failed(reader, RECORD_CUT);
        return NULL;
    }
    const uint8_t *found = reader->at;
    reader->at += *size;
    return found;
}

/* The next record of `batch` up to its headers, which `body` then stands at. */
static inline int begin_record(Reader *batch, Reader *body, Record *record)
{
    int32_t size = read_int(batch);
    if (batch->reason != SOUND)
        return batch->reason;
    if (size < 1 || size > batch->end - batch->at)
        return RECORD_CUT;
    *body = (Reader){batch->at + 1, batch->at + size, SOUND}; /* the attributes of a record are not used */
    batch->at += size;
    record->timestamp_delta = read_long(body);
    record->offset_delta = read_int(body);
    record->key = read_bytes(body, &record->key_bytes);
    record->value = read_bytes(body, &record->value_bytes);
    if (body->reason != SOUND)
        return body->reason;
    record->header_count = read_int(body);
    if (body->reason == SOUND && record->header_count < 0)
        body->reason = HEADERS_NEGATIVE;
    return body->reason;
}

static inline int64_t size_of(int32_t size)
{
    return size < 0 ? 0 : size;
}

/* Read the headers, and count them if their row is wanted. */
static inline int count_headers(Reader *body, int32_t count, int64_t *totals, int is_wanted)
{
    for (int32_t header = 0; header < count; header++) {
        int32_t name_bytes, value_bytes;
        if (read_bytes(body, &name_bytes) == NULL)
            return body->reason != SOUND ? body->reason : NAME_MISSING;
        read_bytes(body, &value_bytes);
        if (body->reason != SOUND)
            return body->reason;
        if (is_wanted) {
            totals[HEADERS] += 1;
            totals[NAME_BYTES] += name_bytes;
            totals[HEADER_VALUE_BYTES] += size_of(value_bytes);
        }
    }
    return SOUND;
}

static inline void set_bit(uint8_t *bits, int64_t at)
{
    bits[at >> 3] = (uint8_t)(bits[at >> 3] | 1u << (at & 7));
}

/* Append bytes, or a null where `text` is null. */
static inline int put_cell(Target *target, const uint8_t *text, int32_t size, uint8_t *bits, int64_t at, int64_t *nulls,
                           const Source *source)
{
    if (text == NULL) {
        *nulls += 1;
        *++target->offset = (int32_t)target->size;
        return 1;
    }
    set_bit(bits, at);
    return copy_slice(target, source, text - source->data, text - source->data + size);
}

static inline int put_headers(Reader *body, int32_t count, Columns *columns, const Source *source)
{
    if (count > columns->header_room - columns->headers)
        return NO_ROOM;
    for (int32_t header = 0; header < count; header++) {
        int32_t name_bytes, value_bytes;
        const uint8_t *name = read_bytes(body, &name_bytes);
        if (name == NULL)
            return body->reason != SOUND ? body->reason : NAME_MISSING;
        const uint8_t *value = read_bytes(body, &value_bytes);
        if (body->reason != SOUND)
            return body->reason;
        if (!copy_slice(&columns->names, source, name - source->data, name - source->data + name_bytes)
            || !put_cell(&columns->header_values, value, value_bytes, columns->header_value_bits, columns->headers,
                         &columns->header_value_nulls, source))
            return NO_ROOM;
        columns->headers += 1;
    }
    return SOUND;
}

/* Read one batch's records with offsets from `from_offset` on; count them in `totals`, or put them into `columns`. */
static inline int read_region(const Source *source, const int64_t *region, int64_t from_offset, int64_t *totals,
                              Columns *columns)
{
    Reader batch = {source->data + region[START], source->data + region[END], SOUND};
    int64_t last_delta = -1;
    for (int64_t number = 0; number < region[COUNT]; number++) {
        Reader body;
        Record record;
        int reason = begin_record(&batch, &body, &record);
        if (reason != SOUND)
            return reason;
        if (record.offset_delta <= last_delta || record.offset_delta > region[LAST_DELTA])
            return OFFSETS_WRONG;
        last_delta = record.offset_delta;
        int64_t offset = region[BASE_OFFSET] + record.offset_delta;
        int is_wanted = offset >= from_offset;
        if (columns == NULL || !is_wanted) {
            int64_t ignored[TOTALS] = {0};
            int64_t *counted = columns == NULL ? totals : ignored;
            reason = count_headers(&body, record.header_count, counted, is_wanted);
            if (is_wanted) {
                counted[ROWS] += 1;
                counted[KEY_BYTES] += size_of(record.key_bytes);
                counted[VALUE_BYTES] += size_of(record.value_bytes);
            }
        } else {
            int64_t row = columns->rows;
            if (row == columns->row_room)
                return NO_ROOM;
            columns->offsets[row] = offset;
            columns->timestamps[row] = region[TIMESTAMP_TYPE]
                ? region[MAX_TIMESTAMP]
                : (int64_t)((uint64_t)region[BASE_TIMESTAMP] + (uint64_t)record.timestamp_delta);
            columns->types[row] = (int8_t)region[TIMESTAMP_TYPE];
            if (!put_cell(&columns->keys, record.key, record.key_bytes, columns->key_bits, row, &columns->key_nulls, source)
                || !put_cell(&columns->values, record.value, record.value_bytes, columns->value_bits, row,
                             &columns->value_nulls, source))
                return NO_ROOM;
            reason = put_headers(&body, record.header_count, columns, source);
            columns->rows += 1;
            columns->header_offsets[columns->rows] = (int32_t)columns->headers;
        }
        if (reason != SOUND)
            return reason;
        if (body.at != body.end)
            return RECORD_REST;
    }
    return batch.at == batch.end ? SOUND : BATCH_REST;
}

/* Whether the regions lie in the data, and their offsets are numbers of 64 bits. */
static int are_regions_in(const Items *data, const Items *regions)
{
    const int64_t *region = regions->view.buf;
    if (regions->count % REGION_FIELDS)
        return 0;
    for (Py_ssize_t at = 0; at < regions->count; at += REGION_FIELDS, region += REGION_FIELDS)
        if (region[START] < 0 || region[START] > region[END] || region[END] > data->count || region[BASE_OFFSET] < 0
            || region[LAST_DELTA] < 0 || region[LAST_DELTA] > INT32_MAX
            || region[BASE_OFFSET] > INT64_MAX - region[LAST_DELTA])
            return 0;
    return 1;
}

static PyObject *measure_records(PyObject *module, PyObject *arguments)
{
    PyObject *given[3], *result = NULL;
    long long from_offset;
    Items data = {0}, regions = {0}, totals = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOLO:measure_records", &given[0], &given[1], &from_offset, &given[2]))
        return NULL;
    if (!take_items(&data, given[0], 1, READ_ITEMS, "data") || !take_items(&regions, given[1], 8, READ_ITEMS, "regions")
        || !take_n_items(&totals, given[2], 8, WRITE_ITEMS, "totals", TOTALS))
        goto done;
    if (!are_regions_in(&data, &regions)) {
        PyErr_SetString(PyExc_IndexError, "a region does not lie in the data");
        goto done;
    }
    Source source = {data.view.buf, data.count};
    const int64_t *region = regions.view.buf;
    Py_ssize_t count = regions.count / REGION_FIELDS, at = 0;
    int reason = SOUND;
    Py_BEGIN_ALLOW_THREADS
    memset(totals.view.buf, 0, TOTALS * sizeof(int64_t));
    for (; at < count; at++)
        if ((reason = read_region(&source, region + at * REGION_FIELDS, from_offset, totals.view.buf, NULL)) != SOUND)
            break;
    Py_END_ALLOW_THREADS
    result = reason == SOUND ? Py_NewRef(Py_None) : Py_BuildValue("(ni)", at, reason);
done:
    release_items(&data);
    release_items(&regions);
    release_items(&totals);
    return result;
}

/* Take a column of `count` cells: offsets, bytes, bits. */
static int take_column(PyObject *object, const char *name, Py_ssize_t count, Items taken[3], Target *target, uint8_t **bits)
{
    PyObject *offsets, *bytes, *validity;
    if (!PyArg_ParseTuple(object, "OOO", &offsets, &bytes, &validity)
        || !take_n_items(&taken[0], offsets, 4, WRITE_ITEMS, name, count + 1)
        || !take_items(&taken[1], bytes, 1, WRITE_ITEMS, name)
        || (bits != NULL && !take_n_items(&taken[2], validity, 1, WRITE_ITEMS, name, (count + 7) / 8)))
        return 0;
    *target = (Target){taken[1].view.buf, taken[0].view.buf, 0, taken[1].count};
    *target->offset = 0;
    if (bits != NULL)
        *bits = taken[2].view.buf;
    return 1;
}

static PyObject *read_records(PyObject *module, PyObject *arguments)
{
    PyObject *given[10], *result = NULL;
    long long from_offset;
    Items data = {0}, regions = {0}, offsets = {0}, timestamps = {0}, types = {0}, header_offsets = {0};
    Items taken[4][3] = {{{{0}, 0}}};
    Columns columns = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOLOOOO!O!OO!O!:read_records", &given[0], &given[1], &from_offset, &given[2], &given[3],
                          &given[4], &PyTuple_Type, &given[5], &PyTuple_Type, &given[6], &given[7], &PyTuple_Type, &given[8],
                          &PyTuple_Type, &given[9]))
        return NULL;
    if (!take_items(&data, given[0], 1, READ_ITEMS, "data") || !take_items(&regions, given[1], 8, READ_ITEMS, "regions")
        || !take_items(&offsets, given[2], 8, WRITE_ITEMS, "offsets")
        || !take_n_items(&timestamps, given[3], 8, WRITE_ITEMS, "timestamps", offsets.count)
        || !take_n_items(&types, given[4], 1, WRITE_ITEMS, "types", offsets.count)
        || !take_column(given[5], "keys", offsets.count, taken[0], &columns.keys, &columns.key_bits)
        || !take_column(given[6], "values", offsets.count, taken[1], &columns.values, &columns.value_bits)
        || !take_n_items(&header_offsets, given[7], 4, WRITE_ITEMS, "header offsets", offsets.count + 1))
        goto done;
    PyObject *name_offsets = PyTuple_GetItem(given[8], 0); /* says how many headers there are */
    if (name_offsets == NULL)
        goto done;
    Items headers = {0};
    if (!take_items(&headers, name_offsets, 4, READ_ITEMS, "names"))
        goto done;
    Py_ssize_t header_room = headers.count - 1;
    release_items(&headers);
    if (header_room < 0 || !take_column(given[8], "names", header_room, taken[2], &columns.names, NULL)
        || !take_column(given[9], "header values", header_room, taken[3], &columns.header_values, &columns.header_value_bits)) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "names: expected at least one offset");
        goto done;
    }
    if (!are_regions_in(&data, &regions)) {
        PyErr_SetString(PyExc_IndexError, "a region does not lie in the data");
        goto done;
    }
    columns.offsets = offsets.view.buf;
    columns.timestamps = timestamps.view.buf;
    columns.types = types.view.buf;
    columns.header_offsets = header_offsets.view.buf;
    columns.header_offsets[0] = 0;
    columns.row_room = offsets.count;
    columns.header_room = header_room;
    Source source = {data.view.buf, data.count};
    const int64_t *region = regions.view.buf;
    Py_ssize_t count = regions.count / REGION_FIELDS, at = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; at < count; at++)
        if (read_region(&source, region + at * REGION_FIELDS, from_offset, NULL, &columns) != SOUND)
            break;
    Py_END_ALLOW_THREADS
    if (at < count || columns.rows != columns.row_room || columns.headers != columns.header_room)
        PyErr_Format(PyExc_IndexError, "the records of region %zd are not those that were measured", at);
    else
        result = Py_BuildValue("(LLL)", (long long)columns.key_nulls, (long long)columns.value_nulls,
                               (long long)columns.header_value_nulls);
done:
    release_items(&data);
    release_items(&regions);
    release_items(&offsets);
    release_items(&timestamps);
    release_items(&types);
    release_items(&header_offsets);
    for (int column = 0; column < 4; column++)
        for (int item = 0; item < 3; item++)
            release_items(&taken[column][item]);
    return result;
}

PyMethodDef record_reader_methods[] = {
    {"measure_records", measure_records, METH_VARARGS, NULL},
    {"read_records", read_records, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
