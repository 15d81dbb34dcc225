/* Chains of index files, from what their slots lead to back to the oldest entry. The twins are in log/views/index_map.py, that
   of `newest_entries` in log/views/index_search.py. */

#include "native.h"

#include "big_endian.h"
#include "prefetch.h"

#define HEADER_BYTES 40
#define SLOT_BYTES 4
#define ENTRY_BYTES 20

/* Entries ahead whose bytes are on their way. */
#define AHEAD 16
/* One key is followed to so many entries; the caller has another way for a key that has more. */
#define FOUND_MAX 64
/* Times that no clock shows are left to Python, whose numbers do not overflow. */
#define TIME_MAX ((int64_t)1 << 62)

typedef struct {
    const uint8_t *bytes, *entries;
    int64_t slot_count, entry_max;
} IndexFile;

typedef struct {
    int64_t begin_ms, end_ms, log_start, log_end;
} Window;

typedef struct {
    int64_t offset;
    int32_t hash, seconds, previous;
} Entry;

static int open_index(IndexFile *file, const Items *data, int64_t slot_count, int64_t entry_max)
{
    if (slot_count < 1 || entry_max < 0 || slot_count > INT32_MAX || entry_max > INT32_MAX
        || data->count != HEADER_BYTES + SLOT_BYTES * slot_count + ENTRY_BYTES * entry_max) {
        PyErr_SetString(PyExc_ValueError, "an index file of another geometry");
        return 0;
    }
    *file = (IndexFile){data->view.buf, NULL, slot_count, entry_max};
    file->entries = file->bytes + HEADER_BYTES + SLOT_BYTES * slot_count;
    return 1;
}

static const uint8_t *slot_place(const IndexFile *file, int32_t key_hash)
{
    return file->bytes + HEADER_BYTES + SLOT_BYTES * (key_hash % file->slot_count);
}

PREFETCHING expect_entry(const IndexFile *file, int32_t number)
{
    if (0 < number && number < file->entry_max) {
        PREFETCH(file->entries + ENTRY_BYTES * (int64_t)number);
        PREFETCH(file->entries + ENTRY_BYTES * (int64_t)number + ENTRY_BYTES - 1);
    }
}

/* False: entry `number` is not one of the chain of `key_hash`, in which the entry before had the number `above`. */
static int read_entry(const IndexFile *file, int32_t number, int64_t above, int32_t key_hash, Entry *entry)
{
    if (number <= 0 || number >= above || above > file->entry_max)
        return 0;
    const uint8_t *place = file->entries + ENTRY_BYTES * (int64_t)number;
    *entry = (Entry){(int64_t)long_at(place + 4), (int32_t)word_at(place), (int32_t)word_at(place + 12),
                     (int32_t)word_at(place + 16)};
    return entry->hash == key_hash
        || (entry->hash >= 0 && entry->hash % file->slot_count == key_hash % file->slot_count);
}

static PyObject *read_slots(PyObject *module, PyObject *arguments)
{
    PyObject *given[3], *result = NULL;
    Items data = {0}, hashes = {0}, numbers = {0};
    long long slot_count, entry_max;
    IndexFile file;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OLLOO:read_slots", &given[0], &slot_count, &entry_max, &given[1], &given[2]))
        return NULL;
    if (!take_items(&data, given[0], 1, READ_ITEMS, "data") || !open_index(&file, &data, slot_count, entry_max)
        || !take_items(&hashes, given[1], 4, WRITE_ITEMS, "key_hashes")
        || !take_n_items(&numbers, given[2], 4, WRITE_ITEMS, "numbers", hashes.count))
        goto done;
    int32_t *hash = hashes.view.buf, *number = numbers.view.buf;
    Py_ssize_t row = 0, going = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; row < hashes.count && hash[row] >= 0; row++) {
        if (row + AHEAD < hashes.count && hash[row + AHEAD] >= 0)
            PREFETCH(slot_place(&file, hash[row + AHEAD]));
        int32_t newest = (int32_t)word_at(slot_place(&file, hash[row]));
        if (newest != 0) {
            hash[going] = hash[row];
            number[going++] = newest;
        }
    }
    Py_END_ALLOW_THREADS
    if (row < hashes.count)
        PyErr_Format(PyExc_ValueError, "key hash %d is negative", (int)hash[row]);
    else
        result = PyLong_FromSsize_t(going);
