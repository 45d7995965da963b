/* A closed-loop load generator of SMQ over raw sockets: it checks every delivery of one publisher.
 *
 *     publisher ── load/PID ── hub (--pid N) ──┬── subscriber 0
 *                                              ├── subscriber 1
 *                                              └── ...
 *
 * The publisher keeps at most --window messages out: one is out until every subscriber has it.
 * --batch messages leave in one write.
 *
 *     frame     | size u16 | 8 | tid u32 | etid u32 | 0 u32 | sequence u64 | filling |
 *
 * A subscriber knows the next sequence, so a message that is lost, comes twice or out of order is
 * counted as wrong. The hub's CPU time (all its threads) is read from its process clock, after a
 * warm-up. One thread, epoll, one line of JSON on stdout.
 *
 * Exit code: 0 all is well; 1 a delivery was wrong or the hub stalled; 2 it could not start.
 * Build: cc -O2 -Wall -o smq_load smq_load.c. Called by smq.py.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    HEAD = 15,                /* of a Publish frame */
    PAYLOAD_MAX = 32 * 1024,
    INPUT = 256 * 1024,       /* bytes of one recv */
    STALL_SECONDS = 10,
    CONNECT = 2, SUBSCRIBE = 4, CREATE = 6, PUBLISH = 8,
};

static const char REQUEST[] = "GET / HTTP/1.0\r\nHost: localhost\r\nSimpleMQ: 1\r\n\r\n";

static struct { int port, pid, subscribers, window, batch, payload; double seconds, warm_up; } want = {
    .port = 8080, .subscribers = 1, .window = 1, .batch = 1, .payload = 64, .seconds = 1, .warm_up = 0.2,
};

struct subscriber { int fd; uint8_t in[INPUT]; size_t used; uint64_t next; };

static struct subscriber *subscribers;
static int publisher, poller;
static uint8_t *out;                       /* one batch of frames; sequences are filled in */
static size_t frame_size, out_at, out_end;
static uint64_t sent, delivered, wrong;
static bool blocked;

static void die(const char *what)
{
    fprintf(stderr, "smq_load: %s: %s\n", what, errno ? strerror(errno) : "unexpected answer");
    exit(2);
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    if (clock_gettime(clock, &t)) die("clock");
    return t.tv_sec + t.tv_nsec / 1e9;
}

static double now(void) { return seconds_of(CLOCK_MONOTONIC); }

static double hub_cpu(void)
{
    clockid_t clock;
    if (!want.pid) return 0;
    if ((errno = clock_getcpuclockid(want.pid, &clock))) die("the hub's clock");
    return seconds_of(clock);
}

/* Publishing */

static void flush(void)
{
    while (out_at < out_end) {
        ssize_t n = send(publisher, out + out_at, out_end - out_at, MSG_NOSIGNAL);
        if (n < 0 && errno != EAGAIN) die("send");
        if (n < 0) break;
        out_at += n;
    }
    if (blocked != (out_at < out_end)) {
        blocked = !blocked;
        struct epoll_event event = { blocked ? EPOLLIN | EPOLLOUT : EPOLLIN, { .ptr = NULL } };
        if (epoll_ctl(poller, EPOLL_CTL_MOD, publisher, &event)) die("epoll");
    }
}

static uint64_t room(void)
{
    uint64_t done = delivered / want.subscribers;
    return sent - done < (uint64_t)want.window ? want.window - (sent - done) : 0;
}

static void publish(void)
{
    while (!blocked && room()) {
        int count = room() < (uint64_t)want.batch ? (int)room() : want.batch;
        for (int i = 0; i < count; i++, sent++) memcpy(out + i * frame_size + HEAD, &sent, 8);
        out_at = 0;
        out_end = count * frame_size;
        flush();
    }
}

/* Receiving */

static void receive(struct subscriber *s)
{
    ssize_t n = recv(s->fd, s->in + s->used, INPUT - s->used, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) die("the hub closed a connection");
    s->used += n;
    size_t at = 0;
    for (; s->used - at >= frame_size; at += frame_size) {
        uint64_t sequence;
        memcpy(&sequence, s->in + at + HEAD, 8);
        if (s->in[at + 2] != PUBLISH || sequence != s->next++) wrong++;
        delivered++;
    }
    memmove(s->in, s->in + at, s->used -= at);
}

/* Connecting: one after the other, blocking */

static uint32_t number_at(const uint8_t *p) { return ntohl(*(const uint32_t *)p); }

/* Read one frame, return the number that is `at` bytes into it. */
static uint32_t answer(int fd, uint8_t type, int at)
{
    uint8_t got[256];
    errno = 0;
    if (recv(fd, got, 2, MSG_WAITALL) != 2 || got[0] || got[1] < 8) die("no answer");
    if (recv(fd, got + 2, got[1] - 2, MSG_WAITALL) != got[1] - 2) die("no answer");
    if (got[2] != type || (type != 1 && got[3])) die("refused");
    return number_at(got + at);
}

static void say(int fd, uint8_t type, const char *body, uint8_t size)
{
    uint8_t frame[64] = { 0, size + 3, type };
    memcpy(frame + 3, body, size);
    if (send(fd, frame, size + 3, MSG_NOSIGNAL) != size + 3) die("send");
}

