/* Rows of Arrow columns as records of a Kafka record batch (magic 2). The twin is bridge/record_batches/batches_python.py.

   Source: DefaultRecord.writeTo of Kafka's clients. */

#include "native.h"

#include "rows.h"

typedef struct {
    Items timestamps, header_offsets; /* int64 (n,), int32 (n + 1,) */
    Texts keys, values, names, header_values;
} Records;

static inline uint64_t zigzag(int64_t value)
{
    return (uint64_t)value << 1 ^ (0u - ((uint64_t)value >> 63));
}

static inline int64_t size_of_number(int64_t value)
{
    int64_t size = 1;
    for (uint64_t raw = zigzag(value); raw >= 0x80; raw >>= 7)
        size++;
    return size;
}

static inline uint8_t *put_number(uint8_t *to, int64_t value)
{
    uint64_t raw = zigzag(value);
    for (; raw >= 0x80; raw >>= 7)
        *to++ = (uint8_t)(raw | 0x80);
    *to++ = (uint8_t)raw;
    return to;
}

/* Row `row`, its text null for a null. False if it does not lie in the column. */
static inline int cell_at(const Texts *texts, Py_ssize_t row, Slice *cell)
{
    *cell = (Slice){NULL, 0};
    return !text_is_there(texts, row) || slice_at(&texts->offsets, &texts->data, row, cell);
}

static inline int64_t size_of_cell(Slice cell)
{
    return cell.text == NULL ? 1 : size_of_number((int64_t)cell.size) + (int64_t)cell.size;
}

static inline uint8_t *put_cell(uint8_t *to, Slice cell)
{
    if (cell.text == NULL)
        return put_number(to, -1);
    to = put_number(to, (int64_t)cell.size);
    copy_short(to, cell.text, cell.size);
    return to + cell.size;
}

/* The bytes of a row behind its length; -1 if it does not lie in its columns. `cells`: key and value. */
static inline int64_t size_of_body(const Records *records, Py_ssize_t row, int64_t timestamp_delta, int64_t offset_delta,
                                   Slice cells[2])
{
    const int32_t *headers = (const int32_t *)records->header_offsets.view.buf + row;
    if (!cell_at(&records->keys, row, &cells[0]) || !cell_at(&records->values, row, &cells[1]) || headers[0] < 0
        || headers[1] < headers[0] || headers[1] > records->names.offsets.count - 1)
        return -1;
    int64_t size = 1 + size_of_number(timestamp_delta) + size_of_number(offset_delta) + size_of_cell(cells[0])
                 + size_of_cell(cells[1]) + size_of_number(headers[1] - headers[0]);
    for (int32_t header = headers[0]; header < headers[1]; header++) {
        Slice name, value;
        if (!cell_at(&records->names, header, &name) || name.text == NULL || !cell_at(&records->header_values, header, &value))
            return -1;
        size += size_of_cell(name) + size_of_cell(value);
    }
    return size;
}

/* Of a row that was measured. */
static inline uint8_t *put_record(uint8_t *to, const Records *records, Py_ssize_t row, int64_t body_bytes,
                                  int64_t timestamp_delta, int64_t offset_delta, const Slice cells[2])
{
    const int32_t *headers = (const int32_t *)records->header_offsets.view.buf + row;
    to = put_number(to, body_bytes);
    *to++ = 0; /* attributes: none are in use */
    to = put_number(to, timestamp_delta);
    to = put_number(to, offset_delta);
    to = put_cell(to, cells[0]);
    to = put_cell(to, cells[1]);
    to = put_number(to, headers[1] - headers[0]);
    for (int32_t header = headers[0]; header < headers[1]; header++) {
        Slice name, value;
        cell_at(&records->names, header, &name);
        cell_at(&records->header_values, header, &value);
        to = put_cell(put_cell(to, name), value);
    }
    return to;
}

static void release_records(Records *records)
{
    release_items(&records->timestamps);
    release_items(&records->header_offsets);
    release_texts(&records->keys);
    release_texts(&records->values);
    release_texts(&records->names);
    release_texts(&records->header_values);
}

static int take_records(Records *records, PyObject *object)
{
    PyObject *timestamps, *keys, *values, *header_offsets, *names, *header_values;
    if (!PyArg_ParseTuple(object, "OO!O!OO!O!", &timestamps, &PyTuple_Type, &keys, &PyTuple_Type, &values, &header_offsets,
                          &PyTuple_Type, &names, &PyTuple_Type, &header_values)
        || !take_items(&records->timestamps, timestamps, 8, READ_ITEMS, "timestamps"))
        return 0;
    Py_ssize_t count = records->timestamps.count;
    return take_texts(&records->keys, keys, "keys", count) && take_texts(&records->values, values, "values", count)
        && take_n_items(&records->header_offsets, header_offsets, 4, READ_ITEMS, "header offsets", count + 1)
        && take_texts(&records->names, names, "names", -1)
        && take_texts(&records->header_values, header_values, "header values", records->names.offsets.count - 1);
}

static PyObject *write_records(PyObject *module, PyObject *arguments)
{
    PyObject *given[2], *result = NULL;
    Py_ssize_t first;
    Records records = {0};
    Items out = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!nO:write_records", &PyTuple_Type, &given[0], &first, &given[1]))
        return NULL;
    if (!take_records(&records, given[0]) || !take_items(&out, given[1], 1, WRITE_ITEMS, "out"))
        goto done;
    Py_ssize_t row = first;
    if (first < 0 || first >= records.timestamps.count) {
        PyErr_Format(PyExc_IndexError, "there is no row %zd", first);
        goto done;
    }
    const int64_t *timestamp = records.timestamps.view.buf;
    int64_t size = 0, body = 0, newest = INT64_MIN;
    uint8_t *to = out.view.buf;
    Py_BEGIN_ALLOW_THREADS
    for (; row < records.timestamps.count && row - first <= INT32_MAX; row++) {
        Slice cells[2];
        int64_t timestamp_delta = (int64_t)((uint64_t)timestamp[row] - (uint64_t)timestamp[first]), needed;
        body = size_of_body(&records, row, timestamp_delta, row - first, cells);
        needed = body + size_of_number(body);
        if (body < 0 || body > INT32_MAX || needed > out.count - size) {
            size = row == first ? needed : size;
            break;
        }
        to = put_record(to, &records, row, body, timestamp_delta, row - first, cells);
        size += needed;
        newest = timestamp[row] > newest ? timestamp[row] : newest;
    }
    Py_END_ALLOW_THREADS
    if (body < 0)
        PyErr_Format(PyExc_IndexError, "row %zd does not lie in its columns", row);
    else
        result = Py_BuildValue("(nLL)", row, (long long)size, (long long)newest);
done:
    release_records(&records);
    release_items(&out);
    return result;
}

PyMethodDef record_writer_methods[] = {
    {"write_records", write_records, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
