/* A pass of a whole model: embedding, layers, logits. All threads of the team run these functions side by side, phase by
   phase; what each phase claims is said where it begins. */
#include "engine.h"
#include "simd.h"

/* The state of a pass between its layers. Networks that draft from hidden states fill `x` themselves. */
typedef struct {
    int tokens, base, start;        /* `base`: entries that every token sees; `start`: the entry of the first token */
    int32_t *parent, *position;     /* (tokens,): the index of the token before, -1 for the text; the place in the text */
    float *x;                       /* (tokens, width): the residual stream */
    float *qkv;                     /* (tokens, (heads + 2 groups) * head) */
    Input normed, attended, gated;  /* inputs of the products */
    const Input *given;             /* what attention's projections read in place of the norms of x; NULL: those */
    struct {
        Input normed;               /* of a single token, which each thread computes for itself */
        float *row, *scores;        /* (max(width, ...),), (HEADS, stride) */
        int32_t *path;              /* (tokens,) */
    } own[64];
    int64_t stride;                 /* entries, rounded up */
} Work;

enum { MOST_THREADS = 64 };

static int longest_row(const Model *m) {
    int heads = m->heads / m->groups * m->head;
    return m->width > heads ? m->width : heads;
}

OUTLINE Work new_work(uint8_t **scratch, const Model *m, int64_t tokens, int entries, int threads) {
    Work w = {.tokens = (int)tokens, .stride = (entries + 2 * GROUP - 1) / GROUP * GROUP};
    int all_heads = m->heads * m->head;
    w.parent = carve(scratch, tokens * 4);
    w.position = carve(scratch, tokens * 4);
    w.x = carve(scratch, tokens * m->width * 4);
    w.qkv = carve(scratch, tokens * (all_heads + 2 * m->groups * m->head) * 4);
    w.normed = new_input(scratch, tokens, m->width);
    w.attended = new_input(scratch, tokens, all_heads);
    w.gated = new_input(scratch, tokens, m->inner);
    for (int i = 0; i < threads; i++) {
        w.own[i].normed = new_input(scratch, 1, m->width);
        w.own[i].row = carve(scratch, longest_row(m) * 4);
        w.own[i].scores = carve(scratch, HEADS * w.stride * 4);
        w.own[i].path = carve(scratch, tokens * 4);
    }
    return w;
}

/* Tokens in a row, the last of them a tree. */
OUTLINE void place(Work *w, int tokens, int start, const int32_t *tree, int branching) {
    int chain = tokens - branching;
    w->tokens = tokens;
    w->base = w->start = start;
    for (int t = 0; t < tokens; t++) {
        w->parent[t] = t < chain ? t - 1 : tree[t - chain] + chain; /* -1 is the last token of the chain */
        w->position[t] = w->parent[t] < 0 ? start : w->position[w->parent[t]] + 1;
    }
}

/* A phase: norms of the rows from `first` on, as the input of a product. A single token is not worth a phase: every
   thread computes it for itself. Returns the input, whose first row is `first`. */
static const Input *normed_rows(const Model *m, Work *w, const float *norm, const Matrix *next, int first, Team *team) {
    int n = w->tokens - first;
    float *row = w->own[team->id].row;
    if (n == 1) {
        const Input *in = &w->own[team->id].normed;
        rms_norm(w->x + (int64_t)first * m->width, norm, row, m->width, m->epsilon);
        put(in, next->kind, m->wide, 0, 0, row, m->width);
        return in;
    }
    for (Range r = {0}; team_claim(team, n, &r);)
        for (int t = r.begin; t < r.end; t++) {
            rms_norm(w->x + (int64_t)(first + t) * m->width, norm, row, m->width, m->epsilon);
            put(&w->normed, next->kind, m->wide, t, 0, row, m->width);
        }
    team_wait(team);
    return &w->normed;
}

/* Rotates and stores the key and the value of a token and a group. */
static void keep_entry(const Model *m, const Layer *l, const Cache *c, Work *w, float *keys, float *values, int t, int g) {
    int head = m->head;
    float *key = w->qkv + ((int64_t)t * (m->heads + 2 * m->groups) + m->heads + g) * head;
    int64_t at = (int64_t)w->position[t] * (head / 2), room = (int64_t)c->room * head;
    rotate(key, head, c->cosines + at, c->sines + at, l->key_norm, m->epsilon, 1);
    store_entry(keys + g * room, values + g * room, head, w->start + t, key, key + (int64_t)m->groups * head);
}

static void attend_group(const Model *m, const Layer *l, const Cache *c, Work *w, float *keys, float *values, int t, int g, Team *team) {
    int head = m->head, heads = m->heads / m->groups, length = 0;
    float *queries = w->qkv + ((int64_t)t * (m->heads + 2 * m->groups) + g * heads) * head, *row = w->own[team->id].row;
    int64_t at = (int64_t)w->position[t] * (head / 2), room = (int64_t)c->room * head;
    for (int h = 0; h < heads; h++)
        rotate(queries + h * head, head, c->cosines + at, c->sines + at, l->query_norm, m->epsilon, m->scale);
    int32_t *path = w->own[team->id].path;
    for (int a = w->start - w->base + t; a >= 0; a = w->parent[a]) length++;
    for (int a = w->start - w->base + t, i = length; a >= 0; a = w->parent[a]) path[--i] = w->base + a;
    attend(heads, queries, head, keys + g * room, values + g * room, w->base, path, length, w->own[team->id].scores, w->stride, row);
    put(&w->attended, l->out.kind, m->wide, t, g * heads * head, row, heads * head);
}

