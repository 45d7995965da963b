/* A closed-loop load generator of MQTT 3.1.1 and 5.0: it checks every delivery and measures one broker.
 *
 *     publisher 0 ── load/RUN/0 ──┐               ┌── subscriber 0
 *     publisher 1 ── load/RUN/1 ──┤    broker     ├── subscriber 1
 *     ...                       ──┘   (--pid N)   └── ...
 *
 * Every subscriber gets every publisher's messages, through the filter load/RUN/+ if there are
 * several publishers; with --pairs 1 subscriber n gets those of publisher n only. Each publisher keeps at most --window messages out: one is out until every
 * subscriber has it and, at QoS 1, until its PUBACK is in, at QoS 2 its PUBCOMP. So nothing queues up without end and
 * the broker is never asked for more than it gives.
 *
 *     payload   | publisher u32 | sequence u32 | filling |
 *
 * A subscriber knows the next sequence of each publisher, so a message that is lost, comes twice
 * or out of order is counted. The broker's CPU time (all its threads) is read from its process
 * clock, after a warm-up. One thread, epoll, one line of JSON on stdout.
 *
 * With --rate R the loop is open: R messages a second leave one by one, evenly spaced, from one publisher
 * after the other, whatever the broker answers. So devices send; a window only shows what a broker can.
 *
 * With --topics N no two messages are alike: each has one of N topics and 8 to 300 bytes of JSON,
 * and in 5.0 a content type, and for the first ALIASES topics an alias in place of the name once
 * that was said. Else 5.0 is spoken without properties: what is compared then is the cost of the
 * version, not of a feature. With --qos 3, too, each message has any QoS: order is one of each QoS
 * then (MQTT 5.0, 4.6), so that it is not counted.
 *
 * Built with -DTLS (and -lssl -lcrypto) it speaks TLS with --tls 1.
 *
 * Exit code: 0 all is well; 1 a delivery was wrong or the broker stalled; 2 it could not start.
 * Build: cc -O2 -Wall -o load load.c. Called by mqtt.py, which chooses topologies and compares.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#ifdef TLS
#include <openssl/ssl.h>
#else
typedef void SSL;
#endif

#define PROGRAM "load"
#include "generator.h"

enum {
    STAMP = 8,                /* publisher and sequence */
    PAYLOAD_MAX = 1024 * 1024,
    INPUT = 64 * 1024,        /* bytes of one recv, beside a payload that is not all there */
    IDS = 65535,              /* packet ids are 1 … IDS */
    STALL_SECONDS = 10,
    MIXED = 3,                /* as a QoS */
    ALIASES = 10,             /* as many as mosquitto takes by default */
};

struct options {
    int port, reader_port, pid, version, publishers, subscribers, pairs, qos, window, batch, payload;
    int topics;                            /* 0: all messages are alike */
    int tls;
    int rate;                              /* messages a second of all publishers; 0: as the window lets */
    double seconds, warm_up;
};

static const struct options DEFAULTS = {
    .port = 1883, .version = 4, .publishers = 1, .subscribers = 1, .window = 1, .payload = 16,
    .seconds = 1, .warm_up = 0.2,
};

/* What a subscriber knows of one publisher: the sequence it expects, and how many it passed over. */
struct stream { uint32_t next, missing; };

struct connection {
    int fd;
    SSL *ssl;                              /* NULL without TLS */
    bool blocked;                          /* the kernel takes no more; epoll says when it does */
    uint8_t *in, *out;
    size_t in_used, out_used, out_room;
    /* A publisher */
    uint32_t number;
    uint8_t *packet;                       /* its PUBLISH; id and sequence are filled in */
    size_t packet_size, id_at, stamp_at;
    uint64_t sent, asked, acknowledged, delivered;  /* asked: for an acknowledgement */
    uint8_t qos;                           /* of that packet */
    bool aliased[ALIASES];                 /* whose names were said */
    bool due;                              /* it may have room in its window */
    /* A subscriber */
    struct stream *streams;
};

static struct options want;
static struct connection *publishers, *subscribers;
static int poller, metronome;              /* the second only with a rate */
static uint64_t delivered, lost, duplicated, disordered, wrong;

/* 5.0 has a length of properties where 3.1.1 has nothing; here it is always 0. */
static bool v5(void) { return want.version == 5; }

/* How many subscribers get what one publisher sends. */
static int copies(void) { return want.pairs ? 1 : want.subscribers; }

/* The socket, or TLS around it: as send and recv are */

