/* CRC-32C (Castagnoli) of a Kafka record batch. The twin is bridge/record_batches/crc32c.py.

   With the processor's own instruction, 8 bytes at a time, where it has one; else by tables, 8 bytes at a time, too. */

#include "native.h"

#include "crc32c.h"

#define CASTAGNOLI 0x82F63B78u

/* tables[k][b]: what byte b adds when k more bytes follow it. */
static uint32_t tables[8][256];

static uint32_t register_by_tables(uint32_t value, const uint8_t *data, size_t size)
{
    for (; size >= 8; data += 8, size -= 8) {
        uint32_t low = value ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8 | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24);
        value = tables[7][low & 0xFF] ^ tables[6][low >> 8 & 0xFF] ^ tables[5][low >> 16 & 0xFF] ^ tables[4][low >> 24]
              ^ tables[3][data[4]] ^ tables[2][data[5]] ^ tables[1][data[6]] ^ tables[0][data[7]];
    }
    for (; size; data++, size--)
        value = tables[0][(value ^ *data) & 0xFF] ^ value >> 8;
    return value;
}

static uint32_t (*extend_register)(uint32_t, const uint8_t *, size_t) = register_by_tables;

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>

__attribute__((target("sse4.2"))) static uint32_t register_by_processor(uint32_t value, const uint8_t *data, size_t size)
{
    uint64_t wide = value;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        wide = _mm_crc32_u64(wide, word);
    }
    value = (uint32_t)wide;
    for (; size; data++, size--)
        value = _mm_crc32_u8(value, *data);
    return value;
}

static int choose(int may_use_processor)
{
    __builtin_cpu_init();
    int uses = may_use_processor && __builtin_cpu_supports("sse4.2");
    extend_register = uses ? register_by_processor : register_by_tables;
    return uses;
}
#else
static int choose(int may_use_processor)
{
    (void)may_use_processor;
    return 0;
}
#endif

void crc32c_prepare(void)
{
    for (uint32_t value = 0; value < 256; value++) {
        uint32_t entry = value;
        for (int bit = 0; bit < 8; bit++)
            entry = entry >> 1 ^ (CASTAGNOLI & (0u - (entry & 1)));
        tables[0][value] = entry;
    }
    for (int behind = 1; behind < 8; behind++)
        for (int value = 0; value < 256; value++)
            tables[behind][value] = tables[0][tables[behind - 1][value] & 0xFF] ^ tables[behind - 1][value] >> 8;
    choose(1);
}

static PyObject *crc32c(PyObject *module, PyObject *argument)
{
    Items data = {0};
    (void)module;
    if (!take_items(&data, argument, 1, READ_ITEMS, "data"))
        return NULL;
    uint32_t value;
    Py_BEGIN_ALLOW_THREADS
    value = ~extend_register(~0u, data.view.buf, (size_t)data.count);
    Py_END_ALLOW_THREADS
    release_items(&data);
    return PyLong_FromUnsignedLong(value);
}

/* From now on, for all: the processor's instruction if it has one, or tables only. Whether it is used. For tests. */
static PyObject *crc32c_by_processor(PyObject *module, PyObject *argument)
{
    int wanted = PyObject_IsTrue(argument);
    (void)module;
    return wanted < 0 ? NULL : PyBool_FromLong(choose(wanted));
}

PyMethodDef crc32c_methods[] = {
    {"crc32c", crc32c, METH_O, NULL},
    {"crc32c_by_processor", crc32c_by_processor, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};
