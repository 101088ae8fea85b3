/* Drafts of a whole block (DFlash). Its tokens attend to each other and to the text, of which each layer's entries are
   made of features that no layer changes. */
#include "engine.h"
#include "simd.h"

typedef struct {
    const Block *block;
    Work work;
} BlockWork;

COLD void put_features(void *job, int thread, int begin, int end) {
    const BlockWork *b = job;
    const Model *m = b->work.model;
    (void)thread;
    for (int t = begin; t < end; t++)
        put(&b->work.normed, b->work.layer->query_key_value.kind, m->wide, t, 0, b->block->features + (int64_t)t * m->width, m->width);
}

/* Keeps a layer's entries of the text's next positions. Queries are computed beside them, in vain. */
COLD void keep_text(BlockWork *b) {
    Work *w = &b->work;
    const Model *m = w->model;
    int n = b->block->reading;
    place(w, n, b->block->start, NULL, 0);
    run_parallel(n > 2 ? w->threads : 1, n, put_features, b); /* by tokens */
    multiply(&w->layer->query_key_value, m->wide, &w->normed, n, w->qkv, (m->heads + 2 * m->groups) * m->head, 0, w->threads);
    run_parallel(w->threads, m->groups, keep_entries, w);
}

COLD void run_block(const Model *m, const Cache *c, const Block *block, int threads) {
    uint8_t *scratch = block->scratch;
    int tokens = block->reading > block->tokens ? block->reading : block->tokens;
    BlockWork b = {block, new_work(&scratch, m, c, tokens, block->start + block->reading + block->tokens, threads)};
    Work *w = &b.work;
    int64_t layer = (int64_t)m->groups * c->room * m->head;
    w->x = block->x;
    for (int l = 0; l < m->layers; l++) {
        w->layer = m->layer + l;
        w->keys = c->keys + l * layer;
        w->values = c->values + l * layer;
        if (block->reading) keep_text(&b);
        place(w, block->tokens, block->start + block->reading, NULL, 0);
        w->mutual = !block->causal;
        if (block->tokens) run_layer(w, w->layer, w->keys, w->values);
        w->mutual = 0;
    }
    for (int t = 0; t < block->tokens; t++) {
        float *x = block->x + (int64_t)t * m->width;
        rms_norm(x, m->norm, x, m->width, m->epsilon);
    }
}