static ssize_t put(struct connection *c, const void *data, size_t size)
{
#ifdef TLS
    if (c->ssl) {
        int n = SSL_write(c->ssl, data, size);
        if (n > 0) return n;
        errno = SSL_get_error(c->ssl, n) == SSL_ERROR_WANT_WRITE ? EAGAIN : EPROTO;
        return -1;
    }
#endif
    return send(c->fd, data, size, MSG_NOSIGNAL);
}

static ssize_t get(struct connection *c, void *place, size_t size)
{
#ifdef TLS
    if (c->ssl) {
        int n = SSL_read(c->ssl, place, size);
        if (n > 0) return n;
        errno = SSL_get_error(c->ssl, n) == SSL_ERROR_WANT_READ ? EAGAIN : EPROTO;
        return -1;
    }
#endif
    return recv(c->fd, place, size, 0);
}

/* All of it, while the socket blocks. */
static bool get_all(struct connection *c, uint8_t *place, size_t size)
{
    while (size) {
        ssize_t n = get(c, place, size);
        if (n <= 0) return false;
        place += n, size -= n;
    }
    return true;
}

static bool more_waits(struct connection *c)
{
#ifdef TLS
    return c->ssl && SSL_pending(c->ssl);
#else
    return false;
#endif
}

static void shake_hands(struct connection *c)
{
#ifdef TLS
    static SSL_CTX *context;
    if (!want.tls) return;
    if (!context) {
        context = SSL_CTX_new(TLS_client_method());
        SSL_CTX_set_mode(context, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    }
    c->ssl = SSL_new(context);
    if (!c->ssl || !SSL_set_fd(c->ssl, c->fd) || SSL_connect(c->ssl) != 1) die("TLS");
#endif
}

/* Output */

static void watch(struct connection *c, bool blocked)
{
    struct epoll_event event = { EPOLLIN | (blocked ? EPOLLOUT : 0), { .ptr = c } };
    if (epoll_ctl(poller, EPOLL_CTL_MOD, c->fd, &event)) die("epoll");
    c->blocked = blocked;
}

static void flush(struct connection *c)
{
    size_t at = 0;
    while (at < c->out_used) {
        ssize_t n = put(c, c->out + at, c->out_used - at);
        if (n < 0 && errno != EAGAIN) die("send");
        if (n < 0) break;
        at += n;
    }
    memmove(c->out, c->out + at, c->out_used -= at);
    if (c->blocked != (c->out_used > 0)) watch(c, c->out_used > 0);
}

static uint8_t *append(struct connection *c, const void *data, size_t size)
{
    if (c->out_used + size > c->out_room) {
        c->out_room = 2 * (c->out_used + size);
        if (!(c->out = realloc(c->out, c->out_room))) die("memory");
    }
    uint8_t *place = memcpy(c->out + c->out_used, data, size);
    c->out_used += size;
    return place;
}

/* Publishing */

/* The next PUBLISH of a publisher. Where they differ, by topic and by length. */
static void prepare_publish(struct connection *c)
{
    static const uint8_t said[] = "\x13\3\0\x10" "application/json";  /* its content type */
    static const char text[] = "{\"temperature\":21.5,\"unit\":\"C\"},";
    char topic[64];
    int length = snprintf(topic, sizeof topic, "load/%d/%u", getpid(), c->number);
    size_t payload = want.payload, properties = v5();
    uint32_t number = 0;
    bool alias = false;
    c->qos = want.qos == MIXED ? drawn(3) : want.qos;
    if (want.topics) {
        number = drawn(want.topics);
        alias = v5() && number < ALIASES;
        length += snprintf(topic + length, sizeof topic - length, "/%u/state", number);
        payload = STAMP + drawn(293);      /* to 300 bytes */
        properties = v5() ? 20 + 3 * alias : 0;
    }
    if (alias && c->aliased[number]) length = 0;
    if (alias) c->aliased[number] = true;
    size_t rest = 2 + length + (c->qos ? 2 : 0) + properties + payload;
    if (!c->packet && !(c->packet = calloc(1, 600 + want.payload))) die("memory");
    uint8_t *p = c->packet;
    *p++ = 0x30 | c->qos << 1;
    for (size_t left = rest; ; left >>= 7) {
        *p++ = (left & 127) | (left > 127 ? 128 : 0);
        if (left < 128) break;
    }
    *p++ = length >> 8;
    *p++ = length;
    p = mempcpy(p, topic, length);
    c->id_at = p - c->packet;
    c->stamp_at = c->id_at + (c->qos ? 2 : 0) + properties;
    c->packet_size = c->stamp_at + payload;
    uint8_t *said_at = c->packet + c->stamp_at - properties;
    if (properties > 1) memcpy(said_at, said, 20);
    if (alias) {
        said_at[0] = 22;
        memcpy(said_at + 20, (uint8_t[]){ 0x23, 0, 1 + number }, 3);
    }
    memcpy(c->packet + c->stamp_at, &c->number, 4);
    for (size_t at = STAMP; at < payload; at++)
        c->packet[c->stamp_at + at] = want.topics ? text[(at - STAMP) % (sizeof text - 1)] : 'x';
}

static void publish(struct connection *c)
{
    uint32_t sequence = c->sent;
    c->sent++;
    if (want.topics) prepare_publish(c);
    uint8_t *packet = append(c, c->packet, c->packet_size);
    memcpy(packet + c->stamp_at + 4, &sequence, 4);
    if (c->qos) {
        uint16_t id = 1 + c->asked++ % IDS;
        packet[c->id_at] = id >> 8;
        packet[c->id_at + 1] = id;
    }
}

static bool has_room(const struct connection *c)
{
    uint64_t out = c->sent * copies() - c->delivered;
    return out <= (uint64_t)(want.window - 1) * copies()
        && c->asked - c->acknowledged < (uint64_t)want.window;
}

static void fill_window(struct connection *c)
{
    c->due = false;
    for (int in_write = 0; has_room(c) && !c->blocked;) {
        publish(c);
        if (++in_write == want.batch) {
            flush(c);
            in_write = 0;
        }
    }
    if (c->out_used) flush(c);
}

/* The messages whose time has come, each from the next publisher. */
static void keep_pace(void)
{
    static uint64_t gone;
    static double start;
    uint64_t ticks;
    if (read(metronome, &ticks, sizeof ticks) < 0 && errno != EAGAIN) die("timer");
    if (!start) start = now();
    for (uint64_t due = (now() - start) * want.rate; gone < due; gone++) {
        struct connection *c = &publishers[gone % want.publishers];
        publish(c);
        if (!c->blocked) flush(c);
    }
}

static void start_metronome(void)
{
    struct epoll_event event = { EPOLLIN, { .ptr = NULL } };
    struct itimerspec each = { .it_interval.tv_nsec = 1000000000 / want.rate - 1 };
    each.it_value = each.it_interval;
    metronome = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    if (metronome < 0 || timerfd_settime(metronome, 0, &each, NULL)) die("timer");
    if (epoll_ctl(poller, EPOLL_CTL_ADD, metronome, &event)) die("epoll");
}

/* Receiving */

static void take_delivery(struct connection *c, uint8_t head, const uint8_t *body, size_t size)
{
    uint8_t qos = head >> 1 & 3;
    if (want.qos != MIXED && qos != want.qos) wrong++;
    size_t at = 2 + (size >= 2 ? body[0] << 8 | body[1] : 0);
    uint32_t publisher, sequence;
    if (qos) {
        uint8_t answer[] = { qos == 2 ? 0x50 : 0x40, 2, body[at], body[at + 1] };
        append(c, answer, sizeof answer);
        at += 2;
    }
    if (v5()) at += 1 + (at < size ? body[at] : 0);
    if (want.topics ? at + STAMP > size : at + want.payload != size) { wrong++; return; }
    memcpy(&publisher, body + at, 4);
    memcpy(&sequence, body + at + 4, 4);
    if (publisher >= (uint32_t)want.publishers) { wrong++; return; }
    struct stream *stream = &c->streams[publisher];
    if (sequence < stream->next) {
        if (!stream->missing) { duplicated++; return; }
        stream->missing--;
        disordered++;
    } else {
        stream->missing += sequence - stream->next;
        stream->next = sequence + 1;
    }
    delivered++;
    publishers[publisher].delivered++;
    publishers[publisher].due = true;
}

static void reply(struct connection *c, uint8_t head, const uint8_t *body)
{
    uint8_t packet[] = { head, 2, body[0], body[1] };
    append(c, packet, sizeof packet);
}

/* A PUBACK, or with QoS 2 the PUBCOMP. */
static void take_puback(struct connection *c, const uint8_t *body)
{
    /* In the order of the publishes (MQTT 3.1.1, 4.6), of each QoS. */
    bool next = (body[0] << 8 | body[1]) == (int)(1 + c->acknowledged++ % IDS);
    if (!next && want.qos != MIXED) wrong++;
    c->due = true;
}

static void take(struct connection *c, uint8_t head, const uint8_t *body, size_t size)
{
    uint8_t type = head >> 4;
    bool last = (type == 4 && want.qos != 2) || (type == 7 && want.qos >= 2);
    if (type == 3 && c->streams) take_delivery(c, head, body, size);
    else if (last && c->packet && (size == 2 || (v5() && !body[2]))) take_puback(c, body);
    else if (type == 5 && c->packet && want.qos >= 2) reply(c, 0x62, body);
    else if (type == 6 && c->streams && want.qos >= 2) reply(c, 0x70, body);
    else wrong++;
}

static void receive_some(struct connection *c)
{
    ssize_t n = get(c, c->in + c->in_used, INPUT + want.payload - c->in_used);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) die("the broker closed a connection");
    c->in_used += n;
    size_t at = 0;
    for (;;) {
        size_t size = 0, body = at + 1;
        int shift = 0;
        while (body < c->in_used && c->in[body] > 127 && shift < 21) {
            size |= (size_t)(c->in[body++] & 127) << shift;
            shift += 7;
        }
        if (body >= c->in_used) break;
        size |= (size_t)c->in[body++] << shift;
        if (body + size > c->in_used) break;
        take(c, c->in[at], c->in + body, size);
        at = body + size;
    }
    memmove(c->in, c->in + at, c->in_used -= at);
}

