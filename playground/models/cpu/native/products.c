/* Matrix products: activations become integers by blocks of 32, and integer dot products with the stored weights follow.

   A lane is a row of the matrix, so that no sum runs across lanes; a row's blocks are added in their order. Tokens go
   through a group of rows in tiles of up to TILE: its weights come from memory once and from the L1 cache after that. */
#include "engine.h"
#include "simd.h"

enum { TILE = PLAIN ? 1 : LANES == 8 ? 4 : 8 };
enum { AHEAD = 2048, BLOCKS_AHEAD = 8192 }; /* bytes, of weights of 16 bits and of blocks, which a core reads faster */
enum { SLOTS = 8, WIDEST = 32 }; /* the most tokens of an input side by side, and of a call of `tile` */
enum { GROUPS = 4 };            /* the most groups of rows of a call of `tile` */

/* The rows that a product reads, one for each token, `columns` wide: floats for 16 bits, integers for blocks. So many
   tokens, `slots`, lie side by side in each column or block, and `beside` in one for AMX. A value of 16 bits is
   scale (256 high + low) with signed bytes, one of 8 bits scale low. */
typedef struct {
    float *x;           /* (tokens / slots, columns, slots) */
    uint16_t *halves;   /* (tokens / beside, blocks, 2, beside, 32), in the same memory: two bfloat16 whose sum a value is */
    int8_t *high_low;   /* (tokens / slots, blocks, slots, 2, 32) */
    float *scale, *sum; /* (tokens / slots, blocks, slots); the sum is that of a block's values */
    int32_t *whole;     /* 128 times the sum of a block's integers */
    int32_t *first;     /* 32 times the sum of the first 16 */
    int columns, slots, beside;
    int amx;            /* 1: products use AMX (amx.c) */
} Input;

INLINE void *carve(uint8_t **scratch, int64_t bytes) {
    void *p = *scratch;
    *scratch += (bytes + 127) / 64 * 64; /* a vector of spare room: rows may be read in whole vectors */
    return p;
}

/* Whether the call that runs may use AMX. */
static _Thread_local int may_use_amx;

static Input new_input(uint8_t **scratch, int64_t tokens, int columns) {
    int few = tokens <= SLOTS, side = few ? tokens > 0 ? (int)tokens : 1 : SLOTS;
    Input in = {.columns = columns, .slots = side, .beside = few ? side : GROUP, .amx = may_use_amx};
    int64_t padded = (tokens + in.beside - 1) / in.beside * in.beside, blocks = padded * ((columns + BLOCK - 1) / BLOCK);
    in.x = carve(scratch, blocks * BLOCK * 4);
    in.halves = (uint16_t *)in.x;
    in.high_low = carve(scratch, blocks * 2 * BLOCK);
    in.scale = carve(scratch, blocks * 4);
    in.sum = carve(scratch, blocks * 4);
    in.whole = carve(scratch, blocks * 4);
    in.first = carve(scratch, blocks * 4);
    return in;
}

/* The place of a token's first column, or block, among `count` of them; the next is `slots` further on. */
INLINE int64_t first_of(const Input *in, int token, int count) {
    return (int64_t)(token / in->slots) * count * in->slots + token % in->slots;
}

/* Turns 32 floats into integers. What is not a number makes the scale not a number, and so every output. */
OUTLINE void quantise(const Input *in, int wide, int64_t block, const float *x) {
    vf top = all(0), wrong = all(0);
    for (int i = 0; i < BLOCK; i += LANES) {
        vf v = load(x + i);
        top = larger(top, larger(v, -v));
        wrong += v - v;
    }
    vi no = wrong != wrong;
    float most = most_of(top), bad = sum_of(no) ? NAN : 0;
    float limit = wide ? 32512.f : 127.f, inverse = most > 0 ? limit / most : 0; /* 32512 + 128 rounds to 127 */
    if (inverse > 3e38f) inverse = 0; /* of subnormal values */
    vi sum = all_int(0), first = all_int(0);
    int8_t *high = in->high_low + block * 2 * BLOCK, *low = high + BLOCK;
    for (int i = 0; i < BLOCK; i += LANES) {
        vi q = bad == 0 ? nearest(load(x + i) * inverse) : all_int(0);
        sum += q;
        if (i < BLOCK / 2) first = sum;
        vi upper = wide ? (q + 128) >> 8 : all_int(0);
        typedef int8_t narrow __attribute__((vector_size(LANES)));
        narrow h = __builtin_convertvector(upper, narrow), l = __builtin_convertvector(q - upper * 256, narrow);
        memcpy(high + i, &h, LANES);
        memcpy(low + i, &l, LANES);
    }
    int32_t whole = sum_of(sum);
    in->scale[block] = most / limit + bad;
    in->whole[block] = 128 * whole;
    in->first[block] = 32 * sum_of(first);
    in->sum[block] = in->scale[block] * (float)whole;
}

