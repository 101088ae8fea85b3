/* Matrix products: activations become integers by blocks of 32, and integer dot products with the stored weights follow.

   A lane is a row of the matrix, so that no sum runs across lanes; a row's blocks are added in their order. Tokens go
   through a group of rows in tiles of up to TILE: its weights come from memory once and from the L1 cache after that. */
#include "engine.h"
#include "simd.h"

enum { TILE = PLAIN ? 1 : LANES == 8 ? 4 : 8, HALVES = TILE < 4 ? TILE : 4, AHEAD = 2048 };

/* The rows that a product reads, one for each token, `columns` wide: floats for 16 bits, integers for blocks. Of 16 bits
   `high` has the upper 8, rounded, and `low` the rest, both signed: a value is scale (256 high + low). */
typedef struct {
    float *x;
    int8_t *high, *low;
    float *scale, *sum; /* (tokens, columns / 32); the sum is that of a block's values */
    int32_t *whole;     /* the sum of a block's integers */
    int columns;
} Input;

INLINE void *carve(uint8_t **scratch, int64_t bytes) {
    void *p = *scratch;
    *scratch += (bytes + 127) / 64 * 64; /* a vector of spare room: rows may be read in whole vectors */
    return p;
}

static Input new_input(uint8_t **scratch, int64_t tokens, int columns) {
    int64_t blocks = tokens * ((columns + BLOCK - 1) / BLOCK);
    return (Input){carve(scratch, tokens * columns * 4), carve(scratch, blocks * BLOCK), carve(scratch, blocks * BLOCK),
                   carve(scratch, blocks * 4),           carve(scratch, blocks * 4),     carve(scratch, blocks * 4),
                   columns};
}

/* Turns 32 floats into integers. What is not a number makes the scale not a number, and so every output. */
OUTLINE void quantise(const Input *in, int wide, int64_t block, const float *x) {
    float most = 0, bad = 0;
    vf top = all(0), wrong = all(0);
    for (int i = 0; i < BLOCK; i += LANES) {
        vf v = load(x + i);
        top = larger(top, larger(v, -v));
        wrong += v - v;
    }
    for (int i = 0; i < LANES; i++) {
        most = top[i] > most ? top[i] : most;
        bad += wrong[i];
    }
    float limit = wide ? 32512.f : 127.f, inverse = most > 0 ? limit / most : 0; /* 32512 + 128 rounds to 127 */
    if (inverse > 3e38f) inverse = 0; /* of subnormal values */
    vi sum = all_int(0);
    int8_t *high = in->high + block * BLOCK, *low = in->low + block * BLOCK;
    for (int i = 0; i < BLOCK; i += LANES) {
        vi q = bad == 0 ? nearest(load(x + i) * inverse) : all_int(0);
        sum += q;
        vi upper = wide ? (q + 128) >> 8 : q;
        typedef int8_t narrow __attribute__((vector_size(LANES)));
        narrow h = __builtin_convertvector(upper, narrow), l = __builtin_convertvector(q - upper * 256, narrow);
        memcpy(high + i, &h, LANES);
        if (wide) memcpy(low + i, &l, LANES);
    }
    int32_t whole = 0;
    for (int i = 0; i < LANES; i++) whole += sum[i];
    in->scale[block] = most / limit + bad;
    in->whole[block] = whole;
    in->sum[block] = in->scale[block] * (float)whole;
}

/* Hands `count` values of a token, from a column on, to a product with a matrix of this kind. */
OUTLINE void put(const Input *in, int kind, int wide, int token, int column, const float *x, int count) {
    if (kind >= BFLOAT16) memcpy(in->x + (int64_t)token * in->columns + column, x, 4 * (size_t)count);
    else
        for (int i = 0; i < count; i += BLOCK)
            quantise(in, wide, ((int64_t)token * in->columns + column + i) / BLOCK, x + i);
}

