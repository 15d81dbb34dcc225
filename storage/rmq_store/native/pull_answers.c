/* Answers to pulls in the bytes of a connection, taken apart without a Python object for a header. Only the usual answer
   is known here: code 0, with messages. If it has all that was asked for, its frames are copied to the area of its round,
   and no object is made at all. The twin is what protocol/wire/pull_answers.py makes of a decoded command; whatever this
   leaves, up to the first byte that is not as expected, is decoded there.

   `take_pull_answers` is for bytes that Python has read. A header has 300 bytes, and a body is copied once, so it keeps
   the GIL. `receive_pull_answers` reads by itself, and waits, as long as all answers find their places; it needs the GIL
   for nothing of that. */

#include "native.h"

#include <errno.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>

#include "big_endian.h"
#include "json_header.h"

#define FRAME_BYTES_MAX (1 << 24)
#define PREFIX_BYTES 8
#define JSON_HEADER 0
#define BINARY_HEADER 1
#define BINARY_HEAD_BYTES 13
#define RESPONSE 1
#define FIELDS_MAX 64
/* PullMessageResponseHeader.java: the first four are wanted, and mandatory. */
enum { NEXT_BEGIN_OFFSET, MIN_OFFSET, MAX_OFFSET, SUGGEST_WHICH_BROKER_ID, WANTED_FIELDS };
static const struct {
    const char *name;
    int digits;
} fields[] = {
    {"nextBeginOffset", DIGITS_OF_LONG},
    {"minOffset", DIGITS_OF_LONG},
    {"maxOffset", DIGITS_OF_LONG},
    {"suggestWhichBrokerId", DIGITS_OF_LONG},
    {"offsetDelta", DIGITS_OF_LONG},
    {"topicSysFlag", DIGITS_OF_INT},
    {"groupSysFlag", DIGITS_OF_INT},
    {"forbiddenType", DIGITS_OF_INT},
};
#define FIELDS ((int)(sizeof fields / sizeof fields[0]))
#define ALL_WANTED ((1u << WANTED_FIELDS) - 1)

#define NEEDED_MEMBERS (1u << CODE_MEMBER | 1u << FLAG_MEMBER | 1u << OPAQUE_MEMBER | 1u << REMARK_MEMBER \
                        | 1u << EXT_FIELDS_MEMBER)
static const char found[] = "FOUND";

typedef struct {
    int32_t opaque;
    int64_t fields[WANTED_FIELDS];
    unsigned seen; /* a bit for each of `fields` */
} Header;

/* -- fields, in either form --------------------------------------------------------------------------------------- */

static int take_field(Header *header, Text name, Text value)
{
    for (int field = 0; field < FIELDS; field++) {
        if (!is(name, fields[field].name))
            continue;
        int64_t number;
        if (header->seen & 1u << field || !digits_of(value, fields[field].digits, &number))
            return 0;
        header->seen |= 1u << field;
        if (field < WANTED_FIELDS)
            header->fields[field] = number;
        return 1;
    }
    return 1; /* of another version: nobody reads it */
}

/* -- JSON --------------------------------------------------------------------------------------------------------- */

static int take_json_fields(Rest *rest, Header *header)
{
    Text name, value;
    if (!take_byte(rest, '{'))
        return 0;
    for (int count = 0; count < FIELDS_MAX; count++) {
        if (!take_text(rest, &name) || !take_byte(rest, ':') || !take_text(rest, &value)
            || !take_field(header, name, value))
            return 0;
        if (take_byte(rest, '}'))
            return 1;
        if (!take_byte(rest, ','))
            return 0;
    }
    return 0;
}

static int take_member(Rest *rest, int member, void *into)
{
    Text text;
    if (member == EXT_FIELDS_MEMBER)
        return take_json_fields(rest, into);
    return take_text(rest, &text) && (member != REMARK_MEMBER || is(text, found));
}

static int read_json(Rest rest, Header *header)
{
    int64_t numbers[NUMBERS] = {0};
    unsigned seen = take_members(rest, numbers, take_member, header);
    header->opaque = (int32_t)numbers[OPAQUE_MEMBER];
    return (seen & NEEDED_MEMBERS) == NEEDED_MEMBERS && numbers[CODE_MEMBER] == 0 && numbers[FLAG_MEMBER] == RESPONSE;
}

/* -- the binary form, RocketMQSerializable.java ------------------------------------------------------------------- */

