/* A floor: how little a message costs when a program does nothing but pass it on.
 *
 *     recv ──> find the route of the topic ──> copy to each reader's buffer ──> one send a reader and turn
 *
 * It speaks just enough of MQTT 3.1.1 for load.c: CONNECT, SUBSCRIBE (a name, or + or # at its end),
 * PUBLISH of QoS 0 and 1, PUBACK. It checks nothing, keeps nothing, and would lose what a slow reader does not take.
 * No broker can cost less by this way of reading and writing; what one costs beyond it is what it does for its users.
 *
 * Build: cc -O2 -Wall -o floor floor.c; run: floor PORT. Called by floors.py.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    CONNECTIONS = 1024,      /* by descriptor */
    INPUT = 128 * 1024,      /* what one recv takes, and what was left of the one before */
    OUTPUT = 8 * 1024 * 1024 /* for one reader; load.c never has as much out */
};

struct connection {
    uint8_t *rest, *out;
    size_t resting, filled;
    bool touched;
    uint16_t next_id;
    char filter[256];        /* "" for who reads nothing */
    size_t filter_size;
};

static struct connection of[CONNECTIONS];
static int touched[CONNECTIONS], touched_count, readers[CONNECTIONS], reader_count;
static uint8_t input[2 * INPUT];

static uint8_t *room(int fd, size_t size)
{
    struct connection *c = &of[fd];
    if (c->filled + size > OUTPUT) {
        fputs("floor: a reader is too slow\n", stderr);
        exit(1);
    }
    if (!c->touched) {
        c->touched = true;
        touched[touched_count++] = fd;
    }
    c->filled += size;
    return c->out + c->filled - size;
}

static bool wants(const struct connection *c, const uint8_t *topic, size_t size)
{
    size_t same = c->filter_size;
    char last = same ? c->filter[same - 1] : 0;
    if (last == '+' || last == '#')
        return size >= same - 1 && !memcmp(c->filter, topic, same - 1)
            && (last == '#' || !memchr(topic + same - 1, '/', size - same + 1));
    return same == size && !memcmp(c->filter, topic, size);
}

/* Everything from `from` to `to` are packets as long as `step` and with the same topic. */
static void pass(int fd, uint8_t *from, uint8_t *to, size_t step, const uint8_t *topic, size_t size)
{
    bool once = *from & 2;
    size_t id_at = topic + size - from;
    if (once)
        for (uint8_t *one = from; one < to; one += step)
            memcpy(room(fd, 4), (uint8_t[]){0x40, 2, one[id_at], one[id_at + 1]}, 4);
    for (int n = 0; n < reader_count; n++) {
        struct connection *reader = &of[readers[n]];
        if (!wants(reader, topic, size))
            continue;
        uint8_t *copy = room(readers[n], to - from);
        memcpy(copy, from, to - from);
        if (once)
            for (uint8_t *one = copy; one < copy + (to - from); one += step) {
                reader->next_id += reader->next_id == UINT16_MAX ? 2 : 1;
                one[id_at] = reader->next_id >> 8;
                one[id_at + 1] = reader->next_id;
            }
    }
}

static void subscribe(int fd, const uint8_t *body, size_t size)
{
    struct connection *c = &of[fd];
    c->filter_size = body[2] << 8 | body[3];
    memcpy(c->filter, body + 4, c->filter_size);
    readers[reader_count++] = fd;
    memcpy(room(fd, 5), (uint8_t[]){0x90, 3, body[0], body[1], body[size - 1]}, 5);
}

/* How many of these bytes were whole packets. */
static size_t hear(int fd, uint8_t *data, size_t size)
{
    size_t at = 0;
    while (size - at >= 2) {
        size_t length = 0, body = at + 1;
        int shift = 0;
        do {
            if (body >= size)
                return at;
            length |= (size_t)(data[body] & 127) << shift;
            shift += 7;
        } while (data[body++] & 128);
        size_t end = body + length;
        if (end > size)
            return at;
        if (data[at] >> 4 == 3) {
            size_t topic = data[body] << 8 | data[body + 1], step = end - at, head = body + 2 + topic - at;
            while (end + step <= size && !memcmp(data + at, data + end, head))
                end += step;
            pass(fd, data + at, data + end, step, data + body + 2, topic);
        } else if (data[at] >> 4 == 1) {
            memcpy(room(fd, 4), (uint8_t[]){0x20, 2, 0, 0}, 4);
        } else if (data[at] >> 4 == 8) {
            subscribe(fd, data + body, length);
        }
        at = end;
    }
    return at;
}

static void leave(int fd)
{
    int kept = 0;
    for (int n = 0; n < reader_count; n++)
        if (readers[n] != fd)
            readers[kept++] = readers[n];
    reader_count = kept;
    close(fd);
}

static void answer(int fd)
{
    struct connection *c = &of[fd];
    memcpy(input, c->rest, c->resting);
    ssize_t got = recv(fd, input + c->resting, INPUT, 0);
    if (got <= 0) {
        leave(fd);
        return;
    }
    size_t size = c->resting + got, taken = hear(fd, input, size);
    c->resting = size - taken;
    memcpy(c->rest, input + taken, c->resting);
}

static void flush(int fd)
{
    struct connection *c = &of[fd];
    ssize_t sent = send(fd, c->out, c->filled, MSG_NOSIGNAL | MSG_DONTWAIT);
    c->touched = false;
    if (sent < 0)
        sent = 0;
    memmove(c->out, c->out + sent, c->filled - sent);
    c->filled -= sent;
    if (c->filled) {
        c->touched = true;
        touched[touched_count++] = fd;
    }
}

static void welcome(int poll, int listener)
{
    int fd = accept(listener, NULL, NULL), on = 1;
    if (fd < 0 || fd >= CONNECTIONS)
        exit(1);
    struct connection *c = &of[fd];
    c->rest = c->rest ? c->rest : malloc(INPUT);
    c->out = c->out ? c->out : malloc(OUTPUT);
    c->resting = c->filled = c->filter_size = 0;
    c->touched = false;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    epoll_ctl(poll, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.fd = fd});
}

int main(int argc, char **argv)
{
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1, poll = epoll_create1(0);
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 0),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&here, sizeof here) || listen(listener, 512)) {
        perror("floor");
        return 2;
    }
    epoll_ctl(poll, EPOLL_CTL_ADD, listener, &(struct epoll_event){.events = EPOLLIN, .data.fd = listener});
    for (;;) {
        struct epoll_event events[256];
        int count = epoll_wait(poll, events, 256, touched_count ? 1 : -1);
        for (int n = 0; n < count; n++)
            events[n].data.fd == listener ? welcome(poll, listener) : answer(events[n].data.fd);
        int due = touched_count;
        touched_count = 0;
        for (int n = 0; n < due; n++)
            flush(touched[n]);
    }
}
