/* One message and its frame, for the parts that make frames of messages. Rules: format/frames/one_frame.py. */

#ifndef RMQ_ONE_MESSAGE_H
#define RMQ_ONE_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

#include "text.h"

#define CRC_MASK 0x7FFFFFFFu
#define HOSTS_V6_MASK 0x30u
#define HOST_BYTES 8
#define HOST_V6_BYTES 20
#define V1_TOPIC_BYTES_MAX 127
#define PROPERTIES_BYTES_MAX 32767
/* Of a message with more of them Python makes the frame. */
#define PROPERTIES_MAX 64

/* In the order in which they are stored; `size` is what they take in a frame, each with both its separators. */
typedef struct {
    Text names[PROPERTIES_MAX], values[PROPERTIES_MAX];
    int count;
    size_t size;
} Properties;

/* An address and a port; it takes HOST_BYTES or HOST_V6_BYTES. */
typedef Text PackedHost;

/* What the frame of a message has besides its texts. */
typedef struct {
    int queue_id;
    int32_t flag;
    uint32_t sys_flag;
    int64_t born_ms;
    PackedHost born_host, store_host;
    int has_crc;
} Fields;

/* False: it is no host that a frame can have. */
int take_host(PackedHost *host, const char *bytes, ptrdiff_t size);

/* Of a frame with these hosts, up to the body. */
size_t header_bytes(const Fields *fields);

/* Null: there is none of this name. */
const Text *value_of(const Properties *properties, const char *name);

/* The hash of what stands before a key in the index. */
uint32_t topic_hash(const Text *topic);

/* Hashes of UNIQ_KEY, then of each of the KEYS, then of the tag if tags are indexed (the order of BuildIndexKey); how
   many. There are at most two more than half the bytes of the properties. `seed`: the `topic_hash`. */
size_t put_hashes(const Properties *properties, uint32_t seed, int index_tags, uint32_t *hashes);

/* A whole V1 frame of `size` bytes, with zeros, and any checksum, where its place and its store time come. */
void write_frame(uint8_t *frame, size_t size, const Fields *fields, const Text *body, const Text *topic,
                 const Properties *properties);

/* Give a whole frame its place and its store time. False: it is too short for a frame. */
int place_frame(uint8_t *frame, size_t size, int64_t queue_offset, int64_t log_offset, int64_t store_ms, int has_crc);

#endif
