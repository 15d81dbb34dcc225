/* One message as a frame without its place, and what its queue and the index need; then its place. The twins are
   format/frames/one_frame.py, and `complete_frame` of format/frames/stored_message.py. */

#include "native.h"

#include "big_endian.h"
#include "crc.h"
#include "frames.h"
#include "one_message.h"
#include "text.h"

#define OFFSETS_AT 20   /* queueOffset, then physicalOffset, 8 bytes each */
#define SYS_FLAG_END 39 /* the last byte of sysFlag */
#define BORN_HOST_AT 48 /* then storeTimestamp */
/* Hashes of one message: those of its shortest keys, and of UNIQ_KEY and tag. */
#define HASHES_MAX (PROPERTIES_BYTES_MAX / 2 + 2)

static const char crc_property_start[] = "__CRC32#\x01";

/* False: it is no text that can be a part of a property. */
static int take_part(Text *part, PyObject *object)
{
    Py_ssize_t size;
    if (!PyUnicode_Check(object))
        return 0;
    part->bytes = (const uint8_t *)PyUnicode_AsUTF8AndSize(object, &size);
    if (part->bytes == NULL) {
        PyErr_Clear();
        return 0;
    }
    part->size = (size_t)size;
    return size > 0 && text_is_storable(part->bytes, part->size);
}

static int take_properties(Properties *taken, PyObject *properties)
{
    PyObject *name, *value;
    Py_ssize_t place = 0;
    taken->count = 0;
    taken->size = 0;
    while (PyDict_Next(properties, &place, &name, &value)) {
        if (taken->count == PROPERTIES_MAX || !take_part(&taken->names[taken->count], name)
            || !take_part(&taken->values[taken->count], value))
            return 0;
        taken->size += taken->names[taken->count].size + taken->values[taken->count].size + 2;
        taken->count++;
    }
    return 1;
}

const Text *value_of(const Properties *properties, const char *name)
{
    size_t size = strlen(name);
    for (int at = 0; at < properties->count; at++)
        if (properties->names[at].size == size && memcmp(properties->names[at].bytes, name, size) == 0)
            return &properties->values[at];
    return NULL;
}

static uint8_t *put_text(uint8_t *to, const void *bytes, size_t size)
{
    memcpy(to, bytes, size);
    return to + size;
}

size_t put_hashes(const Properties *properties, uint32_t seed, int index_tags, uint32_t *hashes)
{
    const Text *unique_key = value_of(properties, "UNIQ_KEY"), *keys = value_of(properties, "KEYS");
    const Text *tags = value_of(properties, "TAGS");
    size_t count = 0;
    if (unique_key != NULL)
        hashes[count++] = index_hash(java_hash(seed, unique_key->bytes, unique_key->size));
    for (size_t start = 0, end; keys != NULL && start < keys->size; start = end + 1) {
        for (end = start; end < keys->size && keys->bytes[end] != ' '; end++)
            ;
        if (end > start)
            hashes[count++] = index_hash(java_hash(seed, keys->bytes + start, end - start));
    }
    if (index_tags && tags != NULL)
        hashes[count++] = index_hash(java_hash(java_hash(seed, (const uint8_t *)"T#", 2), tags->bytes, tags->size));
    return count;
}

static PyObject *hashes_of(const Properties *properties, const Text *topic, int index_tags)
{
    uint32_t hashes[HASHES_MAX];
    size_t count = put_hashes(properties, topic_hash(topic), index_tags, hashes);
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t at = 0; list != NULL && at < count; at++) {
        PyObject *hash = PyLong_FromUnsignedLong(hashes[at]);
        if (hash == NULL)
            Py_CLEAR(list);
        else
            PyList_SetItem(list, (Py_ssize_t)at, hash);
    }
    return list;
}

uint32_t topic_hash(const Text *topic)
{
    return java_hash(java_hash(0, topic->bytes, topic->size), (const uint8_t *)"#", 1);
}

/* The last CRC_PROPERTY_BYTES of a frame: digits, least significant first, between name and separator. */
static void put_crc_property(uint8_t *to, uint32_t crc)
{
    uint8_t *digit = put_text(to, crc_property_start, sizeof crc_property_start - 1);
    for (crc &= CRC_MASK; digit < to + CRC_PROPERTY_BYTES - 1; crc /= 10)
        *digit++ = (uint8_t)('0' + crc % 10);
    *digit = 2;
}

int take_host(PackedHost *host, const char *bytes, ptrdiff_t size)
{
    *host = (PackedHost){(const uint8_t *)bytes, (size_t)size};
    return size == HOST_BYTES || size == HOST_V6_BYTES;
}

size_t header_bytes(const Fields *fields)
{
    return FRAME_HEADER_BYTES - 2 * HOST_BYTES + fields->born_host.size + fields->store_host.size;
}

