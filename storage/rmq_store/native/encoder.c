/* Frames of a batch of messages, from its columns. The twin is format/batches/frame_encoder.py with its parts; layout of a frame:
   format/frames/frame_check.py.

   One pass over the rows, `encode_frames`, or two, so that several threads can write: `measure_frames` checks what is to
   be stored and says how long each frame gets, then `write_frames` writes them. All walk the columns in the same way, so
   only one function knows the order of things (`put_properties`). A batch that breaks a rule is refused as a whole:
   Python encodes it then, and says what is wrong. */

#include "crc.h"
#include "frame_parts.h"

#define CRC_MASK 0x7FFFFFFFu
/* From here on it is cheaper to put a frame's CRC together than to read the body a second time. */
#define COMBINED_BODY_BYTES_MIN 512

#define UNIQUE_KEY_PREFIX "UNIQ_KEY\x01"
#define UNIQUE_KEY_PREFIX_BYTES 9
#define SEQUENCE_DIGITS 12

static uint32_t sys_flag_of(const Rows *rows, Py_ssize_t row)
{
    return ((const uint32_t *)rows->sys_flags.view.buf)[row];
}

static int sizes_are_storable(const Rows *rows, Slice topic, Slice body)
{
    return (Py_ssize_t)body.size <= rows->body_bytes_max && topic.size <= TOPIC_BYTES_MAX;
}

/* `new_keys[row]`: the how-manieth new unique key the row gets, or -1. Returns how many there are; -1: refused. */
static Py_ssize_t measure(Rows *rows, int64_t *offsets, int32_t *hash_offsets, int64_t *new_keys)
{
    Py_ssize_t new_count = 0;
    Hashes hashes = {0};
    offsets[0] = hash_offsets[0] = 0;
    for (Py_ssize_t row = 0; row < rows->count; row++) {
        Slice topic, body, seen[SEEN];
        Out out = {0};
        int32_t code;
        set_none(seen);
        if (!topic_and_body(rows, row, &code, &topic, &body) || !sizes_are_storable(rows, topic, body)
            || !put_properties(rows, row, &out, seen, 0))
            return -1;
        int is_new = rows->unique_key_bytes && seen[UNIQUE_KEY].text == NULL;
        new_keys[row] = is_new ? new_count++ : -1;
        if (is_new)
            out.size += UNIQUE_KEY_PREFIX_BYTES + rows->unique_key_bytes + 1;
        if (rows->has_crc)
            out.size += CRC_PROPERTY_BYTES;
        if (out.size > PROPERTIES_BYTES_MAX)
            return -1;
        offsets[row + 1] = offsets[row] + rows->header.count + (int64_t)body.size + topic_head_bytes(topic) + 2
                         + out.size;
        if (is_indexed(sys_flag_of(rows, row))) {
            hashes.count += is_new;
            put_hashes(&hashes, 0, seen, rows->indexes_tags);
        }
        if (hashes.count > INT32_MAX)
            return -1;
        hash_offsets[row + 1] = (int32_t)hashes.count;
    }
    return new_count;
}

/* What is written, and what of it is not in the rows. What was not measured is checked now, its places are filled in
   behind the first ones, and every row gets a new unique key, if any does. */
typedef struct {
    int is_measured;
    Items queue_ids, flags, born_timestamps, reconsume_times; /* int32, int32, int64, int32 (n,) */
    Items key_prefix;                                         /* new unique keys: text, then 12 hex digits */
    uint64_t first_sequence;
    Items offsets, hash_offsets, new_keys;                    /* as `measure` fills them */
    Items frames, crcs, tags_codes, hashes;                   /* to be filled */
    int32_t prefix_topic;                                     /* of this topic, with "#" and key_prefix behind it, */
    uint32_t prefix_hash;                                     /* the hash is this one */
} Target;

