/* The pieces `name %x01 value %x02` of many property strings. Rules: rmq_store/format/properties.py. */

#include "native.h"

#define EVERY_BYTE 0x0101010101010101u
#define HIGH_BITS 0x8080808080808080u
#define LOW_BITS 0x7F7F7F7F7F7F7F7Fu
#define NAME_VALUE_SEPARATOR 1
#define PROPERTY_SEPARATOR 2
/* Of rows with more pieces Python says which of the same name stay: comparing each with each would take too long. */
#define ROW_PIECES_MAX 64

/* `size` bytes, at most 8, as a number: the first one lowest. */
static uint64_t load_word(const uint8_t *place, int64_t size)
{
    uint64_t word = 0;
    memcpy(&word, place, size < 8 ? (size_t)size : 8);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* The high bit of each byte that is `byte`; exact, no carry runs from one byte into the next. */
static uint64_t bytes_equal(uint64_t word, uint64_t byte)
{
    uint64_t difference = word ^ byte * EVERY_BYTE;
    return ~(((difference & LOW_BITS) + LOW_BITS) | difference) & HIGH_BITS;
}

typedef struct {
    int64_t *starts, *separators, *ends;
    Py_ssize_t count, room;
} Pieces;

/* A name and a value are what makes a piece; anything else between two separators is dropped. */
static int add_piece(Pieces *pieces, int64_t start, int64_t separator, int64_t end)
{
    if (separator <= start || separator + 1 >= end)
        return 1;
    if (pieces->count == pieces->room)
        return 0;
    pieces->starts[pieces->count] = start;
    pieces->separators[pieces->count] = separator;
    pieces->ends[pieces->count] = end;
    pieces->count++;
    return 1;
}

/* Add the pieces of `data[first:end]`, and to `high` the high bits that are set there. False: there is no room. */
static int split_row(const uint8_t *data, int64_t first, int64_t end, Pieces *pieces, uint64_t *high)
{
    int64_t start = first, separator = -1;
    for (int64_t at = first; at < end; at += 8) {
        uint64_t word = load_word(data + at, end - at);
        uint64_t found = bytes_equal(word, NAME_VALUE_SEPARATOR) | bytes_equal(word, PROPERTY_SEPARATOR);
        *high |= word & HIGH_BITS;
        for (; found; found &= found - 1) {
            int64_t place = at + __builtin_ctzll(found) / 8;
            if (data[place] == NAME_VALUE_SEPARATOR) {
                if (separator < 0)
                    separator = place;
                continue;
            }
            if (!add_piece(pieces, start, separator, place))
                return 0;
            start = place + 1;
            separator = -1;
        }
    }
    return add_piece(pieces, start, separator, end);
}

static PyObject *split_pieces(PyObject *module, PyObject *arguments)
{
    PyObject *given[7], *result = NULL;
    Items data = {0}, starts = {0}, ends = {0}, counts = {0}, found[3] = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOOOO:split_pieces", &given[0], &given[1], &given[2], &given[3], &given[4],
                          &given[5], &given[6]))
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
        if (!split_row(data.view.buf, start[row], end[row], &pieces, &high))
            break;
        count[row] = pieces.count - before;
    }
    Py_END_ALLOW_THREADS
    if (row < starts.count)
        PyErr_Format(PyExc_IndexError, "row %zd does not lie in the data, or has more pieces than there is room", row);
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

/* What the functions below get: pieces by rows, as `split_pieces` makes them. */
typedef struct {
    Items data, counts, starts, separators;
} Table;

static int take_table(Table *table, PyObject **given)
{
    return take_items(&table->data, given[0], 1, READ_ITEMS, "data")
        && take_items(&table->counts, given[1], 8, READ_ITEMS, "counts")
        && take_items(&table->starts, given[2], 8, READ_ITEMS, "piece_starts")
        && take_n_items(&table->separators, given[3], 8, READ_ITEMS, "piece_separators", table->starts.count);
}

static void release_table(Table *table)
{
    release_items(&table->data);
    release_items(&table->counts);
    release_items(&table->starts);
    release_items(&table->separators);
}

/* Whether piece `piece` has its name in the data. */
static int has_name(const Table *table, int64_t piece)
{
    int64_t start = ((int64_t *)table->starts.view.buf)[piece];
    int64_t separator = ((int64_t *)table->separators.view.buf)[piece];
    return 0 <= start && start < separator && separator < table->data.count;
}

static int is_named(const Table *table, int64_t piece, const char *name, int64_t size)
{
    int64_t start = ((int64_t *)table->starts.view.buf)[piece];
    int64_t separator = ((int64_t *)table->separators.view.buf)[piece];
    return separator - start == size && memcmp((uint8_t *)table->data.view.buf + start, name, (size_t)size) == 0;
}

