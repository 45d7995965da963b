/* Makes fdatasync fail as a disk does, for a process that is started with this in LD_PRELOAD.

   FAULTS names a file with the number of calls that are to fail; each takes one off. SYNCS names
   a log: one line a call, the inode and 0 or the error. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static int fails_now(void) {
    char text[16] = {0};
    int fd = open(getenv("FAULTS"), O_RDWR);
    if (fd < 0) return 0;
    int left = read(fd, text, sizeof text - 1) > 0 ? atoi(text) : 0;
    if (left > 0) {
        int size = snprintf(text, sizeof text, "%-8d", left - 1);
        if (pwrite(fd, text, size, 0) != size) abort();
    }
    close(fd);
    return left > 0;
}

int fdatasync(int fd) {
    static int (*real)(int);
    if (!real) real = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    int result = fails_now() ? EIO : real(fd) ? errno : 0;
    struct stat found;
    if (fstat(fd, &found)) abort();
    FILE *log = fopen(getenv("SYNCS"), "a");
    fprintf(log, "%lu %d\n", (unsigned long)found.st_ino, result);
    fclose(log);
    errno = result;
    return result ? -1 : 0;
}