/* A new unique key as a property; `digits` are its last ones. */
static int put_unique_key(Out *out, const Items *prefix, uint64_t sequence, uint8_t *digits)
{
    for (int digit = SEQUENCE_DIGITS - 1; digit >= 0; digit--, sequence >>= 4)
        digits[digit] = (uint8_t)"0123456789ABCDEF"[sequence & 0xF];
    return put(out, UNIQUE_KEY_PREFIX, UNIQUE_KEY_PREFIX_BYTES) && put(out, prefix->view.buf, (size_t)prefix->count)
        && put(out, digits, SEQUENCE_DIGITS) && put(out, "\x02", 1);
}

static void set_header(const Rows *rows, const Target *target, Py_ssize_t row, uint8_t *header, uint32_t frame_bytes,
                       uint32_t body_bytes, uint32_t body_crc, Slice topic)
{
    uint8_t *end = header + rows->header.count;
    put_word(header + TOTAL_SIZE_AT, frame_bytes);
    put_word(header + MAGIC_AT, magic_of(topic));
    put_word(header + BODY_CRC_AT, body_crc & CRC_MASK);
    put_word(header + QUEUE_ID_AT, ((const uint32_t *)target->queue_ids.view.buf)[row]);
    put_word(end + BODY_LENGTH_AT, body_bytes);
    put_word(header + FLAG_AT, ((const uint32_t *)target->flags.view.buf)[row]);
    put_word(header + SYS_FLAG_AT, sys_flag_of(rows, row));
    put_word(end + RECONSUME_TIMES_AT, ((const uint32_t *)target->reconsume_times.view.buf)[row]);
    put_long(header + BORN_TIMESTAMP_AT, ((const uint64_t *)target->born_timestamps.view.buf)[row]);
}

/* The index hashes of a row, in the order of its entries. False if there are not as many as were measured, or if there is
   no room for them. */
static int set_hashes(const Rows *rows, Target *target, Py_ssize_t row, int32_t code, const uint8_t *digits,
                      const Slice *seen)
{
    int32_t *bounds = (int32_t *)target->hash_offsets.view.buf + row;
    int64_t most = target->hashes.count < INT32_MAX ? target->hashes.count : INT32_MAX;
    int64_t limit = target->is_measured ? bounds[1] : most;
    if (bounds[0] < 0 || limit < bounds[0] || limit > target->hashes.count)
        return 0;
    Hashes hashes = {(uint32_t *)target->hashes.view.buf + bounds[0], 0, limit - bounds[0]};
    uint32_t topic_hash = ((const uint32_t *)rows->topic_hashes.view.buf)[code];
    int is_found = is_indexed(sys_flag_of(rows, row));
    if (is_found && digits != NULL && code != target->prefix_topic) {
        target->prefix_topic = code;
        target->prefix_hash = java_hash(topic_hash, target->key_prefix.view.buf, (size_t)target->key_prefix.count);
    }
    if (is_found && digits != NULL)
        put_hash(&hashes, target->prefix_hash, digits, SEQUENCE_DIGITS);
    if (is_found)
        put_hashes(&hashes, topic_hash, seen, rows->indexes_tags);
    if (target->is_measured)
        return hashes.count == hashes.room;
    bounds[1] = (int32_t)(bounds[0] + hashes.count);
    return hashes.count <= hashes.room;
}

