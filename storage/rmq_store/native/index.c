/* New entries of an index file, chained to what their slots hold and to one another. The twins are in format/views/index.py: of
   `chain_one` and `chain_and_point` the functions of that name, of `chain_entries` `build_chain` and `encode_entries`.
   What these do by sorting is done here one by one, as RocketMQ does it. Where the slots are those of the file,
   `chain_entries` has a table of those that were met in between, because entries must be on the file before the slots
   say so. */

#include "native.h"

#include "big_endian.h"
#include "index.h"
#include "prefetch.h"

#define ENTRY_BYTES INDEX_ENTRY_BYTES

/* Slots lie anywhere in 20 MB. Asked for this many entries ahead, they are in the cache when their entry's turn comes. */
#define AHEAD 16
/* Whose slots are looked for at once, each division beside the next one's. */
#define BLOCK 64

static void put_entry(uint8_t *place, int32_t hash, int64_t log_offset, int32_t seconds, int32_t previous)
{
    put_word(place, (uint32_t)hash);
    put_long(place + 4, (uint64_t)log_offset);
    put_word(place + 12, (uint32_t)seconds);
    put_word(place + 16, (uint32_t)previous);
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
    uint8_t *entry_bytes = entries.view.buf;
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
        put_entry(entry_bytes + ENTRY_BYTES * row, hash[row], offset[row], diff[row], previous);
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

/* Entries of `count` keys from `row` on, at most BLOCK; their slots point at them then. How many slots were empty; -1: a
   hash is negative. */
static Py_ssize_t chain_block(const int32_t *hash, const int64_t *offset, const int32_t *diff, Py_ssize_t count,
                              int32_t first_number, uint8_t *slots, uint32_t slot_count, uint8_t *entries)
{
    uint8_t *slot[BLOCK];
    Py_ssize_t new_count = 0;
    for (Py_ssize_t key = 0; key < count; key++) {
        if (hash[key] < 0)
            return -1;
        slot[key] = slots + 4 * (size_t)((uint32_t)hash[key] % slot_count);
        PREFETCH(slot[key]);
    }
    for (Py_ssize_t key = 0; key < count; key++) {
        int32_t number = first_number + (int32_t)key, previous = (int32_t)word_at(slot[key]);
        if (previous <= 0 || previous >= number) {
            previous = 0;
            new_count++;
        }
        put_entry(entries + ENTRY_BYTES * key, hash[key], offset[key], diff[key], previous);
        put_word(slot[key], (uint32_t)number);
    }
    return new_count;
}

static PyObject *chain_and_point(PyObject *module, PyObject *arguments)
{
    PyObject *given[5], *result = NULL;
    long long first_number;
    Items hashes = {0}, offsets = {0}, diffs = {0}, slots = {0}, entries = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOLO:chain_and_point", &given[0], &given[1], &given[2], &given[3], &first_number,
                          &given[4]))
        return NULL;
    if (!take_items(&hashes, given[0], 4, READ_ITEMS, "key_hashes")
        || !take_n_items(&offsets, given[1], 8, READ_ITEMS, "log_offsets", hashes.count)
        || !take_n_items(&diffs, given[2], 4, READ_ITEMS, "time_diffs", hashes.count)
        || !take_items(&slots, given[3], 1, WRITE_ITEMS, "slots")
        || !take_n_items(&entries, given[4], 1, WRITE_ITEMS, "entries", hashes.count * ENTRY_BYTES))
        goto done;
    int64_t slot_count = slots.count / 4;
    if (slot_count < 1 || slot_count > INT32_MAX || first_number < 1 || first_number > INT32_MAX - hashes.count) {
        PyErr_SetString(PyExc_ValueError, "no slots, or numbers that no entry can have");
        goto done;
    }
    const int32_t *hash = hashes.view.buf, *diff = diffs.view.buf;
    const int64_t *offset = offsets.view.buf;
    uint8_t *entry_bytes = entries.view.buf;
    Py_ssize_t new_count = 0, block_count = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t row = 0; row < hashes.count && block_count >= 0; row += BLOCK) {
        Py_ssize_t count = hashes.count - row < BLOCK ? hashes.count - row : BLOCK;
        block_count = chain_block(hash + row, offset + row, diff + row, count, (int32_t)(first_number + row),
                                  slots.view.buf, (uint32_t)slot_count, entry_bytes + ENTRY_BYTES * row);
        new_count += block_count;
    }
    Py_END_ALLOW_THREADS
    if (block_count < 0)
        PyErr_SetString(PyExc_ValueError, "a key hash is negative");
    else
        result = PyLong_FromSsize_t(new_count);
done:
    release_items(&hashes);
    release_items(&offsets);
    release_items(&diffs);
    release_items(&slots);
    release_items(&entries);
    return result;
}

/* The header of a file; its fields are where format/views/index.py says. */
#define HEADER_BYTES INDEX_HEADER_BYTES

