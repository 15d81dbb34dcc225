/* Requests that send one message each (SEND_MESSAGE_V2), from the bytes of a connection to the bytes of the answers: read,
   made frames, appended (lone_append.c) and answered by one call. Only the usual request is known here; what this leaves,
   up to the first byte that is not as expected, is for the decoder of frames and the processors of the server, which are
   the twin: server/processors/sending.py.

   The GIL is kept, as by every append of single messages. */

#include "native.h"

#include <stdio.h>

#include "big_endian.h"
#include "frames.h"
#include "json_header.h"
#include "lone_append.h"
#include "one_message.h"

#define PREFIX_BYTES 8
#define SEND_MESSAGE_V2 310
#define FRAME_BYTES_MAX (64 << 10) /* of lone_append.py, and of a request, too */
#define HEADER_BYTES_MAX (16 << 10)
/* As many requests are taken by one call: TOGETHER_MAX of server/requests/worker_pool.py. */
#define REQUESTS_MAX 64
#define SPECIAL_MAX 32
#define DIGITS_MAX 20

#define NEEDED_MEMBERS (1u << CODE_MEMBER | 1u << FLAG_MEMBER | 1u << OPAQUE_MEMBER | 1u << EXT_FIELDS_MEMBER)

/* The fields of SendMessageRequestHeaderV2.java, `a` to `n`. */
enum { PRODUCER_GROUP_FIELD, TOPIC_FIELD, DEFAULT_TOPIC_FIELD, DEFAULT_TOPIC_QUEUES_FIELD, QUEUE_ID_FIELD, SYS_FLAG_FIELD,
       BORN_TIMESTAMP_FIELD, MESSAGE_FLAG_FIELD, PROPERTIES_FIELD, RECONSUME_TIMES_FIELD, UNIT_MODE_FIELD,
       MAX_RECONSUME_TIMES_FIELD, BATCH_FIELD, BROKER_NAME_FIELD, FIELDS };
#define NEEDED_FIELDS ((1u << RECONSUME_TIMES_FIELD) - 1)
/* Digits of those that are numbers. */
static const int digits_max[FIELDS] = {
    [DEFAULT_TOPIC_QUEUES_FIELD] = DIGITS_OF_INT, [QUEUE_ID_FIELD] = DIGITS_OF_INT, [BORN_TIMESTAMP_FIELD] = DIGITS_OF_LONG,
    [MESSAGE_FLAG_FIELD] = DIGITS_OF_INT, [RECONSUME_TIMES_FIELD] = DIGITS_OF_INT, [MAX_RECONSUME_TIMES_FIELD] = DIGITS_OF_INT,
};

/* Parts of the answer's header; between them stand the four fields of a place, and then the opaque. */
enum { ANSWER_PARTS = 6 };

/* What is equal for all requests of a store. */
typedef struct {
    Text store_host, parts[ANSWER_PARTS], special[SPECIAL_MAX];
    int special_count, index_tags;
    int64_t body_bytes_max;
} Rules;

/* One request; the texts lie in the bytes of the connection, the properties in `plain`. */
typedef struct {
    Text topic, body;
    int64_t numbers[FIELDS], opaque;
    unsigned seen; /* a bit for each field */
    Properties properties;
    size_t plain_size;
    uint8_t plain[HEADER_BYTES_MAX];
} Request;

/* What its answer needs besides its place. */
typedef struct {
    int64_t opaque;
    int queue_id;
    Text key; /* UNIQ_KEY, in the frame */
} Asked;

/* -- the header ----------------------------------------------------------------------------------------------------- */

static int hex_digit(uint8_t digit)
{
    if (digit >= '0' && digit <= '9')
        return digit - '0';
    digit |= 0x20;
    return digit >= 'a' && digit <= 'f' ? digit - 'a' + 10 : -1;
}

/* The character behind a backslash; -1: none of ASCII. */
static int take_escaped(Rest *rest)
{
    static const char escapes[] = "\"\\/bfnrt", characters[] = "\"\\/\b\f\n\r\t";
    if (rest->at == rest->end)
        return -1;
    uint8_t escape = *rest->at++;
    if (escape == 'u') {
        int character = 0;
        if (rest->end - rest->at < 4)
            return -1;
        for (int place = 0; place < 4; place++) {
            int digit = hex_digit(*rest->at++);
            if (digit < 0)
                return -1;
            character = character << 4 | digit;
        }
        return character < 0x80 ? character : -1;
    }
    const char *found = escape == 0 ? NULL : strchr(escapes, escape);
    return found == NULL ? -1 : characters[found - escapes];
}

