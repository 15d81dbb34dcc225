/* Encoded frames as entries of a batch body, and the content keys of their messages. The twin is
   format/batches/batch_bodies.py with format/batches/content_keys.py, where the layouts are. */

#include "big_endian.h"
#include "blake2b.h"
#include "entry_parts.h"
#include "frames.h"
#include "native.h"
#include "rows.h"

#define HEAD_BYTES (PLACE_BYTES + 12)

/* -- a frame of the encoder --------------------------------------------------------------------------------------- */

typedef struct {
    Slice body, properties;
    uint32_t flag, sys_flag, reconsume_times;
    const uint8_t *content; /* from the length of the body to the end of the frame */
    size_t content_bytes;
} Message;

/* False: it is no frame whose body begins behind `header_bytes`. */
static int take_message(Message *message, const uint8_t *frame, int64_t size, Py_ssize_t header_bytes)
{
    if (size < header_bytes + 3 || size > INT32_MAX || word_at(frame) != (uint32_t)size)
        return 0;
    const uint8_t *end = frame + size, *at = frame + header_bytes;
    int64_t body_bytes = (int32_t)word_at(at - 4);
    int length_bytes = word_at(frame + 4) == MAGIC_V2 ? 2 : 1;
    if (body_bytes < 0 || end - at < body_bytes + length_bytes + 2)
        return 0;
    message->flag = word_at(frame + 16);
    message->sys_flag = word_at(frame + 36);
    message->reconsume_times = word_at(at - 16);
    message->content = at - 4;
    message->content_bytes = (size_t)(end - message->content);
    message->body = (Slice){at, (size_t)body_bytes};
    at += body_bytes;
    int64_t topic_bytes = length_bytes == 2 ? (int64_t)at[0] << 8 | at[1] : at[0];
    at += length_bytes;
    if (end - at < topic_bytes + 2)
        return 0;
    at += topic_bytes;
    int64_t properties_bytes = (int64_t)at[0] << 8 | at[1];
    at += 2;
    message->properties = (Slice){at, (size_t)properties_bytes};
    return end - at == properties_bytes;
}

typedef struct {
    Items data, offsets;
    Py_ssize_t header_bytes;
} Frames;

static int take_frames(Frames *frames, PyObject *data, PyObject *offsets)
{
    if (!take_items(&frames->data, data, 1, READ_ITEMS, "frames")
        || !take_items(&frames->offsets, offsets, 8, READ_ITEMS, "offsets"))
        return 0;
    if (frames->offsets.count < 1 || frames->header_bytes < FRAME_HEADER_BYTES) {
        PyErr_SetString(PyExc_ValueError, "no offsets of frames, or a header that is too short");
        return 0;
    }
    return 1;
}

static int message_at(const Frames *frames, Py_ssize_t row, Message *message)
{
    const int64_t *offset = (const int64_t *)frames->offsets.view.buf + row;
    return offset[0] >= 0 && offset[1] >= offset[0] && offset[1] <= frames->data.count
        && take_message(message, (const uint8_t *)frames->data.view.buf + offset[0], offset[1] - offset[0],
                        frames->header_bytes);
}

