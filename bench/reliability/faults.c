/* A preload that counts the file operations of a program and its children below one folder, and spoils one of them.
 *
 *     FAULTS_ROOT=/absolute/folder FAULTS_COUNTER=file FAULTS_AT=7 FAULTS_KIND=kill LD_PRELOAD=./faults.so program
 *
 * An operation makes, writes, syncs, renames, cuts or removes a file or a folder. The n-th one, n = FAULTS_AT, is
 *     kill   the end of the process (SIGKILL); half of the bytes of a write are written before
 *     eio    an error of the device; everything else works
 *     full   the first one on a full disk: whatever needs room fails from there on, half of the bytes of this write fit
 * FAULTS_COUNTER is a file of eight bytes that all processes share: the number of operations so far. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum kind { NOTHING, KILL, EIO_ONCE, FULL };
enum verdict { GOES_ON, FAILS, HALF };

static _Atomic long *counter;
static long at;
static enum kind kind;
static char root[PATH_MAX];
static size_t root_length;

#define REAL(type, name, ...)                                     \
    static type (*real)(__VA_ARGS__);                             \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("FAULTS_ROOT"), *file = getenv("FAULTS_COUNTER"), *what = getenv("FAULTS_KIND");
    if (!folder || !file) return;
    int fd = open(file, O_RDWR);
    if (fd < 0) return;
    void *shared = mmap(NULL, sizeof(long), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (shared == MAP_FAILED) return;
    at = getenv("FAULTS_AT") ? atol(getenv("FAULTS_AT")) : 0;
    kind = !what ? NOTHING : !strcmp(what, "kill") ? KILL : !strcmp(what, "eio") ? EIO_ONCE : FULL;
    snprintf(root, sizeof root, "%s/", folder);
    root_length = strlen(root);
    counter = shared;
}

static int below(const char *path) { return strncmp(path, root, root_length) == 0; }

static int below_fd(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 2);
    if (length <= 0) return 0;
    strcpy(path + length, "/");
    return below(path);
}

static int below_path(int folder, const char *path) {
    if (path[0] == '/') return below(path);
    if (folder != AT_FDCWD) return below_fd(folder);
    char here[PATH_MAX];
    if (!getcwd(here, sizeof here - 2)) return 0;
    strcat(here, "/");
    return below(here);
}

/* Counts an operation and says what becomes of it; `room` says whether it needs room on the disk. */
static enum verdict judge(int concerned, int room, int is_write) {
    if (!counter || !concerned) return GOES_ON;
    long n = atomic_fetch_add(counter, 1) + 1;
    if (at == 0 || n < at || (kind != FULL && n > at)) return GOES_ON;
    if (kind == KILL) {
        if (is_write) return HALF;
        kill(getpid(), SIGKILL);
    }
    if (kind == FULL) {
        if (!room) return GOES_ON;
        if (is_write && n == at) return HALF;
    }
    errno = kind == FULL ? ENOSPC : EIO;
    return FAILS;
}

static void end_if_killed(void) {
    if (kind == KILL) kill(getpid(), SIGKILL);
}

#define CHANGES (O_CREAT | O_WRONLY | O_RDWR | O_TRUNC)

static int opened(const char *name, int folder, const char *path, int flags, mode_t mode) {
    REAL(int, "openat", int, const char *, int, ...);
    (void)name;
    if ((flags & CHANGES) && judge(below_path(folder, path), flags & O_CREAT, 0) == FAILS) return -1;
    return real(folder, path, flags, mode);
}

#define OPEN(name, large)                                                                        \
    int name(const char *path, int flags, ...) {                                                 \
        va_list rest;                                                                            \
        va_start(rest, flags);                                                                   \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0;                \
        va_end(rest);                                                                            \
        return opened(#name, AT_FDCWD, path, flags | large, mode);                               \
    }
OPEN(open, 0)
OPEN(open64, O_LARGEFILE)

#define OPENAT(name, large)                                                                      \
    int name(int folder, const char *path, int flags, ...) {                                     \
        va_list rest;                                                                            \
        va_start(rest, flags);                                                                   \
        mode_t mode = (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0;                \
        va_end(rest);                                                                            \
        return opened(#name, folder, path, flags | large, mode);                                 \
    }
OPENAT(openat64, O_LARGEFILE)

ssize_t write(int fd, const void *bytes, size_t count) {
    REAL(ssize_t, "write", int, const void *, size_t);
    switch (judge(fd > 2 && below_fd(fd), 1, 1)) {
    case FAILS: return -1;
    case HALF: {
        ssize_t written = real(fd, bytes, count / 2);
        end_if_killed();
        if (written > 0) return written;
        errno = ENOSPC;
        return -1;
    }
    default: return real(fd, bytes, count);
    }
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (count == 0) return 0;
    /* The first part alone is a short write, which every caller has to expect. */
    return write(fd, parts[0].iov_base, parts[0].iov_len);
}

#define PLAIN(name, concerned, room, declared, passed, ...)             \
    int name declared {                                                 \
        REAL(int, #name, __VA_ARGS__);                                  \
        if (judge(concerned, room, 0) == FAILS) return -1;              \
        return real passed;                                             \
    }
PLAIN(fsync, below_fd(fd), 1, (int fd), (fd), int)
PLAIN(fdatasync, below_fd(fd), 1, (int fd), (fd), int)
PLAIN(ftruncate, below_fd(fd), 0, (int fd, off_t length), (fd, length), int, off_t)
PLAIN(ftruncate64, below_fd(fd), 0, (int fd, off64_t length), (fd, length), int, off64_t)
PLAIN(rename, below_path(AT_FDCWD, to), 0, (const char *from, const char *to), (from, to), const char *, const char *)
PLAIN(mkdir, below_path(AT_FDCWD, path), 1, (const char *path, mode_t mode), (path, mode), const char *, mode_t)
PLAIN(unlink, below_path(AT_FDCWD, path), 0, (const char *path), (path), const char *)
PLAIN(rmdir, below_path(AT_FDCWD, path), 0, (const char *path), (path), const char *)
PLAIN(unlinkat, below_path(folder, path), 0, (int folder, const char *path, int flags), (folder, path, flags), int,
      const char *, int)
