/* Runs passes of random weights with all engines that can run, and compares the bits with those of plain C. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "engine.h"

const Engine *engine_at(int n);
extern const Engine engine_plain;

enum { WIDTH = 256, INNER = 256, HEADS = 4, GROUPS = 2, HEAD = 64, LAYERS = 2, VOCABULARY = 96, ROOM = 64, TOKENS = 11 };
enum { BRANCHES = 6, BEFORE = 20, PARAMETERS = 1 << 20 };

static uint32_t state = 1;
static uint32_t draw(void) { return state = state * 1664525u + 1013904223u; }
static float number(void) { return (float)(draw() >> 8) / (1 << 23) - 1.f; }

static float *numbers(int n, float around) {
    float *x = malloc(4 * (size_t)n);
    for (int i = 0; i < n; i++) x[i] = around + 0.3f * number();
    return x;
}

/* Random blocks whose weights are small numbers. */
static Matrix matrix(int kind, int rows, int columns) {
    Layout l = LAYOUTS[kind];
    int unit = (int)unit_bytes(kind), units = (rows + GROUP - 1) / GROUP * (columns / l.columns);
    int exponent = kind == BFLOAT16 ? 0x3c : l.bytes ? 0x10 : 0x20;
    uint8_t *data = malloc((size_t)units * unit);
    for (int u = 0; u < units; u++) {
        uint8_t *p = data + (size_t)u * unit;
        for (int i = 0; i < unit; i++) p[i] = (uint8_t)(draw() >> 16);
        for (int i = 1; i < 2 * GROUP * (kind == BFLOAT16 ? l.columns : l.numbers); i += 2) p[i] = (uint8_t)(exponent | (p[i] & 0x80));
    }
    return (Matrix){data, numbers(rows, 0), kind, rows, columns};
}

int main(void) {
    const float *ones = numbers(4096, 1);
    Layer layers[LAYERS];
    for (int l = 0; l < LAYERS; l++)
        layers[l] = (Layer){ones, ones + WIDTH, ones + 2 * WIDTH, ones + 3 * WIDTH,
                            matrix(l ? EIGHT : FOUR_K, (HEADS + GROUPS) * HEAD, WIDTH),
                            matrix(l ? FIVE : SIX_K, GROUPS * HEAD, WIDTH), matrix(l ? FIVE_K : FOUR, WIDTH, HEADS * HEAD),
                            matrix(l ? BFLOAT16 : FOUR, 2 * INNER, WIDTH), matrix(l ? BFLOAT16 : FOUR, WIDTH, INNER)};
    Model model = {WIDTH, INNER, HEADS, GROUPS, HEAD, LAYERS, VOCABULARY, 1, -1, 1e-5f, 0.125f, layers,
                   numbers(VOCABULARY * WIDTH, 0), ones, matrix(SIX_K, VOCABULARY, WIDTH)};
    int count = 0, differ = 0;
    while (engine_at(count)) count++;
    count++;
    static float logits[8][TOKENS][VOCABULARY];
    static int32_t highest[8][TOKENS];
    float *angles = numbers(ROOM * HEAD, 0.5f);
    for (int wide = 0; wide < 2; wide++)
        for (int e = count - 1; e >= 0; e--) {
            const Engine *engine = e == count - 1 ? &engine_plain : engine_at(e);
            int64_t entries = (int64_t)LAYERS * GROUPS * ROOM * HEAD;
            Cache cache = {calloc((size_t)entries, 4), calloc((size_t)entries, 4), angles, angles + ROOM * HEAD / 2, ROOM};
            int32_t ids[BEFORE], tree[BRANCHES] = {-1, -1, 0, 2, 1, 2};
            for (int i = 0; i < BEFORE; i++) ids[i] = i * 7 % VOCABULARY;
            model.wide = wide;
            uint8_t *scratch = aligned_alloc(64, (size_t)(engine->scratch(&model, BEFORE, ROOM, 2) + 63) / 64 * 64);
            Pass first = {.ids = ids, .tokens = BEFORE, .scratch = scratch}, second = first;
            second = (Pass){ids, tree, NULL, TOKENS, BRANCHES, 0, BEFORE, TOKENS, logits[e][0], highest[e], NULL, scratch};
            engine->pass(&model, &cache, &first, 2);
            engine->pass(&model, &cache, &second, 2);
            differ |= memcmp(logits[e], logits[count - 1], sizeof logits[e]) != 0;
            differ |= memcmp(highest[e], highest[count - 1], sizeof highest[e]) != 0;
        }
    printf("%s: %d engines, %g\n", differ ? "different" : "same", count, (double)logits[0][TOKENS - 1][5]);
    return differ || count < 2 || !(logits[0][0][0] == logits[0][0][0]);
}
