/* The pieces `name %x01 value %x02` of many property strings. Rules: rmq_store/format/properties/property_string.py. */

#include "native.h"

#include "copy.h"
#include "prefetch.h"
#include "properties.h"

#define NAME_VALUE_SEPARATOR 1
#define PROPERTY_SEPARATOR 2
#define NAMES_MAX 8
#define ROWS_AHEAD 8

/* -- 64 bytes at a time ------------------------------------------------------------------------------------------- */

#define BLOCK_BYTES 64

/* One bit for each byte of a block, the first one lowest: which are separators, and which are not ASCII. */
typedef struct {
    uint64_t name_value, property, high;
} Marks;

#if defined(__SSE2__)
#include <emmintrin.h>

static Marks mark_block(const uint8_t *block)
{
    Marks marks = {0, 0, 0};
    for (int at = 0; at < BLOCK_BYTES; at += 16) {
        __m128i bytes = _mm_loadu_si128((const __m128i *)(block + at));
        __m128i name_value = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(NAME_VALUE_SEPARATOR));
        __m128i property = _mm_cmpeq_epi8(bytes, _mm_set1_epi8(PROPERTY_SEPARATOR));
        marks.name_value |= (uint64_t)(uint32_t)_mm_movemask_epi8(name_value) << at;
        marks.property |= (uint64_t)(uint32_t)_mm_movemask_epi8(property) << at;
        marks.high |= (uint64_t)(uint32_t)_mm_movemask_epi8(bytes) << at;
    }
    return marks;
}
#else
static Marks mark_block(const uint8_t *block)
{
    Marks marks = {0, 0, 0};
    for (int at = 0; at < BLOCK_BYTES; at++) {
        marks.name_value |= (uint64_t)(block[at] == NAME_VALUE_SEPARATOR) << at;
        marks.property |= (uint64_t)(block[at] == PROPERTY_SEPARATOR) << at;
        marks.high |= (uint64_t)(block[at] >> 7) << at;
    }
    return marks;
}
#endif

/* The marks of `size` bytes, at most a block, that `available` bytes can be read behind. */
static Marks mark_bytes(const uint8_t *bytes, int64_t size, int64_t available)
{
    if (size >= BLOCK_BYTES)
        return mark_block(bytes);
    uint8_t copy[BLOCK_BYTES];
    if (available < BLOCK_BYTES) {
        memcpy(copy, bytes, (size_t)size);
        bytes = copy;
    }
    Marks marks = mark_block(bytes);
    uint64_t inside = ((uint64_t)1 << size) - 1;
    return (Marks){marks.name_value & inside, marks.property & inside, marks.high & inside};
}

/* -- finding pieces ----------------------------------------------------------------------------------------------- */

/* What the caller wants to know of names: of one that comes twice in a row the last piece stays, of `first_wins` the
   first; `dropped` is no property; of the `wanted` the value of each row is noted. */
typedef struct {
    Name first_wins, dropped, wanted[NAMES_MAX];
    Py_ssize_t wanted_count;
} Names;

static int is_name(const uint8_t *bytes, int64_t size, const Name *name)
{
    return size == name->bytes && bytes[0] == (uint8_t)name->name[0] && memcmp(bytes, name->name, (size_t)size) == 0;
}

/* A name and a value are what makes a piece; anything else between two separators is none. */
static void add_piece(Pieces *pieces, const uint8_t *data, int64_t start, int64_t separator, int64_t end,
                      const Name *dropped)
{
    if (separator <= start || separator + 1 >= end || is_name(data + start, separator - start, dropped))
        return;
    if (pieces->count < pieces->room) {
        pieces->starts[pieces->count] = start;
        pieces->separators[pieces->count] = separator;
        pieces->ends[pieces->count] = end;
    }
    pieces->count++;
}

void split_row(const uint8_t *data, int64_t count, int64_t first, int64_t end, const Name *dropped, Pieces *pieces,
               uint64_t *high)
{
    int64_t start = first, separator = -1;
    for (int64_t at = first; at < end; at += BLOCK_BYTES) {
        Marks marks = mark_bytes(data + at, end - at, count - at);
        *high |= marks.high;
        for (uint64_t found = marks.name_value | marks.property; found; found &= found - 1) {
            int64_t place = at + __builtin_ctzll(found);
            if (data[place] == NAME_VALUE_SEPARATOR) {
                separator = separator < 0 ? place : separator;
                continue;
            }
            add_piece(pieces, data, start, separator, place, dropped);
            start = place + 1;
            separator = -1;
        }
    }
    add_piece(pieces, data, start, separator, end, dropped);
}

