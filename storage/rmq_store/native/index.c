/* New entries of an index file, chained to what their slots hold and to one another. The twins are `build_chain` and
   `encode_entries` (format/index.py): what they do by sorting is done here one by one, as RocketMQ does it, with a table
   of the slots that were met in between, because entries must be on the file before the slots say so. */

#include "native.h"

#include "big_endian.h"
#include "prefetch.h"

#define ENTRY_BYTES 20

/* Slots lie anywhere in 20 MB. Asked for this many entries ahead, they are in the cache when their entry's turn comes. */
#define AHEAD 16

static uint8_t *put_big_endian(uint8_t *place, uint64_t value, int bytes)
{
    for (int byte = bytes - 1; byte >= 0; byte--, value >>= 8)
        place[byte] = (uint8_t)value;
    return place + bytes;
}

static PyObject *chain_entries(PyObject *module, PyObject *arguments)
{
    PyObject *given[7], *result = NULL;
    long long first_number;
    Items hashes = {0}, offsets = {0}, diffs = {0}, slots = {0}, entries = {0}, met = {0}, newest = {0};
    int32_t *table = NULL;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOLOOO:chain_entries", &given[0], &given[1], &given[2], &given[3], &first_number,
                          &given[4], &given[5], &given[6]))
        return NULL;
    if (!take_items(&hashes, given[0], 4, READ_ITEMS, "key_hashes")
        || !take_n_items(&offsets, given[1], 8, READ_ITEMS, "log_offsets", hashes.count)
        || !take_n_items(&diffs, given[2], 4, READ_ITEMS, "time_diffs", hashes.count)
        || !take_items(&slots, given[3], 1, READ_ITEMS, "slots")
        || !take_n_items(&entries, given[4], 1, WRITE_ITEMS, "entries", hashes.count * ENTRY_BYTES)
        || !take_n_items(&met, given[5], 8, WRITE_ITEMS, "met", hashes.count)
        || !take_n_items(&newest, given[6], 4, WRITE_ITEMS, "newest", hashes.count))
        goto done;
    int64_t slot_count = slots.count / 4;
    if (slot_count < 1 || first_number < 1 || first_number > INT32_MAX - hashes.count) {
        PyErr_SetString(PyExc_ValueError, "no slots, or numbers that no entry can have");
        goto done;
    }
    /* At most half full; a free place holds 0, others the how-manieth slot met, counted from 1. */
    size_t places = 16;
    while (places < 2 * (size_t)hashes.count)
        places *= 2;
    table = PyMem_Calloc(places, sizeof *table);
    if (table == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    const int32_t *hash = hashes.view.buf, *diff = diffs.view.buf;
    const int64_t *offset = offsets.view.buf;
    const uint8_t *mapped = slots.view.buf;
    uint8_t *entry = entries.view.buf;
    int64_t *slot_of = met.view.buf;
    int32_t *number_of = newest.view.buf;
    Py_ssize_t row = 0, met_count = 0, new_count = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; row < hashes.count && hash[row] >= 0; row++) {
        if (row + AHEAD < hashes.count && hash[row + AHEAD] >= 0)
            PREFETCH(mapped + 4 * (hash[row + AHEAD] % slot_count));
        int64_t slot = hash[row] % slot_count;
        size_t place = (size_t)((uint64_t)slot * 0x9E3779B97F4A7C15u >> 32) & (places - 1);
        while (table[place] && slot_of[table[place] - 1] != slot)
            place = (place + 1) & (places - 1);
        int32_t previous;
        if (table[place]) {
            previous = number_of[table[place] - 1];
        } else {
            previous = (int32_t)word_at(mapped + 4 * slot);
            if (previous <= 0 || previous >= first_number) {
                previous = 0;
                new_count++;
            }
            slot_of[met_count++] = slot;
            table[place] = (int32_t)met_count;
        }
        number_of[table[place] - 1] = (int32_t)(first_number + row);
        entry = put_big_endian(entry, (uint32_t)hash[row], 4);
        entry = put_big_endian(entry, (uint64_t)offset[row], 8);
        entry = put_big_endian(entry, (uint32_t)diff[row], 4);
        entry = put_big_endian(entry, (uint32_t)previous, 4);
    }
    Py_END_ALLOW_THREADS
    if (row < hashes.count)
        PyErr_Format(PyExc_ValueError, "key hash %zd is negative", row);
    else
        result = Py_BuildValue("nn", met_count, new_count);
done:
    PyMem_Free(table);
    release_items(&hashes);
    release_items(&offsets);
    release_items(&diffs);
    release_items(&slots);
    release_items(&entries);
    release_items(&met);
    release_items(&newest);
    return result;
}

PyMethodDef index_methods[] = {
    {"chain_entries", chain_entries, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
