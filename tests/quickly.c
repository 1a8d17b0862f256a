/* Lets time pass slowly in the processes that preload this library: see quickly.py.

   A process reads BASE + (now - BASE) / FACTOR from each clock, and its sleeps and timeouts take FACTOR times as long.
   Clocks of processor time are divided as well. What the kernel measures by itself stays as it is: TCP's timers, and
   the timeouts of sockets. Times of files are converted like the clock, so that they still agree with it. */

#define _GNU_SOURCE
#include <alloca.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

typedef long long ns_t;
#define SECOND 1000000000LL
#define REAL(name) ({ static __typeof__(&name) found; if (!found) found = dlsym(RTLD_NEXT, #name); found; })

static double factor = 1;
static ns_t wall_base, boot_base;
static const char *const names[] = {"LD_PRELOAD", "TUNNEL_QUICKLY"};
static char *kept[2]; /* each as NAME=VALUE */

__attribute__((constructor)) static void start(void) {
    const char *words = getenv("TUNNEL_QUICKLY"); /* FACTOR:REALTIME:MONOTONIC */
    if (!words) return;
    for (int index = 0; index < 2; index++)
        if (getenv(names[index]) && asprintf(&kept[index], "%s=%s", names[index], getenv(names[index])) < 0) abort();
    char *rest;
    factor = strtod(words, &rest);
    wall_base = strtoll(rest + 1, &rest, 10);
    boot_base = strtoll(rest + 1, &rest, 10);
}

static ns_t read_ns(const struct timespec *at) { return at->tv_sec * SECOND + at->tv_nsec; }

static struct timespec written(ns_t ns) {
    struct timespec at = {ns / SECOND, ns % SECOND};
    if (at.tv_nsec < 0) at.tv_sec--, at.tv_nsec += SECOND;
    return at;
}

static ns_t shown(ns_t real, ns_t base) { return real < base ? real : base + (ns_t)((real - base) / factor); }
static ns_t hidden(ns_t shown, ns_t base) { return shown < base ? shown : base + (ns_t)((shown - base) * factor); }
static struct timespec longer(const struct timespec *span) { return written((ns_t)(read_ns(span) * factor)); }
static struct timespec shorter(const struct timespec *span) { return written((ns_t)(read_ns(span) / factor)); }

static ns_t base_of(clockid_t clock) {
    switch (clock) {
        case CLOCK_REALTIME: case CLOCK_REALTIME_COARSE: case CLOCK_TAI: return wall_base;
        case CLOCK_MONOTONIC: case CLOCK_MONOTONIC_RAW: case CLOCK_MONOTONIC_COARSE: case CLOCK_BOOTTIME:
            return boot_base;
        default: return 0; /* processor time */
    }
}

/* A deadline does not say of which clock it is: no machine has been up for 30 years. */
static struct timespec deadline(const struct timespec *at) {
    return written(hidden(read_ns(at), at->tv_sec > SECOND ? wall_base : boot_base));
}

static int milliseconds(int timeout) {
    if (timeout <= 0) return timeout;
    double all = timeout * factor;
    return all > INT_MAX ? INT_MAX : (int)all;
}

/* Clocks */

int clock_gettime(clockid_t clock, struct timespec *at) {
    int result = REAL(clock_gettime)(clock, at);
    if (!result) *at = written(shown(read_ns(at), base_of(clock)));
    return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec, at->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

/* Sleeps */

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *span, struct timespec *left) {
    struct timespec real = flags & TIMER_ABSTIME ? written(hidden(read_ns(span), base_of(clock))) : longer(span);
    int result = REAL(clock_nanosleep)(clock, flags, &real, left);
    if (result == EINTR && left && !(flags & TIMER_ABSTIME)) *left = shorter(left);
    return result;
}

int nanosleep(const struct timespec *span, struct timespec *left) {
    int result = clock_nanosleep(CLOCK_MONOTONIC, 0, span, left);
    if (result) errno = result;
    return result ? -1 : 0;
}

int usleep(useconds_t span) {
    struct timespec real = written(span * 1000LL);
    return nanosleep(&real, NULL);
}

unsigned sleep(unsigned span) {
    struct timespec real = {span, 0}, left = {0, 0};
    return nanosleep(&real, &left) ? left.tv_sec + (left.tv_nsec > 0) : 0;
}

/* Timeouts */

int poll(struct pollfd *files, nfds_t count, int timeout) { return REAL(poll)(files, count, milliseconds(timeout)); }

int ppoll(struct pollfd *files, nfds_t count, const struct timespec *timeout, const sigset_t *mask) {
    struct timespec real;
    if (timeout) real = longer(timeout);
    return REAL(ppoll)(files, count, timeout ? &real : NULL, mask);
}

int select(int count, fd_set *r, fd_set *w, fd_set *x, struct timeval *timeout) {
    struct timespec real;
    if (timeout) real = written((ns_t)((timeout->tv_sec * SECOND + timeout->tv_usec * 1000) * factor));
    return REAL(pselect)(count, r, w, x, timeout ? &real : NULL, NULL);
}

int pselect(int count, fd_set *r, fd_set *w, fd_set *x, const struct timespec *timeout, const sigset_t *mask) {
    struct timespec real;
    if (timeout) real = longer(timeout);
    return REAL(pselect)(count, r, w, x, timeout ? &real : NULL, mask);
}

int epoll_wait(int epoll, struct epoll_event *events, int count, int timeout) {
    return REAL(epoll_wait)(epoll, events, count, milliseconds(timeout));
}

