/* Columns of messages straight to entries of a batch body, with their content keys. The twin is
   format/batches/row_entries.py, by way of frames.

   `measure_entries` checks the rows of a batch once, and says how long each entry gets. `write_entries_of_rows` writes
   those of a request: the bytes of a body are copied, hashed and summed up while they are in the processor's cache. Both
   leave to Python whatever is not usual. */

#include "crc.h"
#include "digest_slots.h"
#include "entry_parts.h"
#include "frame_parts.h"
#include "prefetch.h"

#define CRC_MASK 0x7FFFFFFFu
#define TAG_BYTES 2
#define ORDINAL_BYTES 3
#define HEAD_BYTES (PLACE_BYTES + 12 + 4)
/* Two lengths and a topic. */
#define MIDDLE_BYTES_MAX (2 + TOPIC_BYTES_MAX + 2)

static PyObject *measure_entries(PyObject *module, PyObject *arguments)
{
    PyObject *given[2], *result = NULL;
    Py_ssize_t added_bytes, entry_bytes_max, rest_bytes_max;
    Rows rows = {0};
    Items sizes = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!nnnO:measure_entries", &PyTuple_Type, &given[0], &added_bytes, &entry_bytes_max,
                          &rest_bytes_max, &given[1]))
        return NULL;
    if (take_rows(&rows, given[0]) && take_n_items(&sizes, given[1], 8, WRITE_ITEMS, "sizes", rows.count)) {
        Py_ssize_t row = 0;
        Py_BEGIN_ALLOW_THREADS
        for (; row < rows.count; row++) {
            Slice topic, body, seen[SEEN];
            Out out = {0};
            int32_t code;
            if (!topic_and_body(&rows, row, &code, &topic, &body) || (Py_ssize_t)body.size > rows.body_bytes_max
                || !body.size || topic.size > TOPIC_BYTES_MAX || !put_properties(&rows, row, &out, seen, 0))
                break;
            int64_t rest = ENTRY_HEAD_BYTES + 2 + out.size + added_bytes, size = rest + (int64_t)body.size;
            if (rest > rest_bytes_max || size > entry_bytes_max)
                break;
            ((int64_t *)sizes.view.buf)[row] = size;
        }
        Py_END_ALLOW_THREADS
        result = PyBool_FromLong(row == rows.count);
    }
    release_rows(&rows);
    release_items(&sizes);
    return result;
}

/* -- writing ------------------------------------------------------------------------------------------------------ */

typedef struct {
    Rows rows;
    Items picked, sizes, flags, reconsume_times, places; /* int64 (m,); int64, int32, int32, 16 bytes each (n,) */
    Items seed, tag, tail;
    Items slots;
    Py_ssize_t used;
    int64_t ordinals_max;
    Items ends, keys, checks; /* to be filled: int64, 16 bytes and uint64 each (m,) */
    uint8_t *entries;
    Py_ssize_t entries_bytes;
} Target;

/* An entry that has no key yet, and what its key is made of. */
typedef struct {
    uint8_t head[HEAD_BYTES], middle[MIDDLE_BYTES_MAX];
    uint8_t *key;
} Keyless;