#if LANES == 16
#include "amx.c"
#else
static void put_halves(const Input *in, int token, int column, const float *x, int count) {
    (void)in, (void)token, (void)column, (void)x, (void)count;
}
static void begin_amx(const Input *in, int kind, int wide, int n) { (void)in, (void)kind, (void)wide, (void)n; }
static void end_amx(const Input *in, int kind, int wide, int n) { begin_amx(in, kind, wide, n); }
#endif

/* Hands `count` values of a token, from a column on, to a product with a matrix of this kind. */
OUTLINE void put(const Input *in, int kind, int wide, int token, int column, const float *x, int count) {
    int64_t slots = in->slots;
    if (kind == BFLOAT16 && in->amx) {
        put_halves(in, token, column, x, count);
        return;
    }
    if (kind >= BFLOAT16) {
        float *to = in->x + first_of(in, token, in->columns) + column * slots;
        for (int i = 0; i < count; i++) to[i * slots] = x[i];
        return;
    }
    int64_t block = first_of(in, token, in->columns / BLOCK) + column / BLOCK * slots;
    for (int i = 0; i < count; i += BLOCK, block += slots) quantise(in, wide, block, x + i);
}

/* One group of rows of FOUR or EIGHT times up to TILE tokens. Bound by memory for one token: 320 bytes a block; by the
   dot products for many: 16 a block and token of 16 bits, two a cycle at best, and five operations for the scales. `out`:
   (tokens, stride). */
INLINE void tile_of_blocks(int n, int kind, const int wide, const uint8_t *w, const Input *in, int token, float *out, int64_t stride) {
    const int bytes = (int)unit_bytes(kind), blocks = in->columns / BLOCK, slots = in->slots;
    const int beside = LANES == 16 ? n : 1; /* tokens whose dot products take turns, where registers suffice */
    for (int part = 0; part < PARTS; part++) {
        const uint8_t *scales = w + 2 * LANES * part, *quads = w + (kind == FOUR ? 64 : 32) + 4 * LANES * part;
        int64_t at = first_of(in, token, blocks);
        vf sum[TILE];
        UNROLL for (int t = 0; t < n; t++) sum[t] = all(0);
        for (int b = 0; b < blocks; b++, scales += bytes, quads += bytes, at += slots) {
            for (int line = 0; line < bytes; line += 64) __builtin_prefetch(scales + BLOCKS_AHEAD + line);
            vb q[8];
            if (kind == FOUR) {
                UNROLL for (int u = 0; u < 4; u++) {
                    vb both = load_bytes(quads + 64 * u);
                    q[u] = both & 15;
                    q[u + 4] = both >> 4;
                }
            } else {
                UNROLL for (int u = 0; u < 8; u++) q[u] = load_bytes(quads + 64 * u);
            }
            vf scale = from_half(scales), least = kind == FOUR ? from_half(scales + 32) : all(0);
            const int8_t *high = in->high_low + at * 2 * BLOCK, *low = high + BLOCK;
            UNROLL for (int first = 0; first < n; first += beside) {
                vi s[TILE], upper[TILE];
                UNROLL for (int t = first; t < first + beside; t++) s[t] = upper[t] = all_int(0);
                if (wide) {
                    UNROLL for (int u = 0; u < 8; u++) UNROLL for (int t = first; t < first + beside; t++)
                        upper[t] = kind == FOUR ? dot(upper[t], q[u], four_bytes(high + 64 * t + 4 * u)) : dot_wide(upper[t], q[u], four_bytes(high + 64 * t + 4 * u));
                    UNROLL for (int t = first; t < first + beside; t++) upper[t] = upper[t] << 8;
                    if (n > 2) UNROLL for (int t = first; t < first + beside; t++) s[t] = upper[t];
                }
                UNROLL for (int u = 0; u < 8; u++) UNROLL for (int t = first; t < first + beside; t++)
                    s[t] = kind == FOUR ? dot(s[t], q[u], four_bytes(low + 64 * t + 4 * u)) : dot_wide(s[t], q[u], four_bytes(low + 64 * t + 4 * u));
                UNROLL for (int t = first; t < first + beside; t++) {
                    if (n <= 2) s[t] += upper[t]; /* of few tokens, neither sum waits for the other */
                    if (kind == EIGHT) s[t] -= in->whole[at + t];
                    sum[t] = fused(scale * in->scale[at + t], __builtin_convertvector(s[t], vf), sum[t]);
                    if (kind == FOUR) sum[t] = fused(least, all(in->sum[at + t]), sum[t]);
                }
            }
        }
        UNROLL for (int t = 0; t < n; t++) store(out + t * stride + LANES * part, sum[t]);
    }
}