int epoll_pwait(int epoll, struct epoll_event *events, int count, int timeout, const sigset_t *mask) {
    return REAL(epoll_pwait)(epoll, events, count, milliseconds(timeout), mask);
}

int epoll_pwait2(int epoll, struct epoll_event *events, int count, const struct timespec *timeout, const sigset_t *mask) {
    struct timespec real;
    if (timeout) real = longer(timeout);
    return REAL(epoll_pwait2)(epoll, events, count, timeout ? &real : NULL, mask);
}

int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *at) {
    struct timespec real = deadline(at);
    static __typeof__(&pthread_cond_timedwait) found;
    if (!found) found = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2"); /* dlsym finds an older one */
    if (!found) found = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
    return found(condition, mutex, &real);
}

int pthread_cond_clockwait(pthread_cond_t *condition, pthread_mutex_t *mutex, clockid_t clock, const struct timespec *at) {
    struct timespec real = deadline(at);
    return REAL(pthread_cond_clockwait)(condition, mutex, clock, &real);
}

int sem_timedwait(sem_t *semaphore, const struct timespec *at) {
    struct timespec real = deadline(at);
    return REAL(sem_timedwait)(semaphore, &real);
}

int sem_clockwait(sem_t *semaphore, clockid_t clock, const struct timespec *at) {
    struct timespec real = deadline(at);
    return REAL(sem_clockwait)(semaphore, clock, &real);
}

/* Timers */

static struct timeval real_of(struct timeval span, double by) {
    ns_t ns = (ns_t)((span.tv_sec * SECOND + span.tv_usec * 1000) * by);
    return (struct timeval){ns / SECOND, ns % SECOND / 1000};
}

int setitimer(__itimer_which_t which, const struct itimerval *timer, struct itimerval *old) {
    struct itimerval real = {real_of(timer->it_interval, factor), real_of(timer->it_value, factor)};
    int result = REAL(setitimer)(which, &real, old);
    if (!result && old)
        *old = (struct itimerval){real_of(old->it_interval, 1 / factor), real_of(old->it_value, 1 / factor)};
    return result;
}

unsigned alarm(unsigned span) {
    struct itimerval timer = {{0, 0}, {span, 0}}, old;
    return setitimer(ITIMER_REAL, &timer, &old) ? 0 : old.it_value.tv_sec + (old.it_value.tv_usec > 0);
}

int timerfd_settime(int file, int flags, const struct itimerspec *timer, struct itimerspec *old) {
    struct itimerspec real = {longer(&timer->it_interval), timer->it_value};
    if (read_ns(&timer->it_value)) /* 0 stops the timer */
        real.it_value = flags & TFD_TIMER_ABSTIME ? deadline(&timer->it_value) : longer(&timer->it_value);
    return REAL(timerfd_settime)(file, flags, &real, old);
}

/* Times of files */

static int file_times(int result, struct stat *found) {
    if (!result) {
        found->st_atim = written(shown(read_ns(&found->st_atim), wall_base));
        found->st_mtim = written(shown(read_ns(&found->st_mtim), wall_base));
        found->st_ctim = written(shown(read_ns(&found->st_ctim), wall_base));
    }
    return result;
}

#define STATS(SIZE) \
    int stat##SIZE(const char *restrict path, struct stat##SIZE *restrict found) { \
        return file_times(REAL(stat##SIZE)(path, found), (struct stat *)found); \
    } \
    int lstat##SIZE(const char *restrict path, struct stat##SIZE *restrict found) { \
        return file_times(REAL(lstat##SIZE)(path, found), (struct stat *)found); \
    } \
    int fstat##SIZE(int file, struct stat##SIZE *found) { \
        return file_times(REAL(fstat##SIZE)(file, found), (struct stat *)found); \
    } \
    int fstatat##SIZE(int folder, const char *restrict path, struct stat##SIZE *restrict found, int flags) { \
        return file_times(REAL(fstatat##SIZE)(folder, path, found, flags), (struct stat *)found); \
    }

/* On 64-bit machines both structures are the same. */
STATS()
STATS(64)

static const struct timespec *set_times(const struct timespec times[2], struct timespec real[2]) {
    if (!times) return NULL;
    for (int index = 0; index < 2; index++) {
        real[index] = times[index];
        if (times[index].tv_nsec != UTIME_NOW && times[index].tv_nsec != UTIME_OMIT)
            real[index] = written(hidden(read_ns(&times[index]), wall_base));
    }
    return real;
}

int utimensat(int folder, const char *path, const struct timespec times[2], int flags) {
    struct timespec real[2];
    return REAL(utimensat)(folder, path, set_times(times, real), flags);
}

int futimens(int file, const struct timespec times[2]) {
    struct timespec real[2];
    return REAL(futimens)(file, set_times(times, real));
}

/* Children */

static int stands_in(char *const variables[], const char *name) {
    for (; *variables; variables++)
        if (!strncmp(*variables, name, strlen(name)) && (*variables)[strlen(name)] == '=') return 1;
    return 0;
}

/* Tests start programs with an environment of their own, which would not load this library. */
int execve(const char *path, char *const arguments[], char *const variables[]) {
    size_t count = 0;
    while (variables && variables[count]) count++;
    const char **all = alloca((count + 3) * sizeof(char *));
    memcpy(all, variables, count * sizeof(char *));
    all[count] = NULL;
    for (size_t index = 0; index < 2; index++)
        if (kept[index] && !stands_in((char *const *)all, names[index])) all[count++] = kept[index], all[count] = NULL;
    return REAL(execve)(path, arguments, (char *const *)all);
}
