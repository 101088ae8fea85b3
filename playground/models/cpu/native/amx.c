/* Products by Intel's tiles (AMX): up to 16 rows of 64 bytes times the lines of 32 columns of weights in one instruction.

   The rows of the first tile are the parts of up to 8 tokens, side by side in an Input. A product of blocks is exact, and
   the floats are computed as `tile_of_blocks` does, so the bits are the same; bound by the number of instructions: some
   60 a block, and 7 a token of it. While tiles are in use, a core has one unit for floats in vectors of 64 bytes instead
   of two. Of bfloat16 a tile holds the sums, whatever the number of tokens: bound by memory up to 16. */

#define TILE_LOAD(tile, from, step) __asm__ volatile("tileloadd (%0,%1,1), %%" tile : : "r"(from), "r"((int64_t)(step)) : "memory")
#define TILE_STORE(tile, to, stride) __asm__ volatile("tilestored %%" tile ", (%0,%1,1)" : : "r"(to), "r"(4 * (int64_t)(stride)) : "memory")
#define TILES(operation, weights, activations, sums) \
    __asm__ volatile(operation " %%" weights ", %%" activations ", %%" sums : : : "memory")
#define TILE_ZERO(tile) __asm__ volatile("tilezero %%" tile : : : "memory")

typedef struct {
    uint8_t palette, start, zero[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} TileConfig;

/* Whether tiles multiply n tokens. Of activations of 8 bits, and of two tokens, AVX-512 is as fast, or faster. */
static int has_tiles(const Input *in, int kind, int wide, int n) {
    return in->amx && (kind == BFLOAT16 || (wide && n > 2 && (kind == FOUR || kind == EIGHT)));
}

/* Of a pass over n tokens. Tiles 0 to 3 are sums, 4 and 5 activations, 6 and 7 weights. */
static void begin_amx(const Input *in, int kind, int wide, int n) {
    if (!has_tiles(in, kind, wide, n)) return;
    int halves = kind == BFLOAT16;
    uint8_t rows = halves ? (n < GROUP ? n : GROUP) : n > 4 ? 16 : 8, lines = halves ? 16 : 8;
    uint16_t bytes = halves ? 64 : 32;
    TileConfig config = {1, 0, {0}, {64, 64, 64, 64, bytes, bytes, 64, 64}, {rows, rows, rows, rows, rows, rows, lines, lines}};
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
    /* Slots without a token are multiplied too, and subnormal numbers there would take a hundred times as long. All
       threads write the same. */
    int blocks = in->columns / BLOCK, slots = in->slots;
    float *scale = in->scale + (int64_t)(n / slots) * blocks * slots, *sum = scale + (in->sum - in->scale);
    for (int i = 0; i < blocks * slots && n % slots && !halves; i++)
        if (i % slots >= n % slots) scale[i] = sum[i] = 0;
}

static void end_amx(const Input *in, int kind, int wide, int n) {
    if (has_tiles(in, kind, wide, n)) __asm__ volatile("tilerelease");
}

/* The lines of a block of FOUR, one column a byte. */
INLINE void write_lines(const uint8_t *from, uint8_t *to) {
    UNROLL for (int u = 0; u < 4; u++) {
        vb both = load_bytes(from + 64 * u), low = both & 15, high = both >> 4;
        memcpy(to + 64 * u, &low, 64);
        memcpy(to + 256 + 64 * u, &high, 64);
    }
}

/* Multiplies a block, and stores the sums of the block three before, which are ready by now: a core executes what follows
   a store that waits late. */
#define MULTIPLY(weights, activations, sums, oldest) { \
    TILE_LOAD(weights, quads, 64); \
    TILE_LOAD(activations, a, 32); \
    TILE_STORE(oldest, to, GROUP); \
    TILE_ZERO(sums); \
    TILES("tdpbsud", weights, activations, sums); \
    }

/* `count` groups of rows, block by block. The steps of a block are taken at distance, so that none waits for another: its
   lines are written two blocks before tiles read them, and its sums two before vectors do. */