/* A block of another kind: the integers of the weights, their scale and minimum. SIX_K has two scales, each of half of
   the columns. */
typedef struct {
    vb q[8];
    vf scale[2], least;
} Unpacked;

OUTLINE void unpack(int kind, const uint8_t *w, int b, int part, Unpacked *k) {
    const Layout l = LAYOUTS[kind];
    const int of_256 = l.columns > BLOCK, at = of_256 ? b % 8 : 0, lines = of_256 ? l.lines / 8 : l.lines;
    const uint8_t *unit = w + (of_256 ? b / 8 : b) * unit_bytes(kind), *numbers = unit + 2 * LANES * part;
    const uint8_t *bytes = unit + GROUP * 2 * l.numbers, *quads = bytes + GROUP * l.bytes + 64 * lines * at + 4 * LANES * part;
    bytes += LANES * part;
    for (int u = 0; u < 4; u++) {
        vb both = load_bytes(quads + 64 * u);
        k->q[u] = both & 15;
        k->q[u + 4] = both >> 4;
    }
    k->scale[0] = from_half(numbers);
    if (kind == SIX_K) {
        for (int u = 0; u < 8; u++) k->q[u] |= (load_bytes(quads + 256 + u / 4 * 64) >> 2 * (u % 4) & 3) << 4;
        k->scale[1] = k->scale[0] * from_bytes(bytes + GROUP * (2 * at + 1));
        k->scale[0] *= from_bytes(bytes + GROUP * 2 * at);
        return;
    }
    if (kind != FOUR_K) {
        vb bits = load_bytes(quads + 256);
        for (int u = 0; u < 8; u++) k->q[u] |= (bits >> u & 1) << 4;
    }
    k->least = from_half(numbers + 2 * GROUP);
    if (of_256) {
        k->scale[0] *= from_bytes(bytes + GROUP * at);
        k->least *= from_bytes(bytes + GROUP * (8 + at));
    }
}

/* As `tile_of_blocks`, one copy for all other kinds, which is small rather than fast: of few tokens a third slower. */
INLINE void tile_of_others(int n, int kind, const int wide, const uint8_t *w, const Input *in, int token, float *out, int64_t stride) {
    const int blocks = in->columns / BLOCK, bytes = (int)unit_bytes(kind) * BLOCK / LAYOUTS[kind].columns;
    const int lines = kind == SIX_K ? 4 : 8; /* that have one scale */
    for (int part = 0; part < PARTS; part++) {
        int64_t at = first_of(in, token, blocks);
        vf sum[TILE];
        UNROLL for (int t = 0; t < n; t++) sum[t] = all(0);
        for (int b = 0; b < blocks; b++, at += in->slots) {
            for (int line = 0; line < bytes; line += 64) __builtin_prefetch(w + (int64_t)b * bytes + BLOCKS_AHEAD + line);
            Unpacked k;
            unpack(kind, w, b, part, &k);
            for (int begin = 0; begin < 8; begin += lines) {
                const int8_t *x = in->high_low + at * 2 * BLOCK;
                vi high[TILE], low[TILE];
                UNROLL for (int t = 0; t < n; t++) high[t] = low[t] = all_int(0);
                for (int u = begin; u < begin + lines; u++) {
                    UNROLL for (int t = 0; t < n; t++) low[t] = dot(low[t], k.q[u], four_bytes(x + BLOCK + 64 * t + 4 * u));
                    if (wide) UNROLL for (int t = 0; t < n; t++) high[t] = dot(high[t], k.q[u], four_bytes(x + 64 * t + 4 * u));
                }
                UNROLL for (int t = 0; t < n; t++) {
                    vi s = (high[t] << 8) + low[t];
                    if (kind == SIX_K) { /* unsigned, since slots without a token hold any bits */
                        uint32_t first = (uint32_t)in->first[at + t], both = (uint32_t)(in->whole[at + t] >> 2);
                        s = (vi)((vu)s - (begin ? both - first : first));
                    }
                    sum[t] = fused(k.scale[begin / 4] * in->scale[at + t], __builtin_convertvector(s, vf), sum[t]);
                }
            }
            if (kind != SIX_K) UNROLL for (int t = 0; t < n; t++) sum[t] = fused(k.least, all(in->sum[at + t]), sum[t]);
        }
        UNROLL for (int t = 0; t < n; t++) store(out + t * stride + LANES * part, sum[t]);
    }
}

