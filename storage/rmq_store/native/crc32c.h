/* CRC-32C, for module.c. */

#ifndef RMQ_CRC32C_H
#define RMQ_CRC32C_H

/* Make the tables; once per process, with the GIL held. */
void crc32c_prepare(void);

#endif