static PyObject *content_digests(PyObject *module, PyObject *arguments)
{
    PyObject *given[5], *result = NULL;
    Frames frames = {0};
    Items seed = {0}, places = {0}, digests = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOnOOO:content_digests", &given[0], &given[1], &frames.header_bytes, &given[2],
                          &given[3], &given[4]))
        return NULL;
    if (take_frames(&frames, given[0], given[1])
        && take_n_items(&seed, given[2], 1, READ_ITEMS, "seed", SEED_BYTES)
        && take_n_items(&places, given[3], 1, READ_ITEMS, "places", PLACE_BYTES * (frames.offsets.count - 1))
        && take_n_items(&digests, given[4], 1, WRITE_ITEMS, "digests", DIGEST_BYTES * (frames.offsets.count - 1))) {
        Py_ssize_t row = 0, count = frames.offsets.count - 1;
        Message message;
        uint64_t seeded[8];
        BlakeText texts[BLAKE_LANES_MAX];
        uint8_t heads[BLAKE_LANES_MAX][HEAD_BYTES];
        int waiting = 0, lanes = blake2b_lanes();
        Py_BEGIN_ALLOW_THREADS
        blake2b_begin(seeded, seed.view.buf);
        for (; row < count && message_at(&frames, row, &message); row++) {
            uint8_t *head = heads[waiting];
            memcpy(head, (const uint8_t *)places.view.buf + PLACE_BYTES * row, PLACE_BYTES);
            put_word(head + PLACE_BYTES, message.flag);
            put_word(head + PLACE_BYTES + 4, message.sys_flag);
            put_word(head + PLACE_BYTES + 8, message.reconsume_times);
            texts[waiting++] = (BlakeText){{{head, HEAD_BYTES}, {message.content, message.content_bytes}}};
            if (waiting == lanes || row + 1 == count) {
                uint8_t *behind = (uint8_t *)digests.view.buf + DIGEST_BYTES * (row + 1);
                blake2b_end(seeded, texts, waiting, behind - DIGEST_BYTES * waiting);
                waiting = 0;
            }
        }
        Py_END_ALLOW_THREADS
        if (row < count)
            PyErr_Format(PyExc_IndexError, "row %zd is no frame", row);
        else
            result = Py_NewRef(Py_None);
    }
    release_items(&frames.data);
    release_items(&frames.offsets);
    release_items(&seed);
    release_items(&places);
    release_items(&digests);
    return result;
}

/* -- entries of a batch body -------------------------------------------------------------------------------------- */

/* False: the row is no frame, or its properties get too long, or there is no room. */
static int put_entry(Out *out, const Message *message, const uint8_t *key, const Items *tail)
{
    size_t properties = message->properties.size + (key ? KEY_PROPERTY_BYTES : 0) + (size_t)tail->count;
    size_t size = ENTRY_HEAD_BYTES + message->body.size + 2 + properties;
    if (properties > PROPERTIES_BYTES_MAX || size > (size_t)(out->end - out->next))
        return 0;
    uint8_t *to = out->next;
    put_entry_head(to, size, message->flag, message->body.size);
    to += ENTRY_HEAD_BYTES;
    memcpy(to, message->body.text, message->body.size);
    to += message->body.size;
    to[0] = (uint8_t)(properties >> 8);
    to[1] = (uint8_t)properties;
    to += 2;
    if (key) {
        put_key_property(to, key);
        to += KEY_PROPERTY_BYTES;
    }
    copy_short(to, message->properties.text, message->properties.size);
    copy_short(to + message->properties.size, tail->view.buf, (size_t)tail->count);
    out->next += size;
    return 1;
}

static PyObject *write_entries(PyObject *module, PyObject *arguments)
{
    PyObject *given[6], *result = NULL;
    Frames frames = {0};
    Items keys = {0}, tail = {0}, offsets = {0}, entries = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOnOOOO:write_entries", &given[0], &given[1], &frames.header_bytes, &given[2],
                          &given[3], &given[4], &given[5]))
        return NULL;
    Py_ssize_t count = 0, row = 0;
    if (take_frames(&frames, given[0], given[1]) && (count = frames.offsets.count - 1, 1)
        && (given[2] == Py_None || take_n_items(&keys, given[2], 1, READ_ITEMS, "keys", DIGEST_BYTES * count))
        && take_items(&tail, given[3], 1, READ_ITEMS, "tail")
        && take_n_items(&offsets, given[4], 8, WRITE_ITEMS, "entry offsets", count + 1)
        && take_items(&entries, given[5], 1, WRITE_ITEMS, "entries")) {
        Out out = {.next = entries.view.buf, .end = (uint8_t *)entries.view.buf + entries.count};
        int64_t *offset = offsets.view.buf;
        Message message;
        Py_BEGIN_ALLOW_THREADS
        offset[0] = 0;
        for (; row < count && message_at(&frames, row, &message); row++) {
            const uint8_t *key = keys.view.obj == NULL ? NULL : (const uint8_t *)keys.view.buf + DIGEST_BYTES * row;
            if (!put_entry(&out, &message, key, &tail))
                break;
            offset[row + 1] = out.next - (uint8_t *)entries.view.buf;
        }
        Py_END_ALLOW_THREADS
        result = PyLong_FromSsize_t(row);
    }
    release_items(&frames.data);
    release_items(&frames.offsets);
    release_items(&keys);
    release_items(&tail);
    release_items(&offsets);
    release_items(&entries);
    return result;
}

