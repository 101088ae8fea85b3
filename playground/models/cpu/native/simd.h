/* Vectors of LANES values, and the few operations that each instruction set has its own words for. All of them give the
   same bits: the plain one is the reference, and the tests compare the others with it. */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512VNNI__) && defined(__AVX512VL__)
#define NAME "AVX-512 VNNI"
#define LANES 16
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#ifdef __AVXVNNI__
#define NAME "AVX2 VNNI"
#else
#define NAME "AVX2"
#endif
#define LANES 8
#elif defined(__ARM_FEATURE_DOTPROD)
#define NAME "NEON"
#define LANES 4
#else
#define NAME "plain C"
#define LANES 4
#define PLAIN 1
#endif
#define PARTS (GROUP / LANES)
#ifdef PLAIN
#define UNROLL
#else
#define PLAIN 0
#define UNROLL _Pragma("GCC unroll 16")
#endif

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef uint8_t vb __attribute__((vector_size(4 * LANES)));
typedef uint16_t vh __attribute__((vector_size(2 * LANES)));
#define OUTLINE static __attribute__((noinline)) /* called from several places: one copy keeps the library small */
#define COLD static __attribute__((cold, noinline)) /* compiled for size */
#define INLINE static inline __attribute__((always_inline))

INLINE vf load(const float *p) { vf v; memcpy(&v, p, sizeof v); return v; }
INLINE vb load_bytes(const uint8_t *p) { vb v; memcpy(&v, p, sizeof v); return v; }
INLINE void store(float *p, vf v) { memcpy(p, &v, sizeof v); }
INLINE vf all(float x) { return x - (vf){0}; }
INLINE vi all_int(int32_t x) { return x - (vi){0}; }
INLINE int32_t four_bytes(const int8_t *p) { int32_t x; memcpy(&x, p, 4); return x; }
INLINE vf from_bfloat16(const uint16_t *p) {
    vh v;
    memcpy(&v, p, sizeof v);
    return (vf)(__builtin_convertvector(v, vi) << 16);
}
INLINE vf of_pair(const uint8_t *p, int second) { /* one of two bfloat16 in each lane */
    vi pair;
    memcpy(&pair, p, sizeof pair);
    return (vf)(second ? pair & ~0xffff : pair << 16);
}
INLINE vf from_bytes(const uint8_t *p) {
    int8_t v __attribute__((vector_size(LANES)));
    memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, vf);
}
INLINE vf larger(vf a, vf b) { return (vf)(((vi)a & (a > b)) | ((vi)b & ~(a > b))); }