done:
    release_items(&data);
    release_items(&hashes);
    release_items(&numbers);
    return result;
}

static PyObject *follow_chains(PyObject *module, PyObject *arguments)
{
    PyObject *given[5], *result = NULL;
    Items data = {0}, hashes = {0}, numbers = {0}, aboves = {0}, offsets = {0};
    long long slot_count, entry_max, log_start, log_end;
    IndexFile file;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OLLOOOLLO:follow_chains", &given[0], &slot_count, &entry_max, &given[1], &given[2],
                          &given[3], &log_start, &log_end, &given[4]))
        return NULL;
    if (!take_items(&data, given[0], 1, READ_ITEMS, "data") || !open_index(&file, &data, slot_count, entry_max)
        || !take_items(&hashes, given[1], 4, WRITE_ITEMS, "key_hashes")
        || !take_n_items(&numbers, given[2], 4, WRITE_ITEMS, "numbers", hashes.count)
        || !take_n_items(&aboves, given[3], 4, WRITE_ITEMS, "above", hashes.count)
        || !take_n_items(&offsets, given[4], 8, WRITE_ITEMS, "offsets", hashes.count))
        goto done;
    int32_t *hash = hashes.view.buf, *number = numbers.view.buf, *above = aboves.view.buf;
    int64_t *offset = offsets.view.buf;
    Py_ssize_t row = 0, going = 0, found = 0;
    Entry entry;
    Py_BEGIN_ALLOW_THREADS
    for (; row < hashes.count; row++) {
        if (row + AHEAD < hashes.count)
            expect_entry(&file, number[row + AHEAD]);
        if (hash[row] < 0 || !read_entry(&file, number[row], above[row], hash[row], &entry))
            break;
        if (entry.hash == hash[row] && log_start <= entry.offset && entry.offset < log_end)
            offset[found++] = entry.offset;
        if (entry.previous != 0 && entry.offset >= log_start) {
            hash[going] = hash[row];
            above[going] = number[row];
            number[going++] = entry.previous;
        }
    }
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("nnn", going, found, row < hashes.count ? row : (Py_ssize_t)-1);
done:
    release_items(&data);
    release_items(&hashes);
    release_items(&numbers);
    release_items(&aboves);
    release_items(&offsets);
    return result;
}

/* Entries of one file with this hash, behind the `found` offsets that there are; how many there are then, or -1: the
   chain is broken, or there are too many. */
static int newest_of_file(const IndexFile *file, int32_t key_hash, const Window *window, int64_t first_ms,
                          int64_t *offsets, int found)
{
    int64_t above = file->entry_max;
    int32_t number = (int32_t)word_at(slot_place(file, key_hash));
    Entry entry;
    for (; number != 0; above = number, number = entry.previous) {
        if (!read_entry(file, number, above, key_hash, &entry))
            return -1;
        if (entry.seconds < 0 || entry.offset < window->log_start)
            break;
        int64_t time_ms = first_ms + (int64_t)entry.seconds * 1000;
        if (entry.hash == key_hash && window->begin_ms <= time_ms && time_ms <= window->end_ms
            && entry.offset < window->log_end) {
            if (found == FOUND_MAX)
                return -1;
            offsets[found++] = entry.offset;
        }
        if (time_ms < window->begin_ms)
            break;
    }
    return found;
}

/* Of files, newest first: those that a window of times is looked for in, and the times they begin with; how many they
   are, or -1. IndexService's queryOffset, IndexFile's isTimeMatched. */
