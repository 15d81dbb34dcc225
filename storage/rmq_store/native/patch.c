/* Filling in frames what is known only when it is known where they will lie: queueOffset, physicalOffset,
   storeTimestamp, and the digits of the CRC property that follow from them. The twin is format/batches/frame_patch.py, which
   says what CRC-32 being affine has to do with it. */

#include "native.h"

#include "big_endian.h"
#include "crc.h"
#include "frames.h"

#define OFFSETS_AT 20       /* queueOffset, then physicalOffset, 8 bytes each */
#define SYS_FLAG_END 39     /* the last byte of sysFlag */
#define BORN_HOST_AT 48     /* 8 bytes, or 20 with the flag; then storeTimestamp */
#define FIXED_BYTES 76      /* up to the end of storeTimestamp behind the longer host */
#define DIGITS 10           /* least significant first; one more byte ends the frame */
#define CRC_MASK 0x7FFFFFFFu

/* Two digits for each number below 100, the last one first. */
static const char PAIRS[] =
    "0010203040506070809001112131415161718191"
    "0212223242526272829203132333435363738393"
    "0414243444546474849405152535455565758595"
    "0616263646566676869607172737475767778797"
    "0818283848586878889809192939495969798999";

/* What is the same in all frames of one size and one kind of host. */
typedef struct {
    int64_t size;
    int timestamp_end;
    uint32_t offsets_factor;  /* of the offsets' register, by what lies behind them */
    uint32_t timestamp_added; /* by storeTimestamp, to the frame's register */
} Kind;

/* Sizes differ by the digits of a key, mostly. */
#define KINDS 64

typedef struct {
    uint8_t timestamp[8];
    uint32_t timestamp_register;
    Kind kinds[KINDS];
} Patch;

static const Kind *kind_of(Patch *patch, int64_t size, int timestamp_end)
{
    Kind *kind = &patch->kinds[size % KINDS];
    if (kind->size != size || kind->timestamp_end != timestamp_end) {
        uint64_t behind = (uint64_t)(size - CRC_PROPERTY_BYTES - timestamp_end);
        uint64_t between = (uint64_t)(timestamp_end - OFFSETS_AT - 16);
        *kind = (Kind){size, timestamp_end, crc_factor(between + behind), crc_shift(patch->timestamp_register, behind)};
    }
    return kind;
}

static void patch_one(Patch *patch, uint8_t *frame, int64_t size, int64_t queue_offset, int64_t physical_offset,
                      const uint32_t *crc0)
{
    int host_bytes = frame[SYS_FLAG_END] & BORN_HOST_V6 ? 20 : 8;
    int timestamp_end = BORN_HOST_AT + host_bytes + 8;
    put_long(frame + OFFSETS_AT, (uint64_t)queue_offset);
    put_long(frame + OFFSETS_AT + 8, (uint64_t)physical_offset);
    memcpy(frame + timestamp_end - 8, patch->timestamp, 8);
    if (crc0 == NULL)
        return;
    const Kind *kind = kind_of(patch, size, timestamp_end);
    uint32_t offsets = crc_of_longs((uint64_t)queue_offset, (uint64_t)physical_offset);
    uint32_t added = crc_multiply(offsets, kind->offsets_factor) ^ kind->timestamp_added;
    uint32_t value = (*crc0 ^ added) & CRC_MASK;
    uint8_t *digit = frame + size - 1 - DIGITS;
    for (int place = 0; place < DIGITS; place += 2, value /= 100)
        memcpy(digit + place, PAIRS + 2 * (value % 100), 2);
}

static PyObject *patch_frames(PyObject *module, PyObject *arguments)
{
    PyObject *given[6], *result = NULL;
    long long store_timestamp_ms;
    Items frames = {0}, starts = {0}, sizes = {0}, queue_offsets = {0}, physical_offsets = {0}, crc0 = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOOLO:patch_frames", &given[0], &given[1], &given[2], &given[3], &given[4],
                          &store_timestamp_ms, &given[5]))
        return NULL;
    if (!take_items(&frames, given[0], 1, WRITE_ITEMS, "frames") || !take_items(&starts, given[1], 8, READ_ITEMS, "starts")
        || !take_n_items(&sizes, given[2], 8, READ_ITEMS, "sizes", starts.count)
        || !take_n_items(&queue_offsets, given[3], 8, READ_ITEMS, "queue_offsets", starts.count)
        || !take_n_items(&physical_offsets, given[4], 8, READ_ITEMS, "physical_offsets", starts.count)
        || (given[5] != Py_None && !take_n_items(&crc0, given[5], 4, READ_ITEMS, "crc0", starts.count)))
        goto done;
    uint8_t *bytes = frames.view.buf;
    const int64_t *start = starts.view.buf, *size = sizes.view.buf;
    const int64_t *queue_offset = queue_offsets.view.buf, *physical_offset = physical_offsets.view.buf;
    const uint32_t *crc = crc0.view.buf;
    int64_t least = FIXED_BYTES + (crc ? CRC_PROPERTY_BYTES : 0);
    Patch patch = {0};
    put_long(patch.timestamp, (uint64_t)store_timestamp_ms);
    patch.timestamp_register = crc_of_longs(0, (uint64_t)store_timestamp_ms);
    Py_ssize_t row = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; row < starts.count; row++) {
        if (size[row] < least || size[row] > frames.count || start[row] < 0 || start[row] > frames.count - size[row])
            break;
        patch_one(&patch, bytes + start[row], size[row], queue_offset[row], physical_offset[row], crc ? crc + row : NULL);
    }
    Py_END_ALLOW_THREADS
    if (row < starts.count)
        PyErr_Format(PyExc_IndexError, "frame %zd does not lie in the data, or is too short for one", row);
    else
        result = Py_NewRef(Py_None);
done:
    release_items(&frames);
    release_items(&starts);
    release_items(&sizes);
    release_items(&queue_offsets);
    release_items(&physical_offsets);
    release_items(&crc0);
    return result;
}

PyMethodDef patch_methods[] = {
    {"patch_frames", patch_frames, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