static void move_piece(Pieces *pieces, Py_ssize_t to, Py_ssize_t from)
{
    pieces->starts[to] = pieces->starts[from];
    pieces->separators[to] = pieces->separators[from];
    pieces->ends[to] = pieces->ends[from];
}

ptrdiff_t same_name(const Pieces *pieces, const uint8_t *data, ptrdiff_t first, ptrdiff_t last, const Name *name)
{
    for (Py_ssize_t other = first; other < last; other++)
        if (is_name(data + pieces->starts[other], pieces->separators[other] - pieces->starts[other], name))
            return other;
    return -1;
}

void keep_winners(Pieces *pieces, const uint8_t *data, ptrdiff_t first, const Name *first_wins)
{
    uint64_t seen = 0; /* a set of sums of names: most rows have no two names of one sum */
    Py_ssize_t kept = first;
    for (Py_ssize_t piece = first; piece < pieces->count; piece++) {
        const uint8_t *start = data + pieces->starts[piece];
        Name name = {(const char *)start, pieces->separators[piece] - pieces->starts[piece]};
        uint64_t sum = (uint64_t)1 << ((name.bytes * 7 + start[0] + start[name.bytes - 1] * 3) & 63);
        Py_ssize_t same = seen & sum ? same_name(pieces, data, first, kept, &name) : -1;
        seen |= sum;
        if (same >= 0 && is_name(start, name.bytes, first_wins))
            continue;
        for (; same >= 0 && same + 1 < kept; same++)
            move_piece(pieces, same, same + 1);
        kept -= same >= 0;
        if (kept < piece)
            move_piece(pieces, kept, piece);
        kept++;
    }
    pieces->count = kept;
}

/* Where the value of a wanted name lies in each row: (names, rows), 0 and 0 without one. */
typedef struct {
    int64_t *starts, *ends;
    Py_ssize_t rows;
} Values;

static void note_values(const Pieces *pieces, const uint8_t *data, Py_ssize_t first, const Names *names, Values *values,
                        Py_ssize_t row)
{
    for (Py_ssize_t wanted = 0; wanted < names->wanted_count; wanted++) {
        Py_ssize_t found = same_name(pieces, data, first, pieces->count, &names->wanted[wanted]);
        values->starts[wanted * values->rows + row] = found < 0 ? 0 : pieces->separators[found] + 1;
        values->ends[wanted * values->rows + row] = found < 0 ? 0 : pieces->ends[found];
    }
}

/* False, with a Python error: `object` is no tuple of at most NAMES_MAX names that are not empty. */
static int take_names(Names *names, PyObject *object)
{
    names->wanted_count = PyTuple_Size(object);
    if (names->wanted_count < 0)
        return 0;
    int good = names->first_wins.bytes > 0 && names->dropped.bytes > 0 && names->wanted_count <= NAMES_MAX;
    for (Py_ssize_t at = 0; good && at < names->wanted_count; at++) {
        char *text;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(object, at), &text, &names->wanted[at].bytes) < 0)
            return 0;
        names->wanted[at].name = text;
        good = names->wanted[at].bytes > 0;
    }
    if (!good)
        PyErr_Format(PyExc_ValueError, "expected names that are not empty, and at most %d", NAMES_MAX);
    return good;
}

