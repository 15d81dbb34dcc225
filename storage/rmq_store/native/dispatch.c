/* What queues and index get of frames. The twin is format/frames/frame_dispatch.py.

   Whatever is not usual is left to Python: a frame that is none, text that is no UTF-8, very many topics or properties. */

#include "native.h"

#include "frame_parts.h"
#include "properties.h"

#define TRANSACTION_COMMIT 0x008u

/* Topics of one call; the one of the frame before is looked at first. */
#define TOPICS_MAX 256

/* The properties that matter, by their places in `seen`. */
static const Name seen_names[SEEN] = {[UNIQUE_KEY] = {"UNIQ_KEY", 8}, [KEYS] = {"KEYS", 4}, [TAGS] = {"TAGS", 4}};
static const Name no_name = {"", 0};

typedef struct {
    int64_t start, size;
    uint32_t hash; /* of the topic with "#" behind it */
} Topic;

typedef struct {
    Topic known[TOPICS_MAX];
    int32_t count, last;
} Topics;

/* The number of the topic at [start, end), counted from 0 by first occurrence; -1: it is no text, or one too many. */
static int32_t topic_code(Topics *topics, const uint8_t *data, int64_t start, int64_t end)
{
    int64_t size = end - start;
    for (int32_t tried = -1; tried < topics->count; tried++) {
        int32_t code = tried < 0 ? topics->last : tried;
        if (code < topics->count && topics->known[code].size == size
            && memcmp(data + topics->known[code].start, data + start, (size_t)size) == 0)
            return topics->last = code;
    }
    if (topics->count == TOPICS_MAX || !is_utf8(data + start, (size_t)size))
        return -1;
    topics->known[topics->count] = (Topic){start, size, java_hash(0, data + start, (size_t)size) * 31 + '#'};
    return topics->last = topics->count++;
}

/* The values of a property string that matter; of several with the same name the last one. False: leave it to Python. */
static int see_properties(const uint8_t *data, int64_t count, int64_t start, int64_t end, Slice *seen)
{
    int64_t places[3][ROW_PIECES_MAX];
    Pieces pieces = {places[0], places[1], places[2], 0, ROW_PIECES_MAX};
    uint64_t high = 0;
    split_row(data, count, start, end, &no_name, &pieces, &high);
    if (pieces.count > ROW_PIECES_MAX || (high && !is_utf8(data + start, (size_t)(end - start))))
        return 0;
    set_none(seen);
    for (int name = 0; name < SEEN; name++)
        for (ptrdiff_t piece = pieces.count; piece--;)
            if (same_name(&pieces, data, piece, piece + 1, &seen_names[name]) >= 0) {
                int64_t value = pieces.separators[piece] + 1;
                seen[name] = (Slice){data + value, (size_t)(pieces.ends[piece] - value)};
                break;
            }
    return 1;
}

typedef struct {
    Items data, positions, sizes;                                       /* bytes; int64 (n,) both */
    Items codes, queue_ids, queue_offsets, tags_codes, timestamps;      /* int32, int32, int64, int64, int64 (n,) */
    Items dispatchable, key_counts, key_hashes;                         /* uint8, int32 (n,), uint32 */
    Items topic_starts, topic_sizes;                                    /* int64 (TOPICS_MAX,) both */
} Given;