/* One group of rows of 16 bits times up to TILE tokens: they widen to float32 exactly. Every fourth column goes to one
   of four sums, so that one token does not wait for each sum in turn; where registers are few, two of them after the
   other two. Bound by memory up to about 8 tokens. */
INLINE void tile_of_halves(int n, int kind, const uint8_t *w, const Input *in, int token, float *out, int64_t stride) {
    const int columns = in->columns, slots = in->slots, once = 4 * n > LANES ? 2 : 4;
    for (int part = 0; part < PARTS; part++) {
        const uint8_t *p = w + (kind == BFLOAT16 ? 4 : 2) * LANES * part;
        const float *x = in->x + first_of(in, token, columns);
        vf sum[4][TILE];
        for (int first = 0; first < 4; first += once) {
            UNROLL for (int k = 0; k < once; k++) UNROLL for (int t = 0; t < n; t++) sum[first + k][t] = all(0);
            for (int c = first; c < columns; c += 4) {
                __builtin_prefetch(p + (int64_t)c * GROUP * 2 + AHEAD);
                UNROLL for (int k = 0; k < once; k++) {
                    if (c + k >= columns) break;
                    const uint8_t *at = p + (int64_t)(c + k / 2 * 2) * GROUP * 2;
                    vf weight = kind == BFLOAT16 ? of_pair(at, k % 2) : from_half(at + k % 2 * GROUP * 2);
                    UNROLL for (int t = 0; t < n; t++)
                        sum[first + k][t] = fused(weight, all(x[(int64_t)(c + k) * slots + t]), sum[first + k][t]);
                }
            }
        }
        UNROLL for (int t = 0; t < n; t++)
            store(out + t * stride + LANES * part, (sum[0][t] + sum[1][t]) + (sum[2][t] + sum[3][t]));
    }
}

/* `n` is a constant in each call, so that the sums stay in registers. */
#define OF_TOKENS(function, ...) \
    switch (n < TILE ? n : TILE) { \
    case 1: function(1, __VA_ARGS__); return 1; \
    case 2: if (2 < TILE) { function(2 < TILE ? 2 : 1, __VA_ARGS__); return 2; } /* fall through */ \
    case 3: if (3 < TILE) { function(3 < TILE ? 3 : 1, __VA_ARGS__); return 3; } /* fall through */ \
    case 4: case 5: case 6: case 7: if (4 < TILE) { function(4 < TILE ? 4 : 1, __VA_ARGS__); return 4; } /* fall through */ \
    default: function(TILE, __VA_ARGS__); return TILE; \
    }

/* As `tile`, of one group. `w`: its weights. */
static int tile_of_group(const Matrix *m, int wide, const uint8_t *w, const Input *in, int token, int n, float *out, int64_t stride) {
    int side_by_side = in->slots - token % in->slots;
    if (m->kind >= BFLOAT16) {
        if (LANES == 16 && n > TILE) n = 4; /* of many tokens, those whose values stay in the L1 cache */
        if (n > side_by_side) n = side_by_side;
        if (m->kind == BFLOAT16) OF_TOKENS(tile_of_halves, BFLOAT16, w, in, token, out, stride)
        OF_TOKENS(tile_of_halves, FLOAT16, w, in, token, out, stride)
    }
    if (n > side_by_side) n = side_by_side;
    if (m->kind == FOUR) OF_TOKENS(tile_of_blocks, FOUR, wide, w, in, token, out, stride)
    if (m->kind == EIGHT) OF_TOKENS(tile_of_blocks, EIGHT, wide, w, in, token, out, stride)
    if (n == 1 || TILE == 1) {
        tile_of_others(1, m->kind, wide, w, in, token, out, stride);
        return 1;
    }
    if (n < 8 || TILE < 8) { /* of two and three tokens, four are computed, from what lies there */
        tile_of_others(TILE < 4 ? 1 : 4, m->kind, wide, w, in, token, out, stride);
        return n < 4 ? n : 4;
    }
    tile_of_others(TILE, m->kind, wide, w, in, token, out, stride);
    return TILE;
}

/* Multiplies `count` groups of rows, at most GROUPS, with some of the product's `tokens`, from `token` on; returns with
   how many. `out`: (WIDEST, stride). */
