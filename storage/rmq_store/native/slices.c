/* Many pieces of one buffer: copied one behind another, as Arrow's binary arrays; or added up. The twins are in
   format/bytes/gather.py. */

#include "native.h"

#include "big_endian.h"
#include "copy.h"
#include "prefetch.h"

/* Slices ahead whose first bytes are on their way: they lie anywhere, the processor cannot guess where. */
#define AHEAD 8

static PyObject *copy_slices(PyObject *module, PyObject *arguments)
{
    PyObject *given[5], *result = NULL;
    Items data = {0}, starts = {0}, ends = {0}, offsets = {0}, values = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOO:copy_slices", &given[0], &given[1], &given[2], &given[3], &given[4]))
        return NULL;
    if (!take_items(&data, given[0], 1, READ_ITEMS, "data") || !take_items(&starts, given[1], 8, READ_ITEMS, "starts")
        || !take_n_items(&ends, given[2], 8, READ_ITEMS, "ends", starts.count)
        || !take_n_items(&offsets, given[3], 4, WRITE_ITEMS, "offsets", starts.count + 1)
        || !take_items(&values, given[4], 1, WRITE_ITEMS, "values"))
        goto done;
    const int64_t *start = starts.view.buf, *end = ends.view.buf;
    Source source = {data.view.buf, data.count};
    Target target = {values.view.buf, offsets.view.buf, 0, values.count};
    Py_ssize_t row = 0;
    Py_BEGIN_ALLOW_THREADS
    *target.offset = 0;
    for (; row < starts.count; row++) {
        if (row + AHEAD < starts.count && 0 <= start[row + AHEAD] && start[row + AHEAD] < source.size)
            PREFETCH(source.data + start[row + AHEAD]);
        if (!copy_slice(&target, &source, start[row], end[row]))
            break;
    }
    Py_END_ALLOW_THREADS
    if (row < starts.count)
        PyErr_Format(PyExc_IndexError, "slice %zd does not lie in the data, or there is no room for it", row);
    else
        result = PyLong_FromLongLong(target.size);
done:
    release_items(&data);
    release_items(&starts);
    release_items(&ends);
    release_items(&offsets);
    release_items(&values);
    return result;
}

static PyObject *sum_words(PyObject *module, PyObject *arguments)
{
    PyObject *given[2], *result = NULL;
    Items data = {0}, positions = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OO:sum_words", &given[0], &given[1]))
        return NULL;
    if (take_items(&data, given[0], 1, READ_ITEMS, "data")
        && take_items(&positions, given[1], 8, READ_ITEMS, "positions")) {
        const uint8_t *bytes = data.view.buf;
        const int64_t *position = positions.view.buf;
        uint64_t sum = 0;
        Py_ssize_t row = 0;
        Py_BEGIN_ALLOW_THREADS
        for (; row < positions.count && position[row] >= 0 && position[row] <= data.count - 4; row++)
            sum += word_at(bytes + position[row]);
        Py_END_ALLOW_THREADS
        if (row < positions.count)
            PyErr_Format(PyExc_IndexError, "word %zd does not lie in the data", row);
        else
            result = PyLong_FromUnsignedLongLong(sum);
    }
    release_items(&data);
    release_items(&positions);
    return result;
}

PyMethodDef slice_methods[] = {
    {"copy_slices", copy_slices, METH_VARARGS, NULL},
    {"sum_words", sum_words, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
