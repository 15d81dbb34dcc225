/* Numbers as Java writes them, wherever they lie. */

#ifndef RMQ_BIG_ENDIAN_H
#define RMQ_BIG_ENDIAN_H

#include <stdint.h>

static inline int16_t short_at(const uint8_t *place)
{
    return (int16_t)((unsigned)place[0] << 8 | place[1]);
}

static inline uint32_t word_at(const uint8_t *place)
{
    return (uint32_t)place[0] << 24 | (uint32_t)place[1] << 16 | (uint32_t)place[2] << 8 | place[3];
}

static inline uint64_t long_at(const uint8_t *place)
{
    return (uint64_t)word_at(place) << 32 | word_at(place + 4);
}

static inline void put_word(uint8_t *place, uint32_t value)
{
    place[0] = (uint8_t)(value >> 24);
    place[1] = (uint8_t)(value >> 16);
    place[2] = (uint8_t)(value >> 8);
    place[3] = (uint8_t)value;
}

static inline void put_long(uint8_t *place, uint64_t value)
{
    put_word(place, (uint32_t)(value >> 32));
    put_word(place + 4, (uint32_t)value);
}

#endif