/* ASCII between quotes, unescaped into `plain`, which has room for all of a header. */
static int take_escaped_text(Rest *rest, uint8_t *plain, size_t *size)
{
    uint8_t *to = plain;
    if (!take_byte(rest, '"'))
        return 0;
    while (rest->at < rest->end && *rest->at != '"') {
        int character = *rest->at++;
        if (character == '\\')
            character = take_escaped(rest);
        else if (character < 0x20 || character >= 0x80)
            return 0;
        if (character < 0)
            return 0;
        *to++ = (uint8_t)character;
    }
    *size = (size_t)(to - plain);
    return take_byte(rest, '"');
}

static int take_field(Rest *rest, Request *request)
{
    Text name, value;
    if (!take_text(rest, &name) || !take_byte(rest, ':') || name.size != 1)
        return 0;
    int field = name.bytes[0] - 'a';
    if (field < 0 || field >= FIELDS || request->seen & 1u << field)
        return 0;
    request->seen |= 1u << field;
    if (field == PROPERTIES_FIELD)
        return take_escaped_text(rest, request->plain, &request->plain_size);
    if (!take_text(rest, &value))
        return 0;
    if (field == TOPIC_FIELD)
        request->topic = value;
    if (field == SYS_FLAG_FIELD)
        return is(value, "0");
    if (field == BATCH_FIELD)
        return is(value, "false");
    return digits_max[field] == 0 || digits_of(value, digits_max[field], &request->numbers[field]);
}

static int take_fields(Rest *rest, Request *request)
{
    if (!take_byte(rest, '{'))
        return 0;
    do {
        if (!take_field(rest, request))
            return 0;
    } while (take_byte(rest, ','));
    return take_byte(rest, '}') && (request->seen & NEEDED_FIELDS) == NEEDED_FIELDS;
}

/* A request has no remark. */
static int take_member(Rest *rest, int member, void *into)
{
    Text text;
    if (member == EXT_FIELDS_MEMBER)
        return take_fields(rest, into);
    return member != REMARK_MEMBER && take_text(rest, &text);
}

static int read_header(Rest rest, Request *request)
{
    int64_t numbers[NUMBERS] = {0};
    request->seen = 0;
    unsigned seen = take_members(rest, numbers, take_member, request);
    request->opaque = numbers[OPAQUE_MEMBER];
    return (seen & NEEDED_MEMBERS) == NEEDED_MEMBERS && numbers[CODE_MEMBER] == SEND_MESSAGE_V2 && numbers[FLAG_MEMBER] == 0;
}

/* -- properties ----------------------------------------------------------------------------------------------------- */

static int is_special(const Rules *rules, Text name)
{
    for (int at = 0; at < rules->special_count; at++)
        if (name.size == rules->special[at].size && memcmp(name.bytes, rules->special[at].bytes, name.size) == 0)
            return 1;
    return 0;
}

static int is_known(const Properties *properties, Text name)
{
    for (int at = 0; at < properties->count; at++)
        if (properties->names[at].size == name.size && memcmp(properties->names[at].bytes, name.bytes, name.size) == 0)
            return 1;
    return 0;
}

/* The next property at `at`, and where the one after it begins; null: it is not as clients write them. */
static const uint8_t *next_property(const uint8_t *at, const uint8_t *end, Text *name, Text *value)
{
    const uint8_t *behind = memchr(at, 2, (size_t)(end - at)), *stop = behind == NULL ? end : behind;
    const uint8_t *middle = memchr(at, 1, (size_t)(stop - at));
    if (middle == NULL || middle == at || middle + 1 == stop || memchr(middle + 1, 1, (size_t)(stop - middle - 1)) != NULL)
        return NULL;
    *name = (Text){at, (size_t)(middle - at)};
    *value = (Text){middle + 1, (size_t)(stop - middle - 1)};
    return behind == NULL ? end : behind + 1;
}

/* UNIQ_KEY stands first, the others in their order, as `Message.stored_properties` puts them. */
static int read_properties(Request *request, const Rules *rules)
{
    Properties *properties = &request->properties;
    const uint8_t *end = request->plain + request->plain_size;
    Text name, value;
    properties->count = 1;
    properties->size = 0;
    properties->names[0].size = 0;
    for (const uint8_t *at = request->plain; at < end;) {
        at = next_property(at, end, &name, &value);
        if (at == NULL || is_known(properties, name) || is_special(rules, name) || properties->count == PROPERTIES_MAX)
            return 0;
        int place = is(name, "UNIQ_KEY") ? 0 : properties->count++;
        properties->names[place] = name;
        properties->values[place] = value;
        properties->size += name.size + value.size + 2;
    }
    return properties->names[0].size > 0;
}

