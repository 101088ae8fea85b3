/* A pass of a whole model: embedding, layers, logits. One thread goes through it; the others help in its phases, whose
   units are said where they begin. */
#include "engine.h"
#include "simd.h"

/* The state of a pass between its phases. Networks that draft from hidden states fill `x` themselves. */
typedef struct {
    const Model *model;
    const Cache *cache;
    int threads, tokens, base, start; /* `base`: entries that every token sees; `start`: the entry of the first token */
    int chain;                      /* the first tokens, each of which sees those before it */
    int32_t *parent, *position;     /* (tokens,): the index of the token before, -1 for the text; the place in the text */
    float *x;                       /* (tokens, width): the residual stream */
    float *qkv;                     /* (tokens, (heads + 2 groups) * head) */
    Input normed, attended, gated;  /* inputs of the products */
    const Input *given;             /* what attention's projections read in place of the norms of x; NULL: those */
    const Layer *layer;             /* that which runs, and its entries */
    float *keys, *values;
    const float *norm;              /* of `norm_rows`, for a product of the kind `next`, from the token `first` on */
    int next, first;
    int wanted;                     /* the first token whose output is wanted; those before it leave their entries alone */
    struct {
        float *row, *scores;        /* (width,) or twice (QUERIES, head); (QUERIES, stride) */
        int32_t *path;              /* (QUERIES, longest) */
    } own[MOST_THREADS];            /* by thread */
    int64_t stride, longest;        /* entries, rounded up; of a path */
    int mutual;                     /* 1: all tokens of the pass attend to each other */
} Work;

static int longest_row(const Model *m) {
    int rows = 2 * QUERIES * m->head;
    return m->width > rows ? m->width : rows;
}

COLD Work new_work(uint8_t **scratch, const Model *m, const Cache *c, int64_t tokens, int entries, int threads) {
    Work w = {m, c, threads, (int)tokens, .stride = (entries + GROUP + ROUNDED - 1) / GROUP * GROUP, .longest = tokens};
    int all_heads = m->heads * m->head;
    w.parent = carve(scratch, tokens * 4);
    w.position = carve(scratch, tokens * 4);
    w.x = carve(scratch, tokens * m->width * 4);
    w.qkv = carve(scratch, tokens * (all_heads + 2 * m->groups * m->head) * 4);
    w.normed = new_input(scratch, tokens, m->width);
    w.attended = new_input(scratch, tokens, all_heads);
    w.gated = new_input(scratch, tokens, m->inner);
    for (int i = 0; i < threads && i < MOST_THREADS; i++) {
        w.own[i].row = carve(scratch, longest_row(m) * 4);
        w.own[i].scores = carve(scratch, QUERIES * w.stride * 4);
        w.own[i].path = carve(scratch, QUERIES * tokens * 4);
    }
    return w;
}

/* Tokens in a row, the last of them a tree. */
COLD void place(Work *w, int tokens, int start, const int32_t *tree, int branching) {
    int chain = w->chain = tokens - branching;
    w->tokens = tokens;
    w->base = w->start = start;
    for (int t = 0; t < tokens; t++) {
        w->parent[t] = t < chain ? t - 1 : tree[t - chain] + chain; /* -1 is the last token of the chain */
        w->position[t] = w->parent[t] < 0 ? start : w->position[w->parent[t]] + 1;
    }
}

static void norm_rows(void *job, int thread, int begin, int end) {
    Work *w = job;
    int width = w->model->width;
    float *row = w->own[thread].row;
    for (int t = begin; t < end; t++) {
        rms_norm(w->x + (int64_t)(w->first + t) * width, w->norm, row, width, w->model->epsilon);
        put(&w->normed, w->next, w->model->wide, t, 0, row, width);
    }
}

/* A phase, by tokens: norms of the rows from `first` on, as the input of a product. Few are not worth the other threads. */
static const Input *normed_rows(Work *w, const float *norm, const Matrix *next, int first) {
    int n = w->tokens - first;
    w->norm = norm;
    w->next = next->kind;
    w->first = first;
    run_parallel(n > 2 ? w->threads : 1, n, norm_rows, w);
    return &w->normed;
}