/* False: the row is not what was measured, or is no row. */
static int put_row(Target *target, Py_ssize_t row, uint8_t *to, uint8_t *end, Keyless *keyless, BlakeText *text,
                   uint64_t *check)
{
    Rows *rows = &target->rows;
    Slice topic, body, seen[SEEN];
    int32_t code;
    uint32_t flag = ((const uint32_t *)target->flags.view.buf)[row];
    size_t size = (size_t)(end - to), tail_bytes = (size_t)target->tail.count;
    if (!topic_and_body(rows, row, &code, &topic, &body) || topic.size > TOPIC_BYTES_MAX
        || size < ENTRY_HEAD_BYTES + 2 + KEY_PROPERTY_BYTES + tail_bytes
        || body.size > size - (ENTRY_HEAD_BYTES + 2 + KEY_PROPERTY_BYTES + tail_bytes))
        return 0;
    put_entry_head(to, size, flag, body.size);
    to += ENTRY_HEAD_BYTES;
    memcpy(to, body.text, body.size);
    *check = (uint64_t)(crc_extend(0, body.text, body.size) & CRC_MASK) << 32 | body.size;
    to += body.size;
    keyless->key = to + 2;
    uint8_t *properties = to + 2 + KEY_PROPERTY_BYTES;
    Out out = {.next = properties, .end = end - tail_bytes};
    if (!put_properties(rows, row, &out, seen, 1) || out.next != out.end || end - keyless->key > PROPERTIES_BYTES_MAX)
        return 0;
    copy_short(out.next, target->tail.view.buf, tail_bytes);
    size_t properties_bytes = (size_t)(out.next - properties), all_bytes = (size_t)(end - keyless->key);
    to[0] = (uint8_t)(all_bytes >> 8);
    to[1] = (uint8_t)all_bytes;

    uint8_t *head = keyless->head;
    memcpy(head, (const uint8_t *)target->places.view.buf + PLACE_BYTES * row, PLACE_BYTES);
    put_word(head + PLACE_BYTES, flag);
    put_word(head + PLACE_BYTES + 4, ((const uint32_t *)rows->sys_flags.view.buf)[row]);
    put_word(head + PLACE_BYTES + 8, ((const uint32_t *)target->reconsume_times.view.buf)[row]);
    put_word(head + PLACE_BYTES + 12, (uint32_t)body.size);
    Out middle = {.next = keyless->middle, .end = keyless->middle + MIDDLE_BYTES_MAX};
    uint8_t length[2] = {(uint8_t)(properties_bytes >> 8), (uint8_t)properties_bytes};
    if (!put_topic_head(&middle, topic) || !put(&middle, length, 2))
        return 0;
    *text = (BlakeText){{{head, HEAD_BYTES},
                         {body.text, body.size},
                         {keyless->middle, (size_t)(middle.next - keyless->middle)},
                         {properties, properties_bytes}}};
    return 1;
}

/* The keys of `count` entries, the first of which is the `first` one that is written. False: an ordinal gets too high, or
   there is no room for it. */
static int put_keys(Target *target, Py_ssize_t first, int count, const Keyless *keyless, const uint8_t *digests)
{
    Slot *slots = target->slots.view.buf;
    uint64_t words[BLAKE_LANES_MAX][2];
    memcpy(words, digests, (size_t)count * DIGEST_BYTES);
    for (int lane = 0; lane < count; lane++)
        PREFETCH(&slots[first_place(target->slots.count, words[lane])]);
    for (int lane = 0; lane < count; lane++) {
        int64_t ordinal = number_digest(slots, target->slots.count, &target->used, words[lane]);
        if (ordinal < 0 || ordinal >= target->ordinals_max)
            return 0;
        uint8_t *key = (uint8_t *)target->keys.view.buf + KEY_BYTES * (first + lane);
        memcpy(key, target->tag.view.buf, TAG_BYTES);
        memcpy(key + TAG_BYTES, digests + DIGEST_BYTES * lane, KEY_BYTES - TAG_BYTES - ORDINAL_BYTES);
        for (int byte = 0; byte < ORDINAL_BYTES; byte++)
            key[KEY_BYTES - 1 - byte] = (uint8_t)(ordinal >> (8 * byte));
        put_key_property(keyless[lane].key, key);
    }
    return 1;
}

enum { DONE, NOT_MEASURED, TOO_MANY_EQUAL };

static int write_all(Target *target)
{
    const int64_t *picked = target->picked.view.buf, *sizes = target->sizes.view.buf;
    int64_t *ends = target->ends.view.buf, at = 0;
    Keyless keyless[BLAKE_LANES_MAX];
    BlakeText texts[BLAKE_LANES_MAX];
    uint8_t digests[BLAKE_LANES_MAX * DIGEST_BYTES];
    uint64_t seeded[8];
    int waiting = 0, lanes = blake2b_lanes();
    blake2b_begin(seeded, target->seed.view.buf);
    for (Py_ssize_t number = 0, count = target->picked.count; number < count; number++) {
        Py_ssize_t row = (Py_ssize_t)picked[number];
        if (row < 0 || row >= target->rows.count || sizes[row] < 0 || sizes[row] > target->entries_bytes - at)
            return NOT_MEASURED;
        uint8_t *to = target->entries + at;
        ends[number] = at += sizes[row];
        if (!put_row(target, row, to, to + sizes[row], &keyless[waiting], &texts[waiting],
                     (uint64_t *)target->checks.view.buf + number))
            return NOT_MEASURED;
        waiting++;
        if (waiting == lanes || number + 1 == count) {
            blake2b_end(seeded, texts, waiting, digests);
            if (!put_keys(target, number + 1 - waiting, waiting, keyless, digests))
                return TOO_MANY_EQUAL;
            waiting = 0;
        }
    }
    return DONE;
}