void write_frame(uint8_t *frame, size_t size, const Fields *fields, const Text *body, const Text *topic,
                 const Properties *properties)
{
    const PackedHost *born = &fields->born_host, *store = &fields->store_host;
    uint8_t *store_host = frame + BORN_HOST_AT + born->size + 8, *body_size = store_host + store->size + 12;
    uint32_t hosts = (born->size == HOST_BYTES ? 0 : BORN_HOST_V6) | (store->size == HOST_BYTES ? 0 : STORE_HOST_V6);
    memset(frame, 0, header_bytes(fields));
    put_word(frame, (uint32_t)size);
    put_word(frame + 4, MAGIC_V1);
    put_word(frame + 8, crc_extend(0, body->bytes, body->size) & CRC_MASK);
    put_word(frame + 12, (uint32_t)fields->queue_id);
    put_word(frame + 16, (uint32_t)fields->flag);
    put_word(frame + 36, (fields->sys_flag & ~HOSTS_V6_MASK) | hosts);
    put_long(frame + 40, (uint64_t)fields->born_ms);
    memcpy(frame + BORN_HOST_AT, born->bytes, born->size);
    memcpy(store_host, store->bytes, store->size);
    put_word(body_size, (uint32_t)body->size);
    uint8_t *to = put_text(body_size + 4, body->bytes, body->size);
    *to++ = (uint8_t)topic->size;
    to = put_text(to, topic->bytes, topic->size);
    size_t properties_size = properties->size + (fields->has_crc ? CRC_PROPERTY_BYTES : 0);
    *to++ = (uint8_t)(properties_size >> 8);
    *to++ = (uint8_t)properties_size;
    for (int at = 0; at < properties->count; at++) {
        to = put_text(to, properties->names[at].bytes, properties->names[at].size);
        *to++ = 1;
        to = put_text(to, properties->values[at].bytes, properties->values[at].size);
        *to++ = 2;
    }
    if (fields->has_crc)
        put_crc_property(to, 0);
}

static int is_int32(long long value)
{
    return INT32_MIN <= value && value <= INT32_MAX;
}

static PyObject *encode_message(PyObject *module, PyObject *arguments)
{
    const char *body_bytes, *born_host, *store_host;
    Py_ssize_t body_size, born_host_size, store_host_size;
    PyObject *topic_text, *stored, *frame = NULL, *hashes = NULL;
    long long flag, sys_flag, born_ms;
    int queue_id, has_crc, index_tags;
    Text topic;
    Properties properties;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "Uy#OiLLLy#y#pp:encode_message", &topic_text, &body_bytes, &body_size, &stored,
                          &queue_id, &flag, &sys_flag, &born_ms, &born_host, &born_host_size, &store_host,
                          &store_host_size, &has_crc, &index_tags))
        return NULL;
    Fields fields = {.queue_id = queue_id, .born_ms = born_ms, .has_crc = has_crc};
    if (!take_host(&fields.born_host, born_host, born_host_size)
        || !take_host(&fields.store_host, store_host, store_host_size) || !is_int32(flag) || !is_int32(sys_flag)
        || !PyDict_CheckExact(stored) || !take_part(&topic, topic_text) || topic.size > V1_TOPIC_BYTES_MAX
        || !take_properties(&properties, stored) || value_of(&properties, "__CRC32#") != NULL)
        Py_RETURN_NONE;
    size_t properties_size = properties.size + (has_crc ? CRC_PROPERTY_BYTES : 0);
    size_t size = header_bytes(&fields) + (size_t)body_size + 1 + topic.size + 2 + properties_size;
    if (properties_size > PROPERTIES_BYTES_MAX || body_size > INT32_MAX || size > INT32_MAX)
        Py_RETURN_NONE;
    frame = PyByteArray_FromStringAndSize(NULL, (Py_ssize_t)size);
    hashes = hashes_of(&properties, &topic, index_tags);
    if (frame == NULL || hashes == NULL) {
        Py_XDECREF(frame);
        Py_XDECREF(hashes);
        return NULL;
    }
    Text body = {(const uint8_t *)body_bytes, (size_t)body_size};
    fields.flag = (int32_t)flag;
    fields.sys_flag = (uint32_t)sys_flag;
    write_frame((uint8_t *)PyByteArray_AsString(frame), size, &fields, &body, &topic, &properties);
    const Text *tags = value_of(&properties, "TAGS");
    int32_t tags_hash = tags == NULL ? 0 : (int32_t)java_hash(0, tags->bytes, tags->size);
    return Py_BuildValue("NNi", frame, hashes, tags_hash);
}

int place_frame(uint8_t *frame, size_t size, int64_t queue_offset, int64_t log_offset, int64_t store_ms, int has_crc)
{
    if (size < FRAME_HEADER_BYTES + (has_crc ? CRC_PROPERTY_BYTES : 0))
        return 0;
    int host_bytes = frame[SYS_FLAG_END] & BORN_HOST_V6 ? HOST_V6_BYTES : HOST_BYTES;
    put_long(frame + OFFSETS_AT, (uint64_t)queue_offset);
    put_long(frame + OFFSETS_AT + 8, (uint64_t)log_offset);
    put_long(frame + BORN_HOST_AT + host_bytes, (uint64_t)store_ms);
    if (has_crc) {
        size_t covered = size - CRC_PROPERTY_BYTES;
        put_crc_property(frame + covered, crc_extend(0, frame, covered));
    }
    return 1;
}

static PyObject *place_message(PyObject *module, PyObject *arguments)
{
    PyObject *given;
    long long queue_offset, log_offset, store_ms;
    int has_crc;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!LLLp:place_message", &PyByteArray_Type, &given, &queue_offset, &log_offset,
                          &store_ms, &has_crc))
        return NULL;
    uint8_t *frame = (uint8_t *)PyByteArray_AsString(given);
    if (!place_frame(frame, (size_t)PyByteArray_Size(given), queue_offset, log_offset, store_ms, has_crc)) {
        PyErr_SetString(PyExc_IndexError, "too short for a frame");
        return NULL;
    }
    Py_RETURN_NONE;
}

PyMethodDef one_message_methods[] = {
    {"encode_message", encode_message, METH_VARARGS, NULL},
    {"place_message", place_message, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
