/* Stands in front of libc and makes the k-th call fail that changes a store, or opens a file of it (LD_PRELOAD).
 *
 * Armed from Python through ctypes: shim_arm(root, k, errno, sticky). Calls on other paths, and those of other
 * processes, pass. Every call on the store goes into a log, between the lines that shim_note adds: so it can be seen
 * whether the engine announced each of them. shim_fired: the name and the path of the call that was made to fail.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static char root[PATH_MAX];
static size_t root_length;
static long k, count, syncs;
static int code, sticky, armed, fired_sync;
static char fired[PATH_MAX + 32];
static char log_text[1 << 20];
static size_t log_length;

static void add(const char *kind, const char *name, const char *path) {
    int n = snprintf(log_text + log_length, sizeof log_text - log_length, "%s\t%s\t%s\n", kind, name, path);
    if (n > 0 && log_length + n < sizeof log_text) log_length += n;
}

void shim_arm(const char *new_root, long new_k, int new_code, int new_sticky) {
    snprintf(root, sizeof root, "%s", new_root);
    root_length = strlen(root);
    k = new_k; code = new_code; sticky = new_sticky;
    count = 0; fired[0] = 0; fired_sync = 0; log_length = 0; log_text[0] = 0; armed = 1;
}
void shim_disarm(void) { k = 0; }
void shim_note(const char *operation, const char *path) { if (armed) add("hook", operation, path); }
long shim_count(void) { return count; }
long shim_syncs(void) { return syncs; }
const char *shim_fired(void) { return fired; }
const char *shim_log(void) { log_text[log_length] = 0; return log_text; }

/* The path itself, or, of one that begins with a descriptor (files/rooted.py), the path that this leads to now. */
static const char *reached(const char *path, char *found, size_t size) {
    char link[64];
    int fd, end = 0;
    if (!path || sscanf(path, "/proc/self/fd/%d/.%n", &fd, &end) != 1 || !end) return path;
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, found, size - 1);
    errno = saved;
    if (n < 0) return path;
    snprintf(found + n, size - n, "%s", path + end);
    return found;
}

/* Whether this call fails; it is counted if the path lies in the store. */
static int fails(const char *name, const char *given) {
    char found[PATH_MAX + 64];
    if (!armed) return 0;
    const char *path = reached(given, found, sizeof found);
    if (!path || strncmp(path, root, root_length) != 0 || strstr(path, "/staging/")) return 0;
    int is_sync = strstr(name, "sync") != NULL;
    count++;
    add("call", name, path);
    if (!(k && (count == k || (sticky && count > k)))) {
        syncs += is_sync;
        return 0;
    }
    /* The call by which a flush fails counts most: it may come behind others that failed. */
    if (!fired[0] || !fired_sync) {
        fired_sync = is_sync && (strstr(path, "/commitlog/") || !strcmp(name, "syncfs"));
        snprintf(fired, sizeof fired, "%s\t%s", name, path);
    }
    errno = code;
    return 1;
}

static int fd_fails(const char *name, int fd) {
    char link[64], path[PATH_MAX];
    if (!armed) return 0;
    int saved = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, sizeof path - 1);
    errno = saved;
    if (n < 0) return 0;
    path[n] = 0;
    return fails(name, path);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int open(const char *path, int flags, ...) {
    va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest);
    return fails("open", path) ? -1 : REAL(open)(path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    va_list rest; va_start(rest, flags); mode_t mode = va_arg(rest, mode_t); va_end(rest);
    return fails("open", path) ? -1 : REAL(open64)(path, flags, mode);
}
int fsync(int fd) { return fd_fails("fsync", fd) ? -1 : REAL(fsync)(fd); }
int fdatasync(int fd) { return fd_fails("fdatasync", fd) ? -1 : REAL(fdatasync)(fd); }
int syncfs(int fd) { return fd_fails("syncfs", fd) ? -1 : REAL(syncfs)(fd); }
int msync(void *at, size_t length, int flags) {
    return armed && fails("msync", root) ? -1 : REAL(msync)(at, length, flags);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    return fd_fails("pwrite", fd) ? -1 : REAL(pwrite)(fd, data, size, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return fd_fails("pwrite", fd) ? -1 : REAL(pwrite64)(fd, data, size, at);
}
ssize_t write(int fd, const void *data, size_t size) {
    return fd > 2 && fd_fails("write", fd) ? -1 : REAL(write)(fd, data, size);
}
int ftruncate(int fd, off_t size) { return fd_fails("ftruncate", fd) ? -1 : REAL(ftruncate)(fd, size); }
int ftruncate64(int fd, off64_t size) { return fd_fails("ftruncate", fd) ? -1 : REAL(ftruncate64)(fd, size); }
int posix_fallocate(int fd, off_t at, off_t size) {
    return fd_fails("fallocate", fd) ? errno : REAL(posix_fallocate)(fd, at, size);
}
int posix_fallocate64(int fd, off64_t at, off64_t size) {
    return fd_fails("fallocate", fd) ? errno : REAL(posix_fallocate64)(fd, at, size);
}
int rename(const char *old, const char *new) { return fails("rename", new) ? -1 : REAL(rename)(old, new); }
int link(const char *old, const char *new) { return fails("link", new) ? -1 : REAL(link)(old, new); }
int linkat(int a, const char *old, int b, const char *new, int flags) {
    return fails("link", new) ? -1 : REAL(linkat)(a, old, b, new, flags);
}
int unlink(const char *path) { return fails("unlink", path) ? -1 : REAL(unlink)(path); }
int mkdir(const char *path, mode_t mode) { return fails("mkdir", path) ? -1 : REAL(mkdir)(path, mode); }
