/* The messages of a client's batch as frames without their place, and what their queue and the index need, in one call.
   The twin is message by message: `messages_of` of format/frames/message_batch.py, then format/frames/one_frame.py. */

#include "native.h"

#include "big_endian.h"
#include "crc.h"
#include "frames.h"
#include "one_message.h"
#include "text.h"

#define HEAD_BYTES 20   /* total size, magic, CRC, flag, length of the body */
#define LENGTH_BYTES 2  /* of the properties */
#define SPECIAL_MAX 16
/* Of a unique id: what the store's process gives to all of them, with an address of 16 bytes at most; and a number. */
#define ID_PREFIX_MAX 22
#define ID_NUMBER_BYTES 6
#define ID_TEXT_MAX (2 * (ID_PREFIX_MAX + ID_NUMBER_BYTES))
/* Shorter work is done before another thread would have begun. */
#define WITH_GIL_BYTES (1 << 16)

static const char unique_key_name[] = "UNIQ_KEY", crc_name[] = "__CRC32#";

typedef struct {
    int32_t flag;
    Text body, properties;
    size_t size;
} Member;

/* What is the same for all messages of the batch. */
typedef struct {
    Text topic, special[SPECIAL_MAX];
    Py_ssize_t special_count;
    size_t body_bytes_max, frame_bytes_max;
    int index_tags;
    Fields fields;
    Text id_prefix;
    uint64_t first_id;
} Batch;

/* What is made of it; each array has room for all messages. */
typedef struct {
    uint8_t *frames, *unique_keys;
    int64_t *bounds, *tags_codes, *key_counts;
    uint32_t *hashes, *crcs;
    size_t hash_count, unique_key_bytes;
    uint64_t ids_given;
} Made;

/* False: no whole message begins at `data`, which has `size` bytes. */
static int read_member(Member *member, const uint8_t *data, size_t size)
{
    if (size < HEAD_BYTES + LENGTH_BYTES)
        return 0;
    int64_t total = (int32_t)word_at(data), body_bytes = (int32_t)word_at(data + 16);
    if (body_bytes < 0 || total < HEAD_BYTES + body_bytes + LENGTH_BYTES || (uint64_t)total > size)
        return 0;
    const uint8_t *behind = data + HEAD_BYTES + body_bytes;
    member->flag = (int32_t)word_at(data + 12);
    member->body = (Text){data + HEAD_BYTES, (size_t)body_bytes};
    member->properties = (Text){behind + LENGTH_BYTES, (uint16_t)short_at(behind)};
    member->size = (size_t)total;
    return HEAD_BYTES + body_bytes + LENGTH_BYTES + (int64_t)member->properties.size <= total;
}

static int is_text(const Text *text, const char *name, size_t size)
{
    return text->size == size && memcmp(text->bytes, name, size) == 0;
}

static int is_special(const Batch *batch, const Text *name)
{
    for (Py_ssize_t at = 0; at < batch->special_count; at++)
        if (is_text(name, (const char *)batch->special[at].bytes, batch->special[at].size))
            return 1;
    return 0;
}

static int place_of_name(const Properties *taken, const Text *name)
{
    int at = 0;
    while (at < taken->count && !is_text(&taken->names[at], (const char *)name->bytes, name->size))
        at++;
    return at;
}

/* The properties as they are stored: UNIQ_KEY first, and its first value counts; of others the last value. A missing
   UNIQ_KEY has an empty value. False: they are left to Python, which may store them, too. */
static int parse_properties(Properties *taken, const Batch *batch, const Text *raw)
{
    if (!is_utf8(raw->bytes, raw->size))
        return 0;
    taken->names[0] = (Text){(const uint8_t *)unique_key_name, sizeof unique_key_name - 1};
    taken->values[0] = (Text){NULL, 0};
    taken->count = 1;
    const uint8_t *end = raw->bytes + raw->size, *next;
    for (const uint8_t *piece = raw->bytes; piece < end; piece = next) {
        const uint8_t *behind = memchr(piece, 2, (size_t)(end - piece));
        if (behind == NULL)
            behind = end;
        next = behind + 1;
        const uint8_t *separator = memchr(piece, 1, (size_t)(behind - piece));
        if (separator == NULL || separator == piece || separator + 1 == behind)
            continue;
        Text name = {piece, (size_t)(separator - piece)}, value = {separator + 1, (size_t)(behind - separator - 1)};
        if (memchr(value.bytes, 1, value.size) != NULL || is_special(batch, &name))
            return 0;
        if (is_text(&name, crc_name, sizeof crc_name - 1))
            continue;
        int at = place_of_name(taken, &name);
        if (at == PROPERTIES_MAX)
            return 0;
        if (at == 0 && taken->values[0].size > 0)
            continue;
        taken->names[at] = name;
        taken->values[at] = value;
        taken->count += at == taken->count;
    }
    return 1;
}

