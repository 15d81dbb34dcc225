/* BLAKE2b of several texts at once, a text in each lane of a vector. The twin is hashlib's.

   kind                     lanes   a vector is
   any processor            2       one register with SSE2 or NEON: compilers make what there is
   AVX2                     4       one register; words turn by whole bytes in one instruction
   AVX-512                  8       one register; words turn by any number of bits in one instruction */

#include "native.h"

#include "blake2b.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static const uint64_t INITIAL[8] = {
    0x6A09E667F3BCC908u, 0xBB67AE8584CAA73Bu, 0x3C6EF372FE94F82Bu, 0xA54FF53A5F1D36F1u,
    0x510E527FADE682D1u, 0x9B05688C2B3E6C1Fu, 0x1F83D9ABFB41BD6Bu, 0x5BE0CD19137E2179u,
};

static const uint8_t SIGMA[12][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0},
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
};

static inline uint64_t little_long_at(const uint8_t *place)
{
    /* Written so that compilers make one load of it. */
    return (uint64_t)place[0] | (uint64_t)place[1] << 8 | (uint64_t)place[2] << 16 | (uint64_t)place[3] << 24
         | (uint64_t)place[4] << 32 | (uint64_t)place[5] << 40 | (uint64_t)place[6] << 48 | (uint64_t)place[7] << 56;
}

/* -- the blocks of a text ----------------------------------------------------------------------------------------- */

/* Where the next block of a text begins, and how many bytes there are from there on. */
typedef struct {
    const BlakeText *text;
    size_t at, bytes;
    int piece;
} Walk;

static Walk walk_of(const BlakeText *text)
{
    Walk walk = {.text = text};
    for (int piece = 0; piece < BLAKE_PIECES; piece++)
        walk.bytes += text->pieces[piece].size;
    return walk;
}

/* The next `size` bytes and zeros behind them: where they lie, or a copy in `room`. The text has so many. */
static const uint8_t *next_block(Walk *walk, size_t size, uint8_t *room)
{
    size_t there = 0;
    for (;;) {
        const uint8_t *bytes = walk->text->pieces[walk->piece].bytes + walk->at;
        size_t left = walk->text->pieces[walk->piece].size - walk->at;
        if (!there && left >= BLAKE_BLOCK_BYTES) {
            walk->at += BLAKE_BLOCK_BYTES;
            return bytes;
        }
        size_t taken = left < size - there ? left : size - there;
        if (taken)
            memcpy(room + there, bytes, taken);
        there += taken;
        walk->at += taken;
        if (there == size)
            break;
        walk->piece++;
        walk->at = 0;
    }
    memset(room + size, 0, BLAKE_BLOCK_BYTES - size);
    return room;
}

/* -- kinds of processors ------------------------------------------------------------------------------------------ */

#define BY_SHIFTS(words, bits) ((words) >> (bits) | (words) << (64 - (bits)))
#define MIX_ROTATE_32(words) BY_SHIFTS(words, 32)
#define MIX_ROTATE_24(words) BY_SHIFTS(words, 24)
#define MIX_ROTATE_16(words) BY_SHIFTS(words, 16)
#define MIX_ROTATE_63(words) BY_SHIFTS(words, 63)

#define LANES 2
#define ON
#define BLAKE(name) name##_anywhere
#include "blake2b_lanes.h"
#undef LANES
#undef ON
#undef BLAKE

#if defined(__x86_64__)
/* Compilers make one instruction of these shifts here. */
#define LANES 8
#define ON __attribute__((target("avx512f")))
#define BLAKE(name) name##_by_avx512
#include "blake2b_lanes.h"
#undef LANES
#undef ON
#undef BLAKE
#undef MIX_ROTATE_32
#undef MIX_ROTATE_24
#undef MIX_ROTATE_16
#undef MIX_ROTATE_63

#define BYTES_FROM(a, b, c, d, e, f, g, h) \
    _mm256_setr_epi8(a, b, c, d, e, f, g, h, a + 8, b + 8, c + 8, d + 8, e + 8, f + 8, g + 8, h + 8, a, b, c, d, e, f, \
                     g, h, a + 8, b + 8, c + 8, d + 8, e + 8, f + 8, g + 8, h + 8)
#define BY_BYTES(words, order) ((Words_by_avx2)_mm256_shuffle_epi8((__m256i)(words), order))
#define MIX_ROTATE_32(words) ((Words_by_avx2)_mm256_shuffle_epi32((__m256i)(words), 0xB1))
#define MIX_ROTATE_24(words) BY_BYTES(words, BYTES_FROM(3, 4, 5, 6, 7, 0, 1, 2))
#define MIX_ROTATE_16(words) BY_BYTES(words, BYTES_FROM(2, 3, 4, 5, 6, 7, 0, 1))
#define MIX_ROTATE_63(words) (((words) + (words)) | (words) >> 63)

#define LANES 4
#define ON __attribute__((target("avx2")))
#define BLAKE(name) name##_by_avx2
#include "blake2b_lanes.h"
#undef LANES
#undef ON
#undef BLAKE
#endif

/* -- for all ------------------------------------------------------------------------------------------------------ */

enum { ANYWHERE, AVX2, AVX512, KINDS };

static const struct {
    int lanes;
    void (*end)(const uint64_t *, const BlakeText *, int, uint8_t *);
} KIND[KINDS] = {
#if defined(__x86_64__)
    {2, end_anywhere}, {4, end_by_avx2}, {8, end_by_avx512},
#else
    {2, end_anywhere}, {2, end_anywhere}, {2, end_anywhere},
#endif
};

static int kind = ANYWHERE;

int blake2b_lanes(void)
{
    return KIND[kind].lanes;
}

void blake2b_begin(uint64_t *state, const uint8_t *block)
{
    const uint8_t *blocks[] = {block, block};
    Words_anywhere states[8], counts = (Words_anywhere){0} + BLAKE_BLOCK_BYTES, none = {0}, all = ~none;
    for (int word = 0; word < 8; word++)
        states[word] = (Words_anywhere){0} + INITIAL[word];
    states[0] ^= (Words_anywhere){0} + (0x01010000u ^ BLAKE_DIGEST_BYTES);
    compress_anywhere(states, blocks, &counts, &none, &all);
    for (int word = 0; word < 8; word++)
        state[word] = states[word][0];
}

void blake2b_end(const uint64_t *state, const BlakeText *texts, int count, uint8_t *digests)
{
    KIND[kind].end(state, texts, count, digests);
}

/* The best kind that this processor has, but none above `most`. */
static int choose(int most)
{
    kind = ANYWHERE;
#if defined(__x86_64__)
    __builtin_cpu_init();
    if (most >= AVX2 && __builtin_cpu_supports("avx2"))
        kind = AVX2;
    if (most >= AVX512 && __builtin_cpu_supports("avx512f"))
        kind = AVX512;
#else
    (void)most;
#endif
    return kind;
}

void blake2b_prepare(void)
{
    choose(AVX512);
}

/* From now on, for all: no kind above this one (0 any processor, 1 AVX2, 2 AVX-512). The one that is used. For tests. */
static PyObject *blake2b_kind(PyObject *module, PyObject *argument)
{
    long most = PyLong_AsLong(argument);
    (void)module;
    return most == -1 && PyErr_Occurred() ? NULL : PyLong_FromLong(choose((int)most));
}

PyMethodDef blake2b_methods[] = {
    {"blake2b_kind", blake2b_kind, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
