/* The pieces `name %x01 value %x02` of a property string. Rules: rmq_store/format/properties/property_string.py. */

#ifndef RMQ_PROPERTIES_H
#define RMQ_PROPERTIES_H

#include <stddef.h>
#include <stdint.h>

/* Rows with more pieces are left to Python: comparing each with each would take too long. */
#define ROW_PIECES_MAX 64

typedef struct {
    const char *name;
    ptrdiff_t bytes;
} Name;

typedef struct {
    int64_t *starts, *separators, *ends;
    ptrdiff_t count, room; /* `count` goes on where there is no more room */
} Pieces;

/* Add the pieces of `data[first:end]`, out of `count` bytes, that are not named `dropped`; and to `high` what says that
   not all of it is ASCII. */
void split_row(const uint8_t *data, int64_t count, int64_t first, int64_t end, const Name *dropped, Pieces *pieces,
               uint64_t *high);

/* Of the pieces of a row, which are those from `first` on, keep one of each name: the last, of `first_wins` the first. */
void keep_winners(Pieces *pieces, const uint8_t *data, ptrdiff_t first, const Name *first_wins);

/* Which of the pieces [first, last) has this name; -1: none. */
ptrdiff_t same_name(const Pieces *pieces, const uint8_t *data, ptrdiff_t first, ptrdiff_t last, const Name *name);

#endif