/* False if the row is not what was measured, or is refused. */
static int write_row(Rows *rows, Target *target, Py_ssize_t row)
{
    int is_measured = target->is_measured;
    int64_t *bounds = (int64_t *)target->offsets.view.buf + row;
    int64_t limit = is_measured ? bounds[1] : target->frames.count;
    int64_t new_key = is_measured ? ((const int64_t *)target->new_keys.view.buf)[row] : rows->unique_key_bytes ? row : -1;
    Slice topic, body, seen[SEEN];
    uint8_t digits[SEQUENCE_DIGITS];
    int32_t code;
    set_none(seen);
    if (bounds[0] < 0 || limit < bounds[0] || limit > target->frames.count
        || !topic_and_body(rows, row, &code, &topic, &body)
        || (!is_measured && !sizes_are_storable(rows, topic, body)))
        return 0;
    uint8_t *frame = (uint8_t *)target->frames.view.buf + bounds[0];
    Out out = {.next = frame, .end = (uint8_t *)target->frames.view.buf + limit};
    if (!put(&out, rows->header.view.buf, (size_t)rows->header.count) || !put(&out, body.text, body.size)
        || !put_topic_head(&out, topic) || !put(&out, "\0\0", 2))
        return 0;
    uint8_t *properties = out.next;
    if ((new_key >= 0 && !put_unique_key(&out, &target->key_prefix, target->first_sequence + (uint64_t)new_key, digits))
        || !put_properties(rows, row, &out, seen, is_measured)
        || (rows->has_crc && !put(&out, CRC_RESERVED, CRC_PROPERTY_BYTES)))
        return 0;
    if (is_measured ? out.next != out.end
                    : out.next - properties > PROPERTIES_BYTES_MAX || (new_key >= 0 && seen[UNIQUE_KEY].text != NULL))
        return 0;
    if (!is_measured)
        bounds[1] = bounds[0] + (out.next - frame);
    properties[-2] = (uint8_t)((out.next - properties) >> 8);
    properties[-1] = (uint8_t)(out.next - properties);

    uint8_t *stored_body = frame + rows->header.count;
    uint32_t body_crc = crc_extend(0, stored_body, body.size);
    set_header(rows, target, row, frame, (uint32_t)(out.next - frame), (uint32_t)body.size, body_crc, topic);
    uint32_t crc = 0;
    if (rows->has_crc) {
        uint8_t *from = frame;
        if (body.size >= COMBINED_BODY_BYTES_MIN) {
            crc = crc_shift(crc_extend(0, frame, (size_t)rows->header.count), body.size) ^ body_crc;
            from = stored_body + body.size;
        }
        crc = crc_extend(crc, from, (size_t)(out.next - CRC_PROPERTY_BYTES - from));
    }
    ((uint32_t *)target->crcs.view.buf)[row] = crc;
    ((int64_t *)target->tags_codes.view.buf)[row] = tags_code(seen);
    return set_hashes(rows, target, row, code, new_key >= 0 ? digits : NULL, seen);
}

static PyObject *measure_frames(PyObject *module, PyObject *arguments)
{
    PyObject *given[4], *result = NULL;
    Rows rows = {0};
    Items offsets = {0}, hash_offsets = {0}, new_keys = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!OOO:measure_frames", &PyTuple_Type, &given[0], &given[1], &given[2], &given[3]))
        return NULL;
    if (take_rows(&rows, given[0]) && take_n_items(&offsets, given[1], 8, WRITE_ITEMS, "offsets", rows.count + 1)
        && take_n_items(&hash_offsets, given[2], 4, WRITE_ITEMS, "hash offsets", rows.count + 1)
        && take_n_items(&new_keys, given[3], 8, WRITE_ITEMS, "new keys", rows.count)) {
        Py_ssize_t count;
        Py_BEGIN_ALLOW_THREADS
        count = measure(&rows, offsets.view.buf, hash_offsets.view.buf, new_keys.view.buf);
        Py_END_ALLOW_THREADS
        result = count < 0 ? Py_NewRef(Py_None) : PyLong_FromSsize_t(count);
    }
    release_rows(&rows);
    release_items(&offsets);
    release_items(&hash_offsets);
    release_items(&new_keys);
    return result;
}

/* What both ways of writing are given: fixed fields, the prefix of new unique keys, and what is to be filled. */
static int take_target(Target *target, Py_ssize_t count, PyObject **fixed, PyObject *prefix, PyObject **filled)
{
    return take_n_items(&target->queue_ids, fixed[0], 4, READ_ITEMS, "queue ids", count)
        && take_n_items(&target->flags, fixed[1], 4, READ_ITEMS, "flag", count)
        && take_n_items(&target->born_timestamps, fixed[2], 8, READ_ITEMS, "bornTimestamp", count)
        && take_n_items(&target->reconsume_times, fixed[3], 4, READ_ITEMS, "reconsumeTimes", count)
        && take_items(&target->key_prefix, prefix, 1, READ_ITEMS, "key prefix")
        && take_n_items(&target->offsets, filled[0], 8, WRITE_ITEMS, "offsets", count + 1)
        && take_n_items(&target->hash_offsets, filled[1], 4, WRITE_ITEMS, "hash offsets", count + 1)
        && take_items(&target->frames, filled[2], 1, WRITE_ITEMS, "frames")
        && take_n_items(&target->crcs, filled[3], 4, WRITE_ITEMS, "crcs", count)
        && take_n_items(&target->tags_codes, filled[4], 8, WRITE_ITEMS, "tags codes", count)
        && take_items(&target->hashes, filled[5], 4, WRITE_ITEMS, "hashes");
}