/* Rotates and stores the key and the value of a token and a group. */
static void keep_entry(const Work *w, int t, int g) {
    const Model *m = w->model;
    int head = m->head;
    float *key = w->qkv + ((int64_t)t * (m->heads + 2 * m->groups) + m->heads + g) * head;
    int64_t at = (int64_t)w->position[t] * (head / 2), room = (int64_t)w->cache->room * head;
    rotate(key, head, w->cache->cosines + at, w->cache->sines + at, w->layer->key_norm, m->epsilon, 1);
    store_entry(w->keys + g * room, w->values + g * room, head, w->start + t, key, key + (int64_t)m->groups * head);
}

/* By group: the keys of neighbouring tokens lie in the same cache lines, which threads would take from each other. */
static void keep_entries(void *job, int thread, int begin, int end) {
    const Work *w = job;
    (void)thread;
    for (int g = begin; g < end; g++)
        for (int t = 0; t < w->tokens; t++) keep_entry(w, t, g);
}

/* Finds the entries that the token of the q-th query sees. */
static void see(const Work *w, int t, int q, int32_t *path, Seen *seen) {
    int length = 0, base = w->base;
    for (int a = w->start - base + t; a >= 0; a = base + a < seen->common ? -1 : w->parent[a]) length += base + a >= seen->common;
    for (int a = w->start - base + t, i = length; i > 0; a = w->parent[a]) path[--i] = base + a;
    seen->path[q] = path;
    seen->length[q] = length;
}

/* Attention of `n` queries of a group, the first of them `begin`: of each token one for each head. */
static void attend_queries(const Work *w, int g, int begin, int n, int thread) {
    const Model *m = w->model;
    int head = m->head, heads = m->heads / m->groups, first = w->wanted + begin / heads, last = w->wanted + (begin + n - 1) / heads;
    int64_t room = (int64_t)w->cache->room * head;
    float *queries = w->own[thread].row, *out = queries + QUERIES * head;
    Seen seen = {.common = w->mutual ? w->start + w->tokens : last < w->chain ? w->start + first + 1 : w->base};
    seen.most = w->mutual ? seen.common : w->start + last + 1;
    for (int q = 0; q < n; q++) {
        int t = w->wanted + (begin + q) / heads, h = (begin + q) % heads;
        int64_t at = (int64_t)w->position[t] * (head / 2);
        float *query = queries + q * head;
        memcpy(query, w->qkv + ((int64_t)t * (m->heads + 2 * m->groups) + g * heads + h) * head, 4 * (size_t)head);
        rotate(query, head, w->cache->cosines + at, w->cache->sines + at, w->layer->query_norm, m->epsilon, m->scale);
        if (!w->mutual) see(w, t, q, w->own[thread].path + q * w->longest, &seen);
    }
    attend(n, &seen, queries, head, w->keys + g * room, w->values + g * room, w->own[thread].scores, w->stride, out);
    for (int q = 0; q < n; q++)
        put(&w->attended, w->layer->out.kind, m->wide, (begin + q) / heads, (g * heads + (begin + q) % heads) * head, out + q * head, head);
}

static void attend_groups(void *job, int thread, int begin, int end) {
    const Work *w = job;
    int groups = w->model->groups, all_queries = (w->tokens - w->wanted) * (w->model->heads / groups);
    for (int u = begin; u < end; u++) {
        int first = u / groups * QUERIES, n = all_queries - first;
        if (w->tokens == 1 && all_queries <= QUERIES) keep_entry(w, 0, u);
        attend_queries(w, u % groups, first, n < QUERIES ? n : QUERIES, thread);
    }
}

/* gate / (1 + e^-gate) * up, of the 32 rows of each in a block of 64 */
static void gate(float *gate, const float *up) {
    for (int i = 0; i < BLOCK; i += LANES) {
        vf x = load(gate + i);
        store(gate + i, x / (exponential(-x) + 1.f) * load(up + i));
    }
}