/* A text behind its length, which has `length_bytes`. */
static int take_counted(Rest *rest, int length_bytes, Text *text)
{
    if (rest->end - rest->at < length_bytes)
        return 0;
    int64_t size = length_bytes == 2 ? short_at(rest->at) : (int32_t)word_at(rest->at);
    rest->at += length_bytes;
    if (size < 0 || size > rest->end - rest->at)
        return 0;
    text->bytes = rest->at;
    text->size = (size_t)size;
    rest->at += size;
    for (int64_t place = 0; place < size; place++)
        if (text->bytes[place] >= 0x80)
            return 0;
    return 1;
}

static int read_binary(Rest rest, Header *header)
{
    Text remark, name, value;
    if (rest.end - rest.at < BINARY_HEAD_BYTES || short_at(rest.at) != 0 || (int32_t)word_at(rest.at + 9) != RESPONSE)
        return 0;
    header->opaque = (int32_t)word_at(rest.at + 5);
    rest.at += BINARY_HEAD_BYTES;
    if (!take_counted(&rest, 4, &remark) || !is(remark, found) || rest.end - rest.at < 4
        || (int32_t)word_at(rest.at) != rest.end - rest.at - 4)
        return 0;
    rest.at += 4;
    for (int count = 0; rest.at < rest.end; count++)
        if (count == FIELDS_MAX || !take_counted(&rest, 2, &name) || !take_counted(&rest, 4, &value)
            || !take_field(header, name, value))
            return 0;
    return 1;
}

/* -- answers ------------------------------------------------------------------------------------------------------ */

/* The bytes of the usual answer that begins here, with the bounds of its body; 0: there is none, or not all of it. */
static int64_t read_answer(const uint8_t *frame, int64_t there, Header *header, Text *body)
{
    if (there < PREFIX_BYTES)
        return 0;
    int64_t length = (int32_t)word_at(frame), header_bytes = word_at(frame + 4) & 0xFFFFFFu;
    if (length > FRAME_BYTES_MAX || length > there - 4 || header_bytes + 4 >= length)
        return 0;
    Rest rest = {frame + PREFIX_BYTES, frame + PREFIX_BYTES + header_bytes};
    body->bytes = rest.end;
    body->size = (size_t)(length - 4 - header_bytes);
    *header = (Header){0};
    if (frame[4] == JSON_HEADER ? !read_json(rest, header) : frame[4] != BINARY_HEADER || !read_binary(rest, header))
        return 0;
    return (header->seen & ALL_WANTED) == ALL_WANTED ? 4 + length : 0;
}

/* -- rounds: pulls that left together, PulledRound in pull_answers.py ----------------------------------------------- */

/* A reader has two rounds under way, or some more after failures. Answers to further ones are left to Python. */
#define ROUNDS_MAX 64
/* PLACED answers are in the area, GONE pulls have left; the round is whole when that are all. */
enum { FIRST_OPAQUE, PLACED, GONE, ROUND_WORDS };
/* Of each pull. START is WAITING, or LEFT when Python has the answer. */
enum { EXPECTED_OFFSET, START, END, SUGGESTED, PULL_WORDS };
#define WAITING (-1)
#define LEFT (-2)

typedef struct {
    Items words, area;
    int64_t pulls;
} Round;

typedef struct {
    Round rounds[ROUNDS_MAX];
    int count;
} Rounds;

static void release_rounds(Rounds *rounds)
{
    for (int place = 0; place < rounds->count; place++) {
        release_items(&rounds->rounds[place].words);
        release_items(&rounds->rounds[place].area);
    }
}

/* Take the buffers of a list of (words, area). 0, with an error of Python, if one is not as expected. */
static int take_rounds(Rounds *rounds, PyObject *given)
{
    Py_ssize_t count = PyList_Size(given);
    for (rounds->count = 0; rounds->count < count && rounds->count < ROUNDS_MAX;) {
        Round *round = &rounds->rounds[rounds->count];
        PyObject *pair = PyList_GetItem(given, rounds->count), *words, *area;
        if (!PyTuple_Check(pair)) {
            PyErr_SetString(PyExc_TypeError, "rounds: expected pairs");
            return 0;
        }
        if (!PyArg_ParseTuple(pair, "OO", &words, &area))
            return 0;
        *round = (Round){0};
        rounds->count++;
        if (!take_items(&round->words, words, 8, WRITE_ITEMS, "words") || !take_items(&round->area, area, 8, WRITE_ITEMS, "area"))
            return 0;
        if (round->words.count < ROUND_WORDS || (round->words.count - ROUND_WORDS) % PULL_WORDS || round->area.count < 1) {
            PyErr_SetString(PyExc_ValueError, "rounds: expected a head and rows, and an area with its head");
            return 0;
        }
        round->pulls = (round->words.count - ROUND_WORDS) / PULL_WORDS;
    }
    return 1;
}

