/* The messages of the senders that wait for one leader, appended by one call under one lock (log/append/group_append.py). It
   takes their claims as the leader in Python does. What this leaves, because something is unusual, keeps its claim.

   The GIL is kept, so no signal handler comes between the claim of a sender and the result that it finds. */

#include "native.h"

#include "lone_append.h"

/* So many senders have messages in one group; the others are in the next one. */
#define GROUP_MAX 64
#define FRAME_BYTES_MAX (64 << 10) /* of lone_append.py */

/* The fields of OneRecord. */
enum { TOPIC_FIELD, QUEUE_ID_FIELD, FRAME_FIELD, TAGS_CODE_FIELD, KEY_HASHES_FIELD, DELAY_MS_FIELD, RECORD_FIELDS };

/* One sender of the group; all objects are held. */
typedef struct {
    PyObject *waiting, *claim, *record;
} Sender;

typedef struct {
    Lone lone;
    LoneMessage messages[GROUP_MAX];
    Sender senders[GROUP_MAX];
    int count, done; /* senders, and of these the ones whose message was appended */
} Group;

/* The message of a record. `queues`: `LoneAppend._queues`. */
static Outcome take_record(LoneMessage *message, PyObject *record, PyObject *queues)
{
    if (!PyTuple_Check(record) || PyTuple_Size(record) != RECORD_FIELDS)
        return UNUSUAL;
    PyObject *frame = PyTuple_GetItem(record, FRAME_FIELD), *hashes = PyTuple_GetItem(record, KEY_HASHES_FIELD);
    long long delay_ms = PyLong_AsLongLong(PyTuple_GetItem(record, DELAY_MS_FIELD));
    long long tags_code = PyLong_AsLongLong(PyTuple_GetItem(record, TAGS_CODE_FIELD));
    if (PyErr_Occurred())
        return FAILED;
    if (delay_ms > 0 || !PyByteArray_Check(frame) || PyByteArray_Size(frame) > FRAME_BYTES_MAX || !PyList_Check(hashes)
        || PyList_Size(hashes) > KEYS_MAX)
        return UNUSUAL;
    PyObject *key = PyTuple_GetSlice(record, TOPIC_FIELD, FRAME_FIELD);
    PyObject *known = key == NULL ? NULL : PyDict_GetItemWithError(queues, key);
    Outcome outcome = PyErr_Occurred() ? FAILED : UNUSUAL;
    if (known != NULL) {
        Py_INCREF(known);
        outcome = take_queue(message, PyTuple_GetItem(known, 0));
        Py_DECREF(known);
    }
    Py_XDECREF(key);
    message->frame = (uint8_t *)PyByteArray_AsString(frame);
    message->size = (size_t)PyByteArray_Size(frame);
    message->tags_code = tags_code;
    if (outcome == APPENDED && (message->key_count = take_hashes(message->key_hashes, hashes)) < 0)
        outcome = FAILED;
    return outcome;
}

static void release_sender(Sender *sender, LoneMessage *message)
{
    Py_XDECREF(sender->waiting);
    Py_XDECREF(sender->claim);
    Py_XDECREF(sender->record);
    release_queue(message);
}

/* Make a sender the next one of the group, if nobody has its claim. */
static Outcome take_sender(Group *group, PyObject *waiting, PyObject *queues)
{
    LoneMessage *message = &group->messages[group->count];
    Sender *sender = &group->senders[group->count];
    Outcome outcome = FAILED;
    *message = (LoneMessage){0};
    *sender = (Sender){Py_NewRef(waiting), PyObject_GetAttrString(waiting, "claim"), PyObject_GetAttrString(waiting, "record")};
    if (sender->claim != NULL && sender->record != NULL && PyList_Check(sender->claim)) {
        if (PyList_Size(sender->claim) == 0) {
            release_sender(sender, message);
            return APPENDED;
        }
        outcome = take_record(message, sender->record, queues);
    } else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_TypeError, "a sender that waits has a list as claim");
    }
    if (outcome == APPENDED)
        group->count++;
    else
        release_sender(sender, message);
    return outcome;
}

/* Take the claims of all. Nothing is made here, so no other code runs before the messages are appended. 0: one of them was
   taken since. */
static int take_claims(Group *group)
{
    for (int at = 0; at < group->count; at++)
        if (PyList_Size(group->senders[at].claim) != 1) {
            group->count = at; /* the rest is for the next group */
            break;
        }
    for (int at = 0; at < group->count; at++)
        if (PyList_SetSlice(group->senders[at].claim, 0, 1, NULL) < 0)
            return 0;
    return 1;
}

/* Give back the claims of those that were not appended, and tell the others. */
static int tell(Group *group)
{
    PyObject *type = NULL, *error = NULL, *trace = NULL;
    int told = 1;
    PyErr_Fetch(&type, &error, &trace);
    for (int at = group->done; at < group->count; at++)
        told &= PyList_Append(group->senders[at].claim, Py_True) == 0;
    for (int at = 0; at < group->done; at++) {
        const LoneMessage *message = &group->messages[at];
        PyObject *offsets = Py_BuildValue("LL", (long long)message->start, (long long)message->queue_offset);
        told &= offsets != NULL && PyObject_SetAttrString(group->senders[at].waiting, "offsets", offsets) == 0;
        Py_XDECREF(offsets);
    }
    if (type != NULL)
        PyErr_Restore(type, error, trace);
    return told;
}

static Outcome append_senders(Group *group, PyObject *line, PyObject *queues)
{
    Outcome outcome = APPENDED;
    for (Py_ssize_t at = 0; at < PyList_Size(line) && group->count < GROUP_MAX && outcome == APPENDED; at++)
        outcome = take_sender(group, PyList_GetItem(line, at), queues);
    int taken = group->count;
    if (outcome == FAILED || taken == 0)
        return outcome;
    if (take_claims(group) && group->count > 0)
        outcome = append_messages(&group->lone, group->messages, group->count, &group->done);
    if (!tell(group))
        outcome = FAILED;
    for (int at = group->count; at < taken; at++)
        release_sender(&group->senders[at], &group->messages[at]);
    return outcome;
}

/* append_group(place, queues, line, now_ms, watch): whether what `place` or `queues` say of the files is out of date. `line`:
   senders that wait, in their order; those that were appended have their `offsets` then. */
static PyObject *append_group(PyObject *module, PyObject *arguments)
{
    PyObject *place, *queues, *line, *watch;
    long long now_ms;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!O!O!LO:append_group", &PyTuple_Type, &place, &PyDict_Type, &queues, &PyList_Type, &line,
                          &now_ms, &watch))
        return NULL;
    Group *group = PyMem_Malloc(sizeof *group);
    if (group == NULL)
        return PyErr_NoMemory();
    group->count = group->done = 0;
    Outcome outcome = take_place(&group->lone, place, now_ms, watch);
    if (outcome == APPENDED)
        outcome = append_senders(group, line, queues);
    for (int at = 0; at < group->count; at++)
        release_sender(&group->senders[at], &group->messages[at]);
    release_place(&group->lone);
    PyMem_Free(group);
    return outcome == FAILED ? NULL : PyBool_FromLong(outcome == OUTDATED);
}

PyMethodDef group_append_methods[] = {
    {"append_group", append_group, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