INLINE void amx_of_blocks(int n, int kind, int count, const uint8_t *w, const Input *in, int token, float *out, int64_t stride) {
    enum { RING = 4, TILED = 2, STORED = TILED + 3, ADDED = STORED + 2 };
    _Alignas(64) uint8_t lines[RING][8 * 64];
    _Alignas(64) int32_t sums[RING][SLOTS][2][16];
    const int bytes = (int)unit_bytes(kind), blocks = in->columns / BLOCK, all_blocks = count * blocks;
    const int64_t slots = in->slots, first = first_of(in, token, blocks);
    const int8_t *const of_first = in->high_low + first * 2 * BLOCK, *a = of_first;
    const float *scale_at = in->scale + first, *sum_at = in->sum + first;
    const int32_t *whole_at = in->whole + first;
    const uint8_t *written = w, *tiled = w + 32, *added = w;
    __m512i up = _mm512_set4_epi32(0x0e0d0c80, 0x0a090880, 0x06050480, 0x02010080); /* 256 times, as bytes move */
    __asm__("" : "+v"(up)); /* lest it become a shift, for which there is one unit */
    vf sum[SLOTS];
    UNROLL for (int t = 0; t < n; t++) sum[t] = all(0);
    int left_tiled = blocks, left_added = blocks;
    for (int j = 0; j < all_blocks + ADDED; j += RING) {
        UNROLL for (int turn = 0; turn < RING; turn++) {
            int i = j + turn;
            if (i < all_blocks) {
                for (int line = 0; line < bytes; line += 64) __builtin_prefetch(written + BLOCKS_AHEAD + line);
                if (kind == FOUR) write_lines(written + 64, lines[turn]);
                written += bytes;
            }
            const uint8_t *quads = kind == FOUR ? lines[(turn + 2 * RING - TILED) % RING] : tiled;
            int32_t *to = sums[(turn + 2 * RING - STORED) % RING][0][0];
            if (turn == 0) MULTIPLY("tmm6", "tmm4", "tmm0", "tmm1")
            if (turn == 1) MULTIPLY("tmm7", "tmm5", "tmm1", "tmm2")
            if (turn == 2) MULTIPLY("tmm6", "tmm4", "tmm2", "tmm3")
            if (turn == 3) MULTIPLY("tmm7", "tmm5", "tmm3", "tmm0")
            if (i >= TILED && i < all_blocks + TILED - 1) {
                tiled += bytes;
                a += slots * 2 * BLOCK;
                if (!--left_tiled) {
                    left_tiled = blocks;
                    a = of_first;
                }
            }
            if (i < ADDED || i >= all_blocks + ADDED) continue;
            vf scale = from_half(added), least = kind == FOUR ? from_half(added + 32) : all(0);
            UNROLL for (int t = 0; t < n; t++) {
                vi high, low;
                memcpy(&high, sums[(turn + 2 * RING - ADDED) % RING][t][0], 64);
                memcpy(&low, sums[(turn + 2 * RING - ADDED) % RING][t][1], 64);
                vi s = (vi)_mm512_shuffle_epi8((__m512i)high, up) + low;
                if (kind == EIGHT) s -= whole_at[t];
                sum[t] = fused(scale * scale_at[t], __builtin_convertvector(s, vf), sum[t]);
                if (kind == FOUR) sum[t] = fused(least, all(sum_at[t]), sum[t]);
            }
            added += bytes;
            scale_at += slots;
            sum_at += slots;
            whole_at += slots;
            if (!--left_added) {
                UNROLL for (int t = 0; t < n; t++) {
                    store(out + t * stride, sum[t]);
                    sum[t] = all(0);
                }
                out += GROUP;
                scale_at -= blocks * slots;
                sum_at -= blocks * slots;
                whole_at -= blocks * slots;
                left_added = blocks;
            }
        }
    }
}

