/* A wall clock that a test can step: preloaded into a process, it adds to the system's what stands in the file that
   NEMESIS_CLOCK names, in microseconds. The monotonic clock is left alone. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *step;

__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("NEMESIS_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *shared = mmap(NULL, sizeof *step, PROT_READ, MAP_SHARED, file, 0);
    if (shared != MAP_FAILED) step = shared;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    if (result == 0 && step && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        long long nanos = now->tv_nsec + *step % 1000000 * 1000;
        now->tv_sec += *step / 1000000 + (nanos < 0 ? -1 : nanos / 1000000000);
        now->tv_nsec = nanos < 0 ? nanos + 1000000000 : nanos % 1000000000;
    }
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0) return (time_t)-1;
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}
