/* CRC-32 of many slices in one call.

   A register is a polynomial over GF(2) modulo P(x) = 0x104C11DB7, its bits reflected: bit 31 stands for x^0. Three ways:
   the tables take 16 bytes at a time, on any machine; carry-less multiplication takes 64, or 128 in wide registers, where
   the processor has it. All are checked against zlib by the tests (`crc_way`).

   The constants of the other ways are computed from P, as those of the first. Source: Gopal and others, Fast CRC
   Computation for Generic Polynomials Using PCLMULQDQ Instruction (Intel, 2009). */

#include "native.h"

#include "big_endian.h"
#include "crc.h"

#define POLYNOMIAL 0xEDB88320u
enum { TABLES, CLMUL, WIDE_CLMUL };

/* tables[k][b]: what byte b adds when k more bytes follow it. */
static uint32_t tables[16][256];
/* zero_powers[level][k] = x^(8 * k * 256^level): the factor of that many zero bytes. */
static uint32_t zero_powers[8][256];

/* a * b modulo P. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
    uint32_t product = 0;
    for (int bit = 31; bit >= 0; bit--) {
        product ^= b & (0u - ((a >> bit) & 1));
        b = (b >> 1) ^ (POLYNOMIAL & (0u - (b & 1)));
    }
    return product;
}

/* As `multiply`; a faster one where the processor has one. */
static uint32_t (*multiply_registers)(uint32_t, uint32_t) = multiply;

uint32_t crc_shift(uint32_t crc, uint64_t zero_bytes)
{
    for (int level = 0; zero_bytes; level++, zero_bytes >>= 8)
        if (zero_bytes & 0xFF)
            crc = multiply_registers(crc, zero_powers[level][zero_bytes & 0xFF]);
    return crc;
}

uint32_t crc_factor(uint64_t zero_bytes)
{
    return crc_shift(1u << 31, zero_bytes); /* x^0 */
}

uint32_t crc_multiply(uint32_t crc, uint32_t factor)
{
    return multiply_registers(crc, factor);
}

/* Four bytes, the first one lowest, on a machine of any byte order. */
static uint32_t load_word(const uint8_t *data)
{
    return (uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24;
}

static uint32_t register_by_tables(uint32_t value, const uint8_t *data, size_t size)
{
    for (; size >= 16; data += 16, size -= 16) {
        uint32_t a = load_word(data) ^ value, b = load_word(data + 4), c = load_word(data + 8), d = load_word(data + 12);
        value = tables[15][a & 0xFF] ^ tables[14][a >> 8 & 0xFF] ^ tables[13][a >> 16 & 0xFF] ^ tables[12][a >> 24]
              ^ tables[11][b & 0xFF] ^ tables[10][b >> 8 & 0xFF] ^ tables[9][b >> 16 & 0xFF] ^ tables[8][b >> 24]
              ^ tables[7][c & 0xFF] ^ tables[6][c >> 8 & 0xFF] ^ tables[5][c >> 16 & 0xFF] ^ tables[4][c >> 24]
              ^ tables[3][d & 0xFF] ^ tables[2][d >> 8 & 0xFF] ^ tables[1][d >> 16 & 0xFF] ^ tables[0][d >> 24];
    }
    for (; size >= 4; data += 4, size -= 4) {
        uint32_t word = load_word(data) ^ value;
        value = tables[3][word & 0xFF] ^ tables[2][word >> 8 & 0xFF] ^ tables[1][word >> 16 & 0xFF] ^ tables[0][word >> 24];
    }
    for (; size; data++, size--)
        value = tables[0][(value ^ *data) & 0xFF] ^ (value >> 8);
    return value;
}

static uint32_t (*extend_register)(uint32_t, const uint8_t *, size_t) = register_by_tables;

static uint32_t longs_by_tables(uint64_t first, uint64_t second)
{
    uint8_t text[16];
    put_long(text, first);
    put_long(text + 8, second);
    return register_by_tables(0, text, sizeof text);
}

static uint32_t (*register_of_longs)(uint64_t, uint64_t) = longs_by_tables;

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

#define FOLD __attribute__((target("pclmul,sse4.1")))
#define FOLD_WIDE __attribute__((target("pclmul,sse4.1,avx2,vpclmulqdq")))

/* over[n]: what carries both halves of a block over n blocks; of 128 bits each lies 32 before its own end. */
static __m128i over[9], over_half;

/* Indices that move bytes of a block to its end, those behind it to its start, and leave nothing else. */
static const int8_t moves[48] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
                                 0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                 -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};

/* x^bits modulo P, as the multiplication wants it. */
static int64_t factor(unsigned bits)
{
    uint32_t power = 1u << 31;
    for (; bits; bits--)
        power = (power >> 1) ^ (POLYNOMIAL & (0u - (power & 1)));
    return (int64_t)power << 1;
}