/* Whether JSON has it as it is. */
static int needs_no_escape(Text text)
{
    for (size_t place = 0; place < text.size; place++)
        if (text.bytes[place] < 0x20 || text.bytes[place] == '"' || text.bytes[place] == '\\')
            return 0;
    return 1;
}

/* -- requests ------------------------------------------------------------------------------------------------------- */

/* The bytes of the usual request that begins here; 0: there is none, or not all of it. */
static int64_t read_request(const uint8_t *frame, int64_t there, const Rules *rules, Request *request)
{
    if (there < PREFIX_BYTES || frame[4] != 0)
        return 0;
    int64_t length = (int32_t)word_at(frame), header_bytes = word_at(frame + 4);
    if (length > FRAME_BYTES_MAX || length > there - 4 || header_bytes + 4 > length || header_bytes > HEADER_BYTES_MAX)
        return 0;
    Rest rest = {frame + PREFIX_BYTES, frame + PREFIX_BYTES + header_bytes};
    request->body = (Text){rest.end, (size_t)(length - 4 - header_bytes)};
    if (!read_header(rest, request) || request->body.size > (uint64_t)rules->body_bytes_max
        || !read_properties(request, rules) || !needs_no_escape(request->properties.values[0]))
        return 0;
    return 4 + length;
}

/* Make the message's frame, with what the index and the queue need of it. */
static Outcome make_message(LoneMessage *message, const Request *request, const Rules *rules, PackedHost born_host, int has_crc)
{
    uint32_t hashes[PROPERTIES_BYTES_MAX / 2 + 2];
    Fields fields = {
        .queue_id = (int)request->numbers[QUEUE_ID_FIELD], .flag = (int32_t)request->numbers[MESSAGE_FLAG_FIELD],
        .born_ms = request->numbers[BORN_TIMESTAMP_FIELD], .born_host = born_host, .store_host = rules->store_host,
        .has_crc = has_crc,
    };
    const Properties *properties = &request->properties;
    size_t properties_size = properties->size + (has_crc ? CRC_PROPERTY_BYTES : 0);
    size_t size = header_bytes(&fields) + request->body.size + 1 + request->topic.size + 2 + properties_size;
    if (request->topic.size > V1_TOPIC_BYTES_MAX || properties_size > PROPERTIES_BYTES_MAX || size > FRAME_BYTES_MAX)
        return UNUSUAL;
    size_t count = put_hashes(properties, topic_hash(&request->topic), rules->index_tags, hashes);
    if (count > KEYS_MAX)
        return UNUSUAL;
    message->frame = PyMem_Malloc(size);
    if (message->frame == NULL) {
        PyErr_NoMemory();
        return FAILED;
    }
    message->size = size;
    message->key_count = (int)count;
    memcpy(message->key_hashes, hashes, count * sizeof hashes[0]);
    write_frame(message->frame, size, &fields, &request->body, &request->topic, properties);
    const Text *tags = value_of(properties, "TAGS");
    message->tags_code = tags == NULL ? 0 : (int32_t)java_hash(0, tags->bytes, tags->size);
    return APPENDED;
}

/* The queue of a request, if its files are known. */
static Outcome find_queue(LoneMessage *message, const Request *request, PyObject *queues)
{
    PyObject *key = Py_BuildValue("(s#i)", (const char *)request->topic.bytes, (Py_ssize_t)request->topic.size,
                                  (int)request->numbers[QUEUE_ID_FIELD]);
    if (key == NULL)
        return FAILED;
    PyObject *queue = PyDict_GetItemWithError(queues, key);
    Py_DECREF(key);
    if (queue == NULL)
        return PyErr_Occurred() ? FAILED : UNUSUAL;
    Py_INCREF(queue);
    Outcome outcome = PyTuple_Check(queue) ? take_queue(message, queue) : UNUSUAL;
    Py_DECREF(queue);
    return outcome;
}

/* -- answers -------------------------------------------------------------------------------------------------------- */

static uint8_t *put(uint8_t *to, const void *bytes, size_t size)
{
    memcpy(to, bytes, size);
    return to + size;
}

static uint8_t *put_part(uint8_t *to, Text part)
{
    return put(to, part.bytes, part.size);
}