/* gate / (1 + e^-gate) * up, of the 32 rows of each in a block of 64 */
static void gate(float *gate, const float *up) {
    for (int i = 0; i < BLOCK; i += LANES) {
        vf x = load(gate + i);
        store(gate + i, x / (exponential(-x) + 1.f) * load(up + i));
    }
}

/* One decoder layer over w->x, in place. `keys`, `values`: the layer's entries. */
OUTLINE void run_layer(const Model *m, const Layer *l, const Cache *c, float *keys, float *values, Work *w, Team *team) {
    int n = w->tokens, head = m->head, units = n * m->groups;
    const Input *in = w->given ? w->given : normed_rows(m, w, l->attention_norm, &l->query_key_value, 0, team);
    multiply(&l->query_key_value, m->wide, in, n, w->qkv, (m->heads + 2 * m->groups) * head, 0, team);

    /* By token and group. Of a single token each group attends to entries that its own thread has written. */
    if (n > 1) {
        for (Range r = {0}; team_claim(team, units, &r);)
            for (int u = r.begin; u < r.end; u++) keep_entry(m, l, c, w, keys, values, u / m->groups, u % m->groups);
        team_wait(team);
    }
    for (Range r = {0}; team_claim(team, units, &r);)
        for (int u = r.begin; u < r.end; u++) {
            if (n == 1) keep_entry(m, l, c, w, keys, values, 0, u);
            attend_group(m, l, c, w, keys, values, u / m->groups, u % m->groups, team);
        }
    team_wait(team);
    multiply(&l->out, m->wide, &w->attended, n, w->x, m->width, 1, team);

    /* By 32 rows of the inner width, which are the next product's blocks. */
    in = normed_rows(m, w, l->mlp_norm, &l->gate_up, 0, team);
    for (Range r = {0}; team_claim(team, m->inner / BLOCK, &r);)
        for (int f = r.begin; f < r.end; f++)
            for (int token = 0, done = 0; token < n; token += done) {
                float rows[TILE][2 * BLOCK];
                for (int k = 0; k < 4; k++)
                    done = tile(&l->gate_up, m->wide, 4 * f + k, in, token, n - token, rows[0] + GROUP * k, 2 * BLOCK);
                for (int t = 0; t < done; t++) {
                    gate(rows[t], rows[t] + BLOCK);
                    put(&w->gated, l->down.kind, m->wide, token + t, f * BLOCK, rows[t], BLOCK);
                }
            }
    team_wait(team);
    multiply(&l->down, m->wide, &w->gated, n, w->x, m->width, 1, team);
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

/* A phase: the rows of the embedding. */
static void embed(const Model *m, Work *w, const int32_t *ids, Team *team) {
    for (Range r = {0}; team_claim(team, w->tokens, &r);)
        for (int t = r.begin; t < r.end; t++) embedding_row(m, ids[t], w->x + (int64_t)t * m->width);
    team_wait(team);
}

typedef struct {
    const Model *model;
    const Cache *cache;
    const Pass *pass;
    Work work;
} Job;

/* A phase: copies what is asked for of a layer's output. The team does not wait: nothing writes x before it has. */
static void watch(const Job *job, Work *w, int layer, Team *team) {
    const Pass *p = job->pass;
    int width = job->model->width;
    for (int i = 0; i < p->watching && team->id == 0; i++)
        for (int t = 0; t < w->tokens && p->watched[i] == layer; t++) {
            float *to = p->hidden + ((int64_t)t * p->watching + i) * width;
            const float *x = w->x + (int64_t)t * width;
            if (layer < 0) rms_norm(x, job->model->norm, to, width, job->model->epsilon);
            else memcpy(to, x, 4 * (size_t)width);
        }
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

static void pass_work(void *given, Team *team) {
    Job *job = given;
    const Model *m = job->model;
    const Cache *c = job->cache;
    Work *w = &job->work;
    int64_t layer = (int64_t)m->groups * c->room * m->head;
    embed(m, w, job->pass->ids, team);
    for (int l = 0; l < m->layers; l++) {
        run_layer(m, m->layer + l, c, c->keys + l * layer, c->values + l * layer, w, team);
        watch(job, w, l, team);
    }
    watch(job, w, -1, team);
    int keep = job->pass->keep;
    if (keep) {
        const Input *in = normed_rows(m, w, m->norm, &m->logits, w->tokens - keep, team);
        multiply(&m->logits, m->wide, in, keep, job->pass->logits, m->vocabulary, 0, team);
    }
    for (Range r = {0}; team_claim(team, keep, &r);)
        for (int t = r.begin; t < r.end; t++)
            job->pass->highest[t] = highest(job->pass->logits + (int64_t)t * m->vocabulary, m->vocabulary);
    team_wait(team);
}

static void run_pass(const Model *model, const Cache *cache, const Pass *pass, int threads) {
    uint8_t *scratch = pass->scratch;
    Job job = {model, cache, pass, new_work(&scratch, model, pass->tokens, pass->start + pass->tokens, threads)};
    place(&job.work, pass->tokens, pass->start, pass->parents, pass->branching);
    team_run(threads, pass_work, &job);
}

/* Moves the entries start + path[i] to start + i; path[i] is at least i, and they ascend. */
static void gather(const Model *m, const Cache *c, int start, const int32_t *path, int count) {
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
    new_work(&end, model, tokens, entries, threads);
    return (int64_t)(uintptr_t)end;
}
