/* A closed-loop load of remote calls over message-switch: every answer is checked, one hub measured.
 *
 *     caller 0 ─┐   queue "bench"                      ┌─ service: --workers requests at a time,
 *     caller 1 ─┤  ──────────────▶   hub  ──────────▶  │  each on a socket of its own; with one,
 *     ...       ┘  ◀──────────────  (--pid) ◀────────  ┘  as the original's `listen`
 *                   a reply queue each
 *
 * A call is the seven requests that the original clients make, on the sockets on which they make
 * them; each waits for its answer, nothing is pipelined:
 *
 *     caller,  requests   GET  /persistent/bench        service, events     POST /transfer
 *                         POST /request/bench/ME        service, requests   POST /response/ME/bench/N
 *     caller,  events     POST /transfer                                    GET  /ack/bench/N
 *                         GET  /ack/ME/M
 *
 * A transfer of the service may bring several requests. The body of a request is its number; the
 * answer repeats it. --path is that of a Unix socket, as the original's clients use it. --queues more queues exist, and --pollers connections wait at queues of
 * their own where nothing ever comes. The hub's CPU time is read from its process clock after a
 * warm-up. One thread, epoll, one line of JSON on stdout.
 *
 * Exit code: 0 all is well; 1 an answer was wrong or the hub stalled; 2 it could not start.
 * Build: cc -O2 -Wall -o switch switch.c. Called by switch.py.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

enum {
    INPUT = 256 * 1024,       /* an answer has to fit */
    BATCH = 1024,             /* requests the service has; no more callers than that */
    STALL_SECONDS = 10,
};

struct options {
    int port, pid, callers, workers, queues, pollers;
    double seconds, warm_up;
    const char *path;          /* of a Unix socket, instead of the port */
};

static struct options want = {.port = 8080, .callers = 1, .workers = 1, .seconds = 1, .warm_up = 0.2};

/* A connection with one request under way; `answered` gets the body of its answer. */
struct connection {
    int fd;
    size_t used;
    char *in;
    void (*answered)(struct connection *, char *body);
    struct caller *caller;
    struct work *work;
};

/* A request that the service answers. */
struct work {
    uint64_t number;
    char reply_to[32], body[32];
};

struct caller {
    int number;
    uint64_t asked;                        /* the body of the request under way */
    uint64_t reply;                        /* the id of its answer in the reply queue */
    struct connection *requests, *events;
};

static struct connection *service_events, *idle[BATCH];   /* idle: workers with nothing to do */
static struct work work[BATCH], *todo[BATCH];
static int todo_count, idle_count;
static uint64_t service_next;
static bool service_began, transferring;
static int poller;
static uint64_t calls;

static void die(const char *what)
{
    fprintf(stderr, "switch: %s: %s\n", what, errno ? strerror(errno) : "unexpected answer");
    exit(2);
}

static void wrong(const char *what, const char *got)
{
    fprintf(stderr, "switch: %s, got %.200s\n", what, got);
    exit(1);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static double broker_cpu(void)
{
    struct timespec time;
    if (!want.pid)
        return 0;
    if (clock_gettime((clockid_t)(~want.pid << 3 | 2), &time))
        die("the hub's process clock");
    return time.tv_sec + time.tv_nsec * 1e-9;
}

/* Connections */

static struct connection *dial(struct caller *caller)
{
    struct connection *one = calloc(1, sizeof *one);
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(want.port), .sin_addr = {htonl(INADDR_LOOPBACK)},
    };
    struct sockaddr_un local = {.sun_family = AF_UNIX};
    struct sockaddr *there = want.path ? (struct sockaddr *)&local : (struct sockaddr *)&address;
    int yes = 1;
    if (want.path)
        snprintf(local.sun_path, sizeof local.sun_path, "%s", want.path);
    one->fd = socket(there->sa_family, SOCK_STREAM, 0);
    if (one->fd < 0 || connect(one->fd, there, want.path ? sizeof local : sizeof address))
        die("connect");
    if (!want.path)
        setsockopt(one->fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    one->in = malloc(INPUT);
    one->caller = caller;
    return one;
}

static void ask(struct connection *one, void (*answered)(struct connection *, char *),
                const char *method, const char *body, const char *path, ...)
{
    char target[256], request[1024];
    va_list arguments;
    va_start(arguments, path);
    vsnprintf(target, sizeof target, path, arguments);
    va_end(arguments);
    int size = snprintf(request, sizeof request,
        "%s %s HTTP/1.1\r\nconnection: keep-alive\r\ncontent-length: %zu\r\nhost: localhost\r\n"
        "user-agent: cohttp\r\n\r\n%s", method, target, strlen(body), body);
    one->answered = answered;
    if (send(one->fd, request, size, MSG_NOSIGNAL) != size)
        die("send");
}

/* Hand over the body of the answer if all of it is here. */
static void receive(struct connection *one)
{
    ssize_t got = recv(one->fd, one->in + one->used, INPUT - 1 - one->used, 0);
    if (got <= 0)
        die("the hub closed a connection");
    one->used += got;
    one->in[one->used] = 0;
    char *body = strstr(one->in, "\r\n\r\n");
    if (!body)
        return;
    body += 4;
    char *length = strstr(one->in, "content-length: ");
    if (strncmp(one->in, "HTTP/1.1 200 ", 13) || !length)
        wrong("expected 200", one->in);
    size_t size = strtoul(length + 16, NULL, 10);
    if (one->used < body - one->in + size)
        return;
    one->used = 0;
    one->answered(one, body);
}

static void wait_for(struct connection *one)
{
    do
        receive(one);
    while (one->used);
}

static void nothing(struct connection *one, char *body) {}

/* Ask before the load begins, one after the other. */
#define NOW(one, ...) (ask(one, nothing, __VA_ARGS__), wait_for(one))

static void watch(struct connection *one)
{
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = one};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, one->fd, &event))
        die("epoll_ctl");
}

