/* The frames that entries of a consume queue point to, for an answer to a pull. The twin is the loop in
   broker/read/queue_frames.py, which also has the cases that are left to it here. */

#include "native.h"

#include "big_endian.h"
#include "frame_parts.h"
#include "frames.h"

#define ENTRY_BYTES 20
#define HEAD_BYTES (QUEUE_OFFSET_AT + 8)

/* Whether `size` bytes at `frame` begin as the frame of this message. */
static int begins_frame(const uint8_t *frame, int32_t size, int32_t queue_id, int64_t queue_offset)
{
    uint32_t magic = word_at(frame + MAGIC_AT);
    return (int32_t)word_at(frame + TOTAL_SIZE_AT) == size && (magic == MAGIC_V1 || magic == MAGIC_V2)
           && (int32_t)word_at(frame + QUEUE_ID_AT) == queue_id && (int64_t)long_at(frame + QUEUE_OFFSET_AT) == queue_offset;
}

/* The sum of the sizes; -1 if it is more than `bytes_max`, or an entry does not point to its frame. */
static int64_t measure(const Items *data, const Items *entries, int64_t base, int32_t queue_id, int64_t queue_offset,
                       int64_t bytes_max)
{
    const uint8_t *entry = entries->view.buf;
    int64_t sum = 0;
    for (Py_ssize_t row = 0; row < entries->count / ENTRY_BYTES; row++, entry += ENTRY_BYTES) {
        int64_t offset = (int64_t)long_at(entry);
        int32_t size = (int32_t)word_at(entry + 8);
        if (size < HEAD_BYTES || offset < base || offset - base > data->count - size)
            return -1;
        if (!begins_frame((const uint8_t *)data->view.buf + (offset - base), size, queue_id, queue_offset + row))
            return -1;
        sum += size;
        if (sum > bytes_max)
            return -1;
    }
    return sum;
}

static void copy(uint8_t *target, const Items *data, const Items *entries, int64_t base)
{
    const uint8_t *entry = entries->view.buf;
    for (Py_ssize_t row = 0; row < entries->count / ENTRY_BYTES; row++, entry += ENTRY_BYTES) {
        uint32_t size = word_at(entry + 8);
        memcpy(target, (const uint8_t *)data->view.buf + ((int64_t)long_at(entry) - base), size);
        target += size;
    }
}

static PyObject *whole_frames(PyObject *module, PyObject *arguments)
{
    PyObject *given[2], *result = NULL;
    Items data = {0}, entries = {0};
    long long base, queue_offset, bytes_max;
    int queue_id;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OLOiLL:whole_frames", &given[0], &base, &given[1], &queue_id, &queue_offset, &bytes_max))
        return NULL;
    if (!take_items(&data, given[0], 1, READ_ITEMS, "data") || !take_items(&entries, given[1], 1, READ_ITEMS, "entries"))
        goto done;
    if (base < 0 || entries.count % ENTRY_BYTES) {
        PyErr_SetString(PyExc_ValueError, "a base below 0, or a part of an entry");
        goto done;
    }
    int64_t sum;
    Py_BEGIN_ALLOW_THREADS
    sum = measure(&data, &entries, base, queue_id, queue_offset, bytes_max);
    Py_END_ALLOW_THREADS
    if (sum < 0) {
        result = Py_NewRef(Py_None);
        goto done;
    }
    result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)sum);
    if (result == NULL)
        goto done;
    uint8_t *target = (uint8_t *)PyBytes_AsString(result);
    Py_BEGIN_ALLOW_THREADS
    copy(target, &data, &entries, base);
    Py_END_ALLOW_THREADS
done:
    release_items(&data);
    release_items(&entries);
    return result;
}

PyMethodDef queue_frame_methods[] = {
    {"whole_frames", whole_frames, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
