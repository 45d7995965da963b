/* Makes system calls fail as disks and kernels do, in a process that is started with this in
   LD_PRELOAD. What fails is said in a file that everybody maps (`faults.py` writes it), so a fault
   can begin and end in a running process, and its calls are counted for all of them together.

   FAULTS names the file: a `struct control`. Only calls on paths below `root` count, and those that
   start a process or make descriptors for one: fork, pipe. Without FAULTS nothing happens.

   A rule fails the calls `first` to `last` of those that it matches, with `error`; 0 only counts.
   With `at` >= 0 it is an unreadable block of 4 KiB instead: reads stop before it and fail in it,
   and who touches it in a mapping gets SIGBUS, as from the kernel.

   Calls are named by what they do: open64 and openat are "open", a whole family is one word in the
   table at the end of this file. Nothing is seen of what libc does within itself (fopen), of
   io_uring and of calls without libc; the tests compare with strace what is left out. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <limits.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RULES 8
#define BLOCK 4096

struct rule {
    uint32_t armed, error, first, last;
    _Atomic uint32_t calls, failed;
    int64_t at;
    char role[16], ops[64], path[144];
};

struct control {
    char root[256], trace[256];
    struct rule rules[RULES];
};

char faults_role[16] = "hub"; /* who this process is; a parent may say so after a fork */
static struct control *control;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("FAULTS");
    int fd = name ? syscall(SYS_openat, AT_FDCWD, name, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *made = (void *)syscall(SYS_mmap, 0, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    syscall(SYS_close, fd);
    if (made != MAP_FAILED) control = made;
    char line[512] = {0};
    fd = syscall(SYS_openat, AT_FDCWD, "/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
    ssize_t size = fd < 0 ? 0 : syscall(SYS_read, fd, line, sizeof line - 1);
    syscall(SYS_close, fd);
    if (size > 0 && memmem(line, size, "journal.roll", 12)) strcpy(faults_role, "roller");
    if (size > 0 && memmem(line, size, "nursery", 7)) strcpy(faults_role, "nursery");
}

/* Where a path lies below the root, "" for the root itself; NULL if it is none of ours. */
static const char *below(const char *path) {
    size_t size = control && *control->root ? strlen(control->root) : 0;
    if (!size || strncmp(path, control->root, size)) return NULL;
    if (path[size] == '/') return path + size + 1;
    return path[size] ? NULL : path + size;
}

static const char *where_fd(int fd, char *buffer) {
    if (!control || !*control->root || fd < 0) return NULL;
    char link[32];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, buffer, PATH_MAX - 1);
    errno = before;
    if (size < 0) return NULL;
    buffer[size] = 0;
    return below(buffer);
}

static const char *where_at(int dir, const char *path, char *buffer) {
    if (!control || !*control->root || !path) return NULL;
    if (*path == '/') return below(path);
    size_t size;
    if (dir == AT_FDCWD) {
        if (syscall(SYS_getcwd, buffer, PATH_MAX - 1) < 0) return NULL;
    } else if (!where_fd(dir, buffer)) return NULL;
    size = strlen(buffer);
    snprintf(buffer + size, PATH_MAX - size, "/%s", path);
    return below(buffer);
}

static int names(const char *ops, const char *op) {
    size_t size = strlen(op);
    if (!strcmp(ops, "*")) return 1;
    for (const char *at = ops; (at = strstr(at, op)); at++)
        if ((at == ops || at[-1] == ' ') && (!at[size] || at[size] == ' ')) return 1;
    return 0;
}

static int matches(struct rule *rule, const char *op, const char *path) {
    return rule->armed && (!strcmp(rule->role, "*") || !strcmp(rule->role, faults_role)) &&
           names(rule->ops, op) && !fnmatch(rule->path, path, 0);
}

static int counts(struct rule *rule) {
    uint32_t number = atomic_fetch_add(&rule->calls, 1) + 1;
    if (!rule->error || number < rule->first || number > rule->last) return 0;
    atomic_fetch_add(&rule->failed, 1);
    return 1;
}

/* The error with which this call is to fail, or 0. */
static int fault(const char *op, const char *path) {
    int error = 0;
    for (struct rule *rule = control->rules; rule < control->rules + RULES; rule++)
        if (rule->at < 0 && matches(rule, op, path) && counts(rule) && !error) error = rule->error;
    return error;
}

/* How much of a read is left before an unreadable block: 0 if it begins in one. */
static size_t readable(const char *op, const char *path, int64_t at, size_t size) {
    for (struct rule *rule = control->rules; rule < control->rules + RULES; rule++)
        if (rule->at >= 0 && rule->at < at + (int64_t)size && at < rule->at + BLOCK &&
            matches(rule, op, path) && counts(rule))
            size = at < rule->at ? (size_t)(rule->at - at) : 0;
    return size;
}

static void trace(const char *op, const char *path, int error, int fd) {
    if (!*control->trace) return;
    char line[PATH_MAX + 64];
    int before = errno;
    struct stat found = {0};
    if (fd >= 0) syscall(SYS_fstat, fd, &found);
    int size = snprintf(line, sizeof line, "%s %d %s %d %lu %s\n", faults_role, getpid(), op, error,
                        (unsigned long)found.st_ino, path);
    int log = syscall(SYS_openat, AT_FDCWD, control->trace, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (log >= 0) {
        syscall(SYS_write, log, line, size);
        syscall(SYS_close, log);
    }
    errno = before;
}

/* The body of each call: fail if a rule says so, else do it. `failure` is what tells a caller. */
#define REAL(name)                                       \
    static __typeof__(name) *real;                       \
    if (!real) real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)
#define CALL(op, path, fd, type, failure, call)                               \
    do {                                                                      \
        const char *at_ = (path);                                             \
        int error_ = at_ ? fault(op, at_) : 0;                                \
        type result_ = failure;                                               \
        if (error_) errno = error_;                                           \
        else result_ = call;                                                  \
        if (at_) trace(op, at_, result_ == (type)(failure) ? errno : 0, fd);  \
        return result_;                                                       \
    } while (0)

#define AT(dir, path) where_at(dir, path, (char[PATH_MAX]){0})
#define FD(fd) where_fd(fd, (char[PATH_MAX]){0})
#define NO_PATH (control && *control->root && strcmp(faults_role, "nursery") ? "" : NULL)

/* open */

static mode_t mode_of(int flags, va_list rest) {
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0;
}
#define OPEN(name)                                                              \
    int name(const char *path, int flags, ...) {                                \
        va_list rest;                                                           \
        va_start(rest, flags);                                                  \
        mode_t mode = mode_of(flags, rest);                                     \
        va_end(rest);                                                           \
        REAL(name);                                                             \
        CALL("open", AT(AT_FDCWD, path), -1, int, -1, real(path, flags, mode)); \
    }
#define OPENAT(name)                                                            \
    int name(int dir, const char *path, int flags, ...) {                       \
        va_list rest;                                                           \
        va_start(rest, flags);                                                  \
        mode_t mode = mode_of(flags, rest);                                     \
        va_end(rest);                                                           \
        REAL(name);                                                             \
        CALL("open", AT(dir, path), -1, int, -1, real(dir, path, flags, mode)); \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

/* read, where an unreadable block makes it short or fail */

#define READ(op, fd, start, size, call)                           \
    do {                                                          \
        const char *path_ = FD(fd);                               \
        if (path_) {                                              \
            size_t left_ = readable(op, path_, start, size);      \
            if (!left_ && size) {                                 \
                trace(op, path_, EIO, fd);                        \
                errno = EIO;                                      \
                return -1;                                        \
            }                                                     \
            size = left_;                                         \
        }                                                         \
        CALL(op, path_, fd, ssize_t, -1, call);                   \
    } while (0)
static int64_t position(int fd) { return lseek(fd, 0, SEEK_CUR); }

ssize_t read(int fd, void *data, size_t size) {
    REAL(read);
    READ("read", fd, position(fd), size, real(fd, data, size));
}
ssize_t pread(int fd, void *data, size_t size, off_t at) {
    REAL(pread);
    READ("pread", fd, at, size, real(fd, data, size, at));
}
ssize_t pread64(int fd, void *data, size_t size, off64_t at) {
    REAL(pread64);
    READ("pread", fd, at, size, real(fd, data, size, at));
}
#define PREADV(name)                                                               \
    ssize_t name(int fd, const struct iovec *parts, int count, off64_t at, int f) { \
        static ssize_t (*real)(int, const struct iovec *, int, off64_t, int);      \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);                      \
        size_t size = 0;                                                           \
        for (int one = 0; one < count; one++) size += parts[one].iov_len;          \
        READ("pread", fd, at, size, real(fd, parts, count, at, f));                \
    }
PREADV(preadv2)
PREADV(preadv64v2)
#define SENDFILE(name, offset)                                                    \
    ssize_t name(int out, int in, offset *at, size_t size) {                      \
        static ssize_t (*real)(int, int, offset *, size_t);                       \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);                     \
        READ("sendfile", in, at ? *at : position(in), size, real(out, in, at, size)); \
    }
SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)
ssize_t copy_file_range(int in, off64_t *at, int out, off64_t *to, size_t size, unsigned flags) {
    REAL(copy_file_range);
    READ("sendfile", in, at ? *at : position(in), size, real(in, at, out, to, size, flags));
}

/* mmap, with the blocks that cannot be read: pages behind the end of an empty file */

static void *poisoned(void *made, size_t size, int fd, int64_t from, const char *path) {
    if (!path || made == MAP_FAILED) return made;
    for (struct rule *rule = control->rules; rule < control->rules + RULES; rule++) {
        int64_t at = rule->at & -(int64_t)BLOCK;
        if (rule->at < 0 || at < from || at >= from + (int64_t)size) continue;
        if (!matches(rule, "mmap", path) || !counts(rule)) continue;
        int empty = syscall(SYS_memfd_create, "unreadable", MFD_CLOEXEC);
        syscall(SYS_mmap, (char *)made + (at - from), BLOCK, PROT_READ, MAP_SHARED | MAP_FIXED, empty, 0);
        syscall(SYS_close, empty);
        trace("mmap", path, EFAULT, fd);
    }
    return made;
}
#define MMAP(name)                                                                       \
    void *name(void *place, size_t size, int access, int flags, int fd, off_t from) {    \
        REAL(name);                                                                      \
        const char *path = flags & MAP_ANONYMOUS ? NULL : FD(fd);                        \
        CALL("mmap", path, fd, void *, MAP_FAILED,                                       \
             poisoned(real(place, size, access, flags, fd, from), size, fd, from, path)); \
    }