static uint8_t *put_hex(uint8_t *to, const uint8_t *bytes, size_t size)
{
    static const char digits[] = "0123456789ABCDEF";
    for (size_t place = 0; place < size; place++) {
        *to++ = (uint8_t)digits[bytes[place] >> 4];
        *to++ = (uint8_t)digits[bytes[place] & 15];
    }
    return to;
}

static uint8_t *put_number(uint8_t *to, int64_t number)
{
    return to + sprintf((char *)to, "%lld", (long long)number);
}

static size_t answer_bytes_max(const Rules *rules, const Asked *asked)
{
    size_t sum = PREFIX_BYTES + 2 * (rules->store_host.size + 8) + asked->key.size + 3 * DIGITS_MAX;
    for (int part = 0; part < ANSWER_PARTS; part++)
        sum += rules->parts[part].size;
    return sum + 1; /* the null byte of sprintf */
}

/* Where the answer ends. */
static uint8_t *put_answer(uint8_t *answer, const Rules *rules, const LoneMessage *message, const Asked *asked)
{
    uint8_t offset[8], *to = answer + PREFIX_BYTES;
    put_long(offset, (uint64_t)message->start);
    to = put_hex(put_part(to, rules->parts[0]), rules->store_host.bytes, rules->store_host.size);
    to = put_part(put_hex(to, offset, sizeof offset), rules->parts[1]);
    to = put_part(put_number(to, asked->queue_id), rules->parts[2]);
    to = put_part(put_number(to, message->queue_offset), rules->parts[3]);
    to = put_part(put_part(to, asked->key), rules->parts[4]);
    to = put_part(put_number(to, asked->opaque), rules->parts[5]);
    put_word(answer, (uint32_t)(to - answer - 4));
    put_word(answer + 4, (uint32_t)(to - answer - PREFIX_BYTES));
    return to;
}

static PyObject *answers_of(const Rules *rules, const LoneMessage *messages, const Asked *asked, int count)
{
    size_t size = 1;
    for (int at = 0; at < count; at++)
        size += answer_bytes_max(rules, &asked[at]);
    uint8_t *answers = PyMem_Malloc(size), *to = answers;
    if (answers == NULL)
        return PyErr_NoMemory();
    for (int at = 0; at < count; at++)
        to = put_answer(to, rules, &messages[at], &asked[at]);
    PyObject *made = PyBytes_FromStringAndSize((const char *)answers, to - answers);
    PyMem_Free(answers);
    return made;
}

/* -- what is given -------------------------------------------------------------------------------------------------- */

static int take_texts(PyObject *texts, Text *taken, int count_max)
{
    Py_ssize_t count = PyTuple_Size(texts);
    if (count > count_max) {
        PyErr_SetString(PyExc_ValueError, "too many texts");
        return -1;
    }
    for (Py_ssize_t at = 0; at < count; at++) {
        char *bytes;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(texts, at), &bytes, &size) < 0)
            return -1;
        taken[at] = (Text){(const uint8_t *)bytes, (size_t)size};
    }
    return (int)count;
}

/* `_Rules` of broker/write/sent_requests.py. */
static int take_rules(Rules *rules, PyObject *given)
{
    const char *host;
    Py_ssize_t host_size;
    PyObject *parts, *special;
    long long body_bytes_max;
    if (!PyArg_ParseTuple(given, "y#O!O!Lp", &host, &host_size, &PyTuple_Type, &parts, &PyTuple_Type, &special,
                          &body_bytes_max, &rules->index_tags))
        return 0;
    rules->body_bytes_max = body_bytes_max;
    rules->special_count = take_texts(special, rules->special, SPECIAL_MAX);
    if (rules->special_count < 0)
        return 0;
    int count = take_texts(parts, rules->parts, ANSWER_PARTS);
    if (count != ANSWER_PARTS || !take_host(&rules->store_host, host, host_size) || body_bytes_max < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "no rules of requests");
        return 0;
    }
    return 1;
}

/* The queues that got messages, each with the queue offset of its last one. */
static PyObject *stored_in(const LoneMessage *messages, int count)
{
    PyObject *stored = PyDict_New();
    for (int at = 0; stored != NULL && at < count; at++) {
        PyObject *offset = PyLong_FromLongLong(messages[at].queue_offset);
        if (offset == NULL || PyDict_SetItem(stored, messages[at].key, offset) < 0)
            Py_CLEAR(stored);
        Py_XDECREF(offset);
    }
    return stored;
}

