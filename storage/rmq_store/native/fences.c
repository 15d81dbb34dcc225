/* Order of memory between processes that share words by a map. Python loads and stores a word by one plain instruction
   (memoryview, numpy). x86 keeps the order of those by itself, and the fences cost nothing there; ARM does not. Behind an
   acquire fence, whoever has loaded a word finds what was stored or written before a release fence that came before the store
   of that word. Without the extension there are no fences: files/locks/state_page.py. */

#include "native.h"

static PyObject *acquire_fence(PyObject *module, PyObject *arguments)
{
    (void)module, (void)arguments;
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    Py_RETURN_NONE;
}

static PyObject *release_fence(PyObject *module, PyObject *arguments)
{
    (void)module, (void)arguments;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    Py_RETURN_NONE;
}

PyMethodDef fence_methods[] = {
    {"acquire_fence", acquire_fence, METH_NOARGS, NULL},
    {"release_fence", release_fence, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
