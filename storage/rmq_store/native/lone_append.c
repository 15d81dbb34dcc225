/* One message appended by one call, if nothing is unusual: steps A1 to A8 of docs/design.md section 6. The twin is
   `append_one` of log/append/append.py under its `append_lock`. Data flow and conditions: docs/adr/0036.

   The call keeps the GIL. So no other thread of this process takes the append lock in between, and no signal handler
   runs. It waits for nobody. If anything is unusual, it has changed nothing, and Python appends the message. If a write
   fails, it lets go of the lock as a killed process does: the intent stays, and the next append undoes it. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* F_OFD_SETLK */
#endif

#include "native.h"

#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "big_endian.h"
#include "lone_append.h"
#include "one_message.h"

/* The words of the state page, in their order: files/locks/state_page.py says what they mean. */
#define STATE_WORDS(WORD)                                                                                              \
    WORD(magic) WORD(boot_high) WORD(boot_low) WORD(device) WORD(inode) WORD(appended_end) WORD(flushed_end)           \
    WORD(flushing) WORD(poison) WORD(intent_start) WORD(intent_end) WORD(index_file) WORD(index_header_0)              \
    WORD(index_header_1) WORD(index_header_2) WORD(index_header_3) WORD(index_header_4) WORD(last_record)              \
    WORD(store_timestamp) WORD(append_waiting) WORD(append_holder) WORD(flush_waiting) WORD(flush_holder)              \
    WORD(append_looked) WORD(flush_looked) WORD(open_waiting) WORD(open_holder) WORD(open_looked)
#define AS_NUMBER(name) word_##name,
#define AS_TEXT(name) #name " "
enum { STATE_WORDS(AS_NUMBER) STATE_WORD_COUNT };

/* What `Place` of log/append/lone_append.py has as numbers, and what it has for a queue. */
enum { DEVICE, INODE, SEGMENT_FD, SEGMENT_BASE, SEGMENT_BYTES, INDEX_FD, INDEX_FILE, SLOT_COUNT, ENTRY_MAX, HAS_CRC,
       PLACE_NUMBERS };
enum { QUEUE_FD, QUEUE_BASE, QUEUE_BYTES, QUEUE_NUMBERS };

#define QUEUE_ENTRY_BYTES 20
#define BLANK_BYTES 8 /* must fit behind the last record of a segment */
#define FUTEX_WAKE_SHARED 1
#define NO_NAME_TABLE 0x1000 /* AT_EMPTY_PATH: the descriptor itself */
#define STATX_NLINK_ONLY 4u
#define STATX_BYTES 256
#define STATX_NLINK_AT 16

static int64_t load(const Lone *lone, int word)
{
    return __atomic_load_n(&lone->words[word], __ATOMIC_ACQUIRE);
}

/* Whatever was stored or written before is there for whoever loads this. */
static void store(Lone *lone, int word, int64_t value)
{
    __atomic_store_n(&lone->words[word], value, __ATOMIC_RELEASE);
}

/* -- for tests: what is about to happen to a file or a word -------------------------------------------------------- */

static int tell(const Lone *lone, const char *operation, const char *target, int fd, int64_t position, const void *data,
                size_t size)
{
    PyObject *answer = PyObject_CallFunction(lone->watch, "ssiLy#", operation, target, fd, (long long)position,
                                             (const char *)data, (Py_ssize_t)size);
    Py_XDECREF(answer);
    return answer != NULL;
}

/* Before a store into a map. */
static int before(const Lone *lone, const char *target, int64_t position, const void *data, size_t size)
{
    return lone->watch == Py_None || tell(lone, "store", target, -1, position, data, size);
}

static int store_word(Lone *lone, int word, const char *name, int64_t value)
{
    if (!before(lone, name, 8 * word, &value, sizeof value))
        return 0;
    store(lone, word, value);
    return 1;
}

#define STORE(lone, name, value) store_word(lone, word_##name, #name, value)

static Outcome put(const Lone *lone, const char *target, int fd, const uint8_t *data, size_t size, int64_t position)
{
    size_t done = 0;
    if (lone->watch != Py_None) { /* a process may be killed in the middle of a write */
        if (!tell(lone, "write", target, fd, position, data, size))
            return FAILED;
        if (pwrite(fd, data, size / 2, position) != (ssize_t)(size / 2))
            return UNUSUAL;
        done = size / 2;
        if (!tell(lone, "half", target, fd, position, data, done))
            return FAILED;
    }
    return pwrite(fd, data + done, size - done, position + (int64_t)done) == (ssize_t)(size - done) ? APPENDED : UNUSUAL;
}

