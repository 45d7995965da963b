/* A closed-loop load generator: one publisher, many readers, each over raw sockets in the protocol
 * that is asked for; it checks every delivery.
 *
 *     publisher ── load/PID ── hub (--pid N) ──┬── subscriber 0
 *     (--from)                                 ├── subscriber 1   (--to)
 *                                              └── ...
 *
 * The publisher keeps at most --window messages out: one is out until every subscriber has it.
 * --batch messages leave in one write. All are alike; with --topics N none is: each has one of N
 * topics and 8 to 300 bytes of JSON.
 *
 *     SMQ       | size u16 | 8 | tid u32 | etid u32 | 0 u32 | sequence u64 | filling |
 *     MQTT      | 0x30 | length, 1 to 3 bytes | topic, 2 + n |  sequence u64 | filling |
 *     WebSocket | 0x82 | length, 1, 3 or 9 bytes | any part of a stream of MQTT |
 *
 * A subscriber knows the next sequence, so a message that is lost, comes twice or out of order is
 * counted as wrong. The hub's CPU time (all its threads) is read from its process clock, after a
 * warm-up. One thread, epoll, one line of JSON on stdout.
 *
 * Exit code: 0 all is well; 1 a delivery was wrong or the hub stalled; 2 it could not start.
 * Build: cc -O2 -Wall -o fanout fanout.c. Called by smq.py and crossing.py.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define PROGRAM "fanout"
#include "generator.h"

enum {
    HEAD = 15,                /* of a Publish frame of SMQ */
    PAYLOAD_MAX = 32 * 1024,
    INPUT = 256 * 1024,       /* bytes of one recv */
    STALL_SECONDS = 10,
    CONNECT = 2, SUBSCRIBE = 4, CREATE = 6, PUBLISH = 8,  /* of SMQ */
    SMQ = 0, MQTT = 1, WEBSOCKET = 2,                     /* what may be spoken; MQTT in the last */
};

static const char REQUEST[] = "GET / HTTP/1.0\r\nHost: localhost\r\nSimpleMQ: 1\r\n\r\n";

static const char UPGRADE[] =
    "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Protocol: mqtt\r\n\r\n";

static struct {
    int port, pid, from, to, subscribers, topics, window, batch, payload;
    double seconds, warm_up;
} want = {
    .port = 8080, .subscribers = 1, .window = 1, .batch = 1, .payload = 64, .seconds = 1, .warm_up = 0.2,
};

struct subscriber {
    int fd;
    uint8_t in[2 * INPUT];
    size_t used;
    uint64_t next;
    uint8_t head[10];          /* of a WebSocket frame that has begun, and what is left of its payload */
    size_t head_used, left;
};

/* How long a message is, and where its payload begins. */
struct shape { size_t size, head; };

enum { MESSAGE_MAX = 64 + PAYLOAD_MAX };

static struct subscriber *subscribers;
static int publisher, poller;
static uint8_t *out, *like;                /* one batch of messages; the one that all are like */
static struct shape alike;
static uint32_t *tids, etid;               /* of the topics, where SMQ publishes */
static size_t out_at, out_end;
static uint64_t sent, delivered, wrong;
static bool blocked;

/* Publishing */

/* The name of a topic, in MQTT and in SMQ. */
static int name(char *topic, int number)
{
    return want.topics ? sprintf(topic, "load/%d/%d", getpid(), number)
                       : sprintf(topic, "load/%d", getpid());
}

/* A message for that topic, without its sequence. */
static struct shape message(uint8_t *p, int number, size_t payload)
{
    static const char text[] = "{\"temperature\":21.5,\"unit\":\"C\"},";
    uint8_t *begin = p;
    if (want.from == SMQ) {
        uint32_t numbers[] = { htonl(tids[number]), htonl(etid), 0 };
        size_t size = HEAD + payload;
        p = mempcpy(p, (uint8_t[]){ size >> 8, size, PUBLISH }, 3);
        p = mempcpy(p, numbers, sizeof numbers);
    } else {
        char topic[40];
        int length = name(topic, number);
        *p++ = 0x30;
        for (size_t left = 2 + length + payload; ; left >>= 7) {
            *p++ = (left & 127) | (left > 127 ? 128 : 0);
            if (left < 128) break;
        }
        *p++ = 0;
        *p++ = length;
        p = mempcpy(p, topic, length);
    }
    struct shape shape = { p - begin + payload, p - begin };
    for (size_t at = 0; at < payload; at++)
        p[at] = want.topics ? text[at % (sizeof text - 1)] : 'x';
    return shape;
}

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
        out_at = out_end = 0;
        for (int i = 0; i < count; i++, sent++) {
            uint8_t *p = out + out_end;
            struct shape shape = alike;
            if (want.topics) shape = message(p, drawn(want.topics), 8 + drawn(293));
            else memcpy(p, like, shape.size);
            memcpy(p + shape.head, &sent, 8);
            out_end += shape.size;
        }
        flush();
    }
}