int take_hashes(int32_t *hashes, PyObject *list)
{
    int count = (int)PyList_Size(list);
    for (int key = 0; key < count; key++) {
        long hash = PyLong_AsLong(PyList_GetItem(list, key));
        if (hash == -1 && PyErr_Occurred())
            return -1;
        if (hash < 0 || hash > INT32_MAX) {
            PyErr_Format(PyExc_ValueError, "key hash %ld is none", hash);
            return -1;
        }
        hashes[key] = (int32_t)hash;
    }
    return count;
}

void set_hashes(NewKeys *keys, const int32_t *hashes, int count)
{
    keys->count = count;
    keys->new_slots = 0;
    for (int key = 0; key < count; key++) {
        keys->hashes[key] = hashes[key];
        keys->slot_of[key] = (int32_t)(hashes[key] % keys->slot_count);
    }
}

/* What the entry before entry `first + key` in its slot has as number; 0 if there is none. */
static int32_t previous_of(NewKeys *keys, int key, int32_t first)
{
    for (int before = key - 1; before >= 0; before--)
        if (keys->slot_of[before] == keys->slot_of[key])
            return first + before;
    int32_t previous = (int32_t)word_at(keys->slots + 4 * (int64_t)keys->slot_of[key]);
    if (previous > 0 && previous < first + key)
        return previous;
    keys->new_slots++;
    return 0;
}

/* IndexFile#putKey: whole seconds after the first entry of the file. */
static int32_t seconds_after(int64_t begin_ms, int64_t time_ms)
{
    if (begin_ms <= 0 || time_ms <= begin_ms)
        return 0;
    int64_t seconds = (time_ms - begin_ms) / 1000;
    return seconds > INT32_MAX ? INT32_MAX : (int32_t)seconds;
}

int32_t next_entry(const uint8_t *header)
{
    int32_t next = (int32_t)word_at(header + 36);
    return next < 1 ? 1 : next;
}

void chain_keys(NewEntries *made, NewKeys *keys, const uint8_t *old, int64_t log_offset, int64_t time_ms)
{
    int32_t used = (int32_t)word_at(old + 32), first = next_entry(old);
    int64_t begin_ms = (int64_t)long_at(old);
    for (int key = 0; key < keys->count; key++) {
        put_entry(made->entries + ENTRY_BYTES * key, keys->hashes[key], log_offset, seconds_after(begin_ms, time_ms),
                  previous_of(keys, key, first));
        if (first + key <= 1)
            begin_ms = time_ms; /* the header of a new file gets its begin with the first entry, and counts from it */
    }
    made->first = first;
    put_long(made->header, (uint64_t)begin_ms);
    put_long(made->header + 8, (uint64_t)time_ms);
    put_long(made->header + 16, first <= 1 ? (uint64_t)log_offset : long_at(old + 16));
    put_long(made->header + 24, (uint64_t)log_offset);
    put_word(made->header + 32, used > INT32_MAX - keys->new_slots ? INT32_MAX : (uint32_t)(used + keys->new_slots));
    put_word(made->header + 36, (uint32_t)(first + keys->count));
}

static PyObject *chain_one(PyObject *module, PyObject *arguments)
{
    PyObject *given, *list, *entries = NULL, *slots = NULL;
    const char *header;
    Py_ssize_t header_size;
    long long log_offset, time_ms, entry_max;
    Items mapped = {0};
    NewKeys keys = {0};
    NewEntries made;
    int32_t hashes[KEYS_MAX];
    (void)module;
    if (!PyArg_ParseTuple(arguments, "Oy#O!LLL:chain_one", &given, &header, &header_size, &PyList_Type, &list, &log_offset,
                          &time_ms, &entry_max))
        return NULL;
    if (header_size != HEADER_BYTES || PyList_Size(list) > KEYS_MAX)
        Py_RETURN_NONE;
    if (!take_items(&mapped, given, 4, READ_ITEMS, "slots"))
        return NULL;
    keys.slots = mapped.view.buf;
    keys.slot_count = mapped.count;
    if (keys.slot_count < 1 || entry_max > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "an index file of no geometry");
        goto done;
    }
    int count = take_hashes(hashes, list);
    if (count < 0)
        goto done;
    set_hashes(&keys, hashes, count);
    int32_t first = next_entry((const uint8_t *)header);
    if (keys.count > entry_max - first)
        keys.count = entry_max > first ? (int)(entry_max - first) : 0;
    chain_keys(&made, &keys, (const uint8_t *)header, log_offset, time_ms);
    slots = PyList_New(keys.count);
    for (int key = 0; slots != NULL && key < keys.count; key++) {
        PyObject *pair = Py_BuildValue("ii", keys.slot_of[key], first + key);
        if (pair == NULL || PyList_SetItem(slots, key, pair) < 0)
            Py_CLEAR(slots);
    }
    if (slots != NULL)
        entries = Py_BuildValue("iy#Ny#", first, made.entries, (Py_ssize_t)(keys.count * ENTRY_BYTES), slots,
                                made.header, (Py_ssize_t)HEADER_BYTES);
done:
    release_items(&mapped);
    return entries;
}

PyMethodDef index_methods[] = {
    {"chain_and_point", chain_and_point, METH_VARARGS, NULL},
    {"chain_one", chain_one, METH_VARARGS, NULL},
    {"chain_entries", chain_entries, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