/* Splits values of a token in two bfloat16 each: the first takes 8 of 24 bits, the second rounds what is left. */
OUTLINE void put_halves(const Input *in, int token, int column, const float *x, int count) {
    int64_t beside = in->beside, unit = token / beside * units_of(BFLOAT16, in->columns) + column / BLOCK;
    uint16_t *to = in->halves + (unit * 2 * beside + token % beside) * BLOCK;
    for (int i = 0; i < count; i += BLOCK, to += 2 * beside * BLOCK) {
        float padded[BLOCK] = {0};
        const float *from = count - i < BLOCK ? memcpy(padded, x + i, 4 * (size_t)(count - i)) : x + i;
        for (int j = 0; j < BLOCK; j += LANES) {
            vf v = load(from + j);
            vi high = (vi)v & ~0xffff, low = (vi)(v - (vf)high) + 0x8000;
            vh upper = __builtin_convertvector(high >> 16, vh), lower = __builtin_convertvector(low >> 16, vh);
            memcpy(to + j, &upper, sizeof upper);
            memcpy(to + beside * BLOCK + j, &lower, sizeof lower);
        }
    }
}

/* `count` groups, 1 or 2, times up to 32 tokens of all of the product's. Tiles 0 and 1 are the sums of 16 tokens, 2 and 3
   those of 16 more. The instruction has an order of its own, the same for each row of a tile. */
OUTLINE void amx_of_halves(int all_tokens, int token, int count, const uint8_t *w, const Input *in, float *out, int64_t stride) {
    const int units = (int)units_of(BFLOAT16, in->columns), bytes = (int)unit_bytes(BFLOAT16), two = count > 1;
    const int64_t half = (int64_t)in->beside * BLOCK, next = GROUPS * units * bytes;
    const uint8_t *other = w + units * bytes;
    const uint16_t *a = in->halves + token / in->beside * units * 2 * half, *b = a + units * 2 * half;
    const int more = all_tokens - token > GROUP, calls = (all_tokens + WIDEST - 1) / WIDEST;
    const int begin = token / WIDEST * GROUP / calls * 64, end = (token / WIDEST + 1) * GROUP / calls * 64;
    TILE_ZERO("tmm0");
    TILE_ZERO("tmm1");
    TILE_ZERO("tmm2");
    TILE_ZERO("tmm3");
    for (int u = 0; u < units; u++, w += bytes, other += bytes) {
        for (int line = 0; line < bytes && !token; line += 64) {
            __builtin_prefetch(w + AHEAD + line);
            if (two) __builtin_prefetch(other + AHEAD + line);
        }
        /* Of many tokens each call asks for a part of the weights of the next groups. */
        for (int line = begin; line < end && calls > 1; line += 64) {
            __builtin_prefetch(w + next + line, 0, 2);
            __builtin_prefetch(other + next + line, 0, 2);
        }
        TILE_LOAD("tmm6", w, 64);
        if (two) TILE_LOAD("tmm7", other, 64);
        UNROLL for (int low = 0; low < 2; low++, a += half, b += half) {
            TILE_LOAD("tmm4", a, 64);
            TILES("tdpbf16ps", "tmm6", "tmm4", "tmm0");
            if (two) TILES("tdpbf16ps", "tmm7", "tmm4", "tmm1");
            if (!more) continue;
            TILE_LOAD("tmm5", b, 64);
            TILES("tdpbf16ps", "tmm6", "tmm5", "tmm2");
            if (two) TILES("tdpbf16ps", "tmm7", "tmm5", "tmm3");
        }
    }
    TILE_STORE("tmm0", out, stride);
    if (two) TILE_STORE("tmm1", out + GROUP, stride);
    if (more) TILE_STORE("tmm2", out + GROUP * stride, stride);
    if (more && two) TILE_STORE("tmm3", out + GROUP * stride + GROUP, stride);
}

/* As `tile`, of the kinds of blocks that `has_tiles` names. Slots without a token are computed too. */
OUTLINE int tile_with_amx(int kind, int count, const uint8_t *w, const Input *in, int token, int n, float *out, int64_t stride) {
    int side_by_side = in->slots - token % in->slots;
    if (n > side_by_side) n = side_by_side;
    if (kind == FOUR && n > 4) amx_of_blocks(SLOTS, FOUR, count, w, in, token, out, stride);
    else if (kind == FOUR) amx_of_blocks(4, FOUR, count, w, in, token, out, stride);
    else if (n > 4) amx_of_blocks(SLOTS, EIGHT, count, w, in, token, out, stride);
    else amx_of_blocks(4, EIGHT, count, w, in, token, out, stride);
    return n;
}
