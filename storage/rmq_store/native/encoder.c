/* Frames of a batch of messages, from its columns. The twin is format/frame_encoder.py with its parts; layout of a frame:
   format/frame_check.py.

   Two passes over the rows: `measure_frames` checks what is to be stored and says how long each frame gets, then
   `write_frames` writes them. Both walk the columns in the same way, so only one function knows the order of things
   (`put_properties`). A batch that breaks a rule is refused as a whole: Python encodes it then, and says what is wrong. */

#include "native.h"

#include "crc.h"
#include "text.h"

/* Where the fields lie that differ from row to row; the last two are counted from the end of the header. */
enum { TOTAL_SIZE = 0, MAGIC = 4, BODY_CRC = 8, QUEUE_ID = 12, FLAG = 16, SYS_FLAG = 36, BORN_TIMESTAMP = 40 };
enum { RECONSUME_TIMES = -16, BODY_LENGTH = -4 };
#define HEADER_BYTES_MIN 88
#define MAGIC_V1 0xDAA320A7u
#define MAGIC_V2 0xDAA320ABu
#define TOPIC_BYTES_MAX_V1 127
#define PROPERTIES_BYTES_MAX 32767
#define CRC_MASK 0x7FFFFFFFu
#define TRANSACTION_MASK 0x00Cu
#define TRANSACTION_ROLLBACK 0x00Cu
/* From here on it is cheaper to put a frame's CRC together than to read the body a second time. */
#define COMBINED_BODY_BYTES_MIN 4096

static const uint8_t CRC_RESERVED[] = "__CRC32#\x01" "0000000000\x02";
#define CRC_PROPERTY_BYTES 20
#define SEQUENCE_DIGITS 12

/* Properties that the index or the queues want to see, besides the column or the entry that they come from. */
enum { UNIQUE_KEY, KEYS, TAGS, SEEN, UNSEEN = SEEN };
static const char *const SEEN_NAMES[SEEN] = {"UNIQ_KEY", "KEYS", "TAGS"};

typedef struct {
    const uint8_t *text; /* null: there is none */
    size_t size;
} Slice;

/* n texts: int32 offsets (n + 1), bytes, and which are there: a bitmap from bit `first_bit` on, or nothing. */
typedef struct {
    Items offsets, data, validity;
    Py_ssize_t first_bit;
} Texts;

/* A column that becomes a property. */
typedef struct {
    Items name;
    Texts values;
    int seen;
} Named;

#define NAMED_MAX 16

/* What is known of a name in the map. */
typedef struct {
    Slice name;
    int is_left_out;
    int named; /* the column that stands before it where that has a value, or -1 */
    int seen;
} Entry;

/* Maps name the same properties row after row, mostly at the same place. */
#define KNOWN_ENTRIES 16

typedef struct {
    Py_ssize_t count;
    Items body_offsets, bodies;                             /* int64 (n + 1,) */
    Items topic_codes, topic_offsets, topics, topic_hashes; /* int32 (n,), (k + 1,), bytes, uint32 (k,) */
    Items sys_flags;                                        /* int32 (n,) */
    Named named[NAMED_MAX];
    int named_count;
    Items entry_offsets; /* int32 (n + 1,), or nothing */
    Texts names, values; /* of the entries */
    Texts left_out;      /* names of entries that are not stored */
    Entry known[KNOWN_ENTRIES];
    Py_ssize_t header_bytes, body_bytes_max, unique_key_bytes;
    int has_crc, indexes_tags;
} Rows;

/* Bytes go to `next`, but never beyond `end`; while `next` is null they are only counted. */
typedef struct {
    uint8_t *next, *end;
    int64_t size;
} Out;

static int put(Out *out, const void *data, size_t size)
{
    out->size += (int64_t)size;
    if (out->next == NULL)
        return 1;
    if (size > (size_t)(out->end - out->next))
        return 0;
    memcpy(out->next, data, size);
    out->next += size;
    return 1;
}

