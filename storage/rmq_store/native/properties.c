/* The pieces `name %x01 value %x02` of many property strings. Rules: rmq_store/format/properties.py. */

#include "native.h"

#include "copy.h"

#define NAME_VALUE_SEPARATOR 1
#define PROPERTY_SEPARATOR 2
/* Of rows with more pieces Python says which of the same name stay: comparing each with each would take too long. */
#define ROW_PIECES_MAX 64

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

typedef struct {
    int64_t *starts, *separators, *ends;
    Py_ssize_t count, room; /* `count` goes on where there is no more room */
} Pieces;

/* Bytes that are left out: a property that is none (`__CRC32#`). */
typedef struct {
    const char *name;
    Py_ssize_t bytes;
} Name;

static int is_name(const uint8_t *bytes, int64_t size, const Name *name)
{
    return size == name->bytes && bytes[0] == (uint8_t)name->name[0] && memcmp(bytes, name->name, (size_t)size) == 0;
}

/* A name and a value are what makes a piece; anything else between two separators is dropped. */
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

/* Add the pieces of `data[first:end]`, and to `high` what says that not all of it is ASCII. */
static void split_row(const uint8_t *data, int64_t count, int64_t first, int64_t end, const Name *dropped,
                     Pieces *pieces, uint64_t *high)
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

static PyObject *split_pieces(PyObject *module, PyObject *arguments)
{
    PyObject *given[7], *result = NULL;
    Name dropped;
    Items data = {0}, starts = {0}, ends = {0}, counts = {0}, found[3] = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOy#OOOO:split_pieces", &given[0], &given[1], &given[2], &dropped.name,
                          &dropped.bytes, &given[3], &given[4], &given[5], &given[6]))
        return NULL;
    if (!take_items(&data, given[0], 1, READ_ITEMS, "data") || !take_items(&starts, given[1], 8, READ_ITEMS, "starts")
        || !take_n_items(&ends, given[2], 8, READ_ITEMS, "ends", starts.count)
        || !take_n_items(&counts, given[3], 8, WRITE_ITEMS, "counts", starts.count)
        || !take_items(&found[0], given[4], 8, WRITE_ITEMS, "piece_starts")
        || !take_n_items(&found[1], given[5], 8, WRITE_ITEMS, "piece_separators", found[0].count)
        || !take_n_items(&found[2], given[6], 8, WRITE_ITEMS, "piece_ends", found[0].count))
        goto done;
    const int64_t *start = starts.view.buf, *end = ends.view.buf;
    int64_t *count = counts.view.buf;
    Pieces pieces = {found[0].view.buf, found[1].view.buf, found[2].view.buf, 0, found[0].count};
    uint64_t high = 0;
    Py_ssize_t row = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; row < starts.count && 0 <= start[row] && start[row] <= end[row] && end[row] <= data.count; row++) {
        Py_ssize_t before = pieces.count;
        split_row(data.view.buf, data.count, start[row], end[row], &dropped, &pieces, &high);
        count[row] = pieces.count - before;
    }
    Py_END_ALLOW_THREADS
    if (row < starts.count)
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
    return result;
}

/* -- using them --------------------------------------------------------------------------------------------------- */

/* The pieces of all rows, as `split_pieces` makes them. */
typedef struct {
    Items data, counts, starts, separators, ends;
} Table;

static int take_table(Table *table, PyObject **given)
{
    return take_items(&table->data, given[0], 1, READ_ITEMS, "data")
        && take_items(&table->counts, given[1], 8, READ_ITEMS, "counts")
        && take_items(&table->starts, given[2], 8, READ_ITEMS, "piece_starts")
        && take_n_items(&table->separators, given[3], 8, READ_ITEMS, "piece_separators", table->starts.count)
        && take_n_items(&table->ends, given[4], 8, READ_ITEMS, "piece_ends", table->starts.count);
}

static void release_table(Table *table)
{
    release_items(&table->data);
    release_items(&table->counts);
    release_items(&table->starts);
    release_items(&table->separators);
    release_items(&table->ends);
}

/* Whether a row may have `count` pieces from piece `first` on, which all lie in the data. */
static int is_row(const Table *table, int64_t first, int64_t count)
{
    const int64_t *start = table->starts.view.buf, *separator = table->separators.view.buf;
    const int64_t *end = table->ends.view.buf;
    if (count < 0 || count > table->starts.count - first)
        return 0;
    int good = 1;
    for (int64_t piece = first; piece < first + count; piece++)
        good &= (0 <= start[piece]) & (start[piece] < separator[piece]) & (separator[piece] < end[piece])
              & (end[piece] <= table->data.count);
    return good;
}

static PyObject *find_values(PyObject *module, PyObject *arguments)
{
    PyObject *given[7], *result = NULL;
    Name name;
    int first_wins;
    Table table = {0};
    Items value_starts = {0}, value_ends = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOOy#pOO:find_values", &given[0], &given[1], &given[2], &given[3], &given[4],
                          &name.name, &name.bytes, &first_wins, &given[5], &given[6]))
        return NULL;
    if (!take_table(&table, given)
        || !take_n_items(&value_starts, given[5], 8, WRITE_ITEMS, "value_starts", table.counts.count)
        || !take_n_items(&value_ends, given[6], 8, WRITE_ITEMS, "value_ends", table.counts.count))
        goto done;
    const uint8_t *data = table.data.view.buf;
    const int64_t *count = table.counts.view.buf, *start = table.starts.view.buf;
    const int64_t *separator = table.separators.view.buf, *end = table.ends.view.buf;
    int64_t *value_start = value_starts.view.buf, *value_end = value_ends.view.buf;
    int64_t piece = 0, found = 0;
    Py_ssize_t row = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; row < table.counts.count && is_row(&table, piece, count[row]); row++) {
        int64_t last = piece + count[row], chosen = -1;
        for (; piece < last; piece++)
            if (is_name(data + start[piece], separator[piece] - start[piece], &name) && (chosen < 0 || !first_wins))
                chosen = piece;
        value_start[row] = chosen < 0 ? 0 : separator[chosen] + 1;
        value_end[row] = chosen < 0 ? 0 : end[chosen];
        found += chosen >= 0;
    }
    Py_END_ALLOW_THREADS
    if (row < table.counts.count)
        PyErr_Format(PyExc_IndexError, "row %zd has pieces that are not there, or not in the data", row);
    else
        result = PyLong_FromLongLong(found);