MMAP(mmap)
MMAP(mmap64)

/* everything with a descriptor */

#define WITH_FD(op, name, parameters, arguments)          \
    int name parameters {                                 \
        REAL(name);                                       \
        CALL(op, FD(fd), fd, int, -1, real arguments);    \
    }
ssize_t write(int fd, const void *data, size_t size) {
    REAL(write);
    CALL("write", FD(fd), fd, ssize_t, -1, real(fd, data, size));
}
ssize_t writev(int fd, const struct iovec *parts, int count) {
    static ssize_t (*real)(int, const struct iovec *, int);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "writev");
    CALL("write", FD(fd), fd, ssize_t, -1, real(fd, parts, count));
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    REAL(pwrite);
    CALL("pwrite", FD(fd), fd, ssize_t, -1, real(fd, data, size, at));
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    REAL(pwrite64);
    CALL("pwrite", FD(fd), fd, ssize_t, -1, real(fd, data, size, at));
}
WITH_FD("fsync", fsync, (int fd), (fd))
WITH_FD("fdatasync", fdatasync, (int fd), (fd))
WITH_FD("ftruncate", ftruncate, (int fd, off_t size), (fd, size))
WITH_FD("ftruncate", ftruncate64, (int fd, off64_t size), (fd, size))
WITH_FD("allocate", fallocate, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size))
WITH_FD("allocate", fallocate64, (int fd, int mode, off64_t at, off64_t size), (fd, mode, at, size))
WITH_FD("chown", fchown, (int fd, uid_t user, gid_t group), (fd, user, group))
WITH_FD("chmod", fchmod, (int fd, mode_t mode), (fd, mode))
WITH_FD("stat", fstat, (int fd, struct stat *found), (fd, found))
WITH_FD("stat", fstat64, (int fd, struct stat64 *found), (fd, found))
WITH_FD("stat", fstatvfs64, (int fd, struct statvfs64 *found), (fd, found))

