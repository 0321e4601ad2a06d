/* A small pool of threads that outlives calls. The caller always works; helpers join when they are awake.
 *
 * `gate` holds the job's number, whether it is open, and how many helpers are inside. The caller never waits for a
 * helper that has not joined: one that wakes late finds the gate closed. A helper with nothing to do spins for
 * SPIN_NANOSECONDS, then sleeps, so an idle server burns nothing.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "ops.h"

#define SPIN_NANOSECONDS 50000
#define MAX_THREADS 64
#define OPEN (1ull << 32)
#define NEXT_JOB (1ull << 33)
#define INSIDE 0xffffffffull

static _Atomic uint64_t gate;
static _Atomic long next_item;
static _Atomic int sleepers, wanted_helpers, born_helpers;
static atomic_flag busy = ATOMIC_FLAG_INIT;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static struct {
    tsd_task task;
    void *context;
    long items, chunk;
} job;

static inline void relax(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void work(void) {
    for (;;) {
        long begin = atomic_fetch_add(&next_item, job.chunk);
        if (begin >= job.items) return;
        long end = begin + job.chunk;
        job.task(job.context, begin, end < job.items ? end : job.items);
    }
}

static int news(uint64_t seen) {
    uint64_t g = atomic_load(&gate);
    return (g & OPEN) && (g >> 33) != seen;
}

static void *helper(void *argument) {
    int number = (int)(intptr_t)argument;
    uint64_t seen = 0;
    for (;;) {
        int64_t until = now() + SPIN_NANOSECONDS;
        int found = 0;
        while (!(found = number < atomic_load(&wanted_helpers) && news(seen)) && now() < until)
            for (int i = 0; i < 16; i++) relax();
        if (!found) {
            pthread_mutex_lock(&mutex);
            atomic_fetch_add(&sleepers, 1);
            while (number >= atomic_load(&wanted_helpers) || !news(seen)) pthread_cond_wait(&wake, &mutex);
            atomic_fetch_sub(&sleepers, 1);
            pthread_mutex_unlock(&mutex);
        }
        uint64_t g = atomic_load(&gate);
        while (g & OPEN)
            if (atomic_compare_exchange_weak(&gate, &g, g + 1)) {
                seen = g >> 33;
                work();
                atomic_fetch_sub(&gate, 1);
                break;
            }
    }
    return NULL;
}

/* Runs task over [0, items) in pieces of `chunk`, on the caller and whatever helpers are free. */
void tsd_parallel(tsd_task task, void *context, long items, long chunk) {
    if (atomic_load(&wanted_helpers) == 0 || items <= chunk || atomic_flag_test_and_set(&busy)) {
        task(context, 0, items);
        return;
    }
    job.task = task;
    job.context = context;
    job.items = items;
    job.chunk = chunk;
    atomic_store(&next_item, 0);
    atomic_fetch_add(&gate, NEXT_JOB + OPEN);
    if (atomic_load(&sleepers) > 0) {
        pthread_mutex_lock(&mutex);
        pthread_cond_broadcast(&wake);
        pthread_mutex_unlock(&mutex);
    }
    work();
    atomic_fetch_sub(&gate, OPEN);
    for (int spins = 0; atomic_load(&gate) & INSIDE; spins++) {
        relax();
        if (spins > 4096) sched_yield(); /* the helper has lost its core: let it have ours */
    }
    atomic_flag_clear(&busy);
}

static void after_fork(void) { /* the child has no helpers and nothing in flight */
    atomic_store(&wanted_helpers, 0);
    atomic_store(&born_helpers, 0);
    atomic_store(&sleepers, 0);
    atomic_store(&gate, 0);
    atomic_flag_clear(&busy);
    pthread_mutex_init(&mutex, NULL);
    pthread_cond_init(&wake, NULL);
}

int tsd_set_threads(int threads) {
    static int watching_forks;
    int helpers = (threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads) - 1;
    pthread_mutex_lock(&mutex);
    if (!watching_forks) watching_forks = pthread_atfork(NULL, NULL, after_fork) == 0;
    int born = atomic_load(&born_helpers);
    for (; born < helpers; born++) {
        pthread_t thread;
        pthread_attr_t detached;
        pthread_attr_init(&detached);
        pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        int failed = pthread_create(&thread, &detached, helper, (void *)(intptr_t)born);
        pthread_attr_destroy(&detached);
        if (failed) break;
    }
    atomic_store(&born_helpers, born);
    if (helpers > born) helpers = born;
    atomic_store(&wanted_helpers, helpers);
    pthread_mutex_unlock(&mutex);
    return helpers + 1;
}

int tsd_get_threads(void) { return atomic_load(&wanted_helpers) + 1; }
