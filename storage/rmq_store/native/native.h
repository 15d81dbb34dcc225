/* What the parts of the extension have in common.

   Every function takes buffers, checks every bound that comes from one before it touches memory behind it, lets go of
   the GIL while it works unless that is for a single message, and has a twin in Python that gives the same answer and
   is the reference for it. */

#ifndef RMQ_NATIVE_H
#define RMQ_NATIVE_H

#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <string.h>

/* The functions of each part, ended by a null entry; module.c gathers them. */
extern PyMethodDef batch_body_methods[];
extern PyMethodDef blake2b_methods[];
extern PyMethodDef chain_methods[];
extern PyMethodDef copy_methods[];
extern PyMethodDef crc_methods[];
extern PyMethodDef crc32c_methods[];
extern PyMethodDef digest_slot_methods[];
extern PyMethodDef dispatch_methods[];
extern PyMethodDef fence_methods[];
extern PyMethodDef file_methods[];
extern PyMethodDef frame_methods[];
extern PyMethodDef group_append_methods[];
extern PyMethodDef host_methods[];
extern PyMethodDef index_methods[];
extern PyMethodDef lone_append_methods[];
extern PyMethodDef message_batch_methods[];
extern PyMethodDef message_methods[];
extern PyMethodDef message_object_methods[];
extern PyMethodDef one_message_methods[];
extern PyMethodDef property_methods[];
extern PyMethodDef pull_answer_methods[];
extern PyMethodDef queue_frame_methods[];
extern PyMethodDef record_reader_methods[];
extern PyMethodDef record_writer_methods[];
extern PyMethodDef request_methods[];
extern PyMethodDef row_entry_methods[];
extern PyMethodDef sent_request_methods[];
extern PyMethodDef slice_methods[];
extern PyMethodDef encoder_methods[];
extern PyMethodDef patch_methods[];
extern PyMethodDef text_methods[];
extern PyMethodDef walk_methods[];

/* A one-dimensional buffer that Python handed over: `count` items of one size, contiguous and aligned. */
typedef struct {
    Py_buffer view; /* view.obj is null if there is nothing to release */
    Py_ssize_t count;
} Items;

#define READ_ITEMS 0
#define WRITE_ITEMS 1

/* Take `object`'s buffer. False, with a Python error that names `name`, if it has none of that kind. The caller releases
   it with `release_items`; one that was zeroed and never taken may be released too. */
int take_items(Items *items, PyObject *object, size_t item_bytes, int writable, const char *name);

/* As `take_items`, and demand that there are `count` items. */
int take_n_items(Items *items, PyObject *object, size_t item_bytes, int writable, const char *name, Py_ssize_t count);

void release_items(Items *items);

#endif