/* Receiving */

/* What WebSocket frames hold, behind what there is; the frames of a server are not masked. */
static void unframe(struct subscriber *s, const uint8_t *raw, size_t n)
{
    while (n) {
        if (s->left) {
            size_t some = n < s->left ? n : s->left;
            memcpy(s->in + s->used, raw, some);
            s->used += some, s->left -= some, raw += some, n -= some;
            continue;
        }
        s->head[s->head_used++] = *raw++, n--;
        size_t size = s->head_used < 2 ? 2 : s->head[1] < 126 ? 2 : s->head[1] == 126 ? 4 : 10;
        if (s->head_used < 2 || s->head_used < size) continue;
        if (s->head[0] != 0x82) wrong++;
        for (size_t i = size == 2 ? 1 : 2; i < size; i++) s->left = s->left << 8 | s->head[i];
        s->head_used = 0;
    }
}

/* The next message of what a subscriber has; its size is 0 if it is not all there. */
static struct shape next(const uint8_t *p, size_t have)
{
    struct shape none = { 0 };
    if (have < 2) return none;
    if (want.to == SMQ) {
        size_t size = p[0] << 8 | p[1];
        return size <= have ? (struct shape){ size, HEAD } : none;
    }
    size_t at = 1, size = 0;
    for (int shift = 0; at < have; shift += 7) {
        size |= (size_t)(p[at] & 127) << shift;
        if (p[at++] < 128) break;
    }
    if (at + size > have || at + 2 > have) return none;
    return (struct shape){ at + size, at + 2 + (p[at] << 8 | p[at + 1]) };
}

static void receive(struct subscriber *s)
{
    static uint8_t raw[INPUT];
    uint8_t *place = want.to == WEBSOCKET ? raw : s->in + s->used;
    ssize_t n = recv(s->fd, place, INPUT, 0);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) die("the hub closed a connection");
    if (want.to == WEBSOCKET) unframe(s, raw, n);
    else s->used += n;
    size_t at = 0;
    struct shape shape;
    for (; (shape = next(s->in + at, s->used - at)).size; at += shape.size) {
        uint64_t sequence;
        memcpy(&sequence, s->in + at + shape.head, 8);
        bool publish = want.to == SMQ ? s->in[at + 2] == PUBLISH : s->in[at] == 0x30;
        if (!publish || sequence != s->next++) wrong++;
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

/* Connect to the hub. */
static int dial(void)
{
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(want.port) };
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct timeval patience = { STALL_SECONDS, 0 };
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    return fd;
}

/* Be let in by SMQ and ask for the topics; return the socket. */
static int enter(char role, int number, uint8_t request)
{
    char body[64], topic[40];
    int fd = dial();
    if (send(fd, REQUEST, sizeof REQUEST - 1, MSG_NOSIGNAL) < 0) die("send");
    answer(fd, 1, 4);
    int length = sprintf(body + 2, "load-%d-%c%d", getpid(), role, number);
    body[0] = 1;
    body[1] = length;
    body[2 + length] = 0;
    say(fd, CONNECT, body, 3 + length);
    etid = answer(fd, 3, 4);
    for (int i = 0; i < (want.topics ? want.topics : 1); i++) {
        say(fd, request, topic, name(topic, i));
        tids[i] = answer(fd, request + 1, 4);
    }
    return fd;
}

/* Send a packet of MQTT, in a WebSocket frame if that is spoken; its answer has that size. */
static void ask(int fd, const uint8_t *packet, uint8_t size, bool framed, uint8_t type, int length)
{
    uint8_t frame[128] = { 0x82, 0x80 | size }, got[64];  /* with a mask of zeros */
    memcpy(frame + 6, packet, size);
    const uint8_t *said = framed ? frame : packet;
    if (send(fd, said, size + (framed ? 6 : 0), MSG_NOSIGNAL) < 0) die("send");
    errno = 0;
    length += framed ? 2 : 0;
    if (recv(fd, got, length, MSG_WAITALL) != length) die("no answer");
    if (got[framed ? 2 : 0] != type || got[length - 1] > 2) die("refused");
}

