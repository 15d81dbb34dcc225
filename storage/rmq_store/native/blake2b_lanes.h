/* BLAKE2b of LANES texts at once, a text in each lane of a vector; blake2b.c includes this once for each kind of
   processor. BLAKE(name) names what is made, ON is the kind's attribute, and MIX_ROTATE_32, _24, _16 and _63 turn each
   word of a vector right. */

typedef uint64_t BLAKE(Words) __attribute__((vector_size(8 * LANES)));

#define MIX(a, b, c, d, x, y) \
    (v[a] += v[b] + (x), v[d] ^= v[a], v[d] = MIX_ROTATE_32(v[d]), v[c] += v[d], v[b] ^= v[c], \
     v[b] = MIX_ROTATE_24(v[b]), v[a] += v[b] + (y), v[d] ^= v[a], v[d] = MIX_ROTATE_16(v[d]), v[c] += v[d], \
     v[b] ^= v[c], v[b] = MIX_ROTATE_63(v[b]))

#define WORD(round, place) m[SIGMA[round][place]]
#define ROUND(round) \
    (MIX(0, 4, 8, 12, WORD(round, 0), WORD(round, 1)), MIX(1, 5, 9, 13, WORD(round, 2), WORD(round, 3)), \
     MIX(2, 6, 10, 14, WORD(round, 4), WORD(round, 5)), MIX(3, 7, 11, 15, WORD(round, 6), WORD(round, 7)), \
     MIX(0, 5, 10, 15, WORD(round, 8), WORD(round, 9)), MIX(1, 6, 11, 12, WORD(round, 10), WORD(round, 11)), \
     MIX(2, 7, 8, 13, WORD(round, 12), WORD(round, 13)), MIX(3, 4, 9, 14, WORD(round, 14), WORD(round, 15)))

/* One block of each lane. `counts`: the bytes so far, with it. `last` and `taken` are all ones, or 0: whether the block
   is the last one of its text, and whether the lane has one. */
ON static inline void BLAKE(compress)(
    BLAKE(Words) *state, const uint8_t *const *blocks, const BLAKE(Words) *counts, const BLAKE(Words) *last,
    const BLAKE(Words) *taken)
{
    BLAKE(Words) v[16], m[16];
    for (int word = 0; word < 16; word++)
        for (int lane = 0; lane < LANES; lane++)
            m[word][lane] = little_long_at(blocks[lane] + 8 * word);
    for (int word = 0; word < 8; word++) {
        v[word] = state[word];
        v[word + 8] = (BLAKE(Words)){0} + INITIAL[word];
    }
    v[12] ^= *counts;
    v[14] ^= *last;
    /* One by one: with the numbers of a round known the words stay in registers. */
    ROUND(0), ROUND(1), ROUND(2), ROUND(3), ROUND(4), ROUND(5), ROUND(6), ROUND(7), ROUND(8), ROUND(9), ROUND(10),
        ROUND(11);
    for (int word = 0; word < 8; word++)
        state[word] ^= (v[word] ^ v[word + 8]) & *taken;
}

ON static void BLAKE(end)(const uint64_t *begun, const BlakeText *texts, int count, uint8_t *digests)
{
    static const uint8_t nothing[BLAKE_BLOCK_BYTES];
    uint8_t rooms[LANES][BLAKE_BLOCK_BYTES];
    Walk walks[LANES] = {{0}};
    size_t most = 0;
    BLAKE(Words) state[8], counts = {0}, last = {0}, taken = {0};
    for (int word = 0; word < 8; word++)
        state[word] = (BLAKE(Words)){0} + begun[word];
    for (int lane = 0; lane < count; lane++) {
        walks[lane] = walk_of(&texts[lane]);
        most = walks[lane].bytes > most ? walks[lane].bytes : most;
    }
    counts += BLAKE_BLOCK_BYTES;
    for (size_t start = 0; start < most; start += BLAKE_BLOCK_BYTES) {
        const uint8_t *blocks[LANES];
        for (int lane = 0; lane < LANES; lane++) {
            Walk *walk = &walks[lane];
            size_t size = walk->bytes < BLAKE_BLOCK_BYTES ? walk->bytes : BLAKE_BLOCK_BYTES;
            walk->bytes -= size;
            counts[lane] += size;
            taken[lane] = size ? ~UINT64_C(0) : 0;
            last[lane] = walk->bytes ? 0 : ~UINT64_C(0);
            blocks[lane] = size ? next_block(walk, size, rooms[lane]) : nothing;
        }
        BLAKE(compress)(state, blocks, &counts, &last, &taken);
    }
    for (int lane = 0; lane < count; lane++)
        for (int byte = 0; byte < BLAKE_DIGEST_BYTES; byte++)
            *digests++ = (uint8_t)(state[byte >> 3][lane] >> (8 * (byte & 7)));
}

#undef MIX
#undef WORD
#undef ROUND