static void release_target(Target *target)
{
    Items *all[] = {&target->queue_ids,  &target->flags,   &target->born_timestamps, &target->reconsume_times,
                    &target->key_prefix, &target->offsets, &target->hash_offsets,    &target->new_keys,
                    &target->frames,     &target->crcs,    &target->tags_codes,      &target->hashes};
    for (size_t at = 0; at < sizeof all / sizeof all[0]; at++)
        release_items(all[at]);
}

static PyObject *write_frames(PyObject *module, PyObject *arguments)
{
    PyObject *object, *fixed[4], *prefix, *filled[6], *new_keys, *result = NULL;
    unsigned long long first_sequence;
    Py_ssize_t first, behind;
    Rows rows = {0};
    Target target = {.is_measured = 1, .prefix_topic = -1};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!nnOOOOOKOOOOOOO:write_frames", &PyTuple_Type, &object, &first, &behind, &fixed[0],
                          &fixed[1], &fixed[2], &fixed[3], &prefix, &first_sequence, &filled[0], &filled[1], &new_keys,
                          &filled[2], &filled[3], &filled[4], &filled[5]))
        return NULL;
    if (take_rows(&rows, object) && take_target(&target, rows.count, fixed, prefix, filled)
        && take_n_items(&target.new_keys, new_keys, 8, READ_ITEMS, "new keys", rows.count)) {
        Py_ssize_t row = first;
        target.first_sequence = first_sequence;
        int is_among = first >= 0 && behind <= rows.count;
        Py_BEGIN_ALLOW_THREADS
        while (is_among && row < behind && write_row(&rows, &target, row))
            row++;
        Py_END_ALLOW_THREADS
        if (!is_among || row < behind)
            PyErr_Format(PyExc_IndexError, "row %zd is not what was measured", row);
        else
            result = Py_NewRef(Py_None);
    }
    release_rows(&rows);
    release_target(&target);
    return result;
}

static PyObject *encode_frames(PyObject *module, PyObject *arguments)
{
    PyObject *object, *fixed[4], *prefix, *filled[6], *result = NULL;
    unsigned long long first_sequence;
    Rows rows = {0};
    Target target = {.prefix_topic = -1};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!OOOOOKOOOOOO:encode_frames", &PyTuple_Type, &object, &fixed[0], &fixed[1],
                          &fixed[2], &fixed[3], &prefix, &first_sequence, &filled[0], &filled[1], &filled[2], &filled[3],
                          &filled[4], &filled[5]))
        return NULL;
    if (take_rows(&rows, object) && take_target(&target, rows.count, fixed, prefix, filled)) {
        Py_ssize_t row = 0;
        target.first_sequence = first_sequence;
        ((int64_t *)target.offsets.view.buf)[0] = ((int32_t *)target.hash_offsets.view.buf)[0] = 0;
        Py_BEGIN_ALLOW_THREADS
        while (row < rows.count && write_row(&rows, &target, row))
            row++;
        Py_END_ALLOW_THREADS
        result = PyBool_FromLong(row == rows.count);
    }
    release_rows(&rows);
    release_target(&target);
    return result;
}

PyMethodDef encoder_methods[] = {
    {"encode_frames", encode_frames, METH_VARARGS, NULL},
    {"measure_frames", measure_frames, METH_VARARGS, NULL},
    {"write_frames", write_frames, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
