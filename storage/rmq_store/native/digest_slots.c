/* Tables of digests: how often each came, or which number it has. The twins are functions of
   format/batches/content_keys.py. */

#include "digest_slots.h"

int take_slots(Items *slots, PyObject *object, int writable)
{
    if (!take_items(slots, object, 8, writable, "slots"))
        return 0;
    slots->count /= 3;
    if (slots->count < 2 || slots->count & (slots->count - 1) || slots->view.len != 24 * slots->count) {
        PyErr_SetString(PyExc_ValueError, "slots: not a power of two of them");
        return 0;
    }
    return 1;
}

static PyObject *number_digests(PyObject *module, PyObject *arguments)
{
    PyObject *given[3], *result = NULL;
    Items digests = {0}, slots = {0}, ordinals = {0};
    Py_ssize_t used;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOnO:number_digests", &given[0], &given[1], &used, &given[2]))
        return NULL;
    if (take_items(&digests, given[0], 8, READ_ITEMS, "digests") && take_slots(&slots, given[1], WRITE_ITEMS)
        && take_n_items(&ordinals, given[2], 8, WRITE_ITEMS, "ordinals", digests.count / 2)) {
        Py_ssize_t row = 0, count = digests.count / 2;
        Py_BEGIN_ALLOW_THREADS
        for (; row < count; row++) {
            const uint64_t *digest = (const uint64_t *)digests.view.buf + 2 * row;
            int64_t ordinal = number_digest(slots.view.buf, slots.count, &used, digest);
            if (ordinal < 0)
                break;
            ((int64_t *)ordinals.view.buf)[row] = ordinal;
        }
        Py_END_ALLOW_THREADS
        if (row < count)
            PyErr_SetString(PyExc_ValueError, "slots: no room");
        else
            result = PyLong_FromSsize_t(used);
    }
    release_items(&digests);
    release_items(&slots);
    release_items(&ordinals);
    return result;
}

/* How many slots nobody is in, up to `wanted`. */
static Py_ssize_t empty_slots(const Items *slots, Py_ssize_t wanted)
{
    Py_ssize_t empty = 0;
    for (Py_ssize_t place = 0; place < slots->count && empty < wanted; place++)
        empty += ((const Slot *)slots->view.buf)[place].number == 0;
    return empty;
}

/* Store the numbers of digests, or look them up: 0 for one that is not there. */
static PyObject *store_or_find(PyObject *arguments, const char *format, int stores)
{
    PyObject *given[3], *result = NULL;
    Items digests = {0}, slots = {0}, numbers = {0};
    if (!PyArg_ParseTuple(arguments, format, &given[0], &given[1], &given[2]))
        return NULL;
    if (take_items(&digests, given[0], 8, READ_ITEMS, "digests") && take_slots(&slots, given[1], stores)
        && take_n_items(&numbers, given[2], 8, !stores, "numbers", digests.count / 2)) {
        Py_ssize_t count = digests.count / 2, wanted = stores ? count + 1 : 1;
        int has_room;
        Py_BEGIN_ALLOW_THREADS
        has_room = empty_slots(&slots, wanted) == wanted;
        for (Py_ssize_t row = 0; has_room && row < count; row++) {
            const uint64_t *digest = (const uint64_t *)digests.view.buf + 2 * row;
            Slot *slot = slot_of(slots.view.buf, slots.count, digest);
            uint64_t *number = (uint64_t *)numbers.view.buf + row;
            if (stores) {
                memcpy(slot->digest, digest, sizeof slot->digest);
                slot->number = *number;
            } else {
                *number = slot->number;
            }
        }
        Py_END_ALLOW_THREADS
        if (has_room)
            result = Py_NewRef(Py_None);
        else
            PyErr_SetString(PyExc_ValueError, "slots: no room");
    }
    release_items(&digests);
    release_items(&slots);
    release_items(&numbers);
    return result;
}

/* A slot goes to a place that is its old one, or as far behind the first half of the new table: so both are read and
   written from their begin to their end. */
static PyObject *move_slots(PyObject *module, PyObject *arguments)
{
    PyObject *given[2], *result = NULL;
    Items from = {0}, to = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OO:move_slots", &given[0], &given[1]))
        return NULL;
    if (take_slots(&from, given[0], READ_ITEMS) && take_slots(&to, given[1], WRITE_ITEMS)) {
        const Slot *slots = from.view.buf;
        Py_ssize_t moved = 0;
        int has_room = to.count > from.count;
        Py_BEGIN_ALLOW_THREADS
        if (has_room)
            memset(to.view.buf, 0, (size_t)to.view.len);
        for (Py_ssize_t place = 0; has_room && place < from.count; place++) {
            if (!slots[place].number)
                continue;
            *slot_of(to.view.buf, to.count, slots[place].digest) = slots[place];
            moved++;
        }
        Py_END_ALLOW_THREADS
        if (has_room)
            result = PyLong_FromSsize_t(moved);
        else
            PyErr_SetString(PyExc_ValueError, "slots: no room");
    }
    release_items(&from);
    release_items(&to);
    return result;
}

static PyObject *store_digests(PyObject *module, PyObject *arguments)
{
    (void)module;
    return store_or_find(arguments, "OOO:store_digests", 1);
}

static PyObject *find_digests(PyObject *module, PyObject *arguments)
{
    (void)module;
    return store_or_find(arguments, "OOO:find_digests", 0);
}

PyMethodDef digest_slot_methods[] = {
    {"find_digests", find_digests, METH_VARARGS, NULL},
    {"move_slots", move_slots, METH_VARARGS, NULL},
    {"number_digests", number_digests, METH_VARARGS, NULL},
    {"store_digests", store_digests, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
