/* The engine for one instruction set, which the compiler's flags choose; ENGINE names it. */
#include "products.c"
#include "attention.c"
#include "pass.c"
#include "draft.c"
#include "block.c"

const Engine ENGINE = {NAME, pass_scratch, run_pass, gather, product_scratch, product, draft_scratch, step, draft, take_rows,
                       run_block};

#if LANES == 16
/* The same with AMX for products of several tokens. */
static void amx_pass(const Model *model, const Cache *cache, const Pass *pass, int threads) {
    may_use_amx = 1;
    run_pass(model, cache, pass, threads);
    may_use_amx = 0;
}
static void amx_product(const Matrix *matrix, int wide, const float *x, int tokens, float *out, int threads, uint8_t *scratch) {
    may_use_amx = 1;
    product(matrix, wide, x, tokens, out, threads, scratch);
    may_use_amx = 0;
}
static void amx_step(const Drafter *drafter, const Cache *cache, const Step *s, int threads, uint8_t *scratch) {
    may_use_amx = 1;
    step(drafter, cache, s, threads, scratch);
    may_use_amx = 0;
}
static int32_t amx_draft(const Drafter *drafter, const Cache *cache, const Draft *d, int threads) {
    may_use_amx = 1;
    int32_t tokens = draft(drafter, cache, d, threads);
    may_use_amx = 0;
    return tokens;
}
static void amx_block(const Model *model, const Cache *cache, const Block *block, int threads) {
    may_use_amx = 1;
    run_block(model, cache, block, threads);
    may_use_amx = 0;
}
const Engine engine_amx = {"AMX", pass_scratch, amx_pass, gather, product_scratch, amx_product, draft_scratch, amx_step, amx_draft,
                           take_rows, amx_block};
#endif