static void set_int32(uint8_t *place, uint32_t value)
{
    for (int byte = 3; byte >= 0; byte--, value >>= 8)
        place[byte] = (uint8_t)value;
}

/* Row `row` of the bytes behind int32 offsets. False if it does not lie in them. */
static int slice_at(const Items *offsets, const Items *data, Py_ssize_t row, Slice *slice)
{
    const int32_t *offset = (const int32_t *)offsets->view.buf + row;
    if (offset[0] < 0 || offset[1] < offset[0] || offset[1] > data->count)
        return 0;
    slice->text = (const uint8_t *)data->view.buf + offset[0];
    slice->size = (size_t)(offset[1] - offset[0]);
    return 1;
}

static int is_valid(const Texts *texts, Py_ssize_t row)
{
    Py_ssize_t bit = texts->first_bit + row;
    return texts->validity.view.obj == NULL || (((const uint8_t *)texts->validity.view.buf)[bit >> 3] >> (bit & 7) & 1);
}

static int is_same(Slice a, Slice b)
{
    return a.size == b.size && memcmp(a.text, b.text, a.size) == 0;
}

static int seen_as(Slice name)
{
    for (int seen = 0; seen < SEEN; seen++)
        if (is_same(name, (Slice){(const uint8_t *)SEEN_NAMES[seen], strlen(SEEN_NAMES[seen])}))
            return seen;
    return UNSEEN;
}

/* What to do with an entry of this name; null if it cannot be stored. `place`: the how-manieth of its row it is. */
static const Entry *entry_of(Rows *rows, Slice name, int32_t place)
{
    Entry *entry = &rows->known[place % KNOWN_ENTRIES];
    if (entry->name.text != NULL && is_same(entry->name, name))
        return entry;
    if (name.size == 0 || !text_is_storable(name.text, name.size))
        return NULL;
    *entry = (Entry){.name = name, .named = -1, .seen = seen_as(name)};
    Slice other;
    for (Py_ssize_t row = 0; row < rows->left_out.offsets.count - 1; row++)
        if (slice_at(&rows->left_out.offsets, &rows->left_out.data, row, &other) && is_same(name, other))
            entry->is_left_out = 1;
    for (int column = 0; column < rows->named_count; column++) {
        const Items *given = &rows->named[column].name;
        if (is_same(name, (Slice){given->view.buf, (size_t)given->count}))
            entry->named = column;
    }
    return entry;
}

/* The property string of a row but for a new unique key and the CRC, and in `seen` what others want of it. `is_checked`:
   its texts were looked at before. False if it cannot be stored. */
static int put_properties(Rows *rows, Py_ssize_t row, Out *out, Slice *seen, int is_checked)
{
    unsigned has_value = 0;
    for (int column = 0; column < rows->named_count; column++) {
        const Named *named = &rows->named[column];
        Slice value;
        if (!is_valid(&named->values, row))
            continue;
        if (!slice_at(&named->values.offsets, &named->values.data, row, &value))
            return 0;
        if (value.size == 0)
            continue;
        if (!is_checked && !text_is_storable(value.text, value.size))
            return 0;
        has_value |= 1u << column;
        if (named->seen != UNSEEN)
            seen[named->seen] = value;
        if (!put(out, named->name.view.buf, (size_t)named->name.count) || !put(out, "\x01", 1)
            || !put(out, value.text, value.size) || !put(out, "\x02", 1))
            return 0;
    }
    if (rows->entry_offsets.view.obj == NULL)
        return 1;
    const int32_t *offset = (const int32_t *)rows->entry_offsets.view.buf + row;
    if (offset[0] < 0 || offset[1] < offset[0] || offset[1] > rows->names.offsets.count - 1)
        return 0;
    for (int32_t at = offset[0]; at < offset[1]; at++) {
        Slice name, value;
        const Entry *entry;
        if (!slice_at(&rows->names.offsets, &rows->names.data, at, &name)
            || !slice_at(&rows->values.offsets, &rows->values.data, at, &value)
            || (entry = entry_of(rows, name, at - offset[0])) == NULL)
            return 0;
        if (entry->is_left_out || !is_valid(&rows->values, at))
            continue;
        if (value.size == 0 || (!is_checked && !text_is_storable(value.text, value.size)))
            return 0;
        if (entry->named >= 0 && has_value >> entry->named & 1)
            continue;
        if (entry->seen != UNSEEN)
            seen[entry->seen] = value;
        if (!put(out, name.text, name.size) || !put(out, "\x01", 1) || !put(out, value.text, value.size)
            || !put(out, "\x02", 1))
            return 0;
    }
    return 1;
}