/* One call's requests. */
typedef struct {
    Rules rules;
    Lone lone;
    Request request;
    PackedHost born_host;
    LoneMessage messages[REQUESTS_MAX];
    Asked asked[REQUESTS_MAX];
    int64_t ends[REQUESTS_MAX]; /* of each request */
    int count, done;            /* requests that were read, and of these the ones that were appended */
} Call;

/* Read the request that begins here into the next message. APPENDED: it is one; `position` is where it ends. */
static Outcome read_next(Call *call, const uint8_t *bytes, int64_t count, int64_t *position, PyObject *queues)
{
    LoneMessage *message = &call->messages[call->count];
    Asked *asked = &call->asked[call->count];
    int64_t size = read_request(bytes + *position, count - *position, &call->rules, &call->request);
    if (size == 0)
        return UNUSUAL;
    *message = (LoneMessage){0};
    Outcome outcome = find_queue(message, &call->request, queues);
    if (outcome == APPENDED)
        outcome = make_message(message, &call->request, &call->rules, call->born_host, has_crc_property(&call->lone));
    if (outcome != APPENDED) {
        release_queue(message);
        return outcome;
    }
    *asked = (Asked){.opaque = call->request.opaque, .queue_id = (int)call->request.numbers[QUEUE_ID_FIELD]};
    /* UNIQ_KEY is the first property of the frame. */
    asked->key = call->request.properties.values[0];
    asked->key.bytes = message->frame + message->size - call->request.properties.size
                       - (has_crc_property(&call->lone) ? CRC_PROPERTY_BYTES : 0) + strlen("UNIQ_KEY") + 1;
    *position += size;
    call->ends[call->count++] = *position;
    return APPENDED;
}

static Outcome serve(Call *call, const Items *data, int64_t position, PyObject *queues)
{
    Outcome outcome = APPENDED;
    while (call->count < REQUESTS_MAX && outcome == APPENDED)
        outcome = read_next(call, data->view.buf, data->count, &position, queues);
    if (outcome == FAILED || call->count == 0)
        return outcome;
    return append_messages(&call->lone, call->messages, call->count, &call->done);
}

/* serve_sends(place, queues, rules, data, position, born_host, now_ms, watch): (position, answers, stored, outdated). The
   position is that of the first request that was not taken; `stored` has the last queue offset by queue. `outdated`:
   what `place` or `queues` say of the files is true no more. */
static PyObject *serve_sends(PyObject *module, PyObject *arguments)
{
    PyObject *place, *queues, *rules, *given, *watch, *answers = NULL, *stored = NULL, *result = NULL;
    const char *born_host;
    Py_ssize_t born_host_size, position;
    long long now_ms;
    Items data = {0};
    Outcome outcome = FAILED;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!O!O!Ony#LO:serve_sends", &PyTuple_Type, &place, &PyDict_Type, &queues, &PyTuple_Type,
                          &rules, &given, &position, &born_host, &born_host_size, &now_ms, &watch))
        return NULL;
    Call *call = PyMem_Malloc(sizeof *call);
    if (call == NULL)
        return PyErr_NoMemory();
    call->count = call->done = 0;
    Outcome placed = take_place(&call->lone, place, now_ms, watch);
    if (placed == FAILED || !take_rules(&call->rules, rules) || !take_items(&data, given, 1, READ_ITEMS, "data"))
        goto done;
    if (position < 0 || position > data.count || !take_host(&call->born_host, born_host, born_host_size)) {
        PyErr_SetString(PyExc_ValueError, "the position does not lie in the data, or the host is none");
        goto done;
    }
    outcome = placed == APPENDED ? serve(call, &data, position, queues) : placed;
    if (outcome != FAILED) {
        answers = answers_of(&call->rules, call->messages, call->asked, call->done);
        stored = stored_in(call->messages, call->done);
        if (answers != NULL && stored != NULL)
            result = Py_BuildValue("LOOi", (long long)(call->done ? call->ends[call->done - 1] : position), answers, stored,
                                   outcome == OUTDATED);
    }
done:
    Py_XDECREF(answers);
    Py_XDECREF(stored);
    for (int at = 0; at < call->count; at++) {
        PyMem_Free(call->messages[at].frame);
        release_queue(&call->messages[at]);
    }
    release_place(&call->lone);
    release_items(&data);
    PyMem_Free(call);
    return result;
}

PyMethodDef sent_request_methods[] = {
    {"serve_sends", serve_sends, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