static size_t id_text_bytes(const Batch *batch)
{
    return 2 * (batch->id_prefix.size + ID_NUMBER_BYTES);
}

/* The unique id of this number, in capital hex digits. */
static Text write_id(char *text, const Batch *batch, uint64_t number)
{
    static const char digits[] = "0123456789ABCDEF";
    uint8_t bytes[ID_PREFIX_MAX + 8];
    size_t prefix = batch->id_prefix.size;
    memcpy(bytes, batch->id_prefix.bytes, prefix);
    put_long(bytes + prefix, number << 16); /* the upper 16 bits are no part of it */
    for (size_t at = 0; at < prefix + ID_NUMBER_BYTES; at++) {
        text[2 * at] = digits[bytes[at] >> 4];
        text[2 * at + 1] = digits[bytes[at] & 15];
    }
    return (Text){(const uint8_t *)text, id_text_bytes(batch)};
}

static size_t properties_size(const Properties *properties)
{
    size_t size = 0;
    for (int at = 0; at < properties->count; at++)
        size += properties->names[at].size + properties->values[at].size + 2;
    return size;
}

static int waits_for_disk(const Properties *properties)
{
    const Text *wait = value_of(properties, "WAIT");
    return wait == NULL || is_text(wait, "true", 4);
}

/* False: some message is left to Python. The messages were counted, so each one is whole. */
static int encode_members(Made *made, const Batch *batch, const uint8_t *data, size_t size)
{
    uint32_t seed = topic_hash(&batch->topic);
    uint8_t *frame = made->frames;
    Properties properties;
    Member member;
    char id[ID_TEXT_MAX];
    size_t row = 0, fixed = header_bytes(&batch->fields);
    for (size_t at = 0; at < size; at += member.size, row++) {
        if (!read_member(&member, data + at, size - at) || member.body.size > batch->body_bytes_max
            || !parse_properties(&properties, batch, &member.properties) || (row == 0 && !waits_for_disk(&properties)))
            return 0;
        if (properties.values[0].size == 0)
            properties.values[0] = write_id(id, batch, batch->first_id + made->ids_given++);
        properties.size = properties_size(&properties);
        size_t stored_size = properties.size + (batch->fields.has_crc ? CRC_PROPERTY_BYTES : 0);
        size_t frame_size = fixed + member.body.size + 1 + batch->topic.size + 2 + stored_size;
        if (stored_size > PROPERTIES_BYTES_MAX || frame_size > batch->frame_bytes_max)
            return 0;
        Fields fields = batch->fields;
        fields.flag = member.flag;
        write_frame(frame, frame_size, &fields, &member.body, &batch->topic, &properties);
        if (fields.has_crc)
            made->crcs[row] = crc_extend(0, frame, frame_size - CRC_PROPERTY_BYTES);
        frame += frame_size;
        made->bounds[row + 1] = frame - made->frames;
        const Text *tags = value_of(&properties, "TAGS"), *unique_key = &properties.values[0];
        made->tags_codes[row] = tags == NULL ? 0 : (int32_t)java_hash(0, tags->bytes, tags->size);
        size_t hashes = put_hashes(&properties, seed, batch->index_tags, made->hashes + made->hash_count);
        made->key_counts[row] = (int64_t)hashes;
        made->hash_count += hashes;
        if (row > 0)
            made->unique_keys[made->unique_key_bytes++] = ',';
        memcpy(made->unique_keys + made->unique_key_bytes, unique_key->bytes, unique_key->size);
        made->unique_key_bytes += unique_key->size;
    }
    return 1;
}

/* Room for all that is made of a batch, by arrays. */
enum { FRAMES, BOUNDS, TAGS_CODES, KEY_COUNTS, HASHES, CRCS, UNIQUE_KEYS, ARRAYS };

/* False: some message is not whole, or there is none, or they are too many. */
static int measure(size_t room[ARRAYS], const Batch *batch, const uint8_t *data, size_t size)
{
    size_t count = 0, frame_bytes = 0, properties_bytes = 0, fixed = header_bytes(&batch->fields);
    size_t id_bytes = sizeof unique_key_name - 1 + 2 + id_text_bytes(batch);
    Member member;
    for (size_t at = 0; at < size; at += member.size, count++) {
        if (!read_member(&member, data + at, size - at))
            return 0;
        /* The properties may get one separator more, and a unique key. */
        frame_bytes += fixed + member.body.size + 1 + batch->topic.size + 2 + member.properties.size + 1 + id_bytes;
        frame_bytes += batch->fields.has_crc ? CRC_PROPERTY_BYTES : 0;
        properties_bytes += member.properties.size;
    }
    room[FRAMES] = frame_bytes;
    room[BOUNDS] = 8 * (count + 1);
    room[TAGS_CODES] = room[KEY_COUNTS] = 8 * count;
    room[HASHES] = 4 * (properties_bytes / 2 + 2 * count);
    room[CRCS] = batch->fields.has_crc ? 4 * count : 0;
    room[UNIQUE_KEYS] = properties_bytes + count * (1 + id_text_bytes(batch));
    return count > 0 && frame_bytes <= INT32_MAX;
}

