/* CRC-32 of many slices in one call.

   A register is a polynomial over GF(2) modulo P(x) = 0x104C11DB7, its bits reflected: bit 31 stands for x^0. Two ways:
   the tables take 16 bytes at a time, on any machine; carry-less multiplication takes 64, where the processor has it.
   Both are checked against zlib by the tests.

   The constants of the second way are computed from P, as those of the first. Source: Gopal and others, Fast CRC
   Computation for Generic Polynomials Using PCLMULQDQ Instruction (Intel, 2009). */

#include "native.h"

#include "crc.h"

#define POLYNOMIAL 0xEDB88320u

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

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

/* What carries both halves of a block over 64 bytes, and over 16: of 128 bits each lies 32 before its own end. */
static uint64_t over_64[2], over_16[2];

/* x^bits modulo P, as the multiplication wants it. */
static uint64_t factor(unsigned bits)
{
    uint32_t power = 1u << 31;
    for (; bits; bits--)
        power = (power >> 1) ^ (POLYNOMIAL & (0u - (power & 1)));
    return (uint64_t)power << 1;
}

__attribute__((target("pclmul,sse4.1"))) static __m128i carry(__m128i block, __m128i factors, __m128i next)
{
    __m128i low = _mm_clmulepi64_si128(block, factors, 0x00);
    __m128i high = _mm_clmulepi64_si128(block, factors, 0x11);
    return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

__attribute__((target("pclmul,sse4.1"))) static uint32_t register_by_clmul(uint32_t value, const uint8_t *data,
                                                                           size_t size)
{
    if (size < 64)
        return register_by_tables(value, data, size);
    const __m128i *blocks = (const __m128i *)data;
    __m128i a = _mm_xor_si128(_mm_loadu_si128(blocks), _mm_cvtsi32_si128((int)value));
    __m128i b = _mm_loadu_si128(blocks + 1), c = _mm_loadu_si128(blocks + 2), d = _mm_loadu_si128(blocks + 3);
    __m128i factors = _mm_set_epi64x((int64_t)over_64[1], (int64_t)over_64[0]);
    for (blocks += 4, size -= 64; size >= 64; blocks += 4, size -= 64) {
        a = carry(a, factors, _mm_loadu_si128(blocks));
        b = carry(b, factors, _mm_loadu_si128(blocks + 1));
        c = carry(c, factors, _mm_loadu_si128(blocks + 2));
        d = carry(d, factors, _mm_loadu_si128(blocks + 3));
    }
    factors = _mm_set_epi64x((int64_t)over_16[1], (int64_t)over_16[0]);
    a = carry(carry(carry(a, factors, b), factors, c), factors, d);
    for (; size >= 16; blocks++, size -= 16)
        a = carry(a, factors, _mm_loadu_si128(blocks));
    /* The 16 bytes that stand for all before them go through the tables: their register starts from zero. */
    uint8_t rest[16];
    _mm_storeu_si128((__m128i *)rest, a);
    return register_by_tables(register_by_tables(0, rest, 16), (const uint8_t *)blocks, size);
}

/* The product has 63 bits, bit 62 for x^0. Those above x^31 go through the tables: 4 bytes bring the factor x^32. */
__attribute__((target("pclmul,sse4.1"))) static uint32_t multiply_by_clmul(uint32_t a, uint32_t b)
{
    __m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b), 0x00);
    uint64_t wide = (uint64_t)_mm_cvtsi128_si64(product) << 1;
    uint32_t high = (uint32_t)wide;
    return (uint32_t)(wide >> 32) ^ tables[3][high & 0xFF] ^ tables[2][high >> 8 & 0xFF] ^ tables[1][high >> 16 & 0xFF]
           ^ tables[0][high >> 24];
}

static void prepare_clmul(void)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("pclmul") || !__builtin_cpu_supports("sse4.1"))
        return;
    over_64[0] = factor(4 * 128 + 32);
    over_64[1] = factor(4 * 128 - 32);
    over_16[0] = factor(128 + 32);
    over_16[1] = factor(128 - 32);
    extend_register = register_by_clmul;
    multiply_registers = multiply_by_clmul;
}
#else
static void prepare_clmul(void) {}
#endif

uint32_t crc_extend(uint32_t crc, const uint8_t *data, size_t size)
{
    return ~extend_register(~crc, data, size);
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
    {"slice_crcs", slice_crcs, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