/* Connect and ask for the topic; return the socket. */
static int enter(char role, int number, uint8_t ask, uint32_t *tid, uint32_t *etid)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(want.port) };
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct timeval patience = { STALL_SECONDS, 0 };
    char body[64], topic[40];
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (send(fd, REQUEST, sizeof REQUEST - 1, MSG_NOSIGNAL) < 0) die("send");
    answer(fd, 1, 4);
    int length = sprintf(body + 2, "load-%d-%c%d", getpid(), role, number);
    body[0] = 1;
    body[1] = length;
    body[2 + length] = 0;
    say(fd, CONNECT, body, 3 + length);
    *etid = answer(fd, 3, 4);
    say(fd, ask, topic, sprintf(topic, "load/%d", getpid()));
    *tid = answer(fd, ask + 1, 4);
    return fd;
}

static void watch(int fd, void *who)
{
    struct epoll_event event = { EPOLLIN, { .ptr = who } };
    fcntl(fd, F_SETFL, O_NONBLOCK);
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event)) die("epoll");
}

static void connect_all(void)
{
    uint32_t tid, etid;
    poller = epoll_create1(0);
    subscribers = calloc(want.subscribers, sizeof *subscribers);
    frame_size = HEAD + want.payload;
    out = malloc(want.batch * frame_size);
    if (!subscribers || !out || poller < 0) die("memory");
    for (int i = 0; i < want.subscribers; i++)
        watch(subscribers[i].fd = enter('s', i, SUBSCRIBE, &tid, &etid), &subscribers[i]);
    watch(publisher = enter('p', 0, CREATE, &tid, &etid), NULL);
    memset(out, 'x', want.batch * frame_size);
    for (int i = 0; i < want.batch; i++) {
        uint8_t *p = out + i * frame_size;
        uint32_t numbers[] = { htonl(tid), htonl(etid), 0 };
        p[0] = frame_size >> 8;
        p[1] = frame_size;
        p[2] = PUBLISH;
        memcpy(p + 3, numbers, sizeof numbers);
    }
}

/* The run */

static void turn(bool sending)
{
    struct epoll_event events[256];
    if (sending) publish();
    int count = epoll_wait(poller, events, 256, 100);
    if (count < 0 && errno != EINTR) die("epoll");
    for (int i = 0; i < count; i++) {
        if (events[i].data.ptr) receive(events[i].data.ptr);
        else if (events[i].events & EPOLLIN) die("the hub answered the publisher");
        else flush();
    }
}

/* Take turns until `until`, then also until nothing is out. False: nothing moved for too long. */
static bool run(double until, bool drain)
{
    double moved = now();
    for (uint64_t before = delivered; ; before = delivered) {
        double t = now();
        if (delivered != before || t < until) moved = t;
        if (t >= until && (!drain || delivered == sent * want.subscribers)) return true;
        if (t - moved > STALL_SECONDS) return false;
        turn(t < until);
    }
}

static void parse(int argc, char **argv)
{
    struct { const char *name; int *number; double *seconds; int least, most; } known[] = {
        { "port", &want.port, NULL, 1, 65535 },
        { "pid", &want.pid, NULL, 1, 1 << 30 },
        { "subscribers", &want.subscribers, NULL, 1, 1000 },
        { "window", &want.window, NULL, 1, 1 << 20 },
        { "batch", &want.batch, NULL, 1, 10000 },
        { "payload", &want.payload, NULL, 8, PAYLOAD_MAX },
        { "seconds", NULL, &want.seconds, 0, 3600 },
        { "warm-up", NULL, &want.warm_up, 0, 3600 },
    };
    enum { KNOWN = sizeof known / sizeof *known };
    struct option options[KNOWN + 1] = { 0 };
    for (int i = 0; i < KNOWN; i++)
        options[i] = (struct option){ known[i].name, required_argument, NULL, 0 };
    int found, index;
    while ((found = getopt_long(argc, argv, "", options, &index)) == 0) {
        double value = strtod(optarg, NULL);
        if (value < known[index].least || value > known[index].most) {
            fprintf(stderr, "smq_load: --%s %s: expected %d to %d\n", known[index].name, optarg,
                    known[index].least, known[index].most);
            exit(2);
        }
        if (known[index].number) *known[index].number = value;
        else *known[index].seconds = value;
    }
    if (found != -1) exit(2);
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    connect_all();
    bool finished = run(now() + want.warm_up, false);
    uint64_t before = delivered;
    double begin = now(), cpu = hub_cpu(), own = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    finished = finished && run(begin + want.seconds, true);
    double seconds = now() - begin, each = 1e6 / (delivered > before ? delivered - before : 1);
    printf("{\"sent\": %lu, \"delivered\": %lu, \"wrong\": %lu, \"finished\": %s, "
           "\"per_second\": %.0f, \"hub_us\": %.4f, \"load_us\": %.4f}\n",
           sent, delivered, wrong, finished ? "true" : "false", (delivered - before) / seconds,
           (hub_cpu() - cpu) * each, (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - own) * each);
    return finished && !wrong ? 0 : 1;
}
