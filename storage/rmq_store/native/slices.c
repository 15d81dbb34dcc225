/* Copies of many slices of one buffer, one behind another: the values of Arrow's binary arrays. */

#include "native.h"

/* Short slices are copied in whole blocks where there is room for what is copied too much: the next slice overwrites
   it, and behind the last one there is none. */
#define BLOCK_BYTES 16

static void copy_short(uint8_t *to, const uint8_t *from, int64_t size)
{
    memcpy(to, from, BLOCK_BYTES);
    if (size > BLOCK_BYTES)
        memcpy(to + BLOCK_BYTES, from + BLOCK_BYTES, BLOCK_BYTES);
}

static PyObject *slice_offsets(PyObject *module, PyObject *arguments)
{
    PyObject *given[3], *result = NULL;
    Items starts = {0}, ends = {0}, offsets = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOO:slice_offsets", &given[0], &given[1], &given[2]))
        return NULL;
    if (!take_items(&starts, given[0], 8, READ_ITEMS, "starts")
        || !take_n_items(&ends, given[1], 8, READ_ITEMS, "ends", starts.count)
        || !take_n_items(&offsets, given[2], 4, WRITE_ITEMS, "offsets", starts.count + 1))
        goto done;
    const int64_t *start = starts.view.buf, *end = ends.view.buf;
    int32_t *offset = offsets.view.buf;
    int64_t total = 0;
    Py_ssize_t row = 0;
    Py_BEGIN_ALLOW_THREADS
    offset[0] = 0;
    /* A slice is at most as long as a buffer can be: the sum cannot overflow before it is looked at. */
    for (; row < starts.count && 0 <= start[row] && start[row] <= end[row] && total <= INT32_MAX; row++) {
        total += end[row] - start[row];
        offset[row + 1] = (int32_t)total;
    }
    Py_END_ALLOW_THREADS
    if (row < starts.count && total <= INT32_MAX)
        PyErr_Format(PyExc_IndexError, "slice %zd ends before it starts", row);
    else
        result = PyLong_FromLongLong(total);
done:
    release_items(&starts);
    release_items(&ends);
    release_items(&offsets);
    return result;
}

static PyObject *copy_slices(PyObject *module, PyObject *arguments)
{
    PyObject *given[4], *result = NULL;
    Items data = {0}, starts = {0}, ends = {0}, values = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOO:copy_slices", &given[0], &given[1], &given[2], &given[3]))
        return NULL;
    if (!take_items(&data, given[0], 1, READ_ITEMS, "data") || !take_items(&starts, given[1], 8, READ_ITEMS, "starts")
        || !take_n_items(&ends, given[2], 8, READ_ITEMS, "ends", starts.count)
        || !take_items(&values, given[3], 1, WRITE_ITEMS, "values"))
        goto done;
    const uint8_t *from = data.view.buf;
    uint8_t *to = values.view.buf;
    const int64_t *start = starts.view.buf, *end = ends.view.buf;
    int64_t room = values.count;
    Py_ssize_t row = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; row < starts.count; row++) {
        int64_t first = start[row], size = end[row] - first;
        if (first < 0 || first > end[row] || end[row] > data.count || size > room)
            break;
        if (size <= 2 * BLOCK_BYTES && room >= 2 * BLOCK_BYTES && data.count - first >= 2 * BLOCK_BYTES)
            copy_short(to, from + first, size);
        else
            memcpy(to, from + first, (size_t)size);
        to += size;
        room -= size;
    }
    Py_END_ALLOW_THREADS
    if (row < starts.count)
        PyErr_Format(PyExc_IndexError, "slice %zd does not lie in the data, or not in what is left for it", row);
    else
        result = Py_NewRef(Py_None);
done:
    release_items(&data);
    release_items(&starts);
    release_items(&ends);
    release_items(&values);
    return result;
}

PyMethodDef slice_methods[] = {
    {"slice_offsets", slice_offsets, METH_VARARGS, NULL},
    {"copy_slices", copy_slices, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
