/* Products of blocks by Intel's tiles (AMX): 16 rows of 32 bytes times 32 columns of weights in one instruction.

   The rows of the first tile are the upper and the lower bytes of up to 8 tokens, side by side in an Input; those of the
   second are the lines of a block of EIGHT, and what FOUR becomes. Integers are exact, and the floats are computed as
   `tile_of_blocks` does, so the bits are the same. Bound by the six operations of a vector for a block and a token. */

typedef struct {
    uint8_t palette, start, zero[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} TileConfig;

/* Of a pass over n tokens. Tiles 0 and 1 are sums, 2 and 3 activations, 4 weights. */
static void begin_amx(const Input *in, int n) {
    if (!in->amx || n == 1) return;
    uint8_t rows = (uint8_t)(n > 4 ? 16 : n > 2 ? 8 : 4);
    TileConfig config = {1, 0, {0}, {64, 64, 32, 32, 64}, {rows, rows, rows, rows, 8}};
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
}

static void end_amx(const Input *in, int n) {
    if (in->amx && n > 1) __asm__ volatile("tilerelease");
}

/* The block `b` at distance: its lines are written two blocks before tiles read them, and its sums five before vectors
   do, so that none waits for another. */
INLINE void amx_of_blocks(int n, int kind, const uint8_t *w, const Input *in, int token, float *out, int64_t stride) {
    enum { RING = 4, LINES = 2, SUMS = 5 };
    _Alignas(64) uint8_t lines[RING][8 * 64];
    _Alignas(64) int32_t sums[RING][WIDEST][2][16];
    const int bytes = (int)unit_bytes(kind), blocks = in->columns / BLOCK;
    const int64_t slots = in->slots, first = first_of(in, token, blocks), second = first + blocks * slots - SLOTS;
    vf sum[WIDEST];
    UNROLL for (int t = 0; t < n; t++) sum[t] = all(0);
    for (int i = 0; i < blocks + SUMS; i++) {
        if (i < blocks) {
            const uint8_t *from = w + (int64_t)i * bytes;
            for (int line = 0; line < bytes; line += 64) __builtin_prefetch(from + AHEAD + line);
            uint8_t *to = lines[i % RING];
            if (kind == FOUR) {
                UNROLL for (int u = 0; u < 4; u++) {
                    vb both = load_bytes(from + 64 + 64 * u), low = both & 15, high = both >> 4;
                    memcpy(to + 64 * u, &low, 64);
                    memcpy(to + 256 + 64 * u, &high, 64);
                }
            }
        }
        int b = i - LINES;
        if (b >= 0 && b < blocks) {
            const uint8_t *quads = kind == FOUR ? lines[b % RING] : w + (int64_t)b * bytes + 32;
            const int8_t *a = in->high_low + (first + b * slots) * 2 * BLOCK;
            __asm__ volatile("tileloadd (%0,%1,1), %%tmm4" : : "r"(quads), "r"(64L) : "memory");
            __asm__ volatile("tileloadd (%0,%1,1), %%tmm2" : : "r"(a), "r"(32L) : "memory");
            __asm__ volatile("tilezero %%tmm0\n\ttdpbsud %%tmm4, %%tmm2, %%tmm0" : : : "memory");
            __asm__ volatile("tilestored %%tmm0, (%0,%1,1)" : : "r"(sums[b % RING][0]), "r"(64L) : "memory");
            if (n > SLOTS) {
                a += (int64_t)blocks * SLOTS * 2 * BLOCK;
                __asm__ volatile("tileloadd (%0,%1,1), %%tmm3" : : "r"(a), "r"(32L) : "memory");
                __asm__ volatile("tilezero %%tmm1\n\ttdpbsud %%tmm4, %%tmm3, %%tmm1" : : : "memory");
                __asm__ volatile("tilestored %%tmm1, (%0,%1,1)" : : "r"(sums[b % RING][SLOTS]), "r"(64L) : "memory");
            }
        }
        b = i - SUMS;
        if (b >= 0) {
            const uint8_t *scales = w + (int64_t)b * bytes;
            vf scale = from_half(scales), least = kind == FOUR ? from_half(scales + 32) : all(0);
            UNROLL for (int t = 0; t < n; t++) {
                int64_t at = (t < SLOTS ? first : second) + b * slots + t;
                vi high, low;
                memcpy(&high, sums[b % RING][t][0], 64);
                memcpy(&low, sums[b % RING][t][1], 64);
                vi s = (high << 8) + low;
                if (kind == EIGHT) s -= in->whole[at];
                sum[t] = fused(scale * in->scale[at], __builtin_convertvector(s, vf), sum[t]);
                if (kind == FOUR) sum[t] = fused(least, all(in->sum[at]), sum[t]);
            }
        }
    }
    UNROLL for (int t = 0; t < n; t++) store(out + t * stride, sum[t]);
}

/* As `tile`, of FOUR and EIGHT and for two tokens and more, of 16 bits: of 8, AVX-512 is as fast. Tokens that are not there are
   computed too, from what lies there. */
static int tile_with_amx(int kind, const uint8_t *w, const Input *in, int token, int n, float *out, int64_t stride) {
#define OF_KIND(most) \
    if (kind == FOUR) amx_of_blocks(most, FOUR, w, in, token, out, stride); \
    else amx_of_blocks(most, EIGHT, w, in, token, out, stride); \
    return n < most ? n : most;
    if (n > SLOTS) { OF_KIND(WIDEST) }
    if (n > 4) { OF_KIND(SLOTS) }
    if (n > 2) { OF_KIND(4) }
    OF_KIND(2)
}