static PyObject *split_pieces(PyObject *module, PyObject *arguments)
{
    PyObject *given[10], *result = NULL;
    Names names;
    Items data = {0}, starts = {0}, ends = {0}, counts = {0}, found[3] = {0}, values[2] = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOy#y#OOOOOOO:split_pieces", &given[0], &given[1], &given[2],
                          &names.first_wins.name, &names.first_wins.bytes, &names.dropped.name, &names.dropped.bytes,
                          &given[3], &given[4], &given[5], &given[6], &given[7], &given[8], &given[9])
        || !take_names(&names, given[3]))
        return NULL;
    if (!take_items(&data, given[0], 1, READ_ITEMS, "data") || !take_items(&starts, given[1], 8, READ_ITEMS, "starts")
        || !take_n_items(&ends, given[2], 8, READ_ITEMS, "ends", starts.count)
        || !take_n_items(&counts, given[4], 8, WRITE_ITEMS, "counts", starts.count)
        || !take_items(&found[0], given[5], 8, WRITE_ITEMS, "piece_starts")
        || !take_n_items(&found[1], given[6], 8, WRITE_ITEMS, "piece_separators", found[0].count)
        || !take_n_items(&found[2], given[7], 8, WRITE_ITEMS, "piece_ends", found[0].count)
        || !take_n_items(&values[0], given[8], 8, WRITE_ITEMS, "value_starts", names.wanted_count * starts.count)
        || !take_n_items(&values[1], given[9], 8, WRITE_ITEMS, "value_ends", names.wanted_count * starts.count))
        goto done;
    const uint8_t *bytes = data.view.buf;
    const int64_t *start = starts.view.buf, *end = ends.view.buf;
    int64_t *count = counts.view.buf;
    Pieces pieces = {found[0].view.buf, found[1].view.buf, found[2].view.buf, 0, found[0].count};
    Values noted = {values[0].view.buf, values[1].view.buf, starts.count};
    uint64_t high = 0;
    int many = 0;
    Py_ssize_t row = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; row < starts.count && 0 <= start[row] && start[row] <= end[row] && end[row] <= data.count && !many; row++) {
        Py_ssize_t first = pieces.count;
        if (row + ROWS_AHEAD < starts.count)
            expect_bytes(bytes, data.count, start[row + ROWS_AHEAD], end[row + ROWS_AHEAD]);
        split_row(bytes, data.count, start[row], end[row], &names.dropped, &pieces, &high);
        many = pieces.count - first > ROW_PIECES_MAX;
        if (pieces.count <= pieces.room && !many) {
            keep_winners(&pieces, bytes, first, &names.first_wins);
            note_values(&pieces, bytes, first, &names, &noted, row);
        }
        count[row] = pieces.count - first;
    }
    Py_END_ALLOW_THREADS
    if (many)
        result = Py_NewRef(Py_None);
    else if (row < starts.count)
        PyErr_Format(PyExc_IndexError, "row %zd does not lie in the data", row);
    else
        result = Py_BuildValue("nO", pieces.count, high ? Py_False : Py_True);
done:
    release_items(&data);
    release_items(&starts);
    release_items(&ends);
    release_items(&counts);
    for (int array = 0; array < 3; array++)
        release_items(&found[array]);
    release_items(&values[0]);
    release_items(&values[1]);
    return result;
}

/* -- copying them ------------------------------------------------------------------------------------------------- */

static PyObject *copy_pieces(PyObject *module, PyObject *arguments)
{
    PyObject *given[8], *result = NULL;
    Items data = {0}, starts = {0}, separators = {0}, ends = {0};
    Items name_offsets = {0}, names = {0}, value_offsets = {0}, values = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOOOOO:copy_pieces", &given[0], &given[1], &given[2], &given[3], &given[4],
                          &given[5], &given[6], &given[7]))
        return NULL;
    if (!take_items(&data, given[0], 1, READ_ITEMS, "data")
        || !take_items(&starts, given[1], 8, READ_ITEMS, "piece_starts")
        || !take_n_items(&separators, given[2], 8, READ_ITEMS, "piece_separators", starts.count)
        || !take_n_items(&ends, given[3], 8, READ_ITEMS, "piece_ends", starts.count)
        || !take_n_items(&name_offsets, given[4], 4, WRITE_ITEMS, "name_offsets", starts.count + 1)
        || !take_items(&names, given[5], 1, WRITE_ITEMS, "names")
        || !take_n_items(&value_offsets, given[6], 4, WRITE_ITEMS, "value_offsets", starts.count + 1)
        || !take_items(&values, given[7], 1, WRITE_ITEMS, "values"))
        goto done;
    const int64_t *start = starts.view.buf, *separator = separators.view.buf, *end = ends.view.buf;
    Target name = {names.view.buf, name_offsets.view.buf, 0, names.count};
    Target value = {values.view.buf, value_offsets.view.buf, 0, values.count};
    Source source = {data.view.buf, data.count};
    Py_ssize_t piece = 0;
    Py_BEGIN_ALLOW_THREADS
    *name.offset = *value.offset = 0;
    for (; piece < starts.count; piece++)
        if (!copy_slice(&name, &source, start[piece], separator[piece])
            || !copy_slice(&value, &source, separator[piece] + 1, end[piece]))
            break;
    Py_END_ALLOW_THREADS
    if (piece < starts.count)
        PyErr_Format(PyExc_IndexError, "piece %zd does not lie in the data, or there is no room for it", piece);
    else
        result = Py_BuildValue("LL", (long long)name.size, (long long)value.size);
done:
    release_items(&data);
    release_items(&starts);
    release_items(&separators);
    release_items(&ends);
    release_items(&name_offsets);
    release_items(&names);
    release_items(&value_offsets);
    release_items(&values);
    return result;
}

PyMethodDef property_methods[] = {
    {"split_pieces", split_pieces, METH_VARARGS, NULL},
    {"copy_pieces", copy_pieces, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