/* The row of the pull with this opaque, if it waits for its answer. */
static int64_t *row_of(Rounds *rounds, int32_t opaque, Round **found)
{
    for (int place = 0; place < rounds->count; place++) {
        Round *round = &rounds->rounds[place];
        int64_t *words = round->words.view.buf, first = words[FIRST_OPAQUE];
        if (opaque < first || opaque - first >= round->pulls)
            continue;
        int64_t *row = words + ROUND_WORDS + (opaque - first) * PULL_WORDS;
        *found = round;
        return row[START] == WAITING ? row : NULL;
    }
    return NULL;
}

/* Copy the frames of an answer to the area, if it has all that was asked for, and there is room. The area begins with
   the bytes that are in use. */
static int place_answer(Round *round, int64_t *row, const Header *header, Text body)
{
    int64_t *used = round->area.view.buf, room = round->area.count * 8;
    if (header->fields[NEXT_BEGIN_OFFSET] != row[EXPECTED_OFFSET] || *used < 8 || *used > room
        || body.size > (size_t)(room - *used))
        return 0;
    memcpy((uint8_t *)round->area.view.buf + *used, body.bytes, body.size);
    row[START] = *used;
    row[END] = *used += (int64_t)body.size;
    row[SUGGESTED] = header->fields[SUGGEST_WHICH_BROKER_ID];
    ((int64_t *)round->words.view.buf)[PLACED]++;
    return 1;
}

/* Place an answer, or put it into the list. 1, 0 if nobody waits for it, -1 with an error of Python. */
static int put_answer(PyObject *taken, Rounds *rounds, const Header *header, Text body, PyObject *remark)
{
    Round *round;
    int64_t *row = row_of(rounds, header->opaque, &round);
    if (row == NULL)
        return 0;
    if (place_answer(round, row, header, body))
        return 1;
    PyObject *answer = Py_BuildValue("(i(iLLLLy#O))", (int)header->opaque, 0, (long long)header->fields[NEXT_BEGIN_OFFSET],
                                     (long long)header->fields[MIN_OFFSET], (long long)header->fields[MAX_OFFSET],
                                     (long long)header->fields[SUGGEST_WHICH_BROKER_ID], (const char *)body.bytes,
                                     (Py_ssize_t)body.size, remark);
    int done = answer != NULL && PyList_Append(taken, answer) == 0;
    Py_XDECREF(answer);
    if (!done)
        return -1;
    row[START] = LEFT;
    ((int64_t *)round->words.view.buf)[GONE]++;
    return 1;
}

static PyObject *take_pull_answers(PyObject *module, PyObject *arguments)
{
    PyObject *given, *given_rounds, *taken, *result = NULL, *remark = NULL;
    Items data = {0};
    Rounds rounds = {.count = 0};
    Py_ssize_t position;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OnO!O!:take_pull_answers", &given, &position, &PyList_Type, &given_rounds,
                          &PyList_Type, &taken))
        return NULL;
    if (!take_items(&data, given, 1, READ_ITEMS, "data"))
        return NULL;
    if (position < 0 || position > data.count) {
        PyErr_SetString(PyExc_IndexError, "the position does not lie in the data");
        goto done;
    }
    remark = PyUnicode_FromString(found);
    if (remark == NULL || !take_rounds(&rounds, given_rounds))
        goto done;
    const uint8_t *bytes = data.view.buf;
    Header header;
    Text body;
    for (int64_t size; (size = read_answer(bytes + position, data.count - position, &header, &body)) > 0;) {
        int is_taken = put_answer(taken, &rounds, &header, body, remark);
        if (is_taken < 0)
            goto done;
        if (!is_taken)
            break;
        position += (Py_ssize_t)size;
    }
    result = PyLong_FromSsize_t(position);
done:
    Py_XDECREF(remark);
    release_rounds(&rounds);
    release_items(&data);
    return result;
}

/* -- reading without Python -------------------------------------------------------------------------------------------- */

/* What ends it: a round has all its answers; bytes that are not for a round; something else, or nothing for so long; the
   end of the connection, or an error of it. */
enum { ROUND_IS_WHOLE, NOT_USUAL, NOTHING_TO_READ, CLOSED, BROKEN };

