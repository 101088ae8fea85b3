/* Attention of queries of one group of heads over the entries of the cache that their tokens see.

   A lane of the scores is an entry, so that a score is summed over the head's width in order, wherever in the cache its
   entry lies; the entries of a branch are then put behind those of the text, where a chain would have them. Several
   queries read each entry once: of a long text, keys and values are more than a core's caches hold. */
#include "engine.h"
#include "simd.h"

enum { QUERIES = PLAIN ? 1 : LANES == 8 ? 4 : 8 }; /* that are computed at once */

/* Vectors that are computed at once for each of n queries: as many sums as keep the units for fused additions busy. */
#define BESIDE(n) (PLAIN ? 1 : (n) == QUERIES ? 2 : 4)
enum { MOST_BESIDE = 4, ROUNDED = 4 * GROUP };

/* Keys and values are prefetched: a processor by itself does not fetch beyond the end of a page of memory, and that is
   where the keys of 16 entries end. */
#define GROUPS_AHEAD(beside) ((beside) * LANES < GROUP ? 1 : (beside) * LANES / GROUP)
enum { VALUES_AHEAD = 1024 };

/* x / sqrt(mean x^2 + epsilon) * w, n values, n a multiple of 16 */
OUTLINE void rms_norm(const float *x, const float *w, float *out, int n, float epsilon) {
    vf sums[PARTS];
    for (int part = 0; part < PARTS; part++) sums[part] = all(0);
    for (int i = 0; i < n; i += GROUP)
        for (int part = 0; part < PARTS; part++) {
            vf v = load(x + i + LANES * part);
            sums[part] = fused(v, v, sums[part]);
        }
    float scale = 1.f / sqrtf(total(sums) / (float)n + epsilon);
    for (int i = 0; i < n; i += LANES) store(out + i, load(x + i) * scale * load(w + i));
}

/* Rotates a head in place, after its norm if it has one; n is its width, whose halves belong together. */
OUTLINE void rotate(float *x, int n, const float *cosines, const float *sines, const float *norm, float epsilon, float scale) {
    if (norm) rms_norm(x, norm, x, n, epsilon);
    for (int i = 0; i < n / 2; i += LANES) {
        vf a = load(x + i), b = load(x + n / 2 + i), c = load(cosines + i), s = load(sines + i);
        store(x + i, (a * c - b * s) * scale);
        store(x + n / 2 + i, (b * c + a * s) * scale);
    }
}

/* Writes a key, rotated, and a value into the cache; `keys` and `values` are those of a group. */
OUTLINE void store_entry(float *keys, float *values, int width, int entry, const float *key, const float *value) {
    float *to = keys + (int64_t)(entry / GROUP) * GROUP * width + entry % GROUP;
    for (int i = 0; i < width; i++) to[i * GROUP] = key[i];
    memcpy(values + (int64_t)entry * width, value, 4 * (size_t)width);
}

/* Scores of n queries over the first `entries` of a group, rounded up to ROUNDED: keys (entries / 16, width, 16). */
INLINE void scores_of(int n, const float *queries, int width, const float *keys, int entries, float *scores, int64_t stride) {
    const int beside = BESIDE(n);
    for (int e = 0; e < entries; e += LANES * beside) {
        const float *k[MOST_BESIDE];
        vf sum[MOST_BESIDE][QUERIES];
        UNROLL for (int j = 0; j < beside; j++) {
            int at = e + LANES * j < entries ? e + LANES * j : 0; /* there may be no memory behind the last entries */
            k[j] = keys + (int64_t)(at / GROUP) * GROUP * width + at % GROUP;
            UNROLL for (int q = 0; q < n; q++) sum[j][q] = all(0);
        }
        for (int i = 0; i < width; i++)
            UNROLL for (int j = 0; j < beside; j++) {
                __builtin_prefetch(k[j] + (GROUPS_AHEAD(beside) * width + i) * GROUP);
                vf key = load(k[j] + i * GROUP);
                UNROLL for (int q = 0; q < n; q++) sum[j][q] = fused(key, all(queries[q * width + i]), sum[j][q]);
            }
        UNROLL for (int j = 0; j < beside; j++) UNROLL for (int q = 0; q < n; q++) store(scores + q * stride + e + LANES * j, sum[j][q]);
    }
}

