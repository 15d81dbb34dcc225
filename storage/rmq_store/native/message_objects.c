/* Messages as Python objects, made of columns. The twin is `_made` of protocol/stored_messages.py.

   The only part that makes objects of a class that it is given: each field is set by its own descriptor, as a
   constructor would, so that nothing here knows how such an object lies in memory. */

#include "native.h"

#define FIELDS_MAX 32

/* One value for each row: a number; one of a few objects; or a piece of bytes, as text or as it is. */
typedef struct {
    PyObject *descriptor; /* borrowed */
    descrsetfunc set;
    Items numbers;        /* int64, taken if it is numbers; the codes of the objects (int32) else, or where pieces end */
    PyObject *shared;     /* borrowed; a list */
    Items bytes;
    enum { NUMBERS, SHARED, TEXTS, BYTES } kind;
} Column;

/* Row i has the entries [entries[i], entries[i + 1]), each with a name and a value. */
typedef struct {
    Items entries;
    Column names, values;
} Map;

static int take_column(Column *column, PyObject *given, Py_ssize_t count)
{
    PyObject *places, *values;
    int is_text;
    if (!PyTuple_Check(given)) {
        column->kind = NUMBERS;
        return take_n_items(&column->numbers, given, 8, READ_ITEMS, "numbers", count);
    }
    if (PyTuple_Size(given) == 2) {
        column->kind = SHARED;
        if (!PyArg_ParseTuple(given, "OO!", &places, &PyList_Type, &column->shared))
            return 0;
        return take_n_items(&column->numbers, places, 4, READ_ITEMS, "codes", count);
    }
    if (!PyArg_ParseTuple(given, "OOp", &places, &values, &is_text))
        return 0;
    column->kind = is_text ? TEXTS : BYTES;
    return take_n_items(&column->numbers, places, 4, READ_ITEMS, "places", count + 1)
           && take_items(&column->bytes, values, 1, READ_ITEMS, "bytes");
}

/* A new reference; null with an error. `row` lies in the column. */
static PyObject *value_at(const Column *column, Py_ssize_t row)
{
    if (column->kind == NUMBERS)
        return PyLong_FromLongLong(((const int64_t *)column->numbers.view.buf)[row]);
    const int32_t *place = (const int32_t *)column->numbers.view.buf + row;
    if (column->kind == SHARED) {
        PyObject *value = PyList_GetItem(column->shared, place[0]); /* IndexError for a code that is none */
        Py_XINCREF(value);
        return value;
    }
    if (place[0] < 0 || place[1] < place[0] || place[1] > column->bytes.count) {
        PyErr_Format(PyExc_IndexError, "row %zd does not lie in the bytes", row);
        return NULL;
    }
    const char *bytes = (const char *)column->bytes.view.buf + place[0];
    Py_ssize_t size = place[1] - place[0];
    return column->kind == TEXTS ? PyUnicode_DecodeUTF8(bytes, size, NULL) : PyBytes_FromStringAndSize(bytes, size);
}

static PyObject *properties_at(const Map *map, Py_ssize_t row, PyObject *added)
{
    const int32_t *entry = (const int32_t *)map->entries.view.buf + row;
    if (entry[0] < 0 || entry[1] > map->names.numbers.count) {
        PyErr_Format(PyExc_IndexError, "the properties of row %zd do not lie in the entries", row);
        return NULL;
    }
    PyObject *properties = PyDict_New();
    for (Py_ssize_t at = entry[0]; properties != NULL && at < entry[1]; at++) {
        PyObject *name = value_at(&map->names, at), *value = name == NULL ? NULL : value_at(&map->values, at);
        if (value == NULL || PyDict_SetItem(properties, name, value) < 0)
            Py_CLEAR(properties);
        Py_XDECREF(name);
        Py_XDECREF(value);
    }
    if (properties != NULL && PyDict_Update(properties, added) < 0)
        Py_CLEAR(properties);
    return properties;
}

/* Set a field to the value, which is taken over; null: there is an error already. */
static int set_field(PyObject *message, const Column *column, PyObject *value)
{
    int is_set = value != NULL && column->set(column->descriptor, message, value) == 0;
    Py_XDECREF(value);
    return is_set;
}