/* The next piece of KEYS between spaces; null after the last one. */
static Slice next_key(Slice *keys)
{
    while (keys->size && *keys->text == ' ')
        keys->text++, keys->size--;
    const uint8_t *space = keys->size ? memchr(keys->text, ' ', keys->size) : NULL;
    Slice key = {keys->size ? keys->text : NULL, space ? (size_t)(space - keys->text) : keys->size};
    keys->text += key.size;
    keys->size -= key.size;
    return key;
}

static int is_indexed(const Rows *rows, Py_ssize_t row)
{
    return (((const uint32_t *)rows->sys_flags.view.buf)[row] & TRANSACTION_MASK) != TRANSACTION_ROLLBACK;
}

static int topic_and_body(const Rows *rows, Py_ssize_t row, int32_t *code, Slice *topic, Slice *body)
{
    const int64_t *offset = (const int64_t *)rows->body_offsets.view.buf + row;
    *code = ((const int32_t *)rows->topic_codes.view.buf)[row];
    if (offset[0] < 0 || offset[1] < offset[0] || offset[1] > rows->bodies.count || *code < 0
        || *code >= rows->topic_hashes.count)
        return 0;
    body->text = (const uint8_t *)rows->bodies.view.buf + offset[0];
    body->size = (size_t)(offset[1] - offset[0]);
    return slice_at(&rows->topic_offsets, &rows->topics, *code, topic);
}

/* `new_keys[row]`: the how-manieth new unique key the row gets, or -1. Returns how many there are; -1: refused. */
static Py_ssize_t measure(Rows *rows, int64_t *offsets, int32_t *hash_offsets, int64_t *new_keys)
{
    Py_ssize_t new_count = 0;
    int64_t hashes = 0;
    offsets[0] = hash_offsets[0] = 0;
    for (Py_ssize_t row = 0; row < rows->count; row++) {
        Slice topic, body, seen[SEEN] = {{NULL, 0}};
        Out out = {0};
        int32_t code;
        if (!topic_and_body(rows, row, &code, &topic, &body) || (Py_ssize_t)body.size > rows->body_bytes_max
            || topic.size > 255 || !put_properties(rows, row, &out, seen, 0))
            return -1;
        int is_new = rows->unique_key_bytes && seen[UNIQUE_KEY].text == NULL;
        new_keys[row] = is_new ? new_count++ : -1;
        if (is_new)
            out.size += (int64_t)strlen(SEEN_NAMES[UNIQUE_KEY]) + rows->unique_key_bytes + 2;
        if (rows->has_crc)
            out.size += CRC_PROPERTY_BYTES;
        if (out.size > PROPERTIES_BYTES_MAX)
            return -1;
        offsets[row + 1] = offsets[row] + rows->header_bytes + (int64_t)body.size + (topic.size > TOPIC_BYTES_MAX_V1 ? 2 : 1)
                         + (int64_t)topic.size + 2 + out.size;
        if (is_indexed(rows, row)) {
            hashes += is_new || seen[UNIQUE_KEY].text != NULL;
            while (seen[KEYS].text != NULL && next_key(&seen[KEYS]).text != NULL)
                hashes++;
            hashes += rows->indexes_tags && seen[TAGS].text != NULL;
        }
        if (hashes > INT32_MAX)
            return -1;
        hash_offsets[row + 1] = (int32_t)hashes;
    }
    return new_count;
}