/* One group of rows of FOUR or EIGHT times up to TILE tokens. Bound by memory for one token: 320 bytes a block; by the
   dot products for many: 16 a block and token of 16 bits, two a cycle at best. `out`: (tokens, stride). */
INLINE void tile_of_blocks(int n, int kind, const int wide, const uint8_t *w, const Input *in, int token, float *out, int64_t stride) {
    const int bytes = kind == FOUR ? FOUR_BYTES : EIGHT_BYTES, columns = in->columns, blocks = columns / BLOCK;
    for (int part = 0; part < PARTS; part++) {
        const uint8_t *scales = w + 2 * LANES * part, *quads = w + (kind == FOUR ? 64 : 32) + 4 * LANES * part;
        vf sum[TILE];
        UNROLL for (int t = 0; t < n; t++) sum[t] = all(0);
        for (int b = 0; b < blocks; b++, scales += bytes, quads += bytes) {
            for (int line = 0; line < bytes; line += 64) __builtin_prefetch(scales + AHEAD + line);
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
            UNROLL for (int t = 0; t < n; t++) {
                int64_t block = (int64_t)(token + t) * blocks + b;
                const int8_t *high = in->high + block * BLOCK, *low = in->low + block * BLOCK;
                vi s = all_int(0);
                UNROLL for (int u = 0; u < 8; u++)
                    s = kind == FOUR ? dot(s, q[u], four_bytes(high + 4 * u)) : dot_wide(s, q[u], four_bytes(high + 4 * u));
                if (wide) {
                    s = s << 8;
                    UNROLL for (int u = 0; u < 8; u++)
                        s = kind == FOUR ? dot(s, q[u], four_bytes(low + 4 * u)) : dot_wide(s, q[u], four_bytes(low + 4 * u));
                }
                if (kind == EIGHT) s -= 128 * in->whole[block];
                sum[t] = fused(scale * in->scale[block], __builtin_convertvector(s, vf), sum[t]);
                if (kind == FOUR) sum[t] = fused(least, all(in->sum[block]), sum[t]);
            }
        }
        UNROLL for (int t = 0; t < n; t++) store(out + t * stride + LANES * part, sum[t]);
    }
}

/* One group of rows of 16 bits times up to HALVES tokens: they widen to float32 exactly. Every fourth column goes to one of four sums, so that
   one token does not wait for each sum in turn. Bound by memory up to about 8 tokens. */
INLINE void tile_of_halves(int n, int kind, const uint8_t *w, const Input *in, int token, float *out, int64_t stride) {
    const int columns = in->columns;
    for (int part = 0; part < PARTS; part++) {
        const uint16_t *p = (const uint16_t *)w + LANES * part;
        vf sum[4][HALVES];
        UNROLL for (int k = 0; k < 4; k++) UNROLL for (int t = 0; t < n; t++) sum[k][t] = all(0);
        const float *x = in->x + (int64_t)token * columns;
        for (int c = 0; c < columns; c += 4) {
            UNROLL for (int k = 0; k < 4; k++) {
                if (c + k >= columns) break;
                const uint16_t *at = p + (int64_t)(c + k) * GROUP;
                vf weight = kind == BFLOAT16 ? from_bfloat16(at) : from_half((const uint8_t *)at);
                UNROLL for (int t = 0; t < n; t++) sum[k][t] = fused(weight, all(x[(int64_t)t * columns + c + k]), sum[k][t]);
            }
        }
        UNROLL for (int t = 0; t < n; t++)
            store(out + t * stride + LANES * part, (sum[0][t] + sum[1][t]) + (sum[2][t] + sum[3][t]));
    }
}

