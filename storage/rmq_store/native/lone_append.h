/* Single messages appended without waiting, for the parts that have such messages. Conditions and data flow:
   docs/adr/0036. */

#ifndef RMQ_LONE_APPEND_H
#define RMQ_LONE_APPEND_H

#include "index.h"
#include "native.h"

/* What a step did: it appended; or nothing, and Python does, because this moment is unusual, or because what the
   places say is true no more. FAILED: an error is set. */
typedef enum { APPENDED, UNUSUAL, OUTDATED, FAILED } Outcome;

/* One message. `frame` is complete but for its place and its store time. `key` and `file` of its queue are held. */
typedef struct {
    PyObject *key, *file;
    Items queue_numbers;
    const int64_t *queue;
    uint8_t *frame;
    size_t size;
    int64_t tags_code;
    int key_count;
    int32_t key_hashes[KEYS_MAX];
    int64_t start, queue_offset; /* where it was appended */
} LoneMessage;

/* A store whose append lock is free or not. */
typedef struct {
    Items page, numbers, index, own_end;
    PyObject *own_next, *log, *append_lock, *append_claim, *flush_claim, *store_lock, *segment, *watch;
    const int64_t *place;
    int64_t *words;
    const char *log_name;
    int64_t now_ms;
    int lock_fd;
    LoneMessage *message; /* the one that is being appended */
    NewKeys keys;
    NewEntries entries;
} Lone;

/* Take `_Place` of log/append/lone_append.py; APPENDED: it is there. Release it in any case. */
Outcome take_place(Lone *lone, PyObject *place, int64_t now_ms, PyObject *watch);
void release_place(Lone *lone);

/* Whether frames have a CRC property. */
int has_crc_property(const Lone *lone);

/* Take `_Queue`; APPENDED: it is there. Release it in any case. */
Outcome take_queue(LoneMessage *message, PyObject *queue);
void release_queue(LoneMessage *message);

/* Append messages, one behind the other, under one lock, which is free behind it; as many as are usual. `done`: how
   many. Nothing is made meanwhile that could begin a garbage collection: no other code runs. */
Outcome append_messages(Lone *lone, LoneMessage *messages, int count, int *done);

#endif
