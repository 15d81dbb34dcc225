/* The system calls and the stores of one append of one message, and nothing else: the floor of `Store.send`. In the
   order of native/lone_append.c; arguments: an empty directory, bytes of a frame, how many. Prints p50 and p99 in ns. */

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SEGMENT_BYTES (64 << 20)
#define SLOTS 5000000
#define KEYS 3
#define WORDS 12
#define NLINK_ONLY 4

static int64_t now_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static int compare(const void *left, const void *right)
{
    int64_t one = *(const int64_t *)left, other = *(const int64_t *)right;
    return (one > other) - (one < other);
}

static void check(int is_good, const char *what)
{
    if (!is_good) {
        perror(what);
        exit(1);
    }
}

static int made(const char *name, off_t allocated, off_t size)
{
    int fd = open(name, O_RDWR | O_CREAT, 0600);
    check(fd >= 0 && (!allocated || posix_fallocate(fd, 0, allocated) == 0) && ftruncate(fd, size) == 0, name);
    return fd;
}

static void set_lock(int fd, short kind)
{
    struct flock request = {.l_type = kind, .l_whence = SEEK_SET, .l_len = 1};
    check(fcntl(fd, F_OFD_SETLK, &request) == 0, "lock");
}

static void look(int fd)
{
    uint32_t answer[64];
    check(syscall(SYS_statx, fd, "", AT_EMPTY_PATH, NLINK_ONLY, answer) == 0, "statx");
}

int main(int count, char **given)
{
    check(count == 4 && chdir(given[1]) == 0, "lone_floor DIRECTORY FRAME_BYTES COUNT");
    int64_t frame_bytes = atoll(given[2]), messages = atoll(given[3]), index_bytes = 40 + 4 * SLOTS;
    int lock = made("lock", 0, 1), segment = made("segment", SEGMENT_BYTES, SEGMENT_BYTES);
    int queue = made("queue", 0, 6000000), index = made("index", index_bytes, index_bytes + 20 * 4 * SLOTS);
    int page = made("page", 4096, 4096);
    check(mkdir("commitlog", 0700) == 0, "commitlog");
    uint8_t *slots = mmap(NULL, index_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, index, 0);
    volatile int64_t *words = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, page, 0);
    uint8_t *frame = calloc(1, (size_t)frame_bytes), entry[20 * KEYS] = {0};
    int64_t *times = calloc((size_t)messages, sizeof *times);
    struct stat status;
    check(slots != MAP_FAILED && words != MAP_FAILED && frame != NULL && times != NULL, "memory");
    for (int64_t number = 0; number < messages; number++) {
        int64_t begin = now_ns(), position = number % (SEGMENT_BYTES / frame_bytes) * frame_bytes;
        set_lock(lock, F_WRLCK);
        look(lock);
        check(stat("commitlog", &status) == 0, "stat");
        look(segment);
        look(queue);
        check(pread(queue, entry, 20, number % 100000 * 20) == 20, "pread");
        look(index);
        for (int word = 0; word < WORDS; word++)
            words[word] = number;
        check(pwrite(segment, frame, (size_t)frame_bytes, position) == frame_bytes, "segment");
        check(pwrite(queue, entry, 20, number % 100000 * 20) == 20, "queue");
        check(pwrite(index, entry, sizeof entry, index_bytes + number * (int64_t)sizeof entry) == sizeof entry, "index");
        for (int key = 0; key < KEYS; key++)
            *(int32_t *)(slots + 40 + 4 * (rand() % SLOTS)) = (int32_t)number;
        memcpy(slots, entry, 40);
        set_lock(lock, F_UNLCK);
        times[number] = now_ns() - begin;
    }
    qsort(times, (size_t)messages, sizeof *times, compare);
    printf("%lld %lld\n", (long long)times[messages / 2], (long long)times[messages * 99 / 100]);
    return 0;
}
