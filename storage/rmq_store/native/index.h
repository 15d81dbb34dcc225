/* Entries of one record in an index file, for the parts that add them. Rules: format/views/index.py. */

#ifndef RMQ_INDEX_H
#define RMQ_INDEX_H

#include <stdint.h>

#include "native.h"

#define INDEX_ENTRY_BYTES 20
#define INDEX_HEADER_BYTES 40
/* Of a record with more keys Python makes the entries. */
#define KEYS_MAX 64

/* The keys of a record, and the slots of their file as they were before it. */
typedef struct {
    const uint8_t *slots;
    int64_t slot_count;
    int32_t hashes[KEYS_MAX], slot_of[KEYS_MAX];
    int count, new_slots;
} NewKeys;

/* The entries of a record: entry `first + key` belongs to key `key`, and to its slot. `header`: the new one. */
typedef struct {
    int32_t first;
    uint8_t entries[KEYS_MAX * INDEX_ENTRY_BYTES], header[INDEX_HEADER_BYTES];
} NewEntries;

/* Take the hashes of a list, at most KEYS_MAX. How many; -1: an error is set. */
int take_hashes(int32_t *hashes, PyObject *list);

/* Set hashes, at most KEYS_MAX, where `slots` and `slot_count` are set. */
void set_hashes(NewKeys *keys, const int32_t *hashes, int count);

/* Number of the entry that a file with this header gets next. */
int32_t next_entry(const uint8_t *header);

/* The entries of all `keys` behind those of a file with the header `old`, which has room for them. */
void chain_keys(NewEntries *made, NewKeys *keys, const uint8_t *old, int64_t log_offset, int64_t time_ms);

#endif