FOLD static __m128i carry(__m128i block, __m128i factors, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(block, factors, 0x00);
    __m128i high = _mm_clmulepi64_si128(block, factors, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* 64 bits, bit 63 for x^0, modulo P. Those above x^31 go through the tables: 4 bytes bring the factor x^32. */
static uint32_t remainder_of(uint64_t wide)
{
    uint32_t high = (uint32_t)wide;
    return (uint32_t)(wide >> 32) ^ tables[3][high & 0xFF] ^ tables[2][high >> 8 & 0xFF] ^ tables[1][high >> 16 & 0xFF]
           ^ tables[0][high >> 24];
}

/* The register after a block, which stands for all before it, and the bytes behind that, of which there may be none. The
   block's own bytes, or others, lie in front of them. */
FOLD static uint32_t register_behind(__m128i block, const uint8_t *data, const uint8_t *end)
{
    for (; end - data >= 16; data += 16)
        block = carry(block, over[1], _mm_loadu_si128((const __m128i *)data));
    if (data < end) {
        /* What is left is filled up from the block; what that pushes out at its front is carried over it. */
        __m128i out = _mm_loadu_si128((const __m128i *)(moves + (end - data)));
        __m128i up = _mm_loadu_si128((const __m128i *)(moves + 16 + (end - data)));
        __m128i last = _mm_loadu_si128((const __m128i *)(end - 16));
        block = carry(_mm_shuffle_epi8(block, out), over[1], _mm_blendv_epi8(_mm_shuffle_epi8(block, up), last, up));
    }
    /* Of 128 bits the first 64, and of the 96 that this leaves the first 32, are carried over what is behind them. */
    block = _mm_xor_si128(_mm_clmulepi64_si128(block, over[1], 0x10), _mm_srli_si128(block, 8));
    __m128i first = _mm_and_si128(block, _mm_cvtsi32_si128(-1));
    block = _mm_xor_si128(_mm_clmulepi64_si128(first, over_half, 0x00), _mm_srli_si128(block, 4));
    return remainder_of((uint64_t)_mm_cvtsi128_si64(block));
}

FOLD static uint32_t register_by_clmul(uint32_t value, const uint8_t *data, size_t size)
{
    if (size < 16)
        return register_by_tables(value, data, size);
    const __m128i *next = (const __m128i *)data;
    const uint8_t *end = data + size;
    __m128i a = _mm_xor_si128(_mm_loadu_si128(next++), _mm_cvtsi32_si128((int)value));
    if (size >= 64) {
        __m128i b = _mm_loadu_si128(next), c = _mm_loadu_si128(next + 1), d = _mm_loadu_si128(next + 2);
        for (next += 3; end - (const uint8_t *)next >= 64; next += 4) {
            a = carry(a, over[4], _mm_loadu_si128(next));
            b = carry(b, over[4], _mm_loadu_si128(next + 1));
            c = carry(c, over[4], _mm_loadu_si128(next + 2));
            d = carry(d, over[4], _mm_loadu_si128(next + 3));
        }
        a = _mm_xor_si128(carry(a, over[3], carry(b, over[2], d)), carry(c, over[1], _mm_setzero_si128()));
    }
    return register_behind(a, (const uint8_t *)next, end);
}

FOLD_WIDE static __m256i carry_two(__m256i blocks, unsigned distance, __m256i next)
{
    __m256i factors = _mm256_broadcastsi128_si256(over[distance]);
    __m256i low = _mm256_clmulepi64_epi128(blocks, factors, 0x00);
    __m256i high = _mm256_clmulepi64_epi128(blocks, factors, 0x11);
    return _mm256_xor_si256(_mm256_xor_si256(low, high), next);
}

FOLD_WIDE static uint32_t register_by_wide_clmul(uint32_t value, const uint8_t *data, size_t size)
{
    if (size < 128)
        return register_by_clmul(value, data, size);
    const __m256i *next = (const __m256i *)data;
    const uint8_t *end = data + size;
    __m256i a = _mm256_xor_si256(_mm256_loadu_si256(next), _mm256_set_epi64x(0, 0, 0, (int64_t)value));
    __m256i b = _mm256_loadu_si256(next + 1), c = _mm256_loadu_si256(next + 2), d = _mm256_loadu_si256(next + 3);
    for (next += 4; end - (const uint8_t *)next >= 128; next += 4) {
        a = carry_two(a, 8, _mm256_loadu_si256(next));
        b = carry_two(b, 8, _mm256_loadu_si256(next + 1));
        c = carry_two(c, 8, _mm256_loadu_si256(next + 2));
        d = carry_two(d, 8, _mm256_loadu_si256(next + 3));
    }
    a = _mm256_xor_si256(carry_two(a, 6, carry_two(b, 4, d)), carry_two(c, 2, _mm256_setzero_si256()));
    __m128i block = carry(_mm256_castsi256_si128(a), over[1], _mm256_extracti128_si256(a, 1));
    _mm256_zeroupper(); /* instructions of the narrow kind wait for each other where wide registers are in use */
    return register_behind(block, (const uint8_t *)next, end);
}

/* From the numbers: what was just written byte by byte cannot be read at once as 16 bytes. */
FOLD static uint32_t longs_by_clmul(uint64_t first, uint64_t second)
{
    __m128i block = _mm_set_epi64x((int64_t)__builtin_bswap64(second), (int64_t)__builtin_bswap64(first));
    return register_behind(block, (const uint8_t *)moves, (const uint8_t *)moves);
}

FOLD static uint32_t multiply_by_clmul(uint32_t a, uint32_t b)
{
    /* The product has 63 bits. */
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b), 0x00);
    return remainder_of((uint64_t)_mm_cvtsi128_si64(product) << 1);
}