static void gate_and_up(void *job, int thread, int begin, int end) {
    const Work *w = job;
    const Layer *l = w->layer;
    int n = w->tokens - w->wanted, wide = w->model->wide;
    (void)thread;
    begin_amx(&w->normed, l->gate_up.kind, wide, n);
    for (int f = begin; f < end; f++)
        for (int token = 0, done = 0; token < n; token += done) {
            _Alignas(64) float rows[WIDEST][2 * BLOCK];
            done = tile(&l->gate_up, wide, 4 * f, 4, &w->normed, n, token, rows[0], 2 * BLOCK);
            for (int t = 0; t < done; t++) {
                gate(rows[t], rows[t] + BLOCK);
                put(&w->gated, l->down.kind, wide, token + t, f * BLOCK, rows[t], BLOCK);
            }
        }
    end_amx(&w->normed, l->gate_up.kind, wide, n);
}

/* One decoder layer over w->x, in place. `keys`, `values`: the layer's entries. */
OUTLINE void run_layer(Work *w, const Layer *l, float *keys, float *values) {
    const Model *m = w->model;
    int n = w->tokens, wanted = n - w->wanted, threads = w->threads;
    float *x = w->x + (int64_t)w->wanted * m->width;
    w->layer = l;
    w->keys = keys;
    w->values = values;
    const Input *in = w->given ? w->given : normed_rows(w, l->attention_norm, &l->query_key_value, 0);
    int64_t row = (m->heads + 2 * m->groups) * m->head;
    multiply(&l->query_key_value, m->wide, in, n, w->qkv, row, 0, threads);
    if (l->value.rows) multiply(&l->value, m->wide, in, n, w->qkv + l->query_key_value.rows, row, 0, threads);

    /* Of a single token each group attends to entries that its own thread has written, if one attends for all its heads. */
    if (n > 1 || !wanted || m->heads / m->groups > QUERIES) run_parallel(n > 2 ? threads : 1, m->groups, keep_entries, w);
    if (!wanted) return;
    int queries = wanted * (m->heads / m->groups);
    run_parallel(threads, (queries + QUERIES - 1) / QUERIES * m->groups, attend_groups, w); /* by so many queries of a group */
    multiply(&l->out, m->wide, &w->attended, wanted, x, m->width, 1, threads);

    /* By 32 rows of the inner width, which are the next product's blocks. */
    normed_rows(w, l->mlp_norm, &l->gate_up, w->wanted);
    run_parallel(threads, m->inner / BLOCK, gate_and_up, w);
    multiply(&l->down, m->wide, &w->gated, wanted, x, m->width, 1, threads);
}

/* A row of the embedding in float32. */
OUTLINE void embedding_row(const Model *m, int id, float *to) {
    for (int i = 0; i < m->width; i += LANES) {
        int64_t at = (int64_t)id * m->width + i;
        const uint16_t *half = (const uint16_t *)m->embedding + at;
        store(to + i, m->embedding_kind == BFLOAT16  ? from_bfloat16(half)
                      : m->embedding_kind == FLOAT16 ? from_half((const uint8_t *)half)
                                                     : load((const float *)m->embedding + at));
    }
}

typedef struct {
    const Pass *pass;
    Work work;
} Job;

static void embed(void *given, int thread, int begin, int end) {
    const Job *job = given;
    const Model *m = job->work.model;
    (void)thread;
    for (int t = begin; t < end; t++) embedding_row(m, job->pass->ids[t], job->work.x + (int64_t)t * m->width);
}

/* Copies what is asked for of a layer's output. */
COLD void watch(const Job *job, int layer) {
    const Pass *p = job->pass;
    const Model *m = job->work.model;
    for (int i = 0; i < p->watching; i++)
        for (int t = 0; t < p->tokens && p->watched[i] == layer; t++) {
            float *to = p->hidden + ((int64_t)t * p->watching + i) * m->width;
            const float *x = job->work.x + (int64_t)t * m->width;
            if (layer < 0) rms_norm(x, m->norm, to, m->width, m->epsilon);
            else memcpy(to, x, 4 * (size_t)m->width);
        }
}

