/* The engine for one instruction set, which the compiler's flags choose; ENGINE names it. */
#include "products.c"
#include "attention.c"
#include "pass.c"

const Engine ENGINE = {NAME, pass_scratch, run_pass, product_scratch, product};
