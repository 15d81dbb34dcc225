/* BLAKE2b of four texts at once, a text in each lane of a vector. The twin is hashlib's.

   Of a vector of four words compilers make what the processor has: one register with AVX2, two with SSE2 or NEON. */

#include "native.h"

#include "blake2b.h"

#define SIDE_BY_SIDE static inline __attribute__((always_inline))

typedef uint64_t Words __attribute__((vector_size(8 * BLAKE_LANES)));

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

SIDE_BY_SIDE uint64_t little_long_at(const uint8_t *place)
{
    /* Written so that compilers make one load of it. */
    return (uint64_t)place[0] | (uint64_t)place[1] << 8 | (uint64_t)place[2] << 16 | (uint64_t)place[3] << 24
         | (uint64_t)place[4] << 32 | (uint64_t)place[5] << 40 | (uint64_t)place[6] << 48 | (uint64_t)place[7] << 56;
}

#define ROTATE(value, bits) ((value) = (value) >> (bits) | (value) << (64 - (bits)))

#define MIX(a, b, c, d, x, y) \
    (v[a] += v[b] + (x), v[d] ^= v[a], ROTATE(v[d], 32), v[c] += v[d], v[b] ^= v[c], ROTATE(v[b], 24), \
     v[a] += v[b] + (y), v[d] ^= v[a], ROTATE(v[d], 16), v[c] += v[d], v[b] ^= v[c], ROTATE(v[b], 63))

#define WORD(round, place) m[SIGMA[round][place]]
#define ROUND(round) \
    (MIX(0, 4, 8, 12, WORD(round, 0), WORD(round, 1)), MIX(1, 5, 9, 13, WORD(round, 2), WORD(round, 3)), \
     MIX(2, 6, 10, 14, WORD(round, 4), WORD(round, 5)), MIX(3, 7, 11, 15, WORD(round, 6), WORD(round, 7)), \
     MIX(0, 5, 10, 15, WORD(round, 8), WORD(round, 9)), MIX(1, 6, 11, 12, WORD(round, 10), WORD(round, 11)), \
     MIX(2, 7, 8, 13, WORD(round, 12), WORD(round, 13)), MIX(3, 4, 9, 14, WORD(round, 14), WORD(round, 15)))

/* One block of each lane. `counts`: the bytes so far, with it. `last` and `taken` are all ones, or 0: whether the block
   is the last one of its text, and whether the lane has one. */
SIDE_BY_SIDE void compress(
    Words *state, const uint8_t *const *blocks, const Words *counts, const Words *last, const Words *taken)
{
    Words v[16], m[16];
    for (int word = 0; word < 16; word++)
        for (int lane = 0; lane < BLAKE_LANES; lane++)
            m[word][lane] = little_long_at(blocks[lane] + 8 * word);
    for (int word = 0; word < 8; word++) {
        v[word] = state[word];
        v[word + 8] = (Words){0} + INITIAL[word];
    }
    v[12] ^= *counts;
    v[14] ^= *last;
    /* One by one: with the numbers of a round known the words stay in registers. */
    ROUND(0), ROUND(1), ROUND(2), ROUND(3), ROUND(4), ROUND(5), ROUND(6), ROUND(7), ROUND(8), ROUND(9), ROUND(10),
        ROUND(11);
    for (int word = 0; word < 8; word++)
        state[word] ^= (v[word] ^ v[word + 8]) & *taken;
}

/* A block of a text: where it lies, or a copy in `room`, because the text ends within it or the head does. */
SIDE_BY_SIDE const uint8_t *block_at(const BlakeText *text, size_t number, uint8_t *room)
{
    size_t start = number * BLAKE_BLOCK_BYTES, bytes = text->head_bytes + text->more_bytes;
    if (number && start + BLAKE_BLOCK_BYTES <= bytes)
        return text->more + (start - text->head_bytes);
    size_t left = bytes - start < BLAKE_BLOCK_BYTES ? bytes - start : BLAKE_BLOCK_BYTES;
    size_t of_head = number ? 0 : text->head_bytes;
    memset(room, 0, BLAKE_BLOCK_BYTES);
    memcpy(room, text->head, of_head);
    memcpy(room + of_head, text->more + (start + of_head - text->head_bytes), left - of_head);
    return room;
}