OUTLINE int tile(const Matrix *m, int wide, int group, int count, const Input *in, int tokens, int token, float *out, int64_t stride) {
    int64_t bytes = units_of(m->kind, m->columns) * unit_bytes(m->kind);
    const uint8_t *w = m->data + group * bytes;
    int n = tokens - token, done = 0;
#if LANES == 16
    if (m->kind == BFLOAT16 && in->amx) {
        for (int g = 0; g < count; g += 2) amx_of_halves(tokens, token, count - g < 2 ? 1 : 2, w + g * bytes, in, out + GROUP * g, stride);
        return n < WIDEST ? n : WIDEST;
    }
    if (has_tiles(in, m->kind, wide, tokens)) return tile_with_amx(m->kind, count, w, in, token, n, out, stride);
#endif
    for (int g = 0; g < count; g++) done = tile_of_group(m, wide, w + g * bytes, in, token, n, out + GROUP * g, stride);
    return done;
}

typedef struct {
    const Matrix *matrix;
    const Input *in;
    float *out; /* (n, stride): set, or added to */
    int64_t stride;
    int wide, n, add;
} Multiplying;

/* Sets the outputs of n tokens and a group of rows, the first of them `first`, or adds to them. `sums`: (n, 64). */
OUTLINE void take_sums(const Multiplying *p, int first, int n, const float *sums, float *to) {
    const int64_t stride = p->stride;
    const int rows = p->matrix->rows - first, add = p->add;
    const float *bias = p->matrix->bias ? p->matrix->bias + first : NULL;
    for (int r = 0; r < GROUP && rows >= GROUP; r += LANES) {
        float *at = to + r;
        for (int t = 0; t < n; t++, at += stride) {
            vf y = load(sums + t * GROUPS * GROUP + r);
            if (bias) y += load(bias + r);
            if (add) y = load(at) + y;
            store(at, y);
        }
    }
    for (int t = 0; t < n && rows < GROUP; t++)
        for (int r = 0; r < rows; r++) {
            float y = sums[t * GROUPS * GROUP + r] + (bias ? bias[r] : 0);
            to[t * stride + r] = add ? to[t * stride + r] + y : y;
        }
}

static void multiply_groups(void *job, int thread, int begin, int end) {
    const Multiplying *p = job;
    const Matrix *m = p->matrix;
    (void)thread;
    begin_amx(p->in, m->kind, p->wide, p->n);
    for (int group = begin; group < end; group += GROUPS) {
        int count = end - group < GROUPS ? end - group : GROUPS;
        for (int token = 0, done; token < p->n; token += done) {
            _Alignas(64) float sums[WIDEST][GROUPS * GROUP];
            done = tile(m, p->wide, group, count, p->in, p->n, token, sums[0], GROUPS * GROUP);
            for (int i = 0, first = group * GROUP; i < count * GROUP; i += GROUP)
                take_sums(p, first + i, done, sums[0] + i, p->out + token * p->stride + first + i);
        }
    }
    end_amx(p->in, m->kind, p->wide, p->n);
}

/* A phase, by groups of rows: the whole product of n tokens. */
OUTLINE void multiply(const Matrix *m, int wide, const Input *in, int n, float *out, int64_t stride, int add, int threads) {
    Multiplying p = {m, in, out, stride, wide, n, add};
    run_parallel(threads, (m->rows + GROUP - 1) / GROUP, multiply_groups, &p);
}

/* A product alone, for layers that torch runs: x, (tokens, columns), in float32. */
typedef struct {
    const Matrix *matrix;
    const float *x;
    Input in;
    int wide;
} Product;

COLD void put_rows(void *job, int thread, int begin, int end) {
    const Product *p = job;
    int columns = p->matrix->columns;
    (void)thread;
    for (int t = begin; t < end; t++) put(&p->in, p->matrix->kind, p->wide, t, 0, p->x + (int64_t)t * columns, columns);
}

COLD void product(const Matrix *matrix, int wide, const float *x, int tokens, float *out, int threads, uint8_t *scratch) {
    Product p = {matrix, x, new_input(&scratch, tokens, matrix->columns), wide};
    run_parallel(threads, tokens, put_rows, &p);
    multiply(matrix, wide, &p.in, tokens, out, matrix->rows, 0, threads);
}

static int64_t product_scratch(int columns, int tokens) {
    uint8_t *end = 0;
    new_input(&end, tokens, columns);
    return (int64_t)(uintptr_t)end;
}
