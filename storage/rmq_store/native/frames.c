/* The fixed fields and all lengths of many frames, checked. Layout and rules: rmq_store/format/frames/frame_check.py. */

#include "native.h"

#include "big_endian.h"
#include "frames.h"

#define IPV6_MORE_BYTES 12

int read_frame(const uint8_t *data, int64_t count, int64_t position, int64_t size, const int64_t *base, int32_t *narrow,
               int64_t *wide, ptrdiff_t row, ptrdiff_t rows)
{
    if (size < FRAME_BYTES_MIN || position < 0 || position > count - size)
        return 0;
    const uint8_t *frame = data + position;
    uint32_t magic = word_at(frame + 4), flags = word_at(frame + 36);
    int is_v2 = magic == MAGIC_V2;
    int32_t queue_id = (int32_t)word_at(frame + 12);
    int64_t queue_offset = (int64_t)long_at(frame + 20), physical_offset = (int64_t)long_at(frame + 28);
    if ((magic != MAGIC_V1 && !is_v2) || (int32_t)word_at(frame) != size || queue_id < 0 || queue_offset < 0)
        return 0;
    /* Not base + position: that sum can overflow. */
    if (base != NULL && (uint64_t)physical_offset - (uint64_t)position != (uint64_t)*base)
        return 0;

    int64_t born_more = flags & BORN_HOST_V6 ? IPV6_MORE_BYTES : 0;
    int64_t more = born_more + (flags & STORE_HOST_V6 ? IPV6_MORE_BYTES : 0);
    if (size < FRAME_BYTES_MIN + more)
        return 0;
    const uint8_t *tail = frame + more;
    int64_t end = position + size, body_start = position + FRAME_HEADER_BYTES + more;
    int64_t body_end = body_start + (int32_t)word_at(tail + 84), topic_start = body_end + 1 + is_v2;
    if (body_end < body_start || topic_start + 1 + 2 > end)
        return 0;
    int64_t topic_end = topic_start + (is_v2 ? short_at(data + body_end) : (int8_t)data[body_end]);
    int64_t properties_start = topic_end + 2;
    if (topic_end <= topic_start || properties_start > end
        || properties_start + short_at(data + topic_end) != end)
        return 0;

    narrow += row;
    narrow[QUEUE_ID * rows] = queue_id;
    narrow[FLAG * rows] = (int32_t)word_at(frame + 16);
    narrow[SYS_FLAG * rows] = (int32_t)flags;
    narrow[BODY_CRC * rows] = (int32_t)word_at(frame + 8);
    narrow[RECONSUME_TIMES * rows] = (int32_t)word_at(tail + 72);
    wide += row;
    wide[QUEUE_OFFSET * rows] = queue_offset;
    wide[PHYSICAL_OFFSET * rows] = physical_offset;
    wide[BORN_TIMESTAMP * rows] = (int64_t)long_at(frame + 40);
    wide[STORE_TIMESTAMP * rows] = (int64_t)long_at(frame + born_more + 56);
    wide[PREPARED_TRANSACTION_OFFSET * rows] = (int64_t)long_at(tail + 76);
    wide[BODY_START * rows] = body_start;
    wide[BODY_END * rows] = body_end;
    wide[TOPIC_START * rows] = topic_start;
    wide[TOPIC_END * rows] = topic_end;
    wide[PROPERTIES_START * rows] = properties_start;
    wide[PROPERTIES_END * rows] = end;
    return 1;
}

int take_base(int64_t *base, PyObject *given)
{
    *base = given == Py_None ? 0 : PyLong_AsLongLong(given);
    return !(*base == -1 && PyErr_Occurred());
}