/* -- lock ---------------------------------------------------------------------------------------------------------- */

#if defined(F_OFD_SETLK) && defined(SYS_statx) && defined(SYS_futex)

/* Names of the file; 0 also if the kernel does not say. As files/segments/link_count.py, which says why. */
static uint32_t names_of(int fd)
{
    uint32_t answer[STATX_BYTES / 4];
    if (syscall(SYS_statx, fd, "", NO_NAME_TABLE, STATX_NLINK_ONLY, answer) != 0)
        return 0;
    return answer[STATX_NLINK_AT / 4];
}

static int set_lock(int fd, short kind)
{
    struct flock request = {.l_type = kind, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    return fcntl(fd, F_OFD_SETLK, &request) == 0;
}

static void wake_one(Lone *lone)
{
    if (load(lone, word_append_waiting)) {
        store(lone, word_append_waiting, 0);
        syscall(SYS_futex, &lone->words[word_append_waiting], FUTEX_WAKE_SHARED, 1, NULL, NULL, 0);
    }
}

#else

static uint32_t names_of(int fd)
{
    (void)fd;
    return 0;
}

static int set_lock(int fd, short kind)
{
    (void)fd, (void)kind;
    return 0;
}

static void wake_one(Lone *lone)
{
    (void)lone;
}

#endif

/* True: nobody of this process has the lock or flushes, and the store is open. */
static int is_open(Lone *lone)
{
    int open = 0;
    PyObject *closing = PyObject_GetAttrString(lone->log, "is_closing");
    PyObject *held = PyObject_GetAttrString(lone->store_lock, "_kind");
    PyObject *fd = PyObject_GetAttrString(lone->append_lock, "_fd");
    if (closing != NULL && held != NULL && fd != NULL) {
        lone->lock_fd = (int)PyLong_AsLong(fd);
        open = closing == Py_False && PyUnicode_CompareWithASCIIString(held, "shared") == 0 && lone->lock_fd >= 0
            && PyDict_Size(lone->append_claim) == 0 && PyDict_Size(lone->flush_claim) == 0;
    }
    Py_XDECREF(closing);
    Py_XDECREF(held);
    Py_XDECREF(fd);
    return open;
}

/* A function of a test may let other threads run: they must see that this process has the lock. */
static int claim(const Lone *lone)
{
    if (lone->watch == Py_None)
        return 1;
    PyObject *key = PyLong_FromLong(0), *nobody = Py_BuildValue("(iO)", 0, Py_None);
    int is_claimed = key != NULL && nobody != NULL && PyDict_SetItem(lone->append_claim, key, nobody) == 0;
    Py_XDECREF(key);
    Py_XDECREF(nobody);
    return is_claimed;
}

/* -- what must be true under the lock ------------------------------------------------------------------------------ */

/* True: no flush runs or has failed, no append was left unfinished, and nobody has appended since this process did. */
static int is_usual(const Lone *lone)
{
    int64_t end = load(lone, word_appended_end);
    return load(lone, word_poison) == 0 && load(lone, word_flushing) == 0 && load(lone, word_intent_end) <= end
        && *(const int64_t *)lone->own_end.view.buf == end && lone->now_ms >= load(lone, word_store_timestamp);
}

/* As `Root.is_in_place`: another directory may have the store's name. */
static int is_in_place(const Lone *lone)
{
    struct stat status;
    return stat(lone->log_name, &status) == 0 && (int64_t)status.st_ino == lone->place[INODE]
        && (int64_t)status.st_dev == lone->place[DEVICE];
}

/* True: the frame lies in the segment, and more fits behind it. */
static int fits_segment(Lone *lone)
{
    int64_t start = load(lone, word_appended_end), position = start - lone->place[SEGMENT_BASE];
    lone->message->start = start;
    return position > 0 && position + (int64_t)lone->message->size + BLANK_BYTES <= lone->place[SEGMENT_BYTES]
        && names_of((int)lone->place[SEGMENT_FD]);
}

/* True: the queue's file has the entry before, and room for one more. */
static int fits_queue(Lone *lone)
{
    LoneMessage *message = lone->message;
    PyObject *known = PyDict_GetItemWithError(lone->own_next, message->key);
    int fd = (int)message->queue[QUEUE_FD];
    uint8_t last[QUEUE_ENTRY_BYTES];
    message->queue_offset = known == NULL ? 0 : PyLong_AsLongLong(known);
    if (message->queue_offset < 1 || message->queue_offset > INT64_MAX / QUEUE_ENTRY_BYTES)
        return 0;
    int64_t position = message->queue_offset * QUEUE_ENTRY_BYTES - message->queue[QUEUE_BASE];
    return position >= QUEUE_ENTRY_BYTES && position + QUEUE_ENTRY_BYTES <= message->queue[QUEUE_BYTES]
        && names_of(fd) && pread(fd, last, sizeof last, position - QUEUE_ENTRY_BYTES) == sizeof last
        && (int32_t)word_at(last + 8) > 0;
}

/* True: the index has room for all keys, or there is none. */
static int fits_index(Lone *lone)
{
    const uint8_t *header = lone->index.view.buf;
    if (lone->index.view.obj == NULL)
        return 1;
    set_hashes(&lone->keys, lone->message->key_hashes, lone->message->key_count);
    return names_of((int)lone->place[INDEX_FD])
        && (int64_t)next_entry(header) + lone->keys.count <= lone->place[ENTRY_MAX];
}

/* -- the steps ------------------------------------------------------------------------------------------------------ */

/* A3. `intent_end` makes it count, so it is stored last. */
static int declare(Lone *lone, int64_t end)
{
    int64_t header[INDEX_HEADER_BYTES / 8] = {0};
    if (lone->index.view.obj != NULL)
        memcpy(header, lone->index.view.buf, sizeof header);
    if (!STORE(lone, index_file, lone->place[INDEX_FILE])
        || !before(lone, "index_header_0", 8 * word_index_header_0, header, sizeof header))
        return 0;
    for (int word = 0; word < INDEX_HEADER_BYTES / 8; word++)
        store(lone, word_index_header_0 + word, header[word]);
    return STORE(lone, intent_start, lone->message->start) && STORE(lone, intent_end, end);
}

/* A6: entries, then slots, then the header. */
static Outcome put_keys(Lone *lone)
{
    uint8_t *map = lone->index.view.buf;
    NewEntries *made = &lone->entries;
    if (lone->index.view.obj == NULL || lone->keys.count == 0)
        return APPENDED;
    chain_keys(made, &lone->keys, map, lone->message->start, lone->now_ms);
    Outcome outcome = put(lone, "index file", (int)lone->place[INDEX_FD], made->entries,
                          (size_t)lone->keys.count * INDEX_ENTRY_BYTES,
                          INDEX_HEADER_BYTES + 4 * lone->place[SLOT_COUNT] + (int64_t)made->first * INDEX_ENTRY_BYTES);
    for (int key = 0; outcome == APPENDED && key < lone->keys.count; key++) {
        int64_t at = INDEX_HEADER_BYTES + 4 * (int64_t)lone->keys.slot_of[key];
        uint8_t number[4];
        uint32_t as_stored;
        put_word(number, (uint32_t)(made->first + key));
        memcpy(&as_stored, number, sizeof as_stored);
        if (!before(lone, "index slot", at, number, sizeof number))
            return FAILED;
        __atomic_store_n((uint32_t *)(void *)(map + at), as_stored, __ATOMIC_RELEASE);
    }
    if (outcome != APPENDED)
        return outcome;
    if (!before(lone, "index header", 0, made->header, INDEX_HEADER_BYTES))
        return FAILED;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    memcpy(map, made->header, INDEX_HEADER_BYTES);
    return APPENDED;
}

/* A3 to A8. `next_end`: where the queue goes on behind the message. */
static Outcome append(Lone *lone, PyObject *next_end)
{
    LoneMessage *message = lone->message;
    int64_t end = message->start + (int64_t)message->size;
    int64_t queue_position = message->queue_offset * QUEUE_ENTRY_BYTES;
    uint8_t entry[QUEUE_ENTRY_BYTES];
    Outcome outcome;
    put_long(entry, (uint64_t)message->start);
    put_word(entry + 8, (uint32_t)message->size);
    put_long(entry + 12, (uint64_t)message->tags_code);
    if (!declare(lone, end))
        return FAILED;
    outcome = put(lone, "segment", (int)lone->place[SEGMENT_FD], message->frame, message->size,
                  message->start - lone->place[SEGMENT_BASE]);
    if (outcome == APPENDED)
        outcome = put(lone, "queue file", (int)message->queue[QUEUE_FD], entry, sizeof entry,
                      queue_position - message->queue[QUEUE_BASE]);
    if (outcome == APPENDED)
        outcome = put_keys(lone);
    if (outcome != APPENDED)
        return outcome;
    if (!STORE(lone, appended_end, end) || !STORE(lone, last_record, message->start)
        || !STORE(lone, store_timestamp, lone->now_ms))
        return FAILED;
    *(int64_t *)lone->own_end.view.buf = end;
    if (PyDict_SetItem(lone->own_next, message->key, next_end) < 0) {
        PyErr_Clear();
        *(int64_t *)lone->own_end.view.buf = -1; /* the files tell where the queue goes on */
    }
    return APPENDED;
}

/* Under the lock, where all is usual: look, then append. */
static Outcome append_next(Lone *lone, LoneMessage *message)
{
    lone->message = message;
    if (!fits_segment(lone) || !fits_queue(lone) || !fits_index(lone))
        return PyErr_Occurred() ? FAILED : OUTDATED;
    PyObject *next_end = PyLong_FromLongLong(message->queue_offset + 1);
    if (next_end == NULL)
        return FAILED;
    Outcome outcome = UNUSUAL;
    if (place_frame(message->frame, message->size, message->queue_offset, message->start, lone->now_ms,
                    has_crc_property(lone)))
        outcome = append(lone, next_end);
    Py_DECREF(next_end);
    return outcome;
}

/* Under the lock. */
static Outcome append_held(Lone *lone, LoneMessage *messages, int count, int *done)
{
    Outcome outcome = APPENDED;
    if (!claim(lone))
        return FAILED;
    if (!names_of(lone->lock_fd) || !is_usual(lone) || !is_in_place(lone))
        return UNUSUAL;
    while (*done < count && (outcome = append_next(lone, &messages[*done])) == APPENDED)
        ++*done;
    return outcome;
}

Outcome append_messages(Lone *lone, LoneMessage *messages, int count, int *done)
{
    *done = 0;
    if (!is_open(lone) || !set_lock(lone->lock_fd, F_WRLCK))
        return PyErr_Occurred() ? FAILED : UNUSUAL;
    store(lone, word_append_holder, getpid());
    Outcome outcome = append_held(lone, messages, count, done);
    store(lone, word_append_holder, 0);
    set_lock(lone->lock_fd, F_UNLCK);
    if (lone->watch != Py_None)
        PyDict_Clear(lone->append_claim);
    wake_one(lone);
    return outcome;
}

/* -- what is given -------------------------------------------------------------------------------------------------- */

/* The open file that a weak reference names, held: its descriptor stays open. Null if nobody else has it any more. */
static PyObject *held_file(PyObject *reference)
{
    PyObject *file = PyObject_CallNoArgs(reference);
    if (file == Py_None)
        Py_CLEAR(file);
    return file;
}

static int take_index(Lone *lone, PyObject *index)
{
    int64_t slot_count = lone->place[SLOT_COUNT];
    if (index == Py_None)
        return 1;
    if (!take_items(&lone->index, index, 1, WRITE_ITEMS, "index"))
        return 0;
    if (slot_count < 1 || slot_count > INT32_MAX || lone->place[ENTRY_MAX] > INT32_MAX
        || lone->index.count < INDEX_HEADER_BYTES + 4 * slot_count || (uintptr_t)lone->index.view.buf % 8) {
        PyErr_SetString(PyExc_ValueError, "index: too short for its slots, or not aligned");
        return 0;
    }
    lone->keys.slots = (const uint8_t *)lone->index.view.buf + INDEX_HEADER_BYTES;
    lone->keys.slot_count = slot_count;
    return 1;
}

Outcome take_place(Lone *lone, PyObject *place, int64_t now_ms, PyObject *watch)
{
    PyObject *page, *own_end, *numbers, *index, *log_name, *segment;
    memset(lone, 0, offsetof(Lone, entries));
    lone->now_ms = now_ms;
    lone->watch = watch;
    if (!PyArg_ParseTuple(place, "OO!OOOOOO!O!OSO", &page, &PyDict_Type, &lone->own_next, &own_end, &numbers, &index,
                          &lone->log, &lone->append_lock, &PyDict_Type, &lone->append_claim, &PyDict_Type,
                          &lone->flush_claim, &lone->store_lock, &log_name, &segment))
        return FAILED;
    lone->segment = held_file(segment);
    if (lone->segment == NULL)
        return PyErr_Occurred() ? FAILED : OUTDATED;
    lone->log_name = PyBytes_AsString(log_name);
    if (!take_items(&lone->page, page, 1, WRITE_ITEMS, "page")
        || !take_n_items(&lone->own_end, own_end, 8, WRITE_ITEMS, "own_end", 1)
        || !take_n_items(&lone->numbers, numbers, 8, READ_ITEMS, "numbers", PLACE_NUMBERS))
        return FAILED;
    lone->words = lone->page.view.buf;
    lone->place = lone->numbers.view.buf;
    if (lone->page.count < 8 * STATE_WORD_COUNT || (uintptr_t)lone->words % 8) {
        PyErr_SetString(PyExc_ValueError, "page: too short for a state page, or not aligned");
        return FAILED;
    }
    return take_index(lone, index) ? APPENDED : FAILED;
}

int has_crc_property(const Lone *lone)
{
    return lone->place[HAS_CRC] != 0;
}

void release_place(Lone *lone)
{
    Py_XDECREF(lone->segment);
    release_items(&lone->page);
    release_items(&lone->numbers);
    release_items(&lone->index);
    release_items(&lone->own_end);
}

Outcome take_queue(LoneMessage *message, PyObject *queue)
{
    PyObject *key, *file, *numbers;
    *message = (LoneMessage){0};
    if (!PyArg_ParseTuple(queue, "OOO", &key, &file, &numbers))
        return FAILED;
    message->file = held_file(file);
    if (message->file == NULL)
        return PyErr_Occurred() ? FAILED : OUTDATED;
    if (!take_n_items(&message->queue_numbers, numbers, 8, READ_ITEMS, "queue_numbers", QUEUE_NUMBERS))
        return FAILED;
    message->key = Py_NewRef(key);
    message->queue = message->queue_numbers.view.buf;
    return APPENDED;
}

void release_queue(LoneMessage *message)
{
    Py_XDECREF(message->key);
    Py_XDECREF(message->file);
    release_items(&message->queue_numbers);
}

/* append_lone(place, queue, frame, key_hashes, tags_code, now_ms, watch): (commit-log offset, queue offset); or what is
   wrong as a number, and nothing was appended: UNUSUAL or OUTDATED. `frame` may have got a place nevertheless. */
static PyObject *append_lone(PyObject *module, PyObject *arguments)
{
    PyObject *place, *queue, *frame, *hashes, *watch;
    long long tags_code, now_ms;
    int done = 0;
    Lone lone;
    LoneMessage message = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O!O!O!O!LLO:append_lone", &PyTuple_Type, &place, &PyTuple_Type, &queue,
                          &PyByteArray_Type, &frame, &PyList_Type, &hashes, &tags_code, &now_ms, &watch))
        return NULL;
    if (PyList_Size(hashes) > KEYS_MAX)
        return PyLong_FromLong(UNUSUAL);
    Outcome outcome = take_place(&lone, place, now_ms, watch);
    if (outcome == APPENDED)
        outcome = take_queue(&message, queue);
    if (outcome == APPENDED) {
        message.tags_code = tags_code;
        message.frame = (uint8_t *)PyByteArray_AsString(frame);
        message.size = (size_t)PyByteArray_Size(frame);
        message.key_count = take_hashes(message.key_hashes, hashes);
        outcome = message.key_count < 0 ? FAILED : append_messages(&lone, &message, 1, &done);
    }
    release_queue(&message);
    release_place(&lone);
    if (outcome == FAILED)
        return NULL;
    return outcome == APPENDED ? Py_BuildValue("LL", (long long)message.start, (long long)message.queue_offset)
                               : PyLong_FromLong(outcome);
}

static PyObject *state_words(PyObject *module, PyObject *arguments)
{
    (void)module, (void)arguments;
    return PyUnicode_FromString(STATE_WORDS(AS_TEXT));
}

PyMethodDef lone_append_methods[] = {
    {"append_lone", append_lone, METH_VARARGS, NULL},
    {"state_words", state_words, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
