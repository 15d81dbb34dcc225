/* The ceiling of a client that pulls: sends the requests of a file, half of the lanes at once, and throws their answers
   away. Nothing is decoded but the lengths of frames, and the code of each answer is looked for.

   pull_loop HOST PORT FILE LANES     prints seconds, seconds of processor time, answers, and bytes. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#define READ_BYTES (256 << 10)
#define FRAME_BYTES_MAX (16 << 20)
#define PREFIX_BYTES 8
/* An answer's code stands in front. */
#define HEADER_BYTES 64

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static _Noreturn void fail(const char *what)
{
    perror(what);
    exit(1);
}

static int64_t frame_bytes(const uint8_t *frame)
{
    uint32_t length;
    memcpy(&length, frame, sizeof length);
    return 4 + (int64_t)ntohl(length);
}

static uint8_t *contents(const char *path, int64_t *size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL || fseek(file, 0, SEEK_END) < 0)
        fail(path);
    *size = ftell(file);
    rewind(file);
    uint8_t *data = malloc((size_t)*size + 1);
    if (data == NULL || fread(data, 1, (size_t)*size, file) != (size_t)*size)
        fail(path);
    fclose(file);
    return data;
}

static int connected(const char *host, const char *port)
{
    int made = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    if (made < 0 || inet_pton(AF_INET, host, &address.sin_addr) != 1
        || connect(made, (struct sockaddr *)&address, sizeof address) < 0)
        fail("connect");
    setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return made;
}

/* Send the next `count` requests; where those behind them begin. */
static int64_t send_requests(int connection, const uint8_t *requests, int64_t at, int64_t size, int64_t count)
{
    int64_t end = at;
    for (; count > 0 && end < size; count--)
        end += frame_bytes(requests + end);
    while (at < end) {
        ssize_t sent = send(connection, requests + at, (size_t)(end - at), MSG_NOSIGNAL);
        if (sent <= 0)
            fail("send");
        at += sent;
    }
    return end;
}

int main(int count, char **given)
{
    if (count != 5)
        return 2;
    int64_t size, sent_bytes = 0, requests = 0, sent = 0, answers = 0, there = 0, total = 0, lanes = atol(given[4]);
    uint8_t *file = contents(given[3], &size), *buffer = malloc(FRAME_BYTES_MAX + READ_BYTES);
    for (int64_t at = 0; at < size; at += frame_bytes(file + at))
        requests++;
    int connection = connected(given[1], given[2]);
    double begin = seconds(CLOCK_MONOTONIC), begin_used = seconds(CLOCK_PROCESS_CPUTIME_ID);
    while (answers < requests) {
        int64_t free_lanes = lanes - (sent - answers);
        if (sent < requests && 2 * free_lanes >= lanes) {
            sent_bytes = send_requests(connection, file, sent_bytes, size, free_lanes);
            sent = sent + free_lanes < requests ? sent + free_lanes : requests;
        }
        ssize_t got = recv(connection, buffer + there, READ_BYTES, 0);
        if (got <= 0)
            fail("recv");
        there += got;
        total += got;
        int64_t at = 0;
        while (there - at >= PREFIX_BYTES && frame_bytes(buffer + at) <= there - at) {
            int64_t whole = frame_bytes(buffer + at), looked_at = whole - PREFIX_BYTES;
            if (looked_at < 0)
                return 3;
            looked_at = looked_at < HEADER_BYTES ? looked_at : HEADER_BYTES;
            if (memmem(buffer + at + PREFIX_BYTES, (size_t)looked_at, "\"code\":0,", 9) == NULL)
                return 3;
            at += whole;
            answers++;
        }
        if (there - at > FRAME_BYTES_MAX)
            return 4;
        memmove(buffer, buffer + at, (size_t)(there - at));
        there -= at;
    }
    printf("%.6f %.6f %lld %lld\n", seconds(CLOCK_MONOTONIC) - begin, seconds(CLOCK_PROCESS_CPUTIME_ID) - begin_used,
           (long long)answers, (long long)total);
    return 0;
}