static PyObject *find_values(PyObject *module, PyObject *arguments)
{
    PyObject *given[7], *result = NULL;
    const char *name;
    Py_ssize_t name_bytes;
    int first_wins;
    Table table = {0};
    Items piece_ends = {0}, value_starts = {0}, value_ends = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOOy#pOO:find_values", &given[0], &given[1], &given[2], &given[3], &given[4],
                          &name, &name_bytes, &first_wins, &given[5], &given[6]))
        return NULL;
    if (!take_table(&table, given)
        || !take_n_items(&piece_ends, given[4], 8, READ_ITEMS, "piece_ends", table.starts.count)
        || !take_n_items(&value_starts, given[5], 8, WRITE_ITEMS, "value_starts", table.counts.count)
        || !take_n_items(&value_ends, given[6], 8, WRITE_ITEMS, "value_ends", table.counts.count))
        goto done;
    const int64_t *count = table.counts.view.buf, *separator = table.separators.view.buf, *end = piece_ends.view.buf;
    int64_t *value_start = value_starts.view.buf, *value_end = value_ends.view.buf;
    int64_t piece = 0, found = 0;
    Py_ssize_t row = 0;
    int good = 1;
    Py_BEGIN_ALLOW_THREADS
    for (; good && row < table.counts.count; row++) {
        good = 0 <= count[row] && count[row] <= table.starts.count - piece;
        int64_t last = good ? piece + count[row] : piece, chosen = -1;
        for (; piece < last && (good = has_name(&table, piece)); piece++)
            if ((chosen < 0 || !first_wins) && is_named(&table, piece, name, name_bytes))
                chosen = piece;
        value_start[row] = chosen < 0 ? 0 : separator[chosen] + 1;
        value_end[row] = chosen < 0 ? 0 : end[chosen];
        found += chosen >= 0;
    }
    Py_END_ALLOW_THREADS
    if (!good)
        PyErr_SetString(PyExc_IndexError, "a row has pieces that are not there, or not in the data");
    else
        result = PyLong_FromLongLong(found);
done:
    release_table(&table);
    release_items(&piece_ends);
    release_items(&value_starts);
    release_items(&value_ends);
    return result;
}

/* Mark with 0 the pieces [first, last) of a row that are `dropped` or lose to another of their name; how many. */
static int64_t mark_losers(const Table *table, int64_t first, int64_t last, const char *dropped, Py_ssize_t dropped_bytes,
                           const char *first_wins, Py_ssize_t first_wins_bytes, uint8_t *winners)
{
    const uint8_t *data = table->data.view.buf;
    const int64_t *start = table->starts.view.buf, *separator = table->separators.view.buf;
    uint64_t seen = 0; /* a set of sums of names: most rows have no two names of one sum */
    int64_t losers = 0;
    for (int64_t piece = first; piece < last; piece++) {
        int64_t size = separator[piece] - start[piece];
        uint64_t sum = 1ull << ((size * 7 + data[start[piece]] + data[separator[piece] - 1] * 3) & 63);
        winners[piece] = 1;
        if (is_named(table, piece, dropped, dropped_bytes)) {
            winners[piece] = 0;
            losers++;
            continue;
        }
        for (int64_t before = seen & sum ? first : piece; before < piece; before++)
            if (winners[before] && is_named(table, before, (const char *)data + start[piece], size)) {
                winners[is_named(table, piece, first_wins, first_wins_bytes) ? piece : before] = 0;
                losers++;
                break; /* at most one of that name was still a winner */
            }
        seen |= sum;
    }
    return losers;
}

static PyObject *winning_pieces(PyObject *module, PyObject *arguments)
{
    PyObject *given[5], *result = NULL;
    const char *dropped, *first_wins;
    Py_ssize_t dropped_bytes, first_wins_bytes;
    Table table = {0};
    Items winners = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOy#y#O:winning_pieces", &given[0], &given[1], &given[2], &given[3], &dropped,
                          &dropped_bytes, &first_wins, &first_wins_bytes, &given[4]))
        return NULL;
    if (!take_table(&table, given) || !take_n_items(&winners, given[4], 1, WRITE_ITEMS, "winners", table.starts.count))
        goto done;
    const int64_t *count = table.counts.view.buf;
    int64_t piece = 0, losers = 0;
    int good = 1, many = 0;
    Py_BEGIN_ALLOW_THREADS
    for (int64_t any = 0; good && any < table.starts.count; any++)
        good = has_name(&table, any);
    for (Py_ssize_t row = 0; good && !many && row < table.counts.count; row++) {
        good = 0 <= count[row] && count[row] <= table.starts.count - piece;
        many = good && count[row] > ROW_PIECES_MAX;
        if (good && !many)
            losers += mark_losers(&table, piece, piece + count[row], dropped, dropped_bytes, first_wins,
                                  first_wins_bytes, winners.view.buf);
        piece += count[row];
    }
    Py_END_ALLOW_THREADS
    if (!good)
        PyErr_SetString(PyExc_IndexError, "a row has pieces that are not there, or not in the data");
    else
        result = PyLong_FromLongLong(many ? -1 : losers);
done:
    release_table(&table);
    release_items(&winners);
    return result;
}

PyMethodDef property_methods[] = {
    {"split_pieces", split_pieces, METH_VARARGS, NULL},
    {"find_values", find_values, METH_VARARGS, NULL},
    {"winning_pieces", winning_pieces, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
