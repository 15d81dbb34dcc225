/* Looks at files. The twins are in log/core/file_sizes.py and broker/metadata/json_table.py. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* st_mtim */
#endif

#include "native.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#define NAME_BYTES 20

/* The size of the regular file of this number in the directory; 0 if there is none of more than 0 bytes. */
static int64_t size_of(int directory, int64_t number)
{
    char name[NAME_BYTES + 1];
    struct stat status;
    snprintf(name, sizeof name, "%020lld", (long long)number);
    if (fstatat(directory, name, &status, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(status.st_mode))
        return 0;
    return status.st_size;
}

static PyObject *common_size(PyObject *module, PyObject *arguments)
{
    PyObject *path = NULL, *given, *result = NULL;
    Items numbers = {0};
    int64_t size = 0;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O&O:common_size", PyUnicode_FSConverter, &path, &given)
        || !take_items(&numbers, given, 8, READ_ITEMS, "numbers"))
        goto done;
    const char *name = PyBytes_AsString(path);
    const int64_t *number = numbers.view.buf;
    Py_BEGIN_ALLOW_THREADS
    DIR *directory = opendir(name);
    if (directory != NULL) {
        for (Py_ssize_t row = 0; row < numbers.count && (row == 0 || size != 0); row++) {
            int64_t found = size_of(dirfd(directory), number[row]);
            size = row == 0 || found == size ? found : 0;
        }
        closedir(directory);
    }
    Py_END_ALLOW_THREADS
    result = PyLong_FromLongLong(size);
done:
    release_items(&numbers);
    Py_XDECREF(path);
    return result;
}

/* file_stamp(path): (inode, mtime in ns, size); None: there is no such file; False: Python is told why. Every send asks. A
   call that lets go of the GIL makes threads that send take turns there, which costs more than the send. */
static PyObject *file_stamp(PyObject *module, PyObject *arguments)
{
    PyObject *path;
    struct stat status;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "O&:file_stamp", PyUnicode_FSConverter, &path))
        return NULL;
    int failed = lstat(PyBytes_AsString(path), &status) != 0 ? errno : 0;
    Py_DECREF(path);
    if (failed)
        return Py_NewRef(failed == ENOENT || failed == ENOTDIR ? Py_None : Py_False);
    return Py_BuildValue("KLL", (unsigned long long)status.st_ino,
                         (long long)status.st_mtim.tv_sec * 1000000000 + status.st_mtim.tv_nsec, (long long)status.st_size);
}

PyMethodDef file_methods[] = {
    {"file_stamp", file_stamp, METH_VARARGS, NULL},
    {"common_size", common_size, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
