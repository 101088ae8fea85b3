/* The team of threads, and what Python calls.

   A thread that waits spins for some microseconds, then gives its core away, then sleeps until it is woken: with other
   programs on the machine a spinning thread would hold the core that the one it waits for needs. */
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

enum { MOST = 64, SPINS = 1000, YIELDS = 50 };

static struct {
    pthread_mutex_t running, sleeping; /* one job at a time; guards `asleep` and `awake` */
    pthread_cond_t awake;
    atomic_int asleep, arrived, next;
    atomic_uint phase, started[MOST];
    int threads, workers;
    void (*work)(void *, Team *);
    void *job;
} pool = {.running = PTHREAD_MUTEX_INITIALIZER, .sleeping = PTHREAD_MUTEX_INITIALIZER, .awake = PTHREAD_COND_INITIALIZER};

static void wait_while(atomic_uint *value, unsigned old) {
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(value, memory_order_acquire) != old) return;
        PAUSE;
    }
    for (int i = 0; i < YIELDS; i++) {
        if (atomic_load_explicit(value, memory_order_acquire) != old) return;
        sched_yield();
    }
    pthread_mutex_lock(&pool.sleeping);
    atomic_fetch_add(&pool.asleep, 1);
    while (atomic_load(value) == old) pthread_cond_wait(&pool.awake, &pool.sleeping);
    atomic_fetch_sub(&pool.asleep, 1);
    pthread_mutex_unlock(&pool.sleeping);
}

static void wake(void) {
    if (!atomic_load(&pool.asleep)) return;
    pthread_mutex_lock(&pool.sleeping);
    pthread_cond_broadcast(&pool.awake);
    pthread_mutex_unlock(&pool.sleeping);
}

/* Claims a share of `total` units of a phase: half of an equal part of what is left, and at least one. */
int team_claim(Team *team, int total, Range *range) {
    if (team->threads == 1) {
        int more = range->end < total;
        *range = (Range){0, total};
        return more;
    }
    int begin = atomic_load_explicit(&pool.next, memory_order_relaxed), end;
    do {
        if (begin >= total) return 0;
        int share = (total - begin) / (2 * team->threads);
        end = begin + (share > 1 ? share : 1);
    } while (!atomic_compare_exchange_weak(&pool.next, &begin, end));
    *range = (Range){begin, end};
    return 1;
}

void team_wait(Team *team) {
    if (team->threads == 1) return;
    unsigned phase = atomic_load(&pool.phase);
    if (atomic_fetch_add(&pool.arrived, 1) + 1 < team->threads) {
        wait_while(&pool.phase, phase);
        return;
    }
    atomic_store(&pool.arrived, 0);
    atomic_store(&pool.next, 0);
    atomic_fetch_add(&pool.phase, 1);
    wake();
}

static void *serve(void *number) {
    int id = (int)(intptr_t)number;
    for (unsigned seen = 0;; seen++) {
        wait_while(&pool.started[id], seen);
        Team team = {id, pool.threads};
        pool.work(pool.job, &team);
    }
    return NULL;
}

/* A forked process has none of the threads. */
static void forget_workers(void) {
    pool.workers = 0;
    memset(pool.started, 0, sizeof pool.started);
    atomic_store(&pool.asleep, 0);
    atomic_store(&pool.arrived, 0);
    pthread_mutex_init(&pool.running, NULL);
    pthread_mutex_init(&pool.sleeping, NULL);
    pthread_cond_init(&pool.awake, NULL);
}

/* Runs `work` on so many threads, this one among them, and returns when all have finished: `work` ends with a wait.
   Fewer are used where the system starts no more. */
void team_run(int threads, void (*work)(void *, Team *), void *job) {
    static int watched;
    pthread_mutex_lock(&pool.running);
    if (!watched) watched = !pthread_atfork(NULL, NULL, forget_workers);
    threads = threads > MOST ? MOST : threads;
    for (; pool.workers < threads - 1; pool.workers++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, serve, (void *)(intptr_t)(pool.workers + 1))) break;
        pthread_detach(thread);
    }
    Team team = {0, pool.workers + 1 < threads ? pool.workers + 1 : threads};
    pool.threads = team.threads;
    pool.work = work;
    pool.job = job;
    atomic_store(&pool.next, 0);
    for (int id = 1; id < team.threads; id++) atomic_fetch_add(&pool.started[id], 1);
    if (team.threads > 1) wake();
    work(job, &team);
    pthread_mutex_unlock(&pool.running);
}

/* The engines of this library that the processor can run, the best first. */
extern const Engine engine_plain;
#if defined(ONLY_NATIVE)
static const Engine *const engines[] = {&engine_plain, NULL};
static int can_run(const Engine *engine) { return engine != NULL; }
#elif defined(__x86_64__)
#include <cpuid.h>
extern const Engine engine_avx512, engine_avx2vnni, engine_avx2;
static const Engine *const engines[] = {&engine_avx512, &engine_avx2vnni, &engine_avx2, &engine_plain, NULL};
static int can_run(const Engine *engine) {
    unsigned a, b, c, d, lower = 0, b7 = 0, c7 = 0, a71 = 0, c1;
    if (engine == &engine_plain) return 1;
    if (!__get_cpuid(1, &a, &b, &c1, &d) || !(c1 >> 27 & 1)) return 0; /* the system saves no wide registers */
    __asm__ volatile("xgetbv" : "=a"(lower), "=d"(d) : "c"(0));
    if (__get_cpuid_count(7, 0, &a, &b7, &c7, &d) && a) __get_cpuid_count(7, 1, &a71, &b, &c, &d);
    int avx2 = (lower & 6) == 6 && (b7 >> 5 & 1) && (c1 >> 12 & 1) && (c1 >> 29 & 1);         /* FMA, F16C */
    int avx512 = avx2 && (lower & 0xe6) == 0xe6 && (b7 >> 16 & 1) && (b7 >> 17 & 1) && (b7 >> 30 & 1) && (b7 >> 31 & 1);
    if (engine == &engine_avx512) return avx512 && (c7 >> 11 & 1);
    return engine == &engine_avx2 ? avx2 : avx2 && (a71 >> 4 & 1);
}
#else
extern const Engine engine_dotprod;
static const Engine *const engines[] = {&engine_dotprod, &engine_plain, NULL};
#ifdef __linux__
#include <sys/auxv.h>
static int can_run(const Engine *engine) { return engine == &engine_plain || getauxval(AT_HWCAP) >> 20 & 1; }
#else
static int can_run(const Engine *engine) { return engine != NULL; } /* all of Apple's have the dot product */
#endif
#endif

/* The n-th engine that can run here; NULL after the last. */
const Engine *engine_at(int n) {
    for (int i = 0; engines[i]; i++)
        if (can_run(engines[i]) && n-- == 0) return engines[i];
    return NULL;
}
