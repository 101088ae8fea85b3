/* Attention of one token and the heads of one group over the entries of the cache that the token sees.

   A lane of the scores is an entry, so that a score is summed over the head's width in order, wherever in the cache its
   entry lies; the entries of a branch are then put behind those of the text, where a chain would have them. */
#include "engine.h"
#include "simd.h"

enum { HEADS = PLAIN ? 1 : LANES == 8 ? 2 : 4 }; /* heads of a group that are computed at once */
enum { BESIDE = PLAIN ? 1 : 4 };                 /* vectors that are, for each of them */

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

/* Scores of `n` heads over `beside` vectors of entries: as many sums as keep both units for fused additions busy. */
INLINE void scores_beside(int n, int beside, const float *queries, int width, const float *keys, int e, float *scores, int64_t stride) {
    const float *k[BESIDE];
    vf sum[BESIDE][HEADS];
    UNROLL for (int j = 0; j < beside; j++) {
        k[j] = keys + (int64_t)((e + LANES * j) / GROUP) * GROUP * width + (e + LANES * j) % GROUP;
        UNROLL for (int h = 0; h < n; h++) sum[j][h] = all(0);
    }
    for (int i = 0; i < width; i++)
        UNROLL for (int j = 0; j < beside; j++) {
            vf key = load(k[j] + i * GROUP);
            UNROLL for (int h = 0; h < n; h++) sum[j][h] = fused(key, all(queries[h * width + i]), sum[j][h]);
        }
    UNROLL for (int j = 0; j < beside; j++) UNROLL for (int h = 0; h < n; h++) store(scores + h * stride + e + LANES * j, sum[j][h]);
}

/* Scores of `n` heads over the first `entries` of a group, rounded up to 16: keys (entries / 16, width, 16) are read
   once for all heads. */
INLINE void scores_of(int n, const float *queries, int width, const float *keys, int entries, float *scores, int64_t stride) {
    int e = 0;
    for (; e + LANES * (BESIDE - 1) < entries; e += LANES * BESIDE) scores_beside(n, BESIDE, queries, width, keys, e, scores, stride);
    for (; e < entries; e += LANES) scores_beside(n, 1, queries, width, keys, e, scores, stride);
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

/* Sums of `beside` vectors of the values, as `values_of`. */
INLINE void values_beside(int n, int beside, const float *shares, int64_t stride, const float *scale, const float *values,
                          int width, int entries, int base, const int32_t *path, float *out) {
    vf sum[HEADS][BESIDE];
    UNROLL for (int h = 0; h < n; h++) UNROLL for (int j = 0; j < beside; j++) sum[h][j] = all(0);
    for (int e = 0; e < entries; e++) {
        const float *v = values + (int64_t)(e < base ? e : path[e - base]) * width;
        vf value[BESIDE];
        UNROLL for (int j = 0; j < beside; j++) value[j] = load(v + LANES * j);
        UNROLL for (int h = 0; h < n; h++) {
            vf share = all(shares[h * stride + e]);
            UNROLL for (int j = 0; j < beside; j++) sum[h][j] = fused(share, value[j], sum[h][j]);
        }
    }
    UNROLL for (int h = 0; h < n; h++) UNROLL for (int j = 0; j < beside; j++) store(out + h * width + LANES * j, sum[h][j] * scale[h]);
}

/* Sums of values, weighted by the shares of n heads: (heads, width). `path`: the entries from `base` on. */
INLINE void values_of(int n, const float *shares, int64_t stride, const float *scale, const float *values, int width,
                      int entries, int base, const int32_t *path, float *out) {
    int i = 0;
    for (; i + LANES * BESIDE <= width; i += LANES * BESIDE)
        values_beside(n, BESIDE, shares, stride, scale, values + i, width, entries, base, path, out + i);
    for (; i < width; i += LANES) values_beside(n, 1, shares, stride, scale, values + i, width, entries, base, path, out + i);
}

/* Attention of `n` heads of a group, at most HEADS. `queries`: (n, width), rotated and scaled. The token sees the first
   `base` entries and `length` of `path`, the last of which is its own. `scores`: room for HEADS times `stride`. */
INLINE void attend_heads(int n, const float *queries, int width, const float *keys, const float *values, int base,
                         const int32_t *path, int length, float *scores, int64_t stride, float *out) {
    float scale[HEADS];
    scores_of(n, queries, width, keys, path[length - 1] + 1, scores, stride);
    for (int h = 0; h < n; h++) {
        for (int e = 0; e < length; e++) scores[h * stride + base + e] = scores[h * stride + path[e]];
        scale[h] = soften(scores + h * stride, base + length);
    }
    values_of(n, scores, stride, scale, values, width, base + length, base, path, out);
}

static void attend(int heads, const float *queries, int width, const float *keys, const float *values, int base,
                   const int32_t *path, int length, float *scores, int64_t stride, float *out) {
    for (int done; heads > 0; heads -= done, queries += done * width, out += done * width) {
        done = heads < HEADS ? heads : HEADS;
        switch (done) {
        case 1: attend_heads(1, queries, width, keys, values, base, path, length, scores, stride, out); break;
        case 2: attend_heads(HEADS < 2 ? 1 : 2, queries, width, keys, values, base, path, length, scores, stride, out); break;
        case 3: attend_heads(HEADS < 3 ? 1 : 3, queries, width, keys, values, base, path, length, scores, stride, out); break;
        default: attend_heads(HEADS, queries, width, keys, values, base, path, length, scores, stride, out);
        }
    }
}