static void prepare_clmul(void)
{
    for (unsigned blocks = 1; blocks <= 8; blocks++)
        over[blocks] = _mm_set_epi64x(factor(128 * blocks - 32), factor(128 * blocks + 32));
    over_half = _mm_set_epi64x(0, factor(64));
}

static int choose_way(int fastest)
{
    __builtin_cpu_init();
    int has_clmul = __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
    int is_wide = has_clmul && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq");
    int best = is_wide ? WIDE_CLMUL : has_clmul ? CLMUL : TABLES;
    int way = fastest < best ? fastest : best;
    extend_register = way == WIDE_CLMUL ? register_by_wide_clmul : way == CLMUL ? register_by_clmul : register_by_tables;
    multiply_registers = way == TABLES ? multiply : multiply_by_clmul;
    register_of_longs = way == TABLES ? longs_by_tables : longs_by_clmul;
    return way;
}
#else
static void prepare_clmul(void) {}

static int choose_way(int fastest)
{
    (void)fastest;
    return TABLES;
}
#endif

uint32_t crc_extend(uint32_t crc, const uint8_t *data, size_t size)
{
    return ~extend_register(~crc, data, size);
}

uint32_t crc_of_longs(uint64_t first, uint64_t second)
{
    return register_of_longs(first, second);
}

void crc_prepare(void)
{
    for (uint32_t value = 0; value < 256; value++) {
        uint32_t entry = value;
        for (int bit = 0; bit < 8; bit++)
            entry = (entry >> 1) ^ (POLYNOMIAL & (0u - (entry & 1)));
        tables[0][value] = entry;
    }
    for (int behind = 1; behind < 16; behind++)
        for (int value = 0; value < 256; value++)
            tables[behind][value] = tables[0][tables[behind - 1][value] & 0xFF] ^ (tables[behind - 1][value] >> 8);
    uint32_t step = 1u << 23; /* x^8 */
    for (int level = 0; level < 8; level++) {
        zero_powers[level][0] = 1u << 31; /* x^0 */
        for (int count = 1; count < 256; count++)
            zero_powers[level][count] = multiply(zero_powers[level][count - 1], step);
        step = multiply(zero_powers[level][255], step);
    }
    prepare_clmul();
    choose_way(WIDE_CLMUL);
}

/* From now on, for all: the given way, or the fastest below it that this processor has. Returns which. For tests. */
static PyObject *crc_way(PyObject *module, PyObject *argument)
{
    long fastest = PyLong_AsLong(argument);
    (void)module;
    if (PyErr_Occurred())
        return NULL;
    if (fastest < TABLES || fastest > WIDE_CLMUL) {
        PyErr_Format(PyExc_ValueError, "there is no way %ld", fastest);
        return NULL;
    }
    return PyLong_FromLong(choose_way((int)fastest));
}

static PyObject *slice_crcs(PyObject *module, PyObject *arguments)
{
    PyObject *given[5], *result = NULL;
    Items data = {0}, starts = {0}, ends = {0}, seeds = {0}, crcs = {0};
    (void)module;
    if (!PyArg_ParseTuple(arguments, "OOOOO:slice_crcs", &given[0], &given[1], &given[2], &given[3], &given[4]))
        return NULL;
    if (!take_items(&data, given[0], 1, READ_ITEMS, "data") || !take_items(&starts, given[1], 8, READ_ITEMS, "starts")
        || !take_n_items(&ends, given[2], 8, READ_ITEMS, "ends", starts.count)
        || (given[3] != Py_None && !take_n_items(&seeds, given[3], 4, READ_ITEMS, "seeds", starts.count))
        || !take_n_items(&crcs, given[4], 4, WRITE_ITEMS, "crcs", starts.count))
        goto done;
    const uint8_t *bytes = data.view.buf;
    const int64_t *start = starts.view.buf, *end = ends.view.buf;
    const uint32_t *seed = seeds.view.buf;
    uint32_t *crc = crcs.view.buf;
    Py_ssize_t row = 0;
    Py_BEGIN_ALLOW_THREADS
    for (; row < starts.count && 0 <= start[row] && start[row] <= end[row] && end[row] <= data.count; row++)
        crc[row] = crc_extend(seed ? seed[row] : 0, bytes + start[row], (size_t)(end[row] - start[row]));
    Py_END_ALLOW_THREADS
    if (row < starts.count)
        PyErr_Format(PyExc_IndexError, "slice %zd does not lie in the data", row);
    else
        result = Py_NewRef(Py_None);
done:
    release_items(&data);
    release_items(&starts);
    release_items(&ends);
    release_items(&seeds);
    release_items(&crcs);
    return result;
}

PyMethodDef crc_methods[] = {
    {"crc_way", crc_way, METH_O, NULL},
    {"slice_crcs", slice_crcs, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