/* What is behind this many bytes of a socket waits for the next call: they stay in the cache. */
#define READ_BYTES_MAX (256 << 10)

typedef struct {
    int socket, others, timeout_ms;
    uint8_t *bytes;
    int64_t size, there, received;
    int error;
} Reading;

/* Place the whole answers of the buffer. ROUND_IS_WHOLE, NOT_USUAL, or NOTHING_TO_READ: it has no whole frame. */
static int place_answers(Reading *reading, Rounds *rounds)
{
    int64_t at = 0, size;
    int reason = NOTHING_TO_READ;
    Header header;
    Text body;
    Round *round;
    while (reason == NOTHING_TO_READ
           && (size = read_answer(reading->bytes + at, reading->there - at, &header, &body)) > 0) {
        int64_t *row = row_of(rounds, header.opaque, &round);
        if (row == NULL || !place_answer(round, row, &header, body)) {
            reason = NOT_USUAL;
            break;
        }
        at += size;
        const int64_t *words = round->words.view.buf;
        if (words[PLACED] + words[GONE] >= round->pulls)
            reason = ROUND_IS_WHOLE;
    }
    reading->there -= at;
    memmove(reading->bytes, reading->bytes + at, (size_t)reading->there);
    /* A frame that is complete, that the buffer cannot hold, or that is none. */
    if (reason == NOTHING_TO_READ && reading->there >= PREFIX_BYTES) {
        int64_t length = (int32_t)word_at(reading->bytes), header_bytes = word_at(reading->bytes + 4) & 0xFFFFFFu;
        if (4 + length <= reading->there || 4 + length > reading->size || header_bytes + 4 > length
            || (reading->bytes[4] != JSON_HEADER && reading->bytes[4] != BINARY_HEADER))
            reason = NOT_USUAL;
    }
    return reason;
}

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int receive(Reading *reading, Rounds *rounds)
{
    struct pollfd ready = {.fd = reading->others, .events = POLLIN};
    int64_t began_ms = now_ms();
    for (int has_waited = 0;;) {
        int reason = place_answers(reading, rounds);
        if (reason != NOTHING_TO_READ)
            return reason;
        int64_t room = reading->size - reading->there;
        ssize_t got = recv(reading->socket, reading->bytes + reading->there,
                           (size_t)(room < READ_BYTES_MAX ? room : READ_BYTES_MAX), MSG_DONTWAIT);
        if (got > 0) {
            reading->there += got;
            reading->received += got;
            has_waited = 0;
            continue;
        }
        if (got == 0)
            return CLOSED;
        if (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
            reading->error = errno;
            return BROKEN;
        }
        /* The time is for all waits together: a server that sends a byte now and then must not hold up the deadlines of
           others. `others` is ready for this socket or for another one: the next look at this one tells. */
        int64_t left_ms = began_ms + reading->timeout_ms - now_ms();
        if (has_waited || left_ms <= 0 || poll(&ready, 1, (int)left_ms) <= 0)
            return NOTHING_TO_READ;
        has_waited = 1;
    }
}

static PyObject *receive_pull_answers(PyObject *module, PyObject *arguments)
{
    PyObject *buffer_given, *given_rounds, *result = NULL;
    Items buffer = {0};
    Rounds rounds = {.count = 0};
    Reading reading = {0};
    long long there;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "iiOLiO!:receive_pull_answers", &reading.socket, &reading.others, &buffer_given,
                          &there, &reading.timeout_ms, &PyList_Type, &given_rounds))
        return NULL;
    if (!take_items(&buffer, buffer_given, 1, WRITE_ITEMS, "buffer"))
        return NULL;
    if (there < 0 || there > buffer.count || buffer.count < PREFIX_BYTES) {
        PyErr_SetString(PyExc_IndexError, "there are not so many bytes in the buffer");
        goto done;
    }
    if (!take_rounds(&rounds, given_rounds))
        goto done;
    reading.bytes = buffer.view.buf;
    reading.size = buffer.count;
    reading.there = there;
    int reason;
    Py_BEGIN_ALLOW_THREADS
    reason = receive(&reading, &rounds);
    Py_END_ALLOW_THREADS
    result = Py_BuildValue("iLLi", reason, (long long)reading.there, (long long)reading.received, reading.error);
done:
    release_rounds(&rounds);
    release_items(&buffer);
    return result;
}

PyMethodDef pull_answer_methods[] = {
    {"receive_pull_answers", receive_pull_answers, METH_VARARGS, NULL},
    {"take_pull_answers", take_pull_answers, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
