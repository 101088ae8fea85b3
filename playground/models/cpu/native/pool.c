/* The threads, and what Python calls.

   A phase of a pass is so many units of work. The thread that calls shares them with the others that are awake, and waits
   only for units that others have begun: a thread that the system does not run, because other programs have its core,
   holds nobody up. One that waits spins for some microseconds, then gives its core away, then sleeps. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include "engine.h"

#if defined(__x86_64__)
#define PAUSE __builtin_ia32_pause()
#elif defined(__aarch64__)
#define PAUSE __asm__ volatile("isb")
#else
#define PAUSE
#endif

enum { SPINS = 1000, YIELDS = 50 };

static struct {
    pthread_mutex_t running, sleeping; /* held by who shares its work; guards `asleep` and the conditions */
    pthread_cond_t awake, needed;
    atomic_int asleep;
    int workers, total; /* `total`, `work` and `job` are of the phase: they stay as long as it has units */
    void (*work)(void *, int, int, int);
    void *job;
    _Alignas(64) atomic_ullong unclaimed; /* units; the number of threads that may claim them in the upper half */
    _Alignas(64) atomic_ullong unfinished;
} pool = {.running = PTHREAD_MUTEX_INITIALIZER,
          .sleeping = PTHREAD_MUTEX_INITIALIZER,
          .awake = PTHREAD_COND_INITIALIZER,
          .needed = PTHREAD_COND_INITIALIZER};

/* Waits until there are units, or until there are none. */
static void wait_until(atomic_ullong *units, int some) {
    for (int i = 0; i < SPINS + YIELDS; i++) {
        if (((uint32_t)atomic_load_explicit(units, memory_order_acquire) != 0) == some) return;
        if (i < SPINS) PAUSE;
        else sched_yield();
    }
    pthread_mutex_lock(&pool.sleeping);
    atomic_fetch_add(&pool.asleep, 1);
    while (((uint32_t)atomic_load(units) != 0) != some) pthread_cond_wait(&pool.awake, &pool.sleeping);
    atomic_fetch_sub(&pool.asleep, 1);
    pthread_mutex_unlock(&pool.sleeping);
}

static void wake(void) {
    if (!atomic_load(&pool.asleep)) return;
    pthread_mutex_lock(&pool.sleeping);
    pthread_cond_broadcast(&pool.awake);
    pthread_mutex_unlock(&pool.sleeping);
}

/* Works on shares until none is left: each is an equal part of what is left, and at least one unit. A claim that
   succeeds holds the phase, so that only then its work may be read. */
static void work_on(int thread) {
    unsigned long long seen = atomic_load(&pool.unclaimed);
    while ((uint32_t)seen && thread < (int)(seen >> 32)) {
        int left = (int)(uint32_t)seen, share = left / (int)(seen >> 32);
        if (share < 1) share = 1;
        if (!atomic_compare_exchange_weak(&pool.unclaimed, &seen, seen - share)) continue;
        int begin = pool.total - left;
        pool.work(pool.job, thread, begin, begin + share);
        if (atomic_fetch_sub(&pool.unfinished, share) == (unsigned)share) wake();
        seen = atomic_load(&pool.unclaimed);
    }
}

static void *serve(void *number) {
    for (int thread = (int)(intptr_t)number;;) {
        wait_until(&pool.unclaimed, 1);
        work_on(thread);
        if (thread < (int)(atomic_load(&pool.unclaimed) >> 32)) continue;
        pthread_mutex_lock(&pool.sleeping); /* fewer threads are used now */
        while (thread >= (int)(atomic_load(&pool.unclaimed) >> 32)) pthread_cond_wait(&pool.needed, &pool.sleeping);
        pthread_mutex_unlock(&pool.sleeping);
    }
    return NULL;
}

/* A forked process has none of the threads. */
static void forget_workers(void) {
    pool.workers = 0;
    atomic_store(&pool.asleep, 0);
    atomic_store(&pool.unclaimed, 0);
    pthread_mutex_init(&pool.running, NULL);
    pthread_mutex_init(&pool.sleeping, NULL);
    pthread_cond_init(&pool.awake, NULL);
    pthread_cond_init(&pool.needed, NULL);
}

/* Makes so many threads ready, this one among them, and returns how many there are: fewer where the system starts no
   more. */
