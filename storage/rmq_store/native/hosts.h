/* IPv4 hosts of frames as text: `1.2.3.4:10911`. Layout: rmq_store/format/text/host.py. */

#ifndef RMQ_HOSTS_H
#define RMQ_HOSTS_H

#include <stdint.h>

#define HOST_BYTES 8
/* 255.255.255.255:-2147483648 has 27 bytes. So many are always copied: the next text overwrites what is too much. */
#define TEXT_ROOM_BYTES 32

/* The text that was made last: messages of one producer often follow each other, and one store writes them all. */
typedef struct {
    uint8_t host[HOST_BYTES], text[TEXT_ROOM_BYTES];
    int size; /* 0: none yet */
} HostText;

/* Make `last` that of this host. */
void write_host(HostText *last, const uint8_t *host);

#endif
