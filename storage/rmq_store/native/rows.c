/* The columns of a batch, and the property strings made of them. The twin is format/properties/property_encoder.py. */

#include "rows.h"

#include "text.h"

static const char *const SEEN_NAMES[SEEN] = {"UNIQ_KEY", "KEYS", "TAGS"};

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

int put_properties(Rows *rows, Py_ssize_t row, Out *out, Slice *seen, int is_checked)
{
    unsigned has_value = 0;
    for (int column = 0; column < rows->named_count; column++) {
        const Named *named = &rows->named[column];
        Slice value;
        if (!text_is_there(&named->values, row))
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
        if (!put_property(out, (Slice){named->name.view.buf, (size_t)named->name.count}, value))
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
        if (entry->is_left_out || !text_is_there(&rows->values, at))
            continue;
        if (value.size == 0 || (!is_checked && !text_is_storable(value.text, value.size)))
            return 0;
        if (entry->named >= 0 && has_value >> entry->named & 1)
            continue;
        if (entry->seen != UNSEEN)
            seen[entry->seen] = value;
        if (!put_property(out, name, value))
            return 0;
    }
    return 1;
}

int topic_and_body(const Rows *rows, Py_ssize_t row, int32_t *code, Slice *topic, Slice *body)
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

int take_texts(Texts *texts, PyObject *object, const char *name, Py_ssize_t count)
{
    PyObject *offsets, *data, *validity;
    if (!PyArg_ParseTuple(object, "OOOn", &offsets, &data, &validity, &texts->first_bit)
        || !take_items(&texts->offsets, offsets, 4, READ_ITEMS, name) || !take_items(&texts->data, data, 1, READ_ITEMS, name)
        || (validity != Py_None && !take_items(&texts->validity, validity, 1, READ_ITEMS, name)))
        return 0;
    Py_ssize_t rows = texts->offsets.count - 1;
    if (rows < 0 || (count >= 0 && rows != count) || texts->first_bit < 0
        || (validity != Py_None && rows > 8 * texts->validity.count - texts->first_bit)) {
        PyErr_Format(PyExc_ValueError, "%s: not the offsets or the bitmap of as many rows", name);
        return 0;
    }
    return 1;
}

void release_texts(Texts *texts)
{
    release_items(&texts->offsets);
    release_items(&texts->data);
    release_items(&texts->validity);
}

void release_rows(Rows *rows)
{
    Items *all[] = {&rows->body_offsets, &rows->bodies,    &rows->topic_codes,   &rows->topic_offsets, &rows->topics,
                    &rows->topic_hashes, &rows->sys_flags, &rows->entry_offsets, &rows->header};
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

int take_rows(Rows *rows, PyObject *object)
{
    PyObject *body_offsets, *bodies, *codes, *topic_offsets, *topics, *hashes, *sys_flags, *named, *entries, *left_out;
    PyObject *header;
    if (!PyArg_ParseTuple(object, "OOOOOOOO!OOOnnpp", &body_offsets, &bodies, &codes, &topic_offsets, &topics, &hashes,
                          &sys_flags, &PyTuple_Type, &named, &entries, &left_out, &header, &rows->body_bytes_max,
                          &rows->unique_key_bytes, &rows->has_crc, &rows->indexes_tags))
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
        || !take_texts(&rows->left_out, left_out, "names left out", -1)
        || !take_items(&rows->header, header, 1, READ_ITEMS, "header"))
        return 0;
    if (PyTuple_Size(named) > NAMED_MAX || rows->header.count < HEADER_BYTES_MIN || rows->unique_key_bytes < 0
        || rows->unique_key_bytes > PROPERTIES_BYTES_MAX) {
        PyErr_SetString(PyExc_ValueError, "too many columns, no header, or no length of a unique key");
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