static int take_special(Batch *batch, PyObject *special)
{
    batch->special_count = PyTuple_Size(special);
    if (batch->special_count > SPECIAL_MAX)
        PyErr_SetString(PyExc_ValueError, "special: too many names");
    for (Py_ssize_t at = 0; !PyErr_Occurred() && at < batch->special_count; at++) {
        char *bytes;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(special, at), &bytes, &size) == 0)
            batch->special[at] = (Text){(const uint8_t *)bytes, (size_t)size};
    }
    return !PyErr_Occurred();
}

static PyObject *encoded(const Batch *batch, const uint8_t *data, size_t size)
{
    size_t room[ARRAYS];
    PyObject *arrays[ARRAYS] = {0}, *unique_keys = NULL, *result = NULL;
    if (!measure(room, batch, data, size))
        Py_RETURN_NONE;
    int is_good = 1, is_ordinary;
    for (int at = 0; is_good && at < ARRAYS; at++)
        is_good = (arrays[at] = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)room[at])) != NULL;
    if (is_good) {
        void *places[ARRAYS];
        for (int at = 0; at < ARRAYS; at++)
            places[at] = PyByteArray_AsString(arrays[at]);
        Made made = {places[FRAMES], places[UNIQUE_KEYS], places[BOUNDS], places[TAGS_CODES], places[KEY_COUNTS],
                     places[HASHES], places[CRCS], 0, 0, 0};
        made.bounds[0] = 0;
        PyThreadState *state = size > WITH_GIL_BYTES ? PyEval_SaveThread() : NULL;
        is_ordinary = encode_members(&made, batch, data, size);
        if (state != NULL)
            PyEval_RestoreThread(state);
        if (is_ordinary) {
            int64_t frame_bytes = made.bounds[room[TAGS_CODES] / 8];
            unique_keys = PyUnicode_DecodeUTF8((const char *)made.unique_keys, (Py_ssize_t)made.unique_key_bytes, NULL);
            is_good = unique_keys != NULL && PyByteArray_Resize(arrays[FRAMES], (Py_ssize_t)frame_bytes) == 0
                   && PyByteArray_Resize(arrays[HASHES], (Py_ssize_t)(4 * made.hash_count)) == 0;
            if (is_good)
                result = PyTuple_Pack(7, arrays[FRAMES], arrays[BOUNDS], arrays[TAGS_CODES], arrays[KEY_COUNTS],
                                      arrays[HASHES], batch->fields.has_crc ? arrays[CRCS] : Py_None, unique_keys);
        }
        else
            result = Py_NewRef(Py_None);
    }
    for (int at = 0; at < ARRAYS; at++)
        Py_XDECREF(arrays[at]);
    Py_XDECREF(unique_keys);
    return result;
}

static PyObject *encode_batch(PyObject *module, PyObject *arguments)
{
    const char *data, *born_host, *store_host, *topic, *id_prefix;
    Py_ssize_t size, born_host_size, store_host_size, topic_size, id_prefix_size, body_bytes_max, frame_bytes_max;
    PyObject *special;
    long long born_ms, first_id;
    int queue_id, has_crc, index_tags;
    Batch batch;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y#y#iLy#y#O!nnppy#L:encode_batch", &topic, &topic_size, &data, &size, &queue_id,
                          &born_ms, &born_host, &born_host_size, &store_host, &store_host_size, &PyTuple_Type, &special,
                          &body_bytes_max, &frame_bytes_max, &has_crc, &index_tags, &id_prefix, &id_prefix_size,
                          &first_id)
        || !take_special(&batch, special))
        return NULL;
    batch.topic = (Text){(const uint8_t *)topic, (size_t)topic_size};
    batch.fields = (Fields){.queue_id = queue_id, .born_ms = born_ms, .has_crc = has_crc};
    if (!take_host(&batch.fields.born_host, born_host, born_host_size)
        || !take_host(&batch.fields.store_host, store_host, store_host_size) || topic_size > V1_TOPIC_BYTES_MAX
        || id_prefix_size > ID_PREFIX_MAX
        || !text_is_storable(batch.topic.bytes, batch.topic.size) || body_bytes_max < 0 || frame_bytes_max < 0)
        Py_RETURN_NONE;
    batch.body_bytes_max = (size_t)body_bytes_max;
    batch.frame_bytes_max = (size_t)frame_bytes_max;
    batch.index_tags = index_tags;
    batch.id_prefix = (Text){(const uint8_t *)id_prefix, (size_t)id_prefix_size};
    batch.first_id = (uint64_t)first_id;
    return encoded(&batch, (const uint8_t *)data, (size_t)size);
}

PyMethodDef message_batch_methods[] = {
    {"encode_batch", encode_batch, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