static PyObject *message_at(PyTypeObject *class, const Column *columns, Py_ssize_t column_count, const Map *map,
                            Py_ssize_t row, PyObject *added)
{
    PyObject *message = PyType_GenericAlloc(class, 0);
    for (Py_ssize_t at = 0; message != NULL && at < column_count; at++)
        if (!set_field(message, &columns[at], value_at(&columns[at], row)))
            Py_CLEAR(message);
    if (message != NULL && !set_field(message, &columns[column_count], properties_at(map, row, added)))
        Py_CLEAR(message);
    return message;
}

static int take_fields(Column *columns, PyObject *fields, PyObject *given)
{
    Py_ssize_t count = PyTuple_Size(given);
    if (count + 1 > FIELDS_MAX || PyTuple_Size(fields) != count + 1) {
        PyErr_SetString(PyExc_ValueError, "not a field for each column and one for the properties");
        return 0;
    }
    for (Py_ssize_t at = 0; at <= count; at++) {
        columns[at].descriptor = PyTuple_GetItem(fields, at);
        /* These look at the type of what they are to change. */
        if (Py_TYPE(columns[at].descriptor) != &PyMemberDescr_Type) {
            PyErr_SetString(PyExc_TypeError, "fields: expected slots of a class");
            return 0;
        }
        columns[at].set = (descrsetfunc)PyType_GetSlot(&PyMemberDescr_Type, Py_tp_descr_set);
    }
    return 1;
}

static PyObject *make_messages(PyObject *module, PyObject *arguments)
{
    PyObject *class, *fields, *given, *entries, *names, *values, *added, *made = NULL;
    Py_ssize_t count, first, behind, column_count = 0;
    Column columns[FIELDS_MAX] = {0};
    Map map = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!O!O!(OOO)nnnO!:make_messages", &PyType_Type, &class, &PyTuple_Type, &fields,
                          &PyTuple_Type, &given, &entries, &names, &values, &count, &first, &behind, &PyDict_Type, &added))
        return NULL;
    if (first < 0 || behind < first || behind > count) {
        PyErr_SetString(PyExc_IndexError, "no such rows");
        return NULL;
    }
    /* Memory of zeros is an object only of a class that has nothing but slots. */
    if (PyType_GetSlot((PyTypeObject *)class, Py_tp_new) != PyType_GetSlot(&PyBaseObject_Type, Py_tp_new)) {
        PyErr_SetString(PyExc_TypeError, "expected a class that is made as an object is");
        return NULL;
    }
    if (!take_fields(columns, fields, given) || !take_n_items(&map.entries, entries, 4, READ_ITEMS, "entries", count + 1))
        goto done;
    for (; column_count < PyTuple_Size(given); column_count++)
        if (!take_column(&columns[column_count], PyTuple_GetItem(given, column_count), count))
            goto done;
    /* As many entries as the last row's end says; each of them is there, so the bounds above are enough. */
    Py_ssize_t entry_count = ((const int32_t *)map.entries.view.buf)[count];
    if (!take_column(&map.names, names, entry_count) || !take_column(&map.values, values, entry_count))
        goto done;
    made = PyList_New(behind - first);
    for (Py_ssize_t row = first; made != NULL && row < behind; row++) {
        PyObject *message = message_at((PyTypeObject *)class, columns, column_count, &map, row, added);
        if (message == NULL || PyList_SetItem(made, row - first, message) < 0)
            Py_CLEAR(made);
    }
done:
    for (Py_ssize_t at = 0; at < FIELDS_MAX; at++) {
        release_items(&columns[at].numbers);
        release_items(&columns[at].bytes);
    }
    release_items(&map.entries);
    Column *parts[] = {&map.names, &map.values};
    for (int at = 0; at < 2; at++) {
        release_items(&parts[at]->numbers);
        release_items(&parts[at]->bytes);
    }
    return made;
}

PyMethodDef message_object_methods[] = {
    {"make_messages", make_messages, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