static PyObject *read_frames(PyObject *module, PyObject *arguments)
{
    PyObject *given[6], *result = NULL;
    Items data = {0}, positions = {0}, sizes = {0}, narrow = {0}, wide = {0};
    int64_t base = 0;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOOO:read_frames", &given[0], &given[1], &given[2], &given[3], &given[4],
                          &given[5]))
        return NULL;
    if (!take_base(&base, given[3]))
        return NULL;
    if (!take_items(&data, given[0], 1, READ_ITEMS, "data")
        || !take_items(&positions, given[1], 8, READ_ITEMS, "positions")
        || !take_n_items(&sizes, given[2], 8, READ_ITEMS, "sizes", positions.count)
        || !take_n_items(&narrow, given[4], 4, WRITE_ITEMS, "narrow", NARROW_FIELDS * positions.count)
        || !take_n_items(&wide, given[5], 8, WRITE_ITEMS, "wide", WIDE_FIELDS * positions.count))
        goto done;
    const uint8_t *bytes = data.view.buf;
    const int64_t *position = positions.view.buf, *size = sizes.view.buf;
    const int64_t *topic_start = (int64_t *)wide.view.buf + TOPIC_START * positions.count;
    const int64_t *topic_end = (int64_t *)wide.view.buf + TOPIC_END * positions.count;
    Py_ssize_t row = 0, rows = positions.count;
    int one_topic = rows > 0;
    Py_BEGIN_ALLOW_THREADS
    for (; row < rows; row++) {
        if (row + FRAMES_AHEAD < rows)
            expect_frame(bytes, data.count, position[row + FRAMES_AHEAD], size[row + FRAMES_AHEAD]);
        if (!read_frame(bytes, data.count, position[row], size[row], given[3] == Py_None ? NULL : &base,
                        narrow.view.buf, wide.view.buf, row, rows))
            break;
        one_topic = one_topic && topic_end[row] - topic_start[row] == topic_end[0] - topic_start[0]
                 && memcmp(bytes + topic_start[row], bytes + topic_start[0], (size_t)(topic_end[0] - topic_start[0])) == 0;
    }
    Py_END_ALLOW_THREADS
    result = row == rows ? PyBool_FromLong(one_topic) : Py_NewRef(Py_None);
done:
    release_items(&data);
    release_items(&positions);
    release_items(&sizes);
    release_items(&narrow);
    release_items(&wide);
    return result;
}

/* The size of the message that begins at `position` and ends before `stop`, 0 if there is none. */
static int32_t size_of_message(const uint8_t *data, int64_t stop, int64_t position, int64_t base)
{
    if (position < 0 || position > stop - FRAME_BYTES_MIN)
        return 0;
    const uint8_t *frame = data + position;
    uint32_t magic = word_at(frame + 4);
    int32_t size = (int32_t)word_at(frame);
    if ((magic != MAGIC_V1 && magic != MAGIC_V2) || long_at(frame + 28) - (uint64_t)position != (uint64_t)base)
        return 0;
    return size >= FRAME_BYTES_MIN && size <= stop - position ? size : 0;
}

static PyObject *message_sizes(PyObject *module, PyObject *arguments)
{
    PyObject *given[3], *result = NULL;
    Items data = {0}, positions = {0}, sizes = {0};
    long long base, stop;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOLLO:message_sizes", &given[0], &given[1], &base, &stop, &given[2]))
        return NULL;
    if (!take_items(&data, given[0], 1, READ_ITEMS, "data")
        || !take_items(&positions, given[1], 8, READ_ITEMS, "positions")
        || !take_n_items(&sizes, given[2], 4, WRITE_ITEMS, "sizes", positions.count))
        goto done;
    const uint8_t *bytes = data.view.buf;
    const int64_t *position = positions.view.buf;
    int32_t *size = sizes.view.buf;
    if (stop > data.count)
        stop = data.count;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t row = 0; row < positions.count; row++) {
        if (row + FRAMES_AHEAD < positions.count)
            expect_frame(bytes, stop, position[row + FRAMES_AHEAD], FRAME_BYTES_MIN);
        size[row] = size_of_message(bytes, stop, position[row], base);
        /* Who asks for sizes reads the frames next. */
        expect_frame(bytes, stop, position[row], size[row]);
    }
    Py_END_ALLOW_THREADS
    result = Py_NewRef(Py_None);
done:
    release_items(&data);
    release_items(&positions);
    release_items(&sizes);
    return result;
}

PyMethodDef frame_methods[] = {
    {"message_sizes", message_sizes, METH_VARARGS, NULL},
    {"read_frames", read_frames, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
