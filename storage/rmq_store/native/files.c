/* Looks at many files with one call. The twin is in log/core/file_sizes.py. */

#include "native.h"

#include <dirent.h>
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

PyMethodDef file_methods[] = {
    {"common_size", common_size, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};