static void receive(struct connection *c)
{
    do receive_some(c); while (more_waits(c));
    if (c->out_used && !c->blocked) flush(c);
}

/* Connecting: one after the other, blocking */

/* Send a packet; the answer is of that type, and its byte at `code_at` is no refusal. */
static void ask(
    struct connection *c, const uint8_t *packet, size_t size, uint8_t answer, int code_at)
{
    uint8_t got[130] = { 0 };
    if (put(c, packet, size) != (ssize_t)size) die("send");
    errno = 0;
    if (!get_all(c, got, 2) || got[0] != answer || got[1] > 127) die("no answer");
    if (!get_all(c, got + 2, got[1]) || got[1] <= code_at || got[2 + code_at] > 2) die("refused");
}

static void connect_one(struct connection *c, char role, int number)
{
    int port = role == 's' && want.reader_port ? want.reader_port : want.port;
    struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    struct timeval patience = { STALL_SECONDS, 0 };
    int one = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (struct sockaddr *)&address, sizeof address)) die("connect");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    shake_hands(c);
    uint8_t packet[64] = { 0x10, 0, 0, 4, 'M', 'Q', 'T', 'T', want.version, 2, 0, 0 };
    int id = 12 + v5(), length;
    length = snprintf((char *)packet + id + 2, 40, "load-%d-%c%d", getpid(), role, number);
    packet[id + 1] = length;
    packet[1] = id + length;
    ask(c, packet, id + 2 + length, 0x20, 1);
}

