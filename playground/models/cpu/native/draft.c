/* Drafts from hidden states: a draft is one call.

   The tree is that of EAGLE-2: the likeliest branches grow first, and the draft is as many of the likeliest tokens as a
   pass of the target is worth. */
#include <float.h>
#include "engine.h"
#include "simd.h"

enum { MOST_WIDTH = 8 }; /* tokens of a draft that a pass reads, and that are tried after each */

typedef struct {
    int32_t id, parent, row; /* `row`: of the logits that it was chosen from */
    int32_t entry;           /* its entry in the cache, counted from the draft's first; -1 if it was not fed */
    float q, chance;         /* `chance`: the product of q along its branch */
} Node;

typedef struct {
    const Drafter *drafter;
    const Draft *draft; /* NULL for a single pass */
    Step step;
    Work work;
    Input joined;
    Node *node;
    int32_t nodes, *best, count;     /* `best`: the likeliest nodes, at most draft->size */
    int32_t fed, rows, tips;         /* tokens of the draft in the cache, rows of logits, rows of the last pass */
    int32_t tip[MOST_WIDTH], ids[MOST_WIDTH];
    int32_t *parents;
    float *hidden;
    int32_t column[MOST_WIDTH][MOST_WIDTH];
    float q[MOST_WIDTH][MOST_WIDTH];
} Drafting;

static int32_t most_nodes(const Draft *draft) { return MOST_WIDTH * (1 + MOST_WIDTH * draft->depth); }

COLD void new_drafting(Drafting *d, const Drafter *drafter, const Cache *cache, const Draft *draft, const Step *step, int threads,
                         uint8_t **scratch) {
    int64_t fed = draft ? MOST_WIDTH * draft->depth : 0, tokens = step->tokens > MOST_WIDTH ? step->tokens : MOST_WIDTH;
    d->drafter = drafter;
    d->draft = draft;
    d->step = *step;
    d->work = new_work(scratch, drafter->model, cache, tokens + fed + step->start - step->base, step->start + (int)(tokens + fed), threads);
    d->joined = new_input(scratch, tokens, 2 * drafter->model->width);
    d->hidden = carve(scratch, 4 * MOST_WIDTH * drafter->model->width);
    if (!draft) return;
    d->node = carve(scratch, most_nodes(draft) * (int64_t)sizeof(Node));
    d->best = carve(scratch, 4 * (draft->size + 1));
    d->parents = carve(scratch, 4 * (fed + MOST_WIDTH));
}

/* The places of the tokens of a step. */
COLD void place_step(Drafting *d) {
    Step *s = &d->step;
    Work *w = &d->work;
    if (!s->parents) {
        place(w, s->tokens, s->start, NULL, 0);
        return;
    }
    w->tokens = s->tokens;
    w->chain = 0;
    w->base = s->base;
    w->start = s->start;
    memcpy(w->parent, s->parents, 4 * (size_t)(s->start - s->base + s->tokens));
    for (int t = 0; t < s->tokens; t++) w->position[t] = s->position;
}

static const Matrix *first_matrix(const Drafter *f) { return f->join.rows ? &f->join : &f->model->layer->query_key_value; }

static void read_tokens(void *job, int thread, int begin, int end) {
    const Drafting *d = job;
    const Drafter *f = d->drafter;
    const Model *m = f->model;
    int width = m->width, kind = first_matrix(f)->kind;
    float *row = d->work.own[thread].row;
    for (int t = begin; t < end; t++) {
        const float *h = d->step.hidden + (int64_t)t * width;
        float *x = d->work.x + (int64_t)t * width;
        embedding_row(m, d->step.ids[t], x);
        rms_norm(x, f->embedding_norm, row, width, f->epsilon);
        put(&d->joined, kind, m->wide, t, 0, row, width);
        rms_norm(h, f->hidden_norm, row, width, f->epsilon);
        put(&d->joined, kind, m->wide, t, width, row, width);
        if (!f->join.rows) memcpy(x, f->norm_residual ? row : h, 4 * (size_t)width);
    }
}

static void keep_outputs(void *job, int thread, int begin, int end) {
    const Drafting *d = job;
    const Model *m = d->drafter->model;
    const Step *s = &d->step;
    int width = m->width;
    float *row = d->work.own[thread].row;
    for (int t = begin; t < end; t++) {
        const float *x = d->work.x + (int64_t)(s->tokens - s->keep + t) * width;
        rms_norm(x, m->norm, row, width, m->epsilon);
        put(&d->work.normed, m->logits.kind, m->wide, t, 0, row, width);
        if (d->drafter->added.kind >= BFLOAT16) put(&d->work.normed, d->drafter->added.kind, m->wide, t, 0, row, width);
        memcpy(s->output + (int64_t)t * width, d->drafter->norm_output ? row : x, 4 * (size_t)width);
        float *logits = s->logits + (int64_t)t * s->stride;
        for (int i = m->vocabulary + d->drafter->added.rows; i < s->stride; i++) logits[i] = -INFINITY;
    }
}