/* The service */

static void service_got(struct connection *one, char *body);
static void service_go_on(void);

static void service_transfer(void)
{
    char body[96], from[40] = "";
    if (service_began)
        snprintf(from, sizeof from, "\"from\":\"%lu\",", service_next);
    snprintf(body, sizeof body, "{%s\"timeout\":30.0,\"queues\":[\"bench\"]}", from);
    transferring = true;
    ask(service_events, service_got, "POST", body, "/transfer");
}

/* [[["bench",4],{"payload":"17","kind":["Request","caller.0"]}],…],"next":"4"} newest first */
static void service_got(struct connection *one, char *body)
{
    char *at = strstr(body, "[["), *next = strstr(body, "\"next\":\"");
    if (!next || sscanf(next, "\"next\":\"%lu", &service_next) != 1)
        wrong("expected a cursor", body);
    service_began = true;
    transferring = false;
    for (; at && (at = strstr(at, "[[\"bench\",")); at += 10) {
        struct work *item = &work[strtoul(at + 10, NULL, 10) % BATCH];
        if (todo_count == BATCH || sscanf(at,
                "[[\"bench\",%lu],{\"payload\":\"%31[^\"]\",\"kind\":[\"Request\",\"%31[^\"]\"]}]",
                &item->number, item->body, item->reply_to) != 3)
            wrong("expected a request", at);
        todo[todo_count++] = item;
    }
    service_go_on();
}

static void service_worked(struct connection *one, char *body)
{
    idle[idle_count++] = one;
    service_go_on();
}

static void service_replied(struct connection *one, char *body)
{
    ask(one, service_worked, "GET", "", "/ack/bench/%lu", one->work->number);
}

/* Requests to idle workers; ask for more when one is idle. */
static void service_go_on(void)
{
    while (todo_count && idle_count) {
        struct connection *worker = idle[--idle_count];
        worker->work = todo[--todo_count];
        ask(worker, service_replied, "POST", worker->work->body, "/response/%s/bench/%lu",
            worker->work->reply_to, worker->work->number);
    }
    if (idle_count && !transferring)
        service_transfer();
}

/* The callers */

static void caller_made(struct connection *one, char *body)
{
    char text[24];
    snprintf(text, sizeof text, "%lu", ++one->caller->asked);
    ask(one, nothing, "POST", text, "/request/bench/caller.%d", one->caller->number);
}

static void caller_begin(struct caller *caller)
{
    ask(caller->requests, caller_made, "GET", "", "/persistent/bench");
}

static void caller_transfer(struct caller *caller);

static void caller_acknowledged(struct connection *one, char *body)
{
    calls++;
    caller_begin(one->caller);
    caller_transfer(one->caller);
}

static void caller_got(struct connection *one, char *body)
{
    struct caller *caller = one->caller;
    uint64_t said;
    int number;
    char *at = strstr(body, "[[[");
    if (!at || sscanf(at, "[[[\"caller.%d\",%lu],{\"payload\":\"%lu\"", &number, &caller->reply, &said) != 3
        || number != caller->number || said != caller->asked || strstr(at, "]}],["))
        wrong("expected the one reply to this request", body);
    ask(one, caller_acknowledged, "GET", "", "/ack/caller.%d/%lu", number, caller->reply);
}

