/* Requests that differ in numbers only, one behind another in one buffer. The twin is remoting/transport/template.py. */

#include "native.h"

#include <stdio.h>

#include "big_endian.h"

#define PREFIX_BYTES 8
#define DIGITS_MAX 20
#define FRAME_BYTES_MAX (1 << 24)
/* A mark of four bytes and the header: what the length in a frame counts. */
#define MARK_BYTES 4

/* The bytes that a request has at most; -1: it may be too large for a frame, or an argument is of another kind. */
static int64_t bytes_max(PyObject *parts)
{
    Py_ssize_t count = PyTuple_Size(parts);
    int64_t sum = PREFIX_BYTES;
    for (Py_ssize_t part = 0; part < count; part++) {
        Py_ssize_t size = PyBytes_Size(PyTuple_GetItem(parts, part));
        if (size < 0 || size > FRAME_BYTES_MAX)
            return -1;
        sum += size + DIGITS_MAX;
        if (sum > FRAME_BYTES_MAX - MARK_BYTES)
            return -1;
    }
    return count > 0 ? sum : -1;
}

/* Write the request with the numbers of `row`. Where it ends; null: a number is none, or too large. */
static uint8_t *put_request(uint8_t *frame, PyObject *parts, PyObject *row)
{
    Py_ssize_t count = PyTuple_Size(parts);
    uint8_t *at = frame + PREFIX_BYTES;
    if (!PyTuple_Check(row) || PyTuple_Size(row) != count - 1)
        return NULL;
    for (Py_ssize_t place = 0; place < count; place++) {
        PyObject *part = PyTuple_GetItem(parts, place);
        size_t size = (size_t)PyBytes_Size(part);
        memcpy(at, PyBytes_AsString(part), size);
        at += size;
        if (place == count - 1)
            break;
        long long number = PyLong_AsLongLong(PyTuple_GetItem(row, place));
        if (number == -1 && PyErr_Occurred())
            return NULL;
        at += sprintf((char *)at, "%lld", number);
    }
    /* The form is JSON: 0, in the byte before the length of the header. */
    put_word(frame, (uint32_t)(at - frame - MARK_BYTES));
    put_word(frame + MARK_BYTES, (uint32_t)(at - frame - PREFIX_BYTES));
    return at;
}

static PyObject *request_frames(PyObject *module, PyObject *arguments)
{
    PyObject *parts, *rows, *result = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!O!:request_frames", &PyTuple_Type, &parts, &PyList_Type, &rows))
        return NULL;
    Py_ssize_t count = PyList_Size(rows);
    int64_t size = bytes_max(parts);
    if (size < 0 || count > PY_SSIZE_T_MAX / size)
        goto left;
    /* sprintf ends each number with a null byte. */
    uint8_t *frames = PyMem_Malloc((size_t)(count * size) + 1), *at = frames;
    if (frames == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t place = 0; place < count && at != NULL; place++)
        at = put_request(at, parts, PyList_GetItem(rows, place));
    if (at != NULL)
        result = PyBytes_FromStringAndSize((const char *)frames, at - frames);
    PyMem_Free(frames);
    if (at != NULL)
        return result;
left:
    PyErr_Clear();
    return Py_NewRef(Py_None);
}

PyMethodDef request_methods[] = {
    {"request_frames", request_frames, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