/* What is written, and what of it is not in the rows. */
typedef struct {
    Items header;                                             /* the bytes of the fields that all rows share */
    Items queue_ids, flags, born_timestamps, reconsume_times; /* int32, int32, int64, int32 (n,) */
    Items key_prefix;                                         /* new unique keys: text, then 12 hex digits */
    uint64_t first_sequence;
    Items offsets, hash_offsets, new_keys;                    /* as `measure` filled them */
    Items frames, crcs, tags_codes, hashes;                   /* to be filled */
    int32_t prefix_topic;                                     /* of this topic, with "#" and key_prefix behind it, */
    uint32_t prefix_hash;                                     /* the hash is this one */
} Target;

/* A new unique key as a property; `digits` are its last ones. */
static int put_unique_key(Out *out, const Items *prefix, uint64_t sequence, uint8_t *digits)
{
    for (int digit = SEQUENCE_DIGITS - 1; digit >= 0; digit--, sequence >>= 4)
        digits[digit] = (uint8_t)"0123456789ABCDEF"[sequence & 0xF];
    return put(out, "UNIQ_KEY\x01", 9) && put(out, prefix->view.buf, (size_t)prefix->count)
        && put(out, digits, SEQUENCE_DIGITS) && put(out, "\x02", 1);
}

static void set_header(const Rows *rows, const Target *target, Py_ssize_t row, uint8_t *header, uint32_t frame_bytes,
                       uint32_t body_bytes, uint32_t body_crc, int is_v2)
{
    uint8_t *end = header + target->header.count;
    set_int32(header + TOTAL_SIZE, frame_bytes);
    set_int32(header + MAGIC, is_v2 ? MAGIC_V2 : MAGIC_V1);
    set_int32(header + BODY_CRC, body_crc & CRC_MASK);
    set_int32(header + QUEUE_ID, ((const uint32_t *)target->queue_ids.view.buf)[row]);
    set_int32(end + BODY_LENGTH, body_bytes);
    set_int32(header + FLAG, ((const uint32_t *)target->flags.view.buf)[row]);
    set_int32(header + SYS_FLAG, ((const uint32_t *)rows->sys_flags.view.buf)[row]);
    set_int32(end + RECONSUME_TIMES, ((const uint32_t *)target->reconsume_times.view.buf)[row]);
    uint64_t born = ((const uint64_t *)target->born_timestamps.view.buf)[row];
    set_int32(header + BORN_TIMESTAMP, (uint32_t)(born >> 32));
    set_int32(header + BORN_TIMESTAMP + 4, (uint32_t)born);
}

/* The index hashes of a row, in the order of its entries. False if there are not as many as were measured. */
static int set_hashes(const Rows *rows, Target *target, Py_ssize_t row, int32_t code, const uint8_t *digits, Slice *seen)
{
    const int32_t *bounds = (const int32_t *)target->hash_offsets.view.buf + row;
    if (bounds[0] < 0 || bounds[1] < bounds[0] || bounds[1] > target->hashes.count)
        return 0;
    if (!is_indexed(rows, row))
        return bounds[0] == bounds[1];
    uint32_t *next = (uint32_t *)target->hashes.view.buf + bounds[0];
    uint32_t *end = (uint32_t *)target->hashes.view.buf + bounds[1];
    uint32_t topic_hash = ((const uint32_t *)rows->topic_hashes.view.buf)[code];
    if (digits != NULL && code != target->prefix_topic) {
        target->prefix_topic = code;
        target->prefix_hash = java_hash(topic_hash, target->key_prefix.view.buf, (size_t)target->key_prefix.count);
    }
    if (digits != NULL && next < end)
        *next++ = index_hash(java_hash(target->prefix_hash, digits, SEQUENCE_DIGITS));
    else if (seen[UNIQUE_KEY].text != NULL && next < end)
        *next++ = index_hash(java_hash(topic_hash, seen[UNIQUE_KEY].text, seen[UNIQUE_KEY].size));
    for (Slice key; seen[KEYS].text != NULL && (key = next_key(&seen[KEYS])).text != NULL && next < end;)
        *next++ = index_hash(java_hash(topic_hash, key.text, key.size));
    /* IndexService since 5.4.0: topic + "#T#" + tag. */
    if (rows->indexes_tags && seen[TAGS].text != NULL && next < end)
        *next++ = index_hash(java_hash(topic_hash * (31 * 31) + 'T' * 31 + '#', seen[TAGS].text, seen[TAGS].size));
    return next == end;
}