static void subscribe(struct connection *c, int number)
{
    uint8_t packet[64] = { 0x82, 0, 0, 1, 0 };
    bool all = want.publishers > 1 && !want.pairs;
    int name = 4 + v5(), length;
    length = snprintf((char *)packet + name + 2, 40, all ? "load/%d/+" : "load/%d/%d", getpid(),
                      want.pairs ? number : 0);
    if (want.topics) length += sprintf((char *)packet + name + 2 + length, "/#");
    packet[name + 1] = length;
    packet[name + 2 + length] = want.qos == MIXED ? 2 : want.qos;
    packet[1] = name + 1 + length;
    ask(c, packet, name + 3 + length, 0x90, 2 + v5());
}

static void hand_to_poller(struct connection *c)
{
    struct epoll_event event = { EPOLLIN, { .ptr = c } };
    fcntl(c->fd, F_SETFL, O_NONBLOCK);
    if (!(c->in = malloc(INPUT + want.payload))) die("memory");
    if (epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &event)) die("epoll");
}

static void connect_all(void)
{
    publishers = calloc(want.publishers, sizeof *publishers);
    subscribers = calloc(want.subscribers, sizeof *subscribers);
    poller = epoll_create1(0);
    if (!publishers || !subscribers || poller < 0) die("memory");
    for (int i = 0; i < want.subscribers; i++) {
        struct connection *c = &subscribers[i];
        connect_one(c, 's', i);
        c->streams = calloc(want.publishers, sizeof *c->streams);
        subscribe(c, i);
        hand_to_poller(c);
    }
    for (int i = 0; i < want.publishers; i++) {
        struct connection *c = &publishers[i];
        connect_one(c, 'p', i);
        c->number = i;
        prepare_publish(c);
        c->due = true;
        hand_to_poller(c);
    }
}

