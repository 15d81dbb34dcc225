/* The usual parts of a JSON header (protocol/wire/json_header.py), for the parts that take frames apart. What is not as
   expected here is left to Python. */

#ifndef RMQ_JSON_HEADER_H
#define RMQ_JSON_HEADER_H

#include <stdint.h>
#include <string.h>

#include "text.h"

/* As many digits always fit: 9 in 32 bits, 18 in 64. */
#define DIGITS_OF_INT 9
#define DIGITS_OF_LONG 18

typedef struct {
    const uint8_t *at, *end;
} Rest;

static inline int is(Text text, const char *expected)
{
    return text.size == strlen(expected) && memcmp(text.bytes, expected, text.size) == 0;
}

static inline int take_byte(Rest *rest, uint8_t expected)
{
    if (rest->at == rest->end || *rest->at != expected)
        return 0;
    rest->at++;
    return 1;
}

/* ASCII as it lies, between quotes. */
static inline int take_text(Rest *rest, Text *text)
{
    if (!take_byte(rest, '"'))
        return 0;
    text->bytes = rest->at;
    while (rest->at < rest->end && *rest->at >= 0x20 && *rest->at < 0x7F && *rest->at != '"' && *rest->at != '\\')
        rest->at++;
    text->size = (size_t)(rest->at - text->bytes);
    return take_byte(rest, '"');
}

/* A number of 32 bits. */
static inline int take_number(Rest *rest, int64_t *number)
{
    const uint8_t *start;
    int is_negative = take_byte(rest, '-');
    *number = 0;
    for (start = rest->at; rest->at < rest->end && *rest->at >= '0' && *rest->at <= '9'; rest->at++) {
        if (rest->at - start == DIGITS_OF_LONG)
            return 0;
        *number = 10 * *number + (*rest->at - '0');
    }
    if (rest->at == start || (*start == '0' && rest->at - start > 1))
        return 0;
    if (is_negative)
        *number = -*number;
    return *number >= INT32_MIN && *number <= INT32_MAX;
}

/* The members of a JSON header, RemotingCommand.java; the first ones are numbers. */
enum { CODE_MEMBER, FLAG_MEMBER, OPAQUE_MEMBER, VERSION_MEMBER, NUMBERS, LANGUAGE_MEMBER = NUMBERS, FORM_MEMBER,
       REMARK_MEMBER, EXT_FIELDS_MEMBER, MEMBERS };
static const char *const members[] = {"code",     "flag", "opaque", "version", "language", "serializeTypeCurrentRPC", "remark",
                                      "extFields"};

/* Read a header of these members, each once: the numbers here, the others by `take`, which says whether it has read one.
   A bit for each member that is there; 0: the header is not as expected. */
static inline unsigned take_members(Rest rest, int64_t numbers[NUMBERS], int (*take)(Rest *rest, int member, void *into),
                                    void *into)
{
    unsigned seen = 0;
    Text name;
    if (!take_byte(&rest, '{'))
        return 0;
    do {
        int member = 0;
        if (!take_text(&rest, &name) || !take_byte(&rest, ':'))
            return 0;
        while (member < MEMBERS && !is(name, members[member]))
            member++;
        if (member == MEMBERS || seen & 1u << member)
            return 0;
        if (member < NUMBERS ? !take_number(&rest, &numbers[member]) : !take(&rest, member, into))
            return 0;
        seen |= 1u << member;
    } while (take_byte(&rest, ','));
    return take_byte(&rest, '}') && rest.at == rest.end ? seen : 0;
}

/* The value of a field that has digits only, at most so many. */
static inline int digits_of(Text value, int digits_max, int64_t *number)
{
    *number = 0;
    if (value.size == 0 || value.size > (size_t)digits_max)
        return 0;
    for (size_t place = 0; place < value.size; place++) {
        if (value.bytes[place] < '0' || value.bytes[place] > '9')
            return 0;
        *number = 10 * *number + (value.bytes[place] - '0');
    }
    return 1;
}

#endif