static void upgrade(int fd)
{
    char got[4096];
    size_t used = 0;
    if (send(fd, UPGRADE, sizeof UPGRADE - 1, MSG_NOSIGNAL) < 0) die("send");
    while (used < sizeof got - 1 && !(used > 3 && !memcmp(got + used - 4, "\r\n\r\n", 4)))
        if (recv(fd, got + used++, 1, 0) != 1) die("no answer");
    if (strncmp(got, "HTTP/1.1 101", 12)) die("refused");
}

/* Be let in by MQTT, and subscribe if it is a reader; return the socket. */
static int enter_mqtt(char role, int number, bool framed)
{
    uint8_t packet[64] = { 0x10, 0, 0, 4, 'M', 'Q', 'T', 'T', 4, 2, 0, 0 };
    int fd = dial(), length;
    if (framed) upgrade(fd);
    length = snprintf((char *)packet + 14, 40, "load-%d-%c%d", getpid(), role, number);
    packet[13] = length;
    packet[1] = 12 + length;
    ask(fd, packet, 14 + length, framed, 0x20, 4);
    if (role == 'p') return fd;
    memcpy(packet, (uint8_t[]){ 0x82, 0, 0, 1, 0, 0 }, 6);
    length = snprintf((char *)packet + 6, 40, want.topics ? "load/%d/#" : "load/%d", getpid());
    packet[5] = length;
    packet[6 + length] = 0;
    packet[1] = 5 + length;
    ask(fd, packet, 7 + length, framed, 0x90, 5);
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
    poller = epoll_create1(0);
    subscribers = calloc(want.subscribers, sizeof *subscribers);
    tids = calloc(want.topics + 1, sizeof *tids);
    like = malloc(MESSAGE_MAX);
    out = malloc((size_t)want.batch * (64 + (want.topics ? 300 : want.payload)));
    if (!subscribers || !tids || !like || !out || poller < 0) die("memory");
    for (int i = 0; i < want.subscribers; i++) {
        struct subscriber *s = &subscribers[i];
        s->fd = want.to == SMQ ? enter('s', i, SUBSCRIBE) : enter_mqtt('s', i, want.to == WEBSOCKET);
        watch(s->fd, s);
    }
    publisher = want.from == SMQ ? enter('p', 0, CREATE) : enter_mqtt('p', 0, false);
    watch(publisher, NULL);
    alike = message(like, 0, want.payload);
}

/* The run */

static void turn(bool goes_on)
{
    struct epoll_event events[256];
    if (goes_on) publish();
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
    struct known known[] = {
        { "port", &want.port, NULL, 1, 65535 },
        { "pid", &want.pid, NULL, 1, 1 << 30 },
        { "from", &want.from, NULL, SMQ, MQTT },
        { "to", &want.to, NULL, SMQ, WEBSOCKET },
        { "topics", &want.topics, NULL, 0, 10000 },  /* messages differ; 0 = all are alike */
        { "subscribers", &want.subscribers, NULL, 1, 1000 },
        { "window", &want.window, NULL, 1, 1 << 20 },
        { "batch", &want.batch, NULL, 1, 10000 },
        { "payload", &want.payload, NULL, 8, PAYLOAD_MAX },
        { "seconds", NULL, &want.seconds, 0, 3600 },
        { "warm-up", NULL, &want.warm_up, 0, 3600 },
    };
    parse_options(argc, argv, known, sizeof known / sizeof *known);
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    connect_all();
    bool finished = run(now() + want.warm_up, false);
    uint64_t before = delivered;
    double begin = now(), cpu = cpu_of(want.pid), own = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    finished = finished && run(begin + want.seconds, true);
    double seconds = now() - begin, each = 1e6 / (delivered > before ? delivered - before : 1);
    printf("{\"sent\": %lu, \"delivered\": %lu, \"wrong\": %lu, \"finished\": %s, "
           "\"per_second\": %.0f, \"hub_us\": %.4f, \"load_us\": %.4f}\n",
           sent, delivered, wrong, finished ? "true" : "false", (delivered - before) / seconds,
           (cpu_of(want.pid) - cpu) * each, (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - own) * each);
    return finished && !wrong ? 0 : 1;
}