/* -- keys that are in a log --------------------------------------------------------------------------------------- */

static inline int nibble(uint8_t digit)
{
    return digit >= '0' && digit <= '9' ? digit - '0' : digit >= 'A' && digit <= 'F' ? digit - 'A' + 10 : -1;
}

/* The first UNIQ_KEY of the properties as 16 bytes. False: there is none of 32 upper-case hex digits. */
static int key_of(Slice properties, uint8_t *key)
{
    const uint8_t *at = properties.text, *end = at + properties.size;
    while (at < end) {
        const uint8_t *stop = memchr(at, 2, (size_t)(end - at));
        if (stop == NULL)
            stop = end;
        if (stop - at >= UNIQUE_KEY_PREFIX_BYTES && memcmp(at, UNIQUE_KEY_PREFIX, UNIQUE_KEY_PREFIX_BYTES) == 0) {
            at += UNIQUE_KEY_PREFIX_BYTES;
            if (stop - at != 2 * DIGEST_BYTES)
                return 0;
            for (int byte = 0; byte < DIGEST_BYTES; byte++, at += 2) {
                int high = nibble(at[0]), low = nibble(at[1]);
                if (high < 0 || low < 0)
                    return 0;
                key[byte] = (uint8_t)(high << 4 | low);
            }
            return 1;
        }
        at = stop + 1;
    }
    return 0;
}

static PyObject *keys_in_frames(PyObject *module, PyObject *arguments)
{
    PyObject *given[6], *result = NULL;
    Items data = {0}, positions = {0}, tag = {0}, keys = {0}, checks = {0}, rows = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOOO:keys_in_frames", &given[0], &given[1], &given[2], &given[3], &given[4],
                          &given[5]))
        return NULL;
    if (take_items(&data, given[0], 1, READ_ITEMS, "data") && take_items(&positions, given[1], 8, READ_ITEMS, "positions")
        && take_items(&tag, given[2], 1, READ_ITEMS, "tag")
        && take_n_items(&keys, given[3], 1, WRITE_ITEMS, "keys", DIGEST_BYTES * positions.count)
        && take_n_items(&checks, given[4], 8, WRITE_ITEMS, "checks", positions.count)
        && take_n_items(&rows, given[5], 8, WRITE_ITEMS, "rows", positions.count)) {
        static const uint8_t HEADERS[4] = {88, 100, 100, 112};
        Py_ssize_t row = 0, found = 0;
        const uint8_t *bytes = data.view.buf;
        Py_BEGIN_ALLOW_THREADS
        for (; row < positions.count; row++) {
            int64_t position = ((const int64_t *)positions.view.buf)[row];
            Message message;
            uint8_t *key = (uint8_t *)keys.view.buf + DIGEST_BYTES * found;
            if (position < 0 || position > data.count - FRAME_BYTES_MIN)
                break;
            int64_t size = (int32_t)word_at(bytes + position);
            if (size > data.count - position
                || !take_message(&message, bytes + position, size, HEADERS[word_at(bytes + position + 36) >> 4 & 3]))
                break;
            if (!key_of(message.properties, key) || tag.count > DIGEST_BYTES
                || memcmp(key, tag.view.buf, (size_t)tag.count) != 0)
                continue;
            ((uint64_t *)checks.view.buf)[found] = (uint64_t)word_at(bytes + position + 8) << 32 | message.body.size;
            ((int64_t *)rows.view.buf)[found++] = row;
        }
        Py_END_ALLOW_THREADS
        if (row < positions.count)
            PyErr_Format(PyExc_IndexError, "row %zd is no frame", row);
        else
            result = PyLong_FromSsize_t(found);
    }
    release_items(&data);
    release_items(&positions);
    release_items(&tag);
    release_items(&keys);
    release_items(&checks);
    release_items(&rows);
    return result;
}

PyMethodDef batch_body_methods[] = {
    {"content_digests", content_digests, METH_VARARGS, NULL},
    {"keys_in_frames", keys_in_frames, METH_VARARGS, NULL},
    {"write_entries", write_entries, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