#if LANES == 16
#include <immintrin.h>
INLINE vf fused(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf from_half(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
/* sum + the products of four unsigned weights with four signed activations, the same four in every lane */
INLINE vi dot(vi sum, vb w, int32_t a) { return (vi)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, _mm512_set1_epi32(a)); }
#define dot_wide dot
#elif LANES == 8
#include <immintrin.h>
INLINE vf fused(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
INLINE vf from_half(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
#ifdef __AVXVNNI__
INLINE vi dot(vi sum, vb w, int32_t a) {
    return (vi)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, _mm256_set1_epi32(a));
}
#define dot_wide dot
#else
/* Pairs of products are summed in 16 bits, which saturate: weights of at most 127 cannot reach that. */
INLINE vi dot(vi sum, vb w, int32_t a) {
    __m256i pairs = _mm256_maddubs_epi16((__m256i)w, _mm256_set1_epi32(a));
    return sum + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}
INLINE vi dot_wide(vi sum, vb w, int32_t a) {
    vb upper = (vb)_mm256_srli_epi16((__m256i)w, 4) & 15;
    __m256i pairs = _mm256_maddubs_epi16((__m256i)upper, _mm256_set1_epi32(a));
    return dot(sum, w & 15, a) + (vi)_mm256_madd_epi16(pairs, _mm256_set1_epi16(16));
}
#endif
#elif defined(__ARM_FEATURE_DOTPROD)
#include <arm_neon.h>
INLINE vf fused(vf a, vf b, vf c) { return (vf)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b); }
INLINE vf from_half(const uint8_t *p) { return (vf)vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
INLINE vi dot(vi sum, vb w, int32_t a) {
    return (vi)vdotq_s32((int32x4_t)sum, (int8x16_t)w, vreinterpretq_s8_s32(vdupq_n_s32(a)));
}
/* The instruction takes signed weights: 128 less, and the sum of the activations makes up for it. */
INLINE vi dot_wide(vi sum, vb w, int32_t a) {
    int8x16_t four = vreinterpretq_s8_s32(vdupq_n_s32(a));
    return (vi)vdotq_s32(vdotq_s32((int32x4_t)dot(sum, w ^ 128, a), vdupq_n_s8(127), four), vdupq_n_s8(1), four);
}
#else
INLINE vf fused(vf a, vf b, vf c) {
    for (int i = 0; i < LANES; i++) c[i] = fmaf(a[i], b[i], c[i]);
    return c;
}
INLINE vf from_half(const uint8_t *p) {
    vf v;
    for (int i = 0; i < LANES; i++) {
        uint32_t h = p[2 * i] | p[2 * i + 1] << 8, bits = (h & 0x7fff) << 13;
        float x;
        memcpy(&x, &bits, 4);
        x *= 0x1p112f; /* moves the exponent, and makes subnormals normal */
        v[i] = (h & 0x7c00) == 0x7c00 ? ((h & 0x3ff) ? NAN : INFINITY) : x;
        v[i] = h & 0x8000 ? -v[i] : v[i];
    }
    return v;
}
INLINE vi dot(vi sum, vb w, int32_t a) {
    int8_t four[4];
    memcpy(four, &a, 4);
    for (int i = 0; i < 4 * LANES; i++) sum[i / 4] += w[i] * four[i % 4];
    return sum;
}
#define dot_wide dot
#endif

/* The largest lane, and the sum of the lanes, of which no order matters. */
INLINE float most_of(vf v) {
#if LANES == 16
    return _mm512_reduce_max_ps((__m512)v);
#else
    float most = v[0];
    for (int i = 1; i < LANES; i++) most = v[i] > most ? v[i] : most;
    return most;
#endif
}
INLINE int32_t sum_of(vi v) {
#if LANES == 16
    return _mm512_reduce_add_epi32((__m512i)v);
#else
    int32_t sum = 0;
    for (int i = 0; i < LANES; i++) sum += v[i];
    return sum;
#endif
}

/* The sum of 16 values in one order, whatever LANES is. */
INLINE float total(const vf *v) {
    float x[GROUP];
    memcpy(x, v, sizeof x);
    for (int half = 8; half; half /= 2)
        for (int i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}

/* The nearest integers, ties to even, of |x| < 2^22, as bits of an integer and as a float. */
INLINE vi nearest(vf x) { return (vi)(x + 12582912.f) - 0x4b400000; }

/* e^x to about one unit in the last place (Cephes); 0 below -87. */
INLINE vf exponential(vf x) {
    vi tiny = x < -87.f;
    vf capped = -larger(all(-88.f), -larger(all(-87.f), x)); /* NaN stays: a comparison with it is false */
    vi n = nearest(capped * 1.44269504f);
    vf whole = __builtin_convertvector(n, vf);
    vf r = fused(whole, all(-0.693359375f), capped);
    r = fused(whole, all(2.12194440e-4f), r);
    vf y = all(1.9875691500e-4f);
    y = fused(y, r, all(1.3981999507e-3f));
    y = fused(y, r, all(8.3334519073e-3f));
    y = fused(y, r, all(4.1665795894e-2f));
    y = fused(y, r, all(1.6666665459e-1f));
    y = fused(y, r, all(5.0000001201e-1f));
    y = fused(y, r * r, r) + 1.f;
    y *= (vf)((n + 127) << 23);
    return (vf)((vi)y & ~tiny);
}
