/* Texts of messages: what may be stored, and Java's hash. The twins are format/properties/property_encoder.py (checked_text,
   first_with_separator) and format/text/hashing.py. */

#include "native.h"

#include "text.h"

/* The same byte eight times. */
#define EACH(byte) ((byte) * 0x0101010101010101u)

/* The code point at `text`, and its length in `size_used`; -1 if no valid UTF-8 begins there. Unicode, table 3-7. */
static int32_t code_point(const uint8_t *text, size_t size, size_t *size_used)
{
    static const int32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    uint8_t first = text[0];
    size_t length = first < 0x80 ? 1 : first < 0xC0 ? 0 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : first < 0xF8 ? 4 : 0;
    if (length == 0 || length > size)
        return -1;
    int32_t point = length == 1 ? first : first & (0x7F >> length);
    for (size_t at = 1; at < length; at++) {
        if ((text[at] & 0xC0) != 0x80)
            return -1;
        point = point << 6 | (text[at] & 0x3F);
    }
    if (point < least[length] || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF))
        return -1;
    *size_used = length;
    return point;
}

int is_utf8(const uint8_t *text, size_t size)
{
    size_t used = 1;
    for (; size; text += used, size -= used)
        if (*text < 0x80)
            used = 1;
        else if (code_point(text, size, &used) < 0)
            return 0;
    return 1;
}

/* Whether 8 bytes are ASCII and no separators: what is below 3 borrows. */
static int are_plain(const uint8_t *text)
{
    uint64_t bytes;
    memcpy(&bytes, text, 8);
    return !((bytes | (bytes - EACH(3))) & EACH(0x80));
}

int text_is_storable(const uint8_t *text, size_t size)
{
    size_t at = 0;
    while (at + 8 < size && are_plain(text + at))
        at += 8;
    if (size >= 8 && at + 8 >= size && are_plain(text + size - 8))
        return 1;
    unsigned separators = 0, high = 0;
    for (size_t at = 0; at < size; at++) {
        separators |= (uint8_t)(text[at] - 1) < 2;
        high |= text[at];
    }
    return !separators && (!(high & 0x80) || is_utf8(text, size));
}

uint32_t java_hash(uint32_t seed, const uint8_t *text, size_t size)
{
    uint32_t hash = seed;
    while (size) {
        if (size >= 4 && !((text[0] | text[1] | text[2] | text[3]) & 0x80)) {
            hash = hash * (31 * 31 * 31 * 31) + text[0] * (31 * 31 * 31u) + text[1] * (31 * 31u) + text[2] * 31u + text[3];
            text += 4;
            size -= 4;
            continue;
        }
        size_t used = 1;
        int32_t point = code_point(text, size, &used);
        if (point >= 0x10000) {
            hash = hash * 31 + 0xD800 + (uint32_t)((point - 0x10000) >> 10);
            point = 0xDC00 + (point & 0x3FF);
        }
        hash = hash * 31 + (uint32_t)point;
        text += used;
        size -= used;
    }
    return hash;
}

uint32_t index_hash(uint32_t hash)
{
    return hash == 0x80000000u ? 0 : hash & 0x80000000u ? 0u - hash : hash;
}

static PyObject *slice_hashes(PyObject *module, PyObject *arguments)
{
    PyObject *given[4], *result = NULL;
    unsigned int seed;
    Items data = {0}, starts = {0}, ends = {0}, hashes = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOIO:slice_hashes", &given[0], &given[1], &given[2], &seed, &given[3]))
        return NULL;
    if (take_items(&data, given[0], 1, READ_ITEMS, "data") && take_items(&starts, given[1], 8, READ_ITEMS, "starts")
        && take_n_items(&ends, given[2], 8, READ_ITEMS, "ends", starts.count)
        && take_n_items(&hashes, given[3], 4, WRITE_ITEMS, "hashes", starts.count)) {
        const int64_t *start = starts.view.buf, *end = ends.view.buf;
        Py_ssize_t row = 0;
        int is_text = 1;
        Py_BEGIN_ALLOW_THREADS
        for (; is_text && row < starts.count && 0 <= start[row] && start[row] <= end[row] && end[row] <= data.count; row++) {
            const uint8_t *text = (const uint8_t *)data.view.buf + start[row];
            size_t size = (size_t)(end[row] - start[row]);
            is_text = is_utf8(text, size);
            ((uint32_t *)hashes.view.buf)[row] = java_hash(seed, text, size);
        }
        Py_END_ALLOW_THREADS
        if (is_text && row < starts.count)
            PyErr_Format(PyExc_IndexError, "slice %zd does not lie in the data", row);
        else
            result = PyBool_FromLong(is_text);
    }
    release_items(&data);
    release_items(&starts);
    release_items(&ends);
    release_items(&hashes);
    return result;
}

PyMethodDef text_methods[] = {
    {"slice_hashes", slice_hashes, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
