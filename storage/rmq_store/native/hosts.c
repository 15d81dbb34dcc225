/* IPv4 hosts of frames as text: `1.2.3.4:10911`. Layout: rmq_store/format/text/host.py. */

#include "native.h"

#include "big_endian.h"
#include "hosts.h"

/* Write a number of at most 10 digits; how many bytes that took. */
static int write_number(uint8_t *to, uint32_t number)
{
    uint8_t digits[10];
    int count = 0;
    do {
        digits[count++] = (uint8_t)('0' + number % 10);
        number /= 10;
    } while (number);
    for (int at = 0; at < count; at++)
        to[at] = digits[count - 1 - at];
    return count;
}

void write_host(HostText *last, const uint8_t *host)
{
    if (last->size && memcmp(host, last->host, HOST_BYTES) == 0)
        return;
    memcpy(last->host, host, HOST_BYTES);
    int at = 0;
    for (int byte = 0; byte < 4; byte++) {
        at += write_number(last->text + at, host[byte]);
        last->text[at++] = byte < 3 ? '.' : ':';
    }
    uint32_t port = word_at(host + 4);
    if (port >> 31) {
        last->text[at++] = '-';
        port = 0u - port;
    }
    last->size = at + write_number(last->text + at, port);
}

static PyObject *ipv4_texts(PyObject *module, PyObject *arguments)
{
    PyObject *given[4], *result = NULL;
    Items data = {0}, positions = {0}, offsets = {0}, values = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOO:ipv4_texts", &given[0], &given[1], &given[2], &given[3]))
        return NULL;
    if (!take_items(&data, given[0], 1, READ_ITEMS, "data")
        || !take_items(&positions, given[1], 8, READ_ITEMS, "positions")
        || !take_n_items(&offsets, given[2], 4, WRITE_ITEMS, "offsets", positions.count + 1)
        || !take_n_items(&values, given[3], 1, WRITE_ITEMS, "values", positions.count * TEXT_ROOM_BYTES))
        goto done;
    if (values.count > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "too many hosts for 32-bit offsets");
        goto done;
    }
    const int64_t *position = positions.view.buf;
    int32_t *offset = offsets.view.buf;
    uint8_t *to = values.view.buf;
    HostText last = {0};
    Py_ssize_t row = 0;
    Py_BEGIN_ALLOW_THREADS
    offset[0] = 0;
    for (; row < positions.count && 0 <= position[row] && position[row] <= data.count - HOST_BYTES; row++) {
        write_host(&last, (const uint8_t *)data.view.buf + position[row]);
        memcpy(to + offset[row], last.text, TEXT_ROOM_BYTES);
        offset[row + 1] = offset[row] + last.size;
    }
    Py_END_ALLOW_THREADS
    if (row < positions.count)
        PyErr_Format(PyExc_IndexError, "host %zd does not lie in the data", row);
    else
        result = PyLong_FromLong(offset[row]);
done:
    release_items(&data);
    release_items(&positions);
    release_items(&offsets);
    release_items(&values);
    return result;
}

PyMethodDef host_methods[] = {
    {"ipv4_texts", ipv4_texts, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