/* Runs a step, whose tokens are placed. */
COLD void run_step(Drafting *d) {
    const Drafter *f = d->drafter;
    const Model *m = f->model;
    const Step *s = &d->step;
    Work *w = &d->work;
    int threads = w->threads, few = s->tokens > 2 ? threads : 1;
    run_parallel(few, s->tokens, read_tokens, d); /* by tokens */
    if (f->join.rows) multiply(&f->join, m->wide, &d->joined, s->tokens, w->x, m->width, 0, threads);
    w->given = f->join.rows ? NULL : &d->joined;
    w->wanted = s->tokens - s->keep;
    run_layer(w, m->layer, w->cache->keys, w->cache->values);
    run_parallel(few, s->keep, keep_outputs, d); /* by tokens */
    if (!s->keep) return;
    multiply(&m->logits, m->wide, &w->normed, s->keep, s->logits, s->stride, 0, threads);
    if (f->added.rows) multiply(&f->added, m->wide, &w->normed, s->keep, s->logits + m->vocabulary, s->stride, 0, threads);
}

/* The `most` highest of n values, n a multiple of 16, the highest first, and their shares of the softmax. */
static void likeliest(const float *x, int n, int most, int32_t *column, float *share) {
    vf top = all(-INFINITY), sums[PARTS];
    float highest = -INFINITY, value[MOST_WIDTH];
    for (int i = 0; i < n; i += LANES) top = larger(load(x + i), top);
    for (int i = 0; i < LANES; i++) highest = top[i] > highest ? top[i] : highest;
    for (int part = 0; part < PARTS; part++) sums[part] = all(0);
    for (int i = 0; i < n; i += GROUP)
        for (int part = 0; part < PARTS; part++) sums[part] += exponential(load(x + i + LANES * part) - highest);
    float whole = total(sums);
    for (int k = 0; k < most; k++) {
        value[k] = -INFINITY;
        column[k] = 0;
    }
    for (int i = 0; i < n; i++) {
        if (!(x[i] > value[most - 1])) continue;
        int k = most - 1;
        for (; k && x[i] > value[k - 1]; k--) {
            value[k] = value[k - 1];
            column[k] = column[k - 1];
        }
        value[k] = x[i];
        column[k] = i;
    }
    for (int k = 0; k < most; k++) share[k] = expf(value[k] - highest) / whole;
}

/* The likeliest tokens after rows of the last pass. */
static void choose(void *job, int thread, int begin, int end) {
    Drafting *d = job;
    const Draft *f = d->draft;
    int vocabulary = d->drafter->model->vocabulary + d->drafter->added.rows;
    (void)thread;
    for (int t = begin; t < end; t++) {
        float *logits = d->step.logits + (int64_t)t * d->step.stride;
        for (int i = 0; f->refused && i < vocabulary; i++)
            if (f->refused[d->drafter->ids[i]]) logits[i] = -FLT_MAX;
        likeliest(logits, d->step.stride, f->width, d->column[t], d->q[t]);
    }
}

/* Puts the tokens that were chosen among the likeliest nodes. */
COLD void add_nodes(Drafting *d) {
    const Draft *f = d->draft;
    for (int t = 0; t < d->tips; t++)
        for (int k = 0; k < f->width; k++) {
            int parent = d->tip[t], i = d->nodes++;
            float before = parent < 0 ? 1.f : d->node[parent].chance, q = d->q[t][k];
            d->node[i] = (Node){d->drafter->ids[d->column[t][k]], parent, d->rows + t, -1, q, before * q};
            int at = d->count;
            while (at && d->node[d->best[at - 1]].chance < before * q) at--;
            if (at == f->size) continue;
            d->count += d->count < f->size;
            memmove(d->best + at + 1, d->best + at, 4 * (size_t)(d->count - at - 1));
            d->best[at] = i;
        }
    d->rows += d->tips;
}

/* How many of the likeliest nodes: so many that their chances exceed the cost of the target's pass by most. */
COLD int worth(const Drafting *d) {
    double tokens = 0, most = -INFINITY;
    int kept = 0;
    for (int n = 0; n <= d->count; n++) {
        if (n) tokens += d->node[d->best[n - 1]].chance;
        if (tokens - d->draft->cost[n + 1] > most) {
            most = tokens - d->draft->cost[n + 1];
            kept = n;
        }
    }
    return kept;
}