/* False if the row is not what was measured, or is refused. */
static int write_row(Rows *rows, Target *target, Py_ssize_t row)
{
    const int64_t *bounds = (const int64_t *)target->offsets.view.buf + row;
    int64_t new_key = ((const int64_t *)target->new_keys.view.buf)[row];
    Slice topic, body, seen[SEEN] = {{NULL, 0}};
    uint8_t digits[SEQUENCE_DIGITS];
    int32_t code;
    if (bounds[0] < 0 || bounds[1] < bounds[0] || bounds[1] > target->frames.count
        || !topic_and_body(rows, row, &code, &topic, &body))
        return 0;
    uint8_t *frame = (uint8_t *)target->frames.view.buf + bounds[0];
    Out out = {.next = frame, .end = (uint8_t *)target->frames.view.buf + bounds[1]};
    int is_v2 = topic.size > TOPIC_BYTES_MAX_V1;
    uint8_t topic_length[2] = {(uint8_t)(is_v2 ? topic.size >> 8 : topic.size), (uint8_t)topic.size};
    if (!put(&out, target->header.view.buf, (size_t)target->header.count) || !put(&out, body.text, body.size)
        || !put(&out, topic_length, is_v2 ? 2 : 1) || !put(&out, topic.text, topic.size) || !put(&out, "\0\0", 2))
        return 0;
    uint8_t *properties = out.next;
    if ((new_key >= 0 && !put_unique_key(&out, &target->key_prefix, target->first_sequence + (uint64_t)new_key, digits))
        || !put_properties(rows, row, &out, seen, 1)
        || (rows->has_crc && !put(&out, CRC_RESERVED, CRC_PROPERTY_BYTES)) || out.next != out.end)
        return 0;
    properties[-2] = (uint8_t)((out.next - properties) >> 8);
    properties[-1] = (uint8_t)(out.next - properties);

    uint8_t *stored_body = frame + target->header.count;
    uint32_t body_crc = crc_extend(0, stored_body, body.size);
    set_header(rows, target, row, frame, (uint32_t)(out.end - frame), (uint32_t)body.size, body_crc, is_v2);
    uint32_t crc = 0;
    if (rows->has_crc) {
        uint8_t *from = frame;
        if (body.size >= COMBINED_BODY_BYTES_MIN) {
            crc = crc_shift(crc_extend(0, frame, (size_t)target->header.count), body.size) ^ body_crc;
            from = stored_body + body.size;
        }
        crc = crc_extend(crc, from, (size_t)(out.end - CRC_PROPERTY_BYTES - from));
    }
    ((uint32_t *)target->crcs.view.buf)[row] = crc;
    uint32_t tags_hash = seen[TAGS].text != NULL ? java_hash(0, seen[TAGS].text, seen[TAGS].size) : 0;
    ((int64_t *)target->tags_codes.view.buf)[row] = (int32_t)tags_hash;
    return set_hashes(rows, target, row, code, new_key >= 0 ? digits : NULL, seen);
}