static int ready(int threads) {
    static int watched;
    if (!watched) watched = !pthread_atfork(NULL, NULL, forget_workers);
    threads = threads > MOST_THREADS ? MOST_THREADS : threads;
    for (; pool.workers < threads - 1; pool.workers++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)(pool.workers + 1))) break;
        pthread_detach(thread);
    }
    threads = pool.workers + 1 < threads ? pool.workers + 1 : threads;
    if (threads > (int)(atomic_load(&pool.unclaimed) >> 32)) {
        atomic_store(&pool.unclaimed, (unsigned long long)threads << 32);
        pthread_mutex_lock(&pool.sleeping);
        pthread_cond_broadcast(&pool.needed);
        pthread_mutex_unlock(&pool.sleeping);
    }
    return threads;
}

/* Runs `work` for the units from 0 to `total`, on up to so many threads, and returns when it is done. A caller that comes
   while another shares its work does its own alone. */
void run_parallel(int threads, int total, void (*work)(void *job, int thread, int begin, int end), void *job) {
    if (threads == 1 || total < 2 || pthread_mutex_trylock(&pool.running)) {
        work(job, 0, 0, total);
        return;
    }
    unsigned long long may = ready(threads);
    pool.total = total;
    pool.work = work;
    pool.job = job;
    atomic_store(&pool.unfinished, total);
    atomic_store(&pool.unclaimed, may << 32 | (unsigned)total);
    wake();
    work_on(0);
    wait_until(&pool.unfinished, 0);
    pthread_mutex_unlock(&pool.running);
}

/* The engines of this library that the processor can run, the best first. */
extern const Engine engine_plain;
#if defined(__x86_64__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

typedef struct {
    int avx2, avx2vnni, avx512, amx;
} Has;

/* What the processor has and the system saves. */
static Has has(void) {
    unsigned a, b, c, d, saved = 0, b7 = 0, c7 = 0, d7 = 0, a71 = 0, c1;
    if (!__get_cpuid(1, &a, &b, &c1, &d) || !(c1 >> 27 & 1)) return (Has){0};
    __asm__ volatile("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
    if (__get_cpuid_count(7, 0, &a, &b7, &c7, &d7) && a) __get_cpuid_count(7, 1, &a71, &b, &c, &d);
    Has it;
    it.avx2 = (saved & 6) == 6 && (b7 >> 5 & 1) && (c1 >> 12 & 1) && (c1 >> 29 & 1); /* FMA, F16C */
    it.avx2vnni = it.avx2 && (a71 >> 4 & 1);
    it.avx512 = it.avx2 && (saved & 0xe6) == 0xe6 && (b7 >> 16 & 1) && (b7 >> 17 & 1) && (b7 >> 30 & 1) && (b7 >> 31 & 1) && (c7 >> 11 & 1);
    it.amx = 0;
#ifdef __linux__
    enum { TILE_DATA = 18, ASK = 0x1023 }; /* asm/prctl.h: ARCH_REQ_XCOMP_PERM */
    if (it.avx512 && (saved >> 17 & 3) == 3 && (d7 >> 22 & 13) == 13) it.amx = !syscall(SYS_arch_prctl, ASK, TILE_DATA);
#endif
    return it;
}
#endif

#if defined(ONLY_NATIVE) && defined(__AVX512VNNI__) && defined(__AVX512VL__)
extern const Engine engine_amx;
static const Engine *const engines[] = {&engine_amx, &engine_plain, NULL};
static int can_run(const Engine *engine) { return engine == &engine_plain || has().amx; }
#elif defined(ONLY_NATIVE)
static const Engine *const engines[] = {&engine_plain, NULL};
static int can_run(const Engine *engine) { return engine != NULL; }
#elif defined(__x86_64__)
extern const Engine engine_amx, engine_avx512, engine_avx2vnni, engine_avx2;
static const Engine *const engines[] = {&engine_amx, &engine_avx512, &engine_avx2vnni, &engine_avx2, &engine_plain, NULL};
static int can_run(const Engine *engine) {
    Has it = has();
    if (engine == &engine_amx) return it.amx;
    if (engine == &engine_avx512) return it.avx512;
    if (engine == &engine_avx2vnni) return it.avx2vnni;
    return engine == &engine_plain || it.avx2;
}
#else
extern const Engine engine_dotprod;
static const Engine *const engines[] = {&engine_dotprod, NULL};
#include <sys/auxv.h>
static int can_run(const Engine *engine) { return engine && getauxval(AT_HWCAP) >> 20 & 1; }
#endif

/* The n-th engine that can run here; NULL after the last. */
const Engine *engine_at(int n) {
    for (int i = 0; engines[i]; i++)
        if (can_run(engines[i]) && n-- == 0) return engines[i];
    return NULL;
}