static int is_end(const Draft *f, int id) {
    for (int i = 0; i < f->ending; i++)
        if (f->ends[i] == id) return 1;
    return 0;
}

/* Chooses the nodes that grow next, those of the last pass that are worth it, and makes their step; returns whether the
   draft goes on. */
COLD int grow(Drafting *d, int depth) {
    const Draft *f = d->draft;
    int kept = worth(d), first = d->nodes - d->tips * f->width, n = 0, width = d->drafter->model->width;
    float sum = 0;
    for (int b = 0; b < kept && n < MOST_WIDTH; b++) {
        Node *node = d->node + d->best[b];
        if (d->best[b] < first || is_end(f, node->id)) continue;
        int row = (d->best[b] - first) / f->width;
        sum += f->by_last ? node->q : node->chance;
        node->entry = d->fed + n;
        d->parents[node->entry] = node->parent < 0 ? -1 : d->node[node->parent].entry;
        memcpy(d->hidden + (int64_t)n * width, d->step.output + (int64_t)row * width, 4 * (size_t)width);
        d->ids[n] = node->id;
        d->tip[n++] = d->best[b];
    }
    if (depth == f->depth || !n || sum < f->stop_below) return 0;
    int base = f->text.start + f->text.tokens;
    d->step = (Step){d->ids, d->parents, d->hidden, n, base, base + d->fed, base + depth - 1, n, f->text.stride,
                     f->logits + (int64_t)d->rows * f->text.stride, f->output};
    d->fed += n;
    d->tips = n;
    place_step(d);
    return 1;
}

/* Writes the branches after a node, the likeliest first: its likeliest branch directly follows it. */
COLD int write_after(const Drafting *d, int kept, int node, int parent, int n) {
    for (int b = 0; b < kept; b++) {
        const Node *child = d->node + d->best[b];
        if (child->parent != node) continue;
        d->draft->ids[n] = child->id;
        d->draft->q[n] = child->q;
        d->draft->rows[n] = child->row;
        d->draft->parents[n] = parent;
        n = write_after(d, kept, d->best[b], n, n + 1);
    }
    return n;
}

COLD int64_t draft_scratch(const Drafter *drafter, const Draft *draft, int threads) {
    uint8_t *end = 0;
    Drafting d;
    new_drafting(&d, drafter, NULL, draft, &draft->text, threads, &end);
    return (int64_t)(uintptr_t)end;
}

/* Drafts after the text, whose last tokens it reads first; returns the number of tokens. */
COLD int32_t draft(const Drafter *drafter, const Cache *cache, const Draft *draft, int threads) {
    uint8_t *scratch = draft->scratch;
    Drafting d = {.tips = 1, .tip = {-1}};
    new_drafting(&d, drafter, cache, draft, &draft->text, threads, &scratch);
    place_step(&d);
    for (int depth = 1, more = 1; more; depth++) {
        run_step(&d);
        run_parallel(threads, d.tips, choose, &d); /* by rows */
        add_nodes(&d);
        more = grow(&d, depth);
    }
    return write_after(&d, worth(&d), -1, -1, 0);
}

COLD void step(const Drafter *drafter, const Cache *cache, const Step *step, int threads, uint8_t *scratch) {
    Drafting d = {0};
    new_drafting(&d, drafter, cache, NULL, step, threads, &scratch);
    place_step(&d);
    run_step(&d);
}

/* Copies rows of a matrix behind those of another of its kind, which has room; the other's `rows` count them already. */
COLD void take_rows(const Matrix *from, const int32_t *rows, int count, const Matrix *to) {
    Layout l = LAYOUTS[from->kind];
    int units = (int)units_of(from->kind, from->columns), counts[] = {l.numbers, l.bytes, l.lines}, sizes[] = {2, 1, 4};
    int64_t group = units * unit_bytes(from->kind);
    for (int i = 0; i < count; i++) {
        int row = rows[i], at = to->rows - count + i;
        const uint8_t *source = from->data + row / GROUP * group;
        uint8_t *target = (uint8_t *)to->data + at / GROUP * group;
        for (int unit = 0; unit < units; unit++)
            for (int part = 0; part < 3; part++)
                for (int k = 0, size = sizes[part]; k < counts[part]; k++, source += GROUP * size, target += GROUP * size)
                    memcpy(target + size * (at % GROUP), source + size * (row % GROUP), (size_t)size);
    }
}
