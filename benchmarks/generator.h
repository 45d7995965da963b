/* What the load generators in C share: errors, clocks, a choice that is the same in every run, and
 * options. Each of them is one program of one file, which names itself in PROGRAM before it includes this.
 */
#include <errno.h>
#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void die(const char *what)
{
    fprintf(stderr, PROGRAM ": %s: %s\n", what, errno ? strerror(errno) : "unexpected answer");
    exit(2);
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    if (clock_gettime(clock, &t)) die("clock");
    return t.tv_sec + t.tv_nsec / 1e9;
}

static double now(void) { return seconds_of(CLOCK_MONOTONIC); }

/* CPU of all threads of a process, 0 if none is asked for. */
static double cpu_of(int pid)
{
    clockid_t clock;
    if (!pid) return 0;
    if ((errno = clock_getcpuclockid(pid, &clock))) die("the broker's clock");
    return seconds_of(clock);
}

static uint32_t drawn(uint32_t below)
{
    static uint32_t state = 1;
    state ^= state << 13, state ^= state >> 17, state ^= state << 5;
    return state % below;
}

/* What `--name` sets, a number or seconds, and between which. */
struct known { const char *name; int *number; double *seconds; int least, most; };

static void parse_options(int argc, char **argv, const struct known *known, int count)
{
    struct option options[count + 1];
    memset(options, 0, sizeof options);
    for (int i = 0; i < count; i++)
        options[i] = (struct option){ known[i].name, required_argument, NULL, 0 };
    int found, index;
    while ((found = getopt_long(argc, argv, "", options, &index)) == 0) {
        double value = strtod(optarg, NULL);
        if (value < known[index].least || value > known[index].most) {
            fprintf(stderr, PROGRAM ": --%s %s: expected %d to %d\n", known[index].name, optarg,
                    known[index].least, known[index].most);
            exit(2);
        }
        if (known[index].number) *known[index].number = value;
        else *known[index].seconds = value;
    }
    if (found != -1) exit(2);
}
