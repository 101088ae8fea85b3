/* The engine for one instruction set, which the compiler's flags choose; ENGINE names it. */
#include "products.c"
#include "attention.c"
#include "pass.c"
#include "draft.c"

const Engine ENGINE = {NAME, pass_scratch, run_pass, gather, product_scratch, product, draft_scratch, step, draft, take_rows};
