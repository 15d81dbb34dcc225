/* Both ends of the floor of batch sends.

   batch_floor serve           listens on loopback and prints its port; answers each request with code 0, keeps nothing
   batch_floor send PORT BYTES COUNT LANES
                               copies BYTES into a request COUNT times and sends them, LANES at once: the copy and the
                               system calls that no client is without. Prints microseconds of processor time in all. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PREFIX_BYTES 8
#define ROOM_BYTES (32 << 20)
#define READ_BYTES (1 << 20)
#define HEADER "{\"code\":320,\"extFields\":{\"e\":\"1\"},\"flag\":0,\"opaque\":1}"

static void check(int is_good, const char *what)
{
    if (!is_good) {
        perror(what);
        exit(1);
    }
}

static size_t word_at(const uint8_t *place)
{
    uint32_t word;
    memcpy(&word, place, sizeof word);
    return ntohl(word);
}

static size_t put_prefix(uint8_t *frame, size_t header_bytes, size_t body_bytes)
{
    uint32_t prefix[2] = {htonl((uint32_t)(4 + header_bytes + body_bytes)), htonl((uint32_t)header_bytes)};
    memcpy(frame, prefix, PREFIX_BYTES);
    return PREFIX_BYTES + header_bytes;
}

static void answer(int connection, const uint8_t *request)
{
    const char *opaque = memmem(request + PREFIX_BYTES, word_at(request + 4) & 0xFFFFFF, "\"opaque\":", 9);
    uint8_t frame[512];
    check(opaque != NULL, "a request without an opaque");
    int header_bytes = snprintf(
        (char *)frame + PREFIX_BYTES, sizeof frame - PREFIX_BYTES,
        "{\"code\":0,\"extFields\":{\"msgId\":\"7F00000100002A9F0000000000000000\",\"queueId\":\"1\",\"queueOffset\":\"9\"},"
        "\"flag\":1,\"language\":\"JAVA\",\"opaque\":%d,\"serializeTypeCurrentRPC\":\"JSON\",\"version\":475}",
        atoi(opaque + 9));
    size_t bytes = put_prefix(frame, (size_t)header_bytes, 0);
    check(send(connection, frame, bytes, MSG_NOSIGNAL) == (ssize_t)bytes, "answer");
}

static void serve_one(int connection)
{
    uint8_t *room = malloc(ROOM_BYTES);
    size_t there = 0;
    for (ssize_t got; (got = recv(connection, room + there, READ_BYTES, 0)) > 0;) {
        size_t at = 0;
        there += (size_t)got;
        for (; there - at >= PREFIX_BYTES && there - at >= 4 + word_at(room + at); at += 4 + word_at(room + at))
            answer(connection, room + at);
        memmove(room, room + at, there - at);
        there -= at;
        check(there + READ_BYTES <= ROOM_BYTES, "a request is too long");
    }
    exit(0);
}

static void serve(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    int listening = socket(AF_INET, SOCK_STREAM, 0);
    check(bind(listening, (void *)&address, size) == 0 && listen(listening, 8) == 0
              && getsockname(listening, (void *)&address, &size) == 0, "listen");
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (int connection; (connection = accept(listening, NULL, NULL)) >= 0; close(connection))
        if (fork() == 0)
            serve_one(connection);
}

static void await(int connection, size_t *answers, size_t wanted)
{
    static uint8_t room[1 << 16];
    static size_t there;
    while (*answers < wanted) {
        ssize_t got = recv(connection, room + there, sizeof room - there, 0);
        size_t at = 0;
        check(got > 0, "recv");
        there += (size_t)got;
        for (; there - at >= PREFIX_BYTES && there - at >= 4 + word_at(room + at); at += 4 + word_at(room + at))
            ++*answers;
        memmove(room, room + at, there - at);
        there -= at;
    }
}

static void send_all(char **given)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)atoi(given[0]));
    size_t bytes = strtoull(given[1], NULL, 10), count = strtoull(given[2], NULL, 10), lanes = strtoull(given[3], NULL, 10);
    size_t before = PREFIX_BYTES + strlen(HEADER), answers = 0, source_bytes = 16 * bytes;
    uint8_t *source = malloc(source_bytes), *frame = malloc(before + bytes);
    int connection = socket(AF_INET, SOCK_STREAM, 0);
    check(source != NULL && frame != NULL && connect(connection, (void *)&address, sizeof address) == 0, "connect");
    memset(source, 7, source_bytes);
    memcpy(frame + put_prefix(frame, strlen(HEADER), bytes) - strlen(HEADER), HEADER, strlen(HEADER));
    for (size_t number = 0; number < count; number++) {
        if (number >= lanes)
            await(connection, &answers, number - lanes + 1);
        memcpy(frame + before, source + number % 16 * bytes, bytes);
        for (size_t sent = 0; sent < before + bytes;) {
            ssize_t taken = send(connection, frame + sent, before + bytes - sent, MSG_NOSIGNAL);
            check(taken > 0, "send");
            sent += (size_t)taken;
        }
    }
    await(connection, &answers, count);
    struct timespec used;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used);
    printf("%.1f\n", (double)used.tv_sec * 1e6 + (double)used.tv_nsec / 1e3);
}

int main(int count, char **given)
{
    if (count == 2 && strcmp(given[1], "serve") == 0)
        serve();
    else if (count == 6 && strcmp(given[1], "send") == 0)
        send_all(given + 2);
    else
        return 2;
    return 0;
}