/* Take offsets (n + 1, int32), bytes, bitmap or None, first bit. `count` below 0: as many as there are. */
static int take_texts(Texts *texts, PyObject *object, const char *name, Py_ssize_t count)
{
    PyObject *offsets, *data, *validity;
    if (!PyArg_ParseTuple(object, "OOOn", &offsets, &data, &validity, &texts->first_bit)
        || !take_items(&texts->offsets, offsets, 4, READ_ITEMS, name) || !take_items(&texts->data, data, 1, READ_ITEMS, name)
        || (validity != Py_None && !take_items(&texts->validity, validity, 1, READ_ITEMS, name)))
        return 0;
    Py_ssize_t rows = texts->offsets.count - 1;
    if (rows < 0 || (count >= 0 && rows != count) || texts->first_bit < 0
        || (validity != Py_None && (texts->first_bit + rows + 7) / 8 > texts->validity.count)) {
        PyErr_Format(PyExc_ValueError, "%s: not the offsets or the bitmap of as many rows", name);
        return 0;
    }
    return 1;
}

static void release_texts(Texts *texts)
{
    release_items(&texts->offsets);
    release_items(&texts->data);
    release_items(&texts->validity);
}

static void release_rows(Rows *rows)
{
    Items *all[] = {&rows->body_offsets, &rows->bodies,       &rows->topic_codes, &rows->topic_offsets,
                    &rows->topics,       &rows->topic_hashes, &rows->sys_flags,   &rows->entry_offsets};
    for (size_t at = 0; at < sizeof all / sizeof all[0]; at++)
        release_items(all[at]);
    for (int column = 0; column < rows->named_count; column++) {
        release_items(&rows->named[column].name);
        release_texts(&rows->named[column].values);
    }
    release_texts(&rows->names);
    release_texts(&rows->values);
    release_texts(&rows->left_out);
}