/* Whether the output of the last layer is wanted of all tokens, not only of those whose logits are. */
static int watches_last(const Pass *p, int layers) {
    for (int i = 0; i < p->watching; i++)
        if (p->watched[i] < 0 || p->watched[i] == layers - 1) return 1;
    return 0;
}

static int32_t highest(const float *x, int n) {
    vf top = all(-INFINITY);
    vi at = all_int(0), wrong = all_int(0);
    int i = 0, found = 0, bad = 0;
    for (; i + LANES <= n; i += LANES) {
        vf v = load(x + i);
        vi more = v > top;
        at = (more & i) | (at & ~more);
        top = larger(v, top);
        wrong |= v != v;
    }
    float most = -INFINITY;
    for (int lane = 0; lane < LANES; lane++) {
        int here = at[lane] + lane;
        bad |= wrong[lane];
        if (top[lane] > most || (top[lane] == most && here < found)) {
            most = top[lane];
            found = here;
        }
    }
    for (; i < n; i++) {
        bad |= x[i] != x[i];
        if (x[i] > most) most = x[found = i];
    }
    return bad ? -1 : found;
}

static void find_highest(void *given, int thread, int begin, int end) {
    const Job *job = given;
    int vocabulary = job->work.model->vocabulary;
    (void)thread;
    for (int t = begin; t < end; t++)
        job->pass->highest[t] = highest(job->pass->logits + (int64_t)t * vocabulary, vocabulary);
}

COLD void run_pass(const Model *m, const Cache *c, const Pass *pass, int threads) {
    uint8_t *scratch = pass->scratch;
    Job job = {pass, new_work(&scratch, m, c, pass->tokens, pass->start + pass->tokens, threads)};
    Work *w = &job.work;
    int64_t layer = (int64_t)m->groups * c->room * m->head;
    place(w, pass->tokens, pass->start, pass->parents, pass->branching);
    run_parallel(pass->tokens > 2 ? threads : 1, pass->tokens, embed, &job); /* by tokens */
    for (int l = 0; l < m->layers; l++) {
        if (l == m->layers - 1 && !watches_last(pass, m->layers)) w->wanted = pass->tokens - pass->keep;
        run_layer(w, m->layer + l, c->keys + l * layer, c->values + l * layer);
        watch(&job, l);
    }
    watch(&job, -1);
    if (!pass->keep) return;
    const Input *in = normed_rows(w, m->norm, &m->logits, w->tokens - pass->keep);
    multiply(&m->logits, m->wide, in, pass->keep, pass->logits, m->vocabulary, 0, threads);
    run_parallel(threads, pass->keep, find_highest, &job); /* by rows of logits */
}

/* Moves the entries start + path[i] to start + i; path[i] is at least i, and they ascend. */
COLD void gather(const Model *m, const Cache *c, int start, const int32_t *path, int count) {
    int64_t head = m->head, groups = (int64_t)m->layers * m->groups;
    for (int64_t g = 0; g < groups; g++) {
        float *keys = c->keys + g * c->room * head, *values = c->values + g * c->room * head;
        for (int i = 0; i < count; i++) {
            int to = start + i, at = start + path[i];
            if (to == at) continue;
            float key[128];
            const float *from = keys + (int64_t)(at / GROUP) * GROUP * head + at % GROUP;
            for (int j = 0; j < head; j++) key[j] = from[j * GROUP];
            store_entry(keys, values, m->head, to, key, values + at * head);
        }
    }
}

static int64_t pass_scratch(const Model *model, int tokens, int entries, int threads) {
    uint8_t *end = 0;
    new_work(&end, model, NULL, tokens, entries, threads);
    return (int64_t)(uintptr_t)end;
}