/* `n` is a constant in each call, so that the sums stay in registers. */
#define OF_TOKENS(most, function, ...) \
    switch (n < most ? n : most) { \
    case 1: function(1, __VA_ARGS__); return 1; \
    case 2: if (2 < most) { function(2 < most ? 2 : 1, __VA_ARGS__); return 2; } /* fall through */ \
    case 3: if (3 < most) { function(3 < most ? 3 : 1, __VA_ARGS__); return 3; } /* fall through */ \
    case 4: case 5: case 6: case 7: if (4 < most) { function(4 < most ? 4 : 1, __VA_ARGS__); return 4; } /* fall through */ \
    default: function(most, __VA_ARGS__); return most; \
    }

/* Multiplies one group of rows with the next tokens, `n` of them at most; returns with how many. */
OUTLINE int tile(const Matrix *m, int wide, int group, const Input *in, int token, int n, float *out, int64_t stride) {
    const int64_t blocks = m->columns / BLOCK;
    const uint8_t *w = m->data;
    if (m->kind == BFLOAT16 || m->kind == FLOAT16) {
        w += (int64_t)group * m->columns * GROUP * 2;
        if (m->kind == BFLOAT16) OF_TOKENS(HALVES, tile_of_halves, BFLOAT16, w, in, token, out, stride)
        OF_TOKENS(HALVES, tile_of_halves, FLOAT16, w, in, token, out, stride)
    }
    w += group * blocks * (m->kind == FOUR ? FOUR_BYTES : EIGHT_BYTES);
    if (m->kind == FOUR) OF_TOKENS(TILE, tile_of_blocks, FOUR, wide, w, in, token, out, stride)
    OF_TOKENS(TILE, tile_of_blocks, EIGHT, wide, w, in, token, out, stride)
}

/* Multiplies a group with n tokens into `out`, (n, stride): sets it, or adds to it. */
static void multiply_group(const Matrix *m, int wide, int group, const Input *in, int n, float *out, int64_t stride, int add) {
    int first = group * GROUP, rows = m->rows - first < GROUP ? m->rows - first : GROUP;
    for (int token = 0, done; token < n; token += done) {
        float sums[TILE][GROUP];
        done = tile(m, wide, group, in, token, n - token, sums[0], GROUP);
        for (int t = 0; t < done; t++) {
            float *to = out + (token + t) * stride + first;
            for (int r = 0; r < rows; r++) {
                float y = m->bias ? sums[t][r] + m->bias[first + r] : sums[t][r];
                to[r] = add ? to[r] + y : y;
            }
        }
    }
}

/* A phase: the whole product of n tokens. The team waits afterwards. */
OUTLINE void multiply(const Matrix *m, int wide, const Input *in, int n, float *out, int64_t stride, int add, Team *team) {
    for (Range r = {0}; team_claim(team, (m->rows + GROUP - 1) / GROUP, &r);)
        for (int g = r.begin; g < r.end; g++) multiply_group(m, wide, g, in, n, out, stride, add);
    team_wait(team);
}

/* A product alone, for layers that torch runs: x, (tokens, columns), in float32. */
typedef struct {
    const Matrix *matrix;
    const float *x;
    float *out;
    uint8_t *scratch;
    int wide, tokens;
} Product;

static void product_work(void *job, Team *team) {
    const Product *p = job;
    const Matrix *m = p->matrix;
    uint8_t *scratch = p->scratch;
    Input in = new_input(&scratch, p->tokens, m->columns);
    for (Range r = {0}; team_claim(team, p->tokens, &r);)
        for (int t = r.begin; t < r.end; t++)
            put(&in, m->kind, p->wide, t, 0, p->x + (int64_t)t * m->columns, m->columns);
    team_wait(team);
    multiply(m, p->wide, &in, p->tokens, p->out, m->rows, 0, team);
}

static void product(const Matrix *matrix, int wide, const float *x, int tokens, float *out, int threads, uint8_t *scratch) {
    Product p = {matrix, x, out, scratch, wide, tokens};
    team_run(threads, product_work, &p);
}

static int64_t product_scratch(int columns, int tokens) {
    uint8_t *end = 0;
    new_input(&end, tokens, columns);
    return (int64_t)(uintptr_t)end;
}
