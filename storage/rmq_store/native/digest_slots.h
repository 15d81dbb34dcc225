/* A table of digests of 16 bytes and a number for each. It has a power of two of slots, and always an empty one. */

#ifndef RMQ_DIGEST_SLOTS_H
#define RMQ_DIGEST_SLOTS_H

#include "native.h"

typedef struct {
    uint64_t digest[2], number; /* 0: nobody is here */
} Slot;

static inline Py_ssize_t first_place(Py_ssize_t count, const uint64_t *digest)
{
    return (Py_ssize_t)(digest[0] & (uint64_t)(count - 1));
}

/* The slot of a digest, or the empty one where it would be. There is an empty one. */
static inline Slot *slot_of(Slot *slots, Py_ssize_t count, const uint64_t *digest)
{
    Py_ssize_t place = first_place(count, digest);
    while (slots[place].number && (slots[place].digest[0] != digest[0] || slots[place].digest[1] != digest[1]))
        place = (place + 1) & (count - 1);
    return &slots[place];
}

/* How many equal digests came before this one, which now is one of them. -1: there is no room. */
static inline int64_t number_digest(Slot *slots, Py_ssize_t count, Py_ssize_t *used, const uint64_t *digest)
{
    Slot *slot = slot_of(slots, count, digest);
    if (slot->number == 0) {
        if (*used >= count - 1)
            return -1;
        ++*used;
        memcpy(slot->digest, digest, sizeof slot->digest);
    }
    return (int64_t)slot->number++;
}

/* Take a buffer of slots; `count` is their number. False with a Python error. */
int take_slots(Items *slots, PyObject *object, int writable);

#endif