int flock(int fd, int how) {
    static int (*real)(int, int);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "flock");
    CALL("flock", FD(fd), fd, int, -1, real(fd, how));
}
int posix_fallocate64(int fd, off64_t at, off64_t size) {
    REAL(posix_fallocate64);
    const char *path = FD(fd);
    int error = path ? fault("allocate", path) : 0;
    if (!error) error = real(fd, at, size);
    if (path) trace("allocate", path, error, fd);
    return error;
}
#define FCNTL(name)                                                                   \
    int name(int fd, int what, ...) {                                                 \
        va_list rest;                                                                 \
        va_start(rest, what);                                                         \
        void *argument = va_arg(rest, void *);                                        \
        va_end(rest);                                                                 \
        static int (*real)(int, int, ...);                                            \
        if (!real) *(void **)&real = dlsym(RTLD_NEXT, #name);                         \
        if (what != F_DUPFD && what != F_DUPFD_CLOEXEC) return real(fd, what, argument); \
        CALL("dup", FD(fd), fd, int, -1, real(fd, what, argument));                   \
    }
FCNTL(fcntl)
FCNTL(fcntl64)

/* everything with a path */

#define WITH_PATH(op, name, parameters, arguments)                  \
    int name parameters {                                           \
        REAL(name);                                                 \
        CALL(op, AT(AT_FDCWD, path), -1, int, -1, real arguments);  \
    }
#define WITH_PATH_AT(op, name, parameters, arguments)               \
    int name parameters {                                           \
        REAL(name);                                                 \
        CALL(op, AT(dir, path), -1, int, -1, real arguments);       \
    }
WITH_PATH("rename", rename, (const char *path, const char *to), (path, to))
WITH_PATH_AT("rename", renameat, (int dir, const char *path, int dir2, const char *to), (dir, path, dir2, to))
WITH_PATH("link", link, (const char *path, const char *to), (path, to))
WITH_PATH_AT("link", linkat, (int dir, const char *path, int dir2, const char *to, int flags),
             (dir, path, dir2, to, flags))
WITH_PATH("unlink", unlink, (const char *path), (path))
WITH_PATH("unlink", rmdir, (const char *path), (path))
WITH_PATH_AT("unlink", unlinkat, (int dir, const char *path, int flags), (dir, path, flags))
WITH_PATH("ftruncate", truncate, (const char *path, off_t size), (path, size))
WITH_PATH("ftruncate", truncate64, (const char *path, off64_t size), (path, size))
WITH_PATH("mkdir", mkdir, (const char *path, mode_t mode), (path, mode))
WITH_PATH_AT("mkdir", mkdirat, (int dir, const char *path, mode_t mode), (dir, path, mode))
WITH_PATH("chown", chown, (const char *path, uid_t user, gid_t group), (path, user, group))
WITH_PATH("chown", lchown, (const char *path, uid_t user, gid_t group), (path, user, group))
WITH_PATH_AT("chown", fchownat, (int dir, const char *path, uid_t user, gid_t group, int flags),
             (dir, path, user, group, flags))
WITH_PATH("chmod", chmod, (const char *path, mode_t mode), (path, mode))
WITH_PATH("stat", stat, (const char *path, struct stat *found), (path, found))
WITH_PATH("stat", stat64, (const char *path, struct stat64 *found), (path, found))
WITH_PATH("stat", lstat, (const char *path, struct stat *found), (path, found))
WITH_PATH("stat", lstat64, (const char *path, struct stat64 *found), (path, found))
WITH_PATH("stat", statvfs64, (const char *path, struct statvfs64 *found), (path, found))
WITH_PATH_AT("stat", fstatat, (int dir, const char *path, struct stat *found, int flags),
             (dir, path, found, flags))
WITH_PATH_AT("stat", fstatat64, (int dir, const char *path, struct stat64 *found, int flags),
             (dir, path, found, flags))

/* folders */

DIR *opendir(const char *path) {
    REAL(opendir);
    CALL("open", AT(AT_FDCWD, path), -1, DIR *, NULL, real(path));
}
struct dirent64 *readdir64(DIR *folder) {
    REAL(readdir64);
    if (telldir(folder)) return real(folder); /* the system is asked once for many names */
    CALL("readdir", FD(dirfd(folder)), -1, struct dirent64 *, NULL, real(folder));
}

/* processes: uvloop's library forks, subprocess calls vfork, others posix_spawn */

pid_t fork(void) {
    REAL(fork);
    CALL("fork", NO_PATH, -1, pid_t, -1, real());
}
pid_t vfork(void) {
    REAL(fork); /* a true vfork would return into a frame that is gone */
    CALL("fork", NO_PATH, -1, pid_t, -1, real());
}
int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attributes, char *const arguments[], char *const variables[]) {
    REAL(posix_spawn);
    const char *here = NO_PATH;
    int error = here ? fault("fork", here) : 0;
    if (here) trace("fork", here, error, -1);
    return error ? error : real(pid, path, actions, attributes, arguments, variables);
}
int pipe2(int ends[2], int flags) {
    REAL(pipe2);
    CALL("pipe", NO_PATH, -1, int, -1, real(ends, flags));
}
int socketpair(int domain, int type, int protocol, int ends[2]) {
    REAL(socketpair);
    CALL("pipe", NO_PATH, -1, int, -1, real(domain, type, protocol, ends));
}
