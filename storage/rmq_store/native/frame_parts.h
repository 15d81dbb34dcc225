/* Pieces of frames, and what the index gets for a message: what the encoder of batches and the copier of frames have in
   common. The twins are format/batches/frame_parts.py and format/views/index_keys.py; layout of a frame: format/frames/frame_check.py. */

#ifndef RMQ_FRAME_PARTS_H
#define RMQ_FRAME_PARTS_H

#include "big_endian.h"
#include "frames.h"
#include "rows.h"
#include "text.h"

/* Where fields lie, whatever the hosts are; those behind the hosts are counted from the end of the header. */
enum { TOTAL_SIZE_AT = 0, MAGIC_AT = 4, BODY_CRC_AT = 8, QUEUE_ID_AT = 12, FLAG_AT = 16, QUEUE_OFFSET_AT = 20 };
enum { PHYSICAL_OFFSET_AT = 28, SYS_FLAG_AT = 36, BORN_TIMESTAMP_AT = 40 };
enum { RECONSUME_TIMES_AT = -16, PREPARED_OFFSET_AT = -12, BODY_LENGTH_AT = -4 };
#define TOPIC_BYTES_MAX_V1 127
#define TOPIC_BYTES_MAX 255
#define TRANSACTION_MASK 0x00Cu
#define TRANSACTION_ROLLBACK 0x00Cu

static const uint8_t CRC_RESERVED[] = "__CRC32#\x01" "0000000000\x02";

/* -- topic and its length ----------------------------------------------------------------------------------------- */

static inline uint32_t magic_of(Slice topic)
{
    return topic.size > TOPIC_BYTES_MAX_V1 ? MAGIC_V2 : MAGIC_V1;
}

static inline int64_t topic_head_bytes(Slice topic)
{
    return (topic.size > TOPIC_BYTES_MAX_V1 ? 2 : 1) + (int64_t)topic.size;
}

static inline int put_topic_head(Out *out, Slice topic)
{
    /* Put with a size that the compiler knows: for another it takes an instruction that is slow for a few bytes. */
    uint8_t length[2] = {(uint8_t)(topic.size >> 8), (uint8_t)topic.size};
    return (topic.size > TOPIC_BYTES_MAX_V1 ? put(out, length, 2) : put(out, length + 1, 1))
        && put(out, topic.text, topic.size);
}

/* -- hashes for the index ----------------------------------------------------------------------------------------- */

/* Hashes go to `values`, but never beyond `room`; they are counted in any case. */
typedef struct {
    uint32_t *values;
    int64_t count, room;
} Hashes;

/* Compilers clear 48 bytes by an instruction that takes as long as a short CRC. */
static inline void set_none(Slice *seen)
{
    for (int name = 0; name < SEEN; name++)
        seen[name].text = NULL;
}

static inline int is_indexed(uint32_t sys_flag)
{
    return (sys_flag & TRANSACTION_MASK) != TRANSACTION_ROLLBACK;
}

/* The next piece of KEYS between spaces; null after the last one. */
static inline Slice next_key(Slice *keys)
{
    while (keys->size && *keys->text == ' ')
        keys->text++, keys->size--;
    const uint8_t *space = keys->size ? memchr(keys->text, ' ', keys->size) : NULL;
    Slice key = {keys->size ? keys->text : NULL, space ? (size_t)(space - keys->text) : keys->size};
    keys->text += key.size;
    keys->size -= key.size;
    return key;
}

/* That of the text with the hash `before` and `key` behind it. */
static inline void put_hash(Hashes *hashes, uint32_t before, const uint8_t *key, size_t size)
{
    if (hashes->count < hashes->room)
        hashes->values[hashes->count] = index_hash(java_hash(before, key, size));
    hashes->count++;
}

/* Those of a message, in the order of its entries; `topic_hash` is of the topic with "#" behind it. */
static inline void put_hashes(Hashes *hashes, uint32_t topic_hash, const Slice *seen, int indexes_tags)
{
    if (seen[UNIQUE_KEY].text != NULL)
        put_hash(hashes, topic_hash, seen[UNIQUE_KEY].text, seen[UNIQUE_KEY].size);
    Slice keys = seen[KEYS];
    for (Slice key; keys.text != NULL && (key = next_key(&keys)).text != NULL;)
        put_hash(hashes, topic_hash, key.text, key.size);
    /* IndexService since 5.4.0: topic + "#T#" + tag. */
    if (indexes_tags && seen[TAGS].text != NULL)
        put_hash(hashes, topic_hash * (31 * 31) + 'T' * 31 + '#', seen[TAGS].text, seen[TAGS].size);
}

/* What a queue entry gets of the tag. */
static inline int32_t tags_code(const Slice *seen)
{
    return seen[TAGS].text != NULL ? (int32_t)java_hash(0, seen[TAGS].text, seen[TAGS].size) : 0;
}

#endif