/* The run */

static bool all_done(void)
{
    for (int i = 0; i < want.publishers; i++) {
        const struct connection *c = &publishers[i];
        if (c->delivered < c->sent * copies()) return false;
        if (c->acknowledged < c->asked) return false;
    }
    return true;
}

static void turn(bool sending)
{
    struct epoll_event events[256];
    if (sending && want.rate) keep_pace();
    for (int i = 0; sending && !want.rate && i < want.publishers; i++)
        if (publishers[i].due) fill_window(&publishers[i]);
    int count = epoll_wait(poller, events, 256, 100);
    if (count < 0 && errno != EINTR) die("epoll");
    for (int i = 0; i < count; i++) {
        struct connection *c = events[i].data.ptr;
        if (!c) continue;                  /* the metronome */
        if (events[i].events & EPOLLOUT) flush(c);
        if (events[i].events & ~EPOLLOUT) receive(c);
    }
}

/* Take turns until `until`, then also until nothing is out. False: nothing moved for too long. */
static bool run(double until, bool drain)
{
    double moved = now();
    for (uint64_t before = delivered; ; before = delivered) {
        double t = now();
        if (delivered != before || t < until) moved = t;
        if (t >= until && (!drain || all_done())) return true;
        if (t - moved > STALL_SECONDS) return false;
        turn(t < until);
    }
}

static int report(double seconds, double cpu, double own_cpu, uint64_t counted, bool finished)
{
    uint64_t sent = 0;
    for (int i = 0; i < want.publishers; i++) sent += publishers[i].sent;
    lost = sent * copies() - delivered;
    double each = 1e6 / (counted ? counted : 1);
    printf("{\"sent\": %lu, \"delivered\": %lu, \"lost\": %lu, \"duplicated\": %lu, "
           "\"disordered\": %lu, \"wrong\": %lu, \"finished\": %s, \"seconds\": %.4f, "
           "\"measured\": %lu, \"per_second\": %.0f, \"broker_us\": %.4f, \"load_us\": %.4f}\n",
           sent, delivered, lost, duplicated, disordered, wrong, finished ? "true" : "false",
           seconds, counted, counted / seconds, cpu * each, own_cpu * each);
    bool ordered = !disordered || want.qos == MIXED;
    return finished && !lost && !duplicated && ordered && !wrong ? 0 : 1;
}

static void parse(int argc, char **argv)
{
    struct known known[] = {
        { "port", &want.port, NULL, 1, 65535 },
        { "reader-port", &want.reader_port, NULL, 0, 65535 },  /* of another node; 0 = the same */
        { "pid", &want.pid, NULL, 1, 1 << 30 },
        { "version", &want.version, NULL, 4, 5 },
        { "publishers", &want.publishers, NULL, 1, 10000 },
        { "subscribers", &want.subscribers, NULL, 1, 10000 },
        { "pairs", &want.pairs, NULL, 0, 1 },
        { "qos", &want.qos, NULL, 0, MIXED },
        { "topics", &want.topics, NULL, 0, 1000000 },  /* messages differ; 0 = all are alike */
#ifdef TLS
        { "tls", &want.tls, NULL, 0, 1 },
#endif
        { "rate", &want.rate, NULL, 0, 1000000 },
        { "window", &want.window, NULL, 1, IDS },
        { "batch", &want.batch, NULL, 0, IDS },  /* messages in one write; 0 = the whole window */
        { "payload", &want.payload, NULL, STAMP, PAYLOAD_MAX },
        { "seconds", NULL, &want.seconds, 0, 3600 },
        { "warm-up", NULL, &want.warm_up, 0, 3600 },
    };
    want = DEFAULTS;
    parse_options(argc, argv, known, sizeof known / sizeof *known);
    bool paired = !want.pairs || want.publishers == want.subscribers;
    if (!paired || (want.qos == MIXED && !want.topics)) exit(2);
}

int main(int argc, char **argv)
{
    parse(argc, argv);
    connect_all();
    if (want.rate) start_metronome();
    if (want.reader_port) usleep(500000);  /* until the publishers' node knows who subscribed */
    double start = now();
    bool finished = run(start + want.warm_up, false);
    uint64_t before = delivered;
    double begin = now(), cpu = cpu_of(want.pid), own = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    finished = finished && run(begin + want.seconds, true);
    return report(now() - begin, cpu_of(want.pid) - cpu, seconds_of(CLOCK_PROCESS_CPUTIME_ID) - own,
                  delivered - before, finished);
}