/* Take the fields of frame_rows.FrameRows in their order. */
static int take_rows(Rows *rows, PyObject *object)
{
    PyObject *body_offsets, *bodies, *codes, *topic_offsets, *topics, *hashes, *sys_flags, *named, *entries, *left_out;
    if (!PyArg_ParseTuple(object, "OOOOOOOO!OOnnnpp", &body_offsets, &bodies, &codes, &topic_offsets, &topics, &hashes,
                          &sys_flags, &PyTuple_Type, &named, &entries, &left_out, &rows->header_bytes,
                          &rows->body_bytes_max, &rows->unique_key_bytes, &rows->has_crc, &rows->indexes_tags))
        return 0;
    if (!take_items(&rows->topic_codes, codes, 4, READ_ITEMS, "topic codes"))
        return 0;
    rows->count = rows->topic_codes.count;
    if (!take_items(&rows->topic_hashes, hashes, 4, READ_ITEMS, "topic hashes")
        || !take_n_items(&rows->topic_offsets, topic_offsets, 4, READ_ITEMS, "topic offsets", rows->topic_hashes.count + 1)
        || !take_items(&rows->topics, topics, 1, READ_ITEMS, "topics")
        || !take_n_items(&rows->body_offsets, body_offsets, 8, READ_ITEMS, "body offsets", rows->count + 1)
        || !take_items(&rows->bodies, bodies, 1, READ_ITEMS, "bodies")
        || !take_n_items(&rows->sys_flags, sys_flags, 4, READ_ITEMS, "sysFlag", rows->count)
        || !take_texts(&rows->left_out, left_out, "names left out", -1))
        return 0;
    if (PyTuple_Size(named) > NAMED_MAX) {
        PyErr_SetString(PyExc_ValueError, "more columns than the extension takes");
        return 0;
    }
    for (Py_ssize_t at = 0; at < PyTuple_Size(named); at++) {
        PyObject *name, *values;
        Named *column = &rows->named[rows->named_count++];
        if (!PyArg_ParseTuple(PyTuple_GetItem(named, at), "OO!", &name, &PyTuple_Type, &values)
            || !take_items(&column->name, name, 1, READ_ITEMS, "name")
            || !take_texts(&column->values, values, "column", rows->count))
            return 0;
        column->seen = seen_as((Slice){column->name.view.buf, (size_t)column->name.count});
    }
    PyObject *entry_offsets, *names, *values;
    return entries == Py_None
        || (PyArg_ParseTuple(entries, "OO!O!", &entry_offsets, &PyTuple_Type, &names, &PyTuple_Type, &values)
            && take_n_items(&rows->entry_offsets, entry_offsets, 4, READ_ITEMS, "entry offsets", rows->count + 1)
            && take_texts(&rows->names, names, "names", -1)
            && take_texts(&rows->values, values, "values", rows->names.offsets.count - 1));
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

static PyObject *write_frames(PyObject *module, PyObject *arguments)
{
    PyObject *object, *header, *queue_ids, *flags, *born, *times, *prefix, *sizes[3], *frames, *crcs, *codes, *hashes;
    PyObject *result = NULL;
    unsigned long long first_sequence;
    Rows rows = {0};
    Target target = {.prefix_topic = -1};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!OOOOOOKOOOOOOO:write_frames", &PyTuple_Type, &object, &header, &queue_ids, &flags,
                          &born, &times, &prefix, &first_sequence, &sizes[0], &sizes[1], &sizes[2], &frames, &crcs, &codes,
                          &hashes))
        return NULL;
    if (take_rows(&rows, object) && take_items(&target.header, header, 1, READ_ITEMS, "header")
        && take_n_items(&target.queue_ids, queue_ids, 4, READ_ITEMS, "queue ids", rows.count)
        && take_n_items(&target.flags, flags, 4, READ_ITEMS, "flag", rows.count)
        && take_n_items(&target.born_timestamps, born, 8, READ_ITEMS, "bornTimestamp", rows.count)
        && take_n_items(&target.reconsume_times, times, 4, READ_ITEMS, "reconsumeTimes", rows.count)
        && take_items(&target.key_prefix, prefix, 1, READ_ITEMS, "key prefix")
        && take_n_items(&target.offsets, sizes[0], 8, READ_ITEMS, "offsets", rows.count + 1)
        && take_n_items(&target.hash_offsets, sizes[1], 4, READ_ITEMS, "hash offsets", rows.count + 1)
        && take_n_items(&target.new_keys, sizes[2], 8, READ_ITEMS, "new keys", rows.count)
        && take_items(&target.frames, frames, 1, WRITE_ITEMS, "frames")
        && take_n_items(&target.crcs, crcs, 4, WRITE_ITEMS, "crcs", rows.count)
        && take_n_items(&target.tags_codes, codes, 8, WRITE_ITEMS, "tags codes", rows.count)
        && take_items(&target.hashes, hashes, 4, WRITE_ITEMS, "hashes")) {
        Py_ssize_t row = 0;
        target.first_sequence = first_sequence;
        Py_BEGIN_ALLOW_THREADS
        if (target.header.count >= HEADER_BYTES_MIN)
            while (row < rows.count && write_row(&rows, &target, row))
                row++;
        Py_END_ALLOW_THREADS
        if (row < rows.count)
            PyErr_Format(PyExc_IndexError, "row %zd is not what was measured", row);
        else
            result = Py_NewRef(Py_None);
    }
    release_rows(&rows);
    Items *all[] = {&target.header,     &target.queue_ids, &target.flags,        &target.born_timestamps,
                    &target.reconsume_times, &target.key_prefix, &target.offsets, &target.hash_offsets,
                    &target.new_keys,   &target.frames,    &target.crcs,         &target.tags_codes,
                    &target.hashes};
    for (size_t at = 0; at < sizeof all / sizeof all[0]; at++)
        release_items(all[at]);
    return result;
}

PyMethodDef encoder_methods[] = {
    {"measure_frames", measure_frames, METH_VARARGS, NULL},
    {"write_frames", write_frames, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