static void caller_transfer(struct caller *caller)
{
    char body[96], from[40] = "";
    if (caller->asked && caller->reply != UINT64_MAX)
        snprintf(from, sizeof from, "\"from\":\"%lu\",", caller->reply);
    snprintf(body, sizeof body, "{%s\"timeout\":30.0,\"queues\":[\"caller.%d\"]}", from, caller->number);
    ask(caller->events, caller_got, "POST", body, "/transfer");
}

/* The load */

static void prepare(struct caller *callers)
{
    struct connection *maker = dial(NULL);
    NOW(maker, "GET", "", "/login/maker");
    for (int i = 0; i < want.queues; i++)
        NOW(maker, "GET", "", "/persistent/idle.%d", i);
    for (int i = 0; i < want.pollers; i++) {
        struct connection *one = dial(NULL);
        char body[64];
        NOW(one, "GET", "", "/login/poller.%d", i);
        NOW(one, "GET", "", "/persistent/polled.%d", i);
        snprintf(body, sizeof body, "{\"timeout\":3600.0,\"queues\":[\"polled.%d\"]}", i);
        ask(one, nothing, "POST", body, "/transfer");
    }
    NOW(maker, "GET", "", "/destroy/bench");               /* what an earlier run left */
    NOW(maker, "GET", "", "/persistent/bench");
    service_events = dial(NULL);
    NOW(service_events, "GET", "", "/login/service");
    watch(service_events);
    while (idle_count < want.workers) {
        struct connection *one = idle[idle_count++] = dial(NULL);
        NOW(one, "GET", "", "/login/service");
        watch(one);
    }
    for (int i = 0; i < want.callers; i++) {
        struct caller *caller = &callers[i];
        *caller = (struct caller){.number = i, .reply = UINT64_MAX};
        caller->requests = dial(caller), caller->events = dial(caller);
        NOW(caller->requests, "GET", "", "/login/caller.%d", i);
        NOW(caller->events, "GET", "", "/login/caller.%d", i);
        NOW(caller->requests, "GET", "", "/transient/caller.%d", i);
        watch(caller->requests), watch(caller->events);
    }
}

static void run_for(double seconds)
{
    struct epoll_event events[256];
    double until = now() + seconds, moved = now();
    uint64_t before = calls;
    while (now() < until) {
        int count = epoll_wait(poller, events, 256, 100);
        if (count < 0 && errno != EINTR)
            die("epoll_wait");
        for (int i = 0; i < count; i++)
            receive(events[i].data.ptr);
        if (calls != before)
            moved = now(), before = calls;
        else if (now() - moved > STALL_SECONDS)
            wrong("expected answers", "none for ten seconds");
    }
}

static void read_options(int count, char **words)
{
    static const struct option names[] = {
        {"port", 1, 0, 'p'}, {"pid", 1, 0, 'i'}, {"callers", 1, 0, 'c'}, {"workers", 1, 0, 'k'},
        {"queues", 1, 0, 'q'},
        {"pollers", 1, 0, 'b'}, {"seconds", 1, 0, 's'}, {"warm-up", 1, 0, 'w'},
        {"path", 1, 0, 'u'}, {0},
    };
    for (int option; (option = getopt_long(count, words, "", names, NULL)) != -1;)
        switch (option) {
        case 'p': want.port = atoi(optarg); break;
        case 'i': want.pid = atoi(optarg); break;
        case 'c': want.callers = atoi(optarg); break;
        case 'k': want.workers = atoi(optarg); break;
        case 'q': want.queues = atoi(optarg); break;
        case 'b': want.pollers = atoi(optarg); break;
        case 's': want.seconds = atof(optarg); break;
        case 'w': want.warm_up = atof(optarg); break;
        case 'u': want.path = optarg; break;
        default: exit(2);
        }
}

int main(int count, char **words)
{
    read_options(count, words);
    if (want.callers >= BATCH || want.workers >= BATCH || want.callers < 1 || want.workers < 1)
        die("expected 1 to 1023 callers and workers");
    poller = epoll_create1(0);
    struct caller *callers = calloc(want.callers, sizeof *callers);
    prepare(callers);
    service_transfer();
    for (int i = 0; i < want.callers; i++) {
        caller_transfer(&callers[i]);
        caller_begin(&callers[i]);
    }
    run_for(want.warm_up);
    uint64_t before = calls;
    double began = now(), cpu = broker_cpu();
    run_for(want.seconds);
    double took = now() - began, spent = broker_cpu() - cpu;
    uint64_t done = calls - before;
    printf("{\"calls\": %lu, \"per_second\": %.1f, \"broker_us\": %.2f}\n",
        done, done / took, done ? spent * 1e6 / done : 0);
    return done ? 0 : 1;
}