static int take_target(Target *target, PyObject *rows, PyObject **given)
{
    return take_rows(&target->rows, rows) && take_items(&target->picked, given[0], 8, READ_ITEMS, "picked")
        && take_n_items(&target->sizes, given[1], 8, READ_ITEMS, "sizes", target->rows.count)
        && take_n_items(&target->flags, given[2], 4, READ_ITEMS, "flag", target->rows.count)
        && take_n_items(&target->reconsume_times, given[3], 4, READ_ITEMS, "reconsumeTimes", target->rows.count)
        && take_n_items(&target->places, given[4], 1, READ_ITEMS, "places", PLACE_BYTES * target->rows.count)
        && take_n_items(&target->seed, given[5], 1, READ_ITEMS, "seed", SEED_BYTES)
        && take_n_items(&target->tag, given[6], 1, READ_ITEMS, "tag", TAG_BYTES)
        && take_items(&target->tail, given[7], 1, READ_ITEMS, "tail")
        && take_slots(&target->slots, given[8], WRITE_ITEMS)
        && take_n_items(&target->ends, given[9], 8, WRITE_ITEMS, "ends", target->picked.count)
        && take_n_items(&target->keys, given[10], 1, WRITE_ITEMS, "keys", KEY_BYTES * target->picked.count)
        && take_n_items(&target->checks, given[11], 8, WRITE_ITEMS, "checks", target->picked.count);
}

/* The bytes of all entries. -1: a row is none, or it would have no size. */
static Py_ssize_t bytes_of_all(const Target *target)
{
    const int64_t *picked = target->picked.view.buf, *sizes = target->sizes.view.buf;
    int64_t bytes = 0;
    for (Py_ssize_t number = 0; number < target->picked.count; number++) {
        int64_t row = picked[number];
        if (row < 0 || row >= target->rows.count || sizes[row] < 0 || sizes[row] > PTRDIFF_MAX - bytes)
            return -1;
        bytes += sizes[row];
    }
    return (Py_ssize_t)bytes;
}

static PyObject *write_entries_of_rows(PyObject *module, PyObject *arguments)
{
    PyObject *rows, *given[12], *entries = NULL, *result = NULL;
    long long ordinals_max;
    Target target = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!OOOOOOOOOnLOOO:write_entries_of_rows", &PyTuple_Type, &rows, &given[0],
                          &given[1], &given[2], &given[3], &given[4], &given[5], &given[6], &given[7], &given[8],
                          &target.used, &ordinals_max, &given[9], &given[10], &given[11]))
        return NULL;
    target.ordinals_max = ordinals_max;
    if (take_target(&target, rows, given)) {
        int done = NOT_MEASURED;
        target.entries_bytes = bytes_of_all(&target);
        if (target.entries_bytes >= 0 && (entries = PyBytes_FromStringAndSize(NULL, target.entries_bytes)) != NULL) {
            target.entries = (uint8_t *)PyBytes_AsString(entries);
            Py_BEGIN_ALLOW_THREADS
            done = write_all(&target);
            Py_END_ALLOW_THREADS
        }
        if (done != NOT_MEASURED)
            result = Py_BuildValue("On", entries, done == DONE ? target.used : -1);
        else if (!PyErr_Occurred())
            PyErr_SetString(PyExc_IndexError, "a row is not what was measured");
        Py_XDECREF(entries);
    }
    Items *all[] = {&target.picked, &target.sizes, &target.flags, &target.reconsume_times, &target.places,
                    &target.seed,   &target.tag,   &target.tail,  &target.slots,           &target.ends,
                    &target.keys,   &target.checks};
    release_rows(&target.rows);
    for (size_t at = 0; at < sizeof all / sizeof all[0]; at++)
        release_items(all[at]);
    return result;
}

PyMethodDef row_entry_methods[] = {
    {"measure_entries", measure_entries, METH_VARARGS, NULL},
    {"write_entries_of_rows", write_entries_of_rows, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
