/* The module rmq_store._native: the functions of all parts, and how they take buffers. */

#include "native.h"

#include <stdlib.h>

#include "crc.h"
#include "blake2b.h"
#include "crc32c.h"

/* Raised whenever a function is added or its parameters change, here and in rmq_store/format/bytes/native.py. */
#define INTERFACE 28

int take_items(Items *items, PyObject *object, size_t item_bytes, int writable, const char *name)
{
    int flags = PyBUF_C_CONTIGUOUS | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(object, &items->view, flags) < 0) {
        items->view.obj = NULL;
        return 0;
    }
    items->count = items->view.len / (Py_ssize_t)item_bytes;
    if (items->view.itemsize != (Py_ssize_t)item_bytes || (uintptr_t)items->view.buf % item_bytes) {
        PyErr_Format(PyExc_TypeError, "%s: expected aligned items of %zu bytes, got %zd", name, item_bytes,
                     items->view.itemsize);
        release_items(items);
        return 0;
    }
    return 1;
}

int take_n_items(Items *items, PyObject *object, size_t item_bytes, int writable, const char *name, Py_ssize_t count)
{
    if (!take_items(items, object, item_bytes, writable, name))
        return 0;
    if (items->count != count) {
        PyErr_Format(PyExc_ValueError, "%s: expected %zd items, got %zd", name, count, items->count);
        release_items(items);
        return 0;
    }
    return 1;
}

void release_items(Items *items)
{
    if (items->view.obj != NULL)
        PyBuffer_Release(&items->view);
}

static int add_parts(PyObject *module)
{
    /* Here and not in Python, where the formats, which are to see nothing of their surroundings, would have to ask. */
    const char *pure = getenv("RMQ_PURE");
    if (pure != NULL && strcmp(pure, "1") == 0) {
        PyErr_SetString(PyExc_ImportError, "RMQ_PURE=1 asks for Python only");
        return -1;
    }
    if (PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0)
        return -1;
    crc_prepare();
    blake2b_prepare();
    crc32c_prepare();
    PyMethodDef *parts[] = {batch_body_methods, blake2b_methods, chain_methods, copy_methods, crc_methods, crc32c_methods,
                            digest_slot_methods, dispatch_methods, encoder_methods, fence_methods, file_methods, frame_methods,
                            group_append_methods, host_methods, index_methods, lone_append_methods,
                            message_batch_methods, message_methods, message_object_methods, one_message_methods,
                            patch_methods, property_methods, pull_answer_methods, queue_frame_methods,
                            record_reader_methods, record_writer_methods, request_methods, row_entry_methods,
                            sent_request_methods, slice_methods, text_methods, walk_methods};
    for (size_t part = 0; part < sizeof parts / sizeof parts[0]; part++)
        if (PyModule_AddFunctions(module, parts[part]) < 0)
            return -1;
    return 0;
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, add_parts}, {0, NULL}};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "rmq_store._native",
    .m_doc = "The inner loops of rmq_store in C; every one of them has a twin in Python.",
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit__native(void)
{
    return PyModuleDef_Init(&definition);
}
