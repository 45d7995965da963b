/* A floor: the least that any program does to let a client in, to keep it and to see it go.
 *
 * As floor_connect.py, in C: accept, read a CONNECT and a SUBSCRIBE to their ends, keep both, answer in one write,
 * publish the will to who reads will/#. It checks nothing and bounds nobody.
 *
 * Build: cc -O2 -Wall -o floor_connect floor_connect.c; run: floor_connect PORT. Called by many.py.
 */
#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTIONS = 65536, INPUT = 65536, BACKLOG = 512, EVENTS = 256 };

struct client {
    char *name, *filter, *will, *payload; /* each as MQTT has it: its length in two bytes, then the text */
    int keep_alive;
    time_t heard;
};

static struct client *of[CONNECTIONS]; /* by descriptor */
static int mourner = -1;               /* who reads will/# */

static char *text(const uint8_t *at, size_t *size)
{
    *size = 2 + (at[0] << 8 | at[1]);
    return memcpy(malloc(*size), at, *size);
}

static size_t connected(struct client *c, const uint8_t *at, uint8_t *out)
{
    size_t size;
    at += 2 + (at[0] << 8 | at[1]);
    int flags = at[1];
    c->keep_alive = at[2] << 8 | at[3];
    c->name = text(at += 4, &size);
    if (flags & 4) {
        c->will = text(at += size, &size);
        c->payload = text(at += size, &size);
    }
    memcpy(out, "\x20\x02\x00\x00", 4);
    return 4;
}

static size_t subscribed(int fd, struct client *c, const uint8_t *at, const uint8_t *end, uint8_t *out)
{
    size_t size, codes = 0;
    memcpy(out + 2, at, 2);
    for (at += 2; at < end; at += size + 1) {
        free(c->filter);
        c->filter = text(at, &size);
        out[4 + codes++] = at[size];
        if (size == 8 && !memcmp(at + 2, "will/#", 6))
            mourner = fd;
    }
    out[0] = 0x90;
    out[1] = 2 + codes;
    return 4 + codes;
}

static void hear(int fd, uint8_t *data, ssize_t size)
{
    static uint8_t out[INPUT];
    struct client *c = of[fd];
    size_t said = 0;
    c->heard = time(NULL);
    for (uint8_t *at = data, *end; at < data + size; at = end) {
        end = at + 2 + at[1]; /* packets of less than 128 bytes, which come whole */
        if (*at >> 4 == 1)
            said += connected(c, at + 2, out + said);
        else if (*at >> 4 == 8)
            said += subscribed(fd, c, at + 2, end, out + said);
        else if (*at >> 4 == 12)
            said += 2, memcpy(out + said - 2, "\xd0\x00", 2);
    }
    if (said && send(fd, out, said, MSG_NOSIGNAL) < 0)
        perror("floor_connect");
}

static void leave(int fd)
{
    struct client *c = of[fd];
    of[fd] = NULL;
    close(fd);
    if (c->will && mourner >= 0) {
        size_t topic = 2 + ((uint8_t)c->will[0] << 8 | (uint8_t)c->will[1]);
        size_t size = (uint8_t)c->payload[0] << 8 | (uint8_t)c->payload[1];
        uint8_t out[256] = {0x30, topic + size}; /* packets of less than 128 bytes, as above */
        memcpy(out + 2, c->will, topic);
        memcpy(out + 2 + topic, c->payload + 2, size);
        if (send(mourner, out, 2 + topic + size, MSG_NOSIGNAL) < 0)
            perror("floor_connect");
    }
    free(c->name), free(c->filter), free(c->will), free(c->payload), free(c);
}

int main(int argc, char **argv)
{
    static uint8_t input[INPUT];
    int door = socket(AF_INET, SOCK_STREAM, 0), on = 1, poll = epoll_create1(0);
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(argc > 1 ? atoi(argv[1]) : 0),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(door, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    setsockopt(door, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* whoever is accepted has it */
    if (bind(door, (struct sockaddr *)&here, sizeof here) || listen(door, BACKLOG)) {
        perror("floor_connect");
        return 2;
    }
    epoll_ctl(poll, EPOLL_CTL_ADD, door, &(struct epoll_event){.events = EPOLLIN, .data.fd = door});
    for (;;) {
        struct epoll_event events[EVENTS];
        int count = epoll_wait(poll, events, EVENTS, -1);
        for (int n = 0; n < count; n++) {
            int fd = events[n].data.fd;
            if (fd == door) {
                fd = accept(door, NULL, NULL);
                if (fd < 0 || fd >= CONNECTIONS)
                    return 1;
                of[fd] = calloc(1, sizeof **of);
                epoll_ctl(poll, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN, .data.fd = fd});
                continue;
            }
            ssize_t size = recv(fd, input, INPUT, 0);
            size > 0 ? hear(fd, input, size) : leave(fd);
        }
    }
}