done:
    release_table(&table);
    release_items(&value_starts);
    release_items(&value_ends);
    return result;
}

/* Mark with 0 the pieces [first, last) of a row that lose to another one of their name; how many. */
static int64_t mark_losers(const Table *table, int64_t first, int64_t last, const Name *first_wins, uint8_t *winners)
{
    const uint8_t *data = table->data.view.buf;
    const int64_t *start = table->starts.view.buf, *separator = table->separators.view.buf;
    uint64_t seen = 0; /* a set of sums of names: most rows have no two names of one sum */
    int64_t losers = 0;
    for (int64_t piece = first; piece < last; piece++) {
        Name name = {(const char *)data + start[piece], separator[piece] - start[piece]};
        uint64_t sum = (uint64_t)1 << ((name.bytes * 7 + data[start[piece]] + data[separator[piece] - 1] * 3) & 63);
        winners[piece] = 1;
        for (int64_t before = seen & sum ? first : piece; before < piece; before++)
            if (winners[before] && is_name(data + start[before], separator[before] - start[before], &name)) {
                winners[is_name(data + start[piece], name.bytes, first_wins) ? piece : before] = 0;
                losers++;
                break; /* of one name there is one winner at a time */
            }
        seen |= sum;
    }
    return losers;
}

static PyObject *winning_pieces(PyObject *module, PyObject *arguments)
{
    PyObject *given[6], *result = NULL;
    Name first_wins;
    Table table = {0};
    Items winners = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOOy#O:winning_pieces", &given[0], &given[1], &given[2], &given[3], &given[4],
                          &first_wins.name, &first_wins.bytes, &given[5]))
        return NULL;
    if (!take_table(&table, given) || !take_n_items(&winners, given[5], 1, WRITE_ITEMS, "winners", table.starts.count))
        goto done;
    const int64_t *count = table.counts.view.buf;
    int64_t piece = 0, losers = 0;
    int many = 0;
    Py_ssize_t row = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; !many && row < table.counts.count && is_row(&table, piece, count[row]); row++) {
        many = count[row] > ROW_PIECES_MAX;
        if (!many)
            losers += mark_losers(&table, piece, piece + count[row], &first_wins, winners.view.buf);
        piece += count[row];
    }
    Py_END_ALLOW_THREADS
    if (!many && row < table.counts.count)
        PyErr_Format(PyExc_IndexError, "row %zd has pieces that are not there, or not in the data", row);
    else
        result = PyLong_FromLongLong(many ? -1 : losers);
done:
    release_table(&table);
    release_items(&winners);
    return result;
}

static PyObject *copy_pieces(PyObject *module, PyObject *arguments)
{
    PyObject *given[9], *result = NULL;
    Table table = {0};
    Items name_offsets = {0}, names = {0}, value_offsets = {0}, values = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOOOOOO:copy_pieces", &given[0], &given[1], &given[2], &given[3], &given[4],
                          &given[5], &given[6], &given[7], &given[8]))
        return NULL;
    if (!take_table(&table, given)
        || !take_n_items(&name_offsets, given[5], 4, WRITE_ITEMS, "name_offsets", table.starts.count + 1)
        || !take_items(&names, given[6], 1, WRITE_ITEMS, "names")
        || !take_n_items(&value_offsets, given[7], 4, WRITE_ITEMS, "value_offsets", table.starts.count + 1)
        || !take_items(&values, given[8], 1, WRITE_ITEMS, "values"))
        goto done;
    const int64_t *start = table.starts.view.buf, *separator = table.separators.view.buf, *end = table.ends.view.buf;
    Target name = {names.view.buf, name_offsets.view.buf, 0, names.count};
    Target value = {values.view.buf, value_offsets.view.buf, 0, values.count};
    Source source = {table.data.view.buf, table.data.count};
    Py_ssize_t piece = 0;
    Py_BEGIN_ALLOW_THREADS
    *name.offset = *value.offset = 0;
    for (; piece < table.starts.count; piece++)
        if (!copy_slice(&name, &source, start[piece], separator[piece])
            || !copy_slice(&value, &source, separator[piece] + 1, end[piece]))
            break;
    Py_END_ALLOW_THREADS
    if (piece < table.starts.count)
        PyErr_Format(PyExc_IndexError, "piece %zd does not lie in the data, or there is no room for it", piece);
    else
        result = Py_BuildValue("LL", (long long)name.size, (long long)value.size);
done:
    release_table(&table);
    release_items(&name_offsets);
    release_items(&names);
    release_items(&value_offsets);
    release_items(&values);
    return result;
}

PyMethodDef property_methods[] = {
    {"split_pieces", split_pieces, METH_VARARGS, NULL},
    {"find_values", find_values, METH_VARARGS, NULL},
    {"winning_pieces", winning_pieces, METH_VARARGS, NULL},
    {"copy_pieces", copy_pieces, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