/* False: a frame is left to Python. */
static int read_all(Given *given, int64_t base, int indexes_tags, Topics *topics, Hashes *hashes)
{
    const uint8_t *data = given->data.view.buf;
    const int64_t *positions = given->positions.view.buf, *sizes = given->sizes.view.buf;
    for (Py_ssize_t row = 0; row < given->positions.count; row++) {
        int32_t narrow[NARROW_FIELDS];
        int64_t wide[WIDE_FIELDS];
        Slice seen[SEEN];
        if (!read_frame(data, given->data.count, positions[row], sizes[row], &base, narrow, wide, 0, 1))
            return 0;
        int32_t code = topic_code(topics, data, wide[TOPIC_START], wide[TOPIC_END]);
        if (code < 0 || !see_properties(data, given->data.count, wide[PROPERTIES_START], wide[PROPERTIES_END], seen))
            return 0;
        uint32_t kind = (uint32_t)narrow[SYS_FLAG] & TRANSACTION_MASK;
        int64_t before = hashes->count;
        if (is_indexed((uint32_t)narrow[SYS_FLAG]))
            put_hashes(hashes, topics->known[code].hash, seen, indexes_tags);
        ((int32_t *)given->codes.view.buf)[row] = code;
        ((int32_t *)given->queue_ids.view.buf)[row] = narrow[QUEUE_ID];
        ((int64_t *)given->queue_offsets.view.buf)[row] = wide[QUEUE_OFFSET];
        ((int64_t *)given->tags_codes.view.buf)[row] = tags_code(seen);
        ((int64_t *)given->timestamps.view.buf)[row] = wide[STORE_TIMESTAMP];
        ((uint8_t *)given->dispatchable.view.buf)[row] = kind == 0 || kind == TRANSACTION_COMMIT;
        ((int32_t *)given->key_counts.view.buf)[row] = (int32_t)(hashes->count - before);
    }
    return 1;
}

static int take_given(Given *given, PyObject *const *objects)
{
    if (!take_items(&given->data, objects[0], 1, READ_ITEMS, "data")
        || !take_items(&given->positions, objects[1], 8, READ_ITEMS, "positions"))
        return 0;
    Py_ssize_t count = given->positions.count;
    return take_n_items(&given->sizes, objects[2], 8, READ_ITEMS, "sizes", count)
        && take_n_items(&given->codes, objects[3], 4, WRITE_ITEMS, "codes", count)
        && take_n_items(&given->queue_ids, objects[4], 4, WRITE_ITEMS, "queue_ids", count)
        && take_n_items(&given->queue_offsets, objects[5], 8, WRITE_ITEMS, "queue_offsets", count)
        && take_n_items(&given->tags_codes, objects[6], 8, WRITE_ITEMS, "tags_codes", count)
        && take_n_items(&given->timestamps, objects[7], 8, WRITE_ITEMS, "timestamps", count)
        && take_n_items(&given->dispatchable, objects[8], 1, WRITE_ITEMS, "dispatchable", count)
        && take_n_items(&given->key_counts, objects[9], 4, WRITE_ITEMS, "key_counts", count)
        && take_items(&given->key_hashes, objects[10], 4, WRITE_ITEMS, "key_hashes")
        && take_n_items(&given->topic_starts, objects[11], 8, WRITE_ITEMS, "topic_starts", TOPICS_MAX)
        && take_n_items(&given->topic_sizes, objects[12], 8, WRITE_ITEMS, "topic_sizes", TOPICS_MAX);
}

static PyObject *dispatch_frames(PyObject *module, PyObject *arguments)
{
    PyObject *objects[13], *result = NULL;
    Given given = {0};
    Topics topics = {.count = 0, .last = 0};
    long long base;
    int indexes_tags;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOLpOOOOOOOOOO:dispatch_frames", &objects[0], &objects[1], &objects[2], &base,
                          &indexes_tags, &objects[3], &objects[4], &objects[5], &objects[6], &objects[7], &objects[8],
                          &objects[9], &objects[10], &objects[11], &objects[12]))
        return NULL;
    if (take_given(&given, objects)) {
        Hashes hashes = {given.key_hashes.view.buf, 0, given.key_hashes.count};
        int is_usual;
        Py_BEGIN_ALLOW_THREADS
        is_usual = read_all(&given, base, indexes_tags, &topics, &hashes);
        Py_END_ALLOW_THREADS
        for (int32_t code = 0; code < topics.count; code++) {
            ((int64_t *)given.topic_starts.view.buf)[code] = topics.known[code].start;
            ((int64_t *)given.topic_sizes.view.buf)[code] = topics.known[code].size;
        }
        result = is_usual ? Py_BuildValue("(iL)", (int)topics.count, (long long)hashes.count) : Py_NewRef(Py_None);
    }
    for (Items *items = &given.data; items <= &given.topic_sizes; items++)
        release_items(items);
    return result;
}

PyMethodDef dispatch_methods[] = {
    {"dispatch_frames", dispatch_frames, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