/* Turns `n` scores into shares in place; the room up to a multiple of 16 is written. Returns one over their sum. */
OUTLINE float soften(float *scores, int n) {
    for (int e = n; e % GROUP; e++) scores[e] = -INFINITY;
    float most = -INFINITY;
    vf top = all(-INFINITY), sums[PARTS];
    for (int e = 0; e < n; e += LANES) top = larger(load(scores + e), top);
    for (int i = 0; i < LANES; i++) most = top[i] > most ? top[i] : most;
    for (int part = 0; part < PARTS; part++) sums[part] = all(0);
    for (int e = 0; e < n; e += GROUP)
        for (int part = 0; part < PARTS; part++) {
            vf y = exponential(load(scores + e + LANES * part) - most);
            store(scores + e + LANES * part, y);
            sums[part] += y;
        }
    return 1.f / total(sums);
}

/* Sums of `beside` vectors of the first `entries` values, weighted by the shares of n queries. */
INLINE void values_beside(int n, int beside, const float *shares, int64_t stride, const float *values, int width, int entries, float *out) {
    vf sum[QUERIES][MOST_BESIDE];
    UNROLL for (int q = 0; q < n; q++) UNROLL for (int j = 0; j < beside; j++) sum[q][j] = all(0);
    for (int e = 0; e < entries; e++) {
        vf value[MOST_BESIDE];
        UNROLL for (int j = 0; j < beside; j++) {
            const float *at = values + (int64_t)e * width + LANES * j;
            __builtin_prefetch(at + VALUES_AHEAD);
            value[j] = load(at);
        }
        UNROLL for (int q = 0; q < n; q++) {
            vf share = all(shares[q * stride + e]);
            UNROLL for (int j = 0; j < beside; j++) sum[q][j] = fused(share, value[j], sum[q][j]);
        }
    }
    UNROLL for (int q = 0; q < n; q++) UNROLL for (int j = 0; j < beside; j++) store(out + q * width + LANES * j, sum[q][j]);
}

/* The entries that the tokens of some queries see: the first `common` all of them, then each those of its path. */
typedef struct {
    int common, most;                /* `most`: entries up to the last of any path */
    int length[QUERIES];
    const int32_t *path[QUERIES];
} Seen;

/* Attention of `given` queries of a group, rotated and scaled, (n, width); n are computed, whatever the last ones are.
   `scores`: room for n times `stride`. */
INLINE void attend_beside(int n, int given, const Seen *seen, const float *queries, int width, const float *keys,
                          const float *values, float *scores, int64_t stride, float *out) {
    const int common = seen->common;
    float scale[QUERIES];
    scores_of(n, queries, width, keys, seen->most, scores, stride);
    for (int q = 0; q < given; q++) {
        float *own = scores + q * stride;
        for (int e = 0; e < seen->length[q]; e++) own[common + e] = own[seen->path[q][e]];
        scale[q] = soften(own, common + seen->length[q]);
    }
    int i = 0;
    for (; i + LANES * BESIDE(n) <= width; i += LANES * BESIDE(n))
        values_beside(n, BESIDE(n), scores, stride, values + i, width, common, out + i);
    if (LANES == 16 && i < width) values_beside(n, 2, scores, stride, values + i, width, common, out + i);
    for (int q = 0; q < given; q++)
        for (i = 0; i < width; i += LANES) {
            vf sum = load(out + q * width + i);
            for (int e = 0; e < seen->length[q]; e++)
                sum = fused(all(scores[q * stride + common + e]), load(values + (int64_t)seen->path[q][e] * width + i), sum);
            store(out + q * width + i, sum * scale[q]);
        }
}

/* The same, of at most QUERIES. There is room for so many. */
static void attend(int n, const Seen *seen, const float *queries, int width, const float *keys, const float *values,
                   float *scores, int64_t stride, float *out) {
    if (n <= 2) attend_beside(QUERIES < 2 ? 1 : 2, n, seen, queries, width, keys, values, scores, stride, out);
    else if (n <= 4 && QUERIES > 4) attend_beside(4, n, seen, queries, width, keys, values, scores, stride, out);
    else attend_beside(QUERIES, n, seen, queries, width, keys, values, scores, stride, out);
}