static Py_ssize_t files_of_window(IndexFile *files, int64_t *firsts, Py_ssize_t count, const Window *window)
{
    int64_t begin_ms = window->begin_ms, end_ms = window->end_ms;
    if (begin_ms <= 0 && end_ms == INT64_MAX)
        return count; /* no header is looked at: a page of each file less */
    Py_ssize_t taken = 0;
    for (Py_ssize_t file = 0; file < count; file++) {
        int64_t first_ms = (int64_t)long_at(files[file].bytes), last_ms = (int64_t)long_at(files[file].bytes + 8);
        if (first_ms < 0 || first_ms > TIME_MAX)
            return -1;
        if ((first_ms <= begin_ms && begin_ms <= last_ms) || (first_ms <= end_ms && end_ms <= last_ms)
            || (begin_ms < first_ms && end_ms > last_ms)) {
            files[taken] = files[file];
            firsts[taken++] = first_ms;
        }
        if (first_ms < begin_ms)
            break;
    }
    return taken;
}

/* As `newest_of_file`, of all files, newest file first; `firsts` is 0 for each. */
static int newest_of_files(IndexFile *files, int64_t *firsts, Py_ssize_t count, int32_t key_hash, const Window *window,
                           int64_t *offsets)
{
    int found = 0;
    count = files_of_window(files, firsts, count, window);
    /* A slot and an entry of each file: all of them are waited for at once. */
    for (Py_ssize_t file = 0; file < count; file++)
        PREFETCH(slot_place(&files[file], key_hash));
    for (Py_ssize_t file = 0; file < count; file++)
        expect_entry(&files[file], (int32_t)word_at(slot_place(&files[file], key_hash)));
    for (Py_ssize_t file = 0; file < count && found >= 0; file++)
        found = newest_of_file(&files[file], key_hash, window, firsts[file], offsets, found);
    return count < 0 ? -1 : found;
}

static PyObject *offsets_list(const int64_t *offsets, int count)
{
    PyObject *list = PyList_New(count);
    for (int row = 0; list != NULL && row < count; row++) {
        PyObject *offset = PyLong_FromLongLong(offsets[row]);
        if (offset == NULL || PyList_SetItem(list, row, offset) < 0)
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *newest_entries(PyObject *module, PyObject *arguments)
{
    PyObject *maps, *result = NULL;
    long long slot_count, entry_max, begin_ms, end_ms, log_start, log_end;
    int key_hash, found;
    int64_t offsets[FOUND_MAX];
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!LLiLLLL:newest_entries", &PyTuple_Type, &maps, &slot_count, &entry_max,
                          &key_hash, &begin_ms, &end_ms, &log_start, &log_end))
        return NULL;
    Py_ssize_t count = PyTuple_Size(maps), taken = 0;
    Items *data = PyMem_Calloc((size_t)count + 1, sizeof *data);
    IndexFile *files = PyMem_Calloc((size_t)count + 1, sizeof *files);
    int64_t *firsts = PyMem_Calloc((size_t)count + 1, sizeof *firsts);
    if (data == NULL || files == NULL || firsts == NULL) {
        PyErr_NoMemory();
        goto done;
    }
    if (key_hash < 0) {
        PyErr_Format(PyExc_ValueError, "key hash %d is negative", key_hash);
        goto done;
    }
    for (; taken < count; taken++)
        if (!take_items(&data[taken], PyTuple_GetItem(maps, taken), 1, READ_ITEMS, "maps")
            || !open_index(&files[taken], &data[taken], slot_count, entry_max))
            goto done;
    Window window = {begin_ms, end_ms, log_start, log_end};
    Py_BEGIN_ALLOW_THREADS
    found = newest_of_files(files, firsts, count, key_hash, &window, offsets);
    Py_END_ALLOW_THREADS
    result = found < 0 ? Py_NewRef(Py_None) : offsets_list(offsets, found);
done:
    for (Py_ssize_t file = 0; data != NULL && file < count; file++)
        release_items(&data[file]);
    PyMem_Free(firsts);
    PyMem_Free(files);
    PyMem_Free(data);
    return result;
}

PyMethodDef chain_methods[] = {
    {"follow_chains", follow_chains, METH_VARARGS, NULL},
    {"read_slots", read_slots, METH_VARARGS, NULL},
    {"newest_entries", newest_entries, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
