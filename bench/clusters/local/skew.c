/* A wall clock that is wrong: preloaded into the processes of a node, which then read the offset, in nanoseconds, from
 * a file they all map. Built and used by bench/clusters/skew.py. Clocks that do not tell the time of day are left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t right = 0;
static const volatile int64_t *ahead_ns = &right;

/* From now on take the offset from this file; 0 if that can be done. */
int proving_ground_clock(const char *path)
{
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return -1;
    void *mapped = mmap(NULL, sizeof *ahead_ns, PROT_READ, MAP_SHARED, file, 0);
    close(file);
    if (mapped == MAP_FAILED)
        return -1;
    ahead_ns = mapped;
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("PROVING_GROUND_CLOCK");
    if (path)
        proving_ground_clock(path);
}

int clock_gettime(clockid_t clock, struct timespec *at)
{
    static int (*real)(clockid_t, struct timespec *);
    if (!real)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, at);
    int64_t ahead = *ahead_ns;
    if (failed || !ahead || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE))
        return failed;
    int64_t now = at->tv_sec * INT64_C(1000000000) + at->tv_nsec + ahead;
    at->tv_sec = now / 1000000000;
    at->tv_nsec = now % 1000000000;
    return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    if (at)
        *at = now.tv_sec;
    return now.tv_sec;
}