SIDE_BY_SIDE void digests_of(const uint64_t *begun, const BlakeText *texts, int count, uint8_t *digests)
{
    static const uint8_t nothing[BLAKE_BLOCK_BYTES];
    uint8_t rooms[BLAKE_LANES][BLAKE_BLOCK_BYTES];
    size_t bytes[BLAKE_LANES] = {0}, most = 0;
    Words state[8];
    for (int word = 0; word < 8; word++)
        state[word] = (Words){0} + begun[word];
    for (int lane = 0; lane < count; lane++) {
        bytes[lane] = texts[lane].head_bytes + texts[lane].more_bytes;
        most = bytes[lane] > most ? bytes[lane] : most;
    }
    for (size_t number = 0, start = 0; start < most; number++, start += BLAKE_BLOCK_BYTES) {
        const uint8_t *blocks[BLAKE_LANES];
        Words counts = {0}, last = {0}, taken = {0};
        for (int lane = 0; lane < BLAKE_LANES; lane++) {
            blocks[lane] = nothing;
            if (start < bytes[lane]) {
                int ends = bytes[lane] <= start + BLAKE_BLOCK_BYTES;
                blocks[lane] = block_at(&texts[lane], number, rooms[lane]);
                counts[lane] = BLAKE_BLOCK_BYTES + (ends ? bytes[lane] : start + BLAKE_BLOCK_BYTES);
                last[lane] = ends ? ~UINT64_C(0) : 0;
                taken[lane] = ~UINT64_C(0);
            }
        }
        compress(state, blocks, &counts, &last, &taken);
    }
    for (int lane = 0; lane < count; lane++)
        for (int byte = 0; byte < BLAKE_DIGEST_BYTES; byte++)
            *digests++ = (uint8_t)(state[byte >> 3][lane] >> (8 * (byte & 7)));
}

static void end_anywhere(const uint64_t *state, const BlakeText *texts, int count, uint8_t *digests)
{
    digests_of(state, texts, count, digests);
}

static void (*end)(const uint64_t *, const BlakeText *, int, uint8_t *) = end_anywhere;

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void end_by_avx2(
    const uint64_t *state, const BlakeText *texts, int count, uint8_t *digests)
{
    digests_of(state, texts, count, digests);
}

static int choose(int may_use_avx2)
{
    __builtin_cpu_init();
    int uses = may_use_avx2 && __builtin_cpu_supports("avx2");
    end = uses ? end_by_avx2 : end_anywhere;
    return uses;
}
#else
static int choose(int may_use_avx2)
{
    (void)may_use_avx2;
    return 0;
}
#endif

void blake2b_begin(uint64_t *state, const uint8_t *block)
{
    const uint8_t *blocks[BLAKE_LANES];
    Words states[8], counts = (Words){0} + BLAKE_BLOCK_BYTES, none = {0}, all = ~none;
    for (int lane = 0; lane < BLAKE_LANES; lane++)
        blocks[lane] = block;
    for (int word = 0; word < 8; word++)
        states[word] = (Words){0} + INITIAL[word];
    states[0] ^= (Words){0} + (0x01010000u ^ BLAKE_DIGEST_BYTES);
    compress(states, blocks, &counts, &none, &all);
    for (int word = 0; word < 8; word++)
        state[word] = states[word][0];
}

void blake2b_end(const uint64_t *state, const BlakeText *texts, int count, uint8_t *digests)
{
    end(state, texts, count, digests);
}

void blake2b_prepare(void)
{
    choose(1);
}

/* From now on, for all: AVX2 if the processor has it, or what every processor has. Whether it is used. For tests. */
static PyObject *blake2b_by_avx2(PyObject *module, PyObject *argument)
{
    int wanted = PyObject_IsTrue(argument);
    (void)module;
    return wanted < 0 ? NULL : PyBool_FromLong(choose(wanted));
}

PyMethodDef blake2b_methods[] = {
    {"blake2b_by_avx2", blake2b_by_avx2, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
