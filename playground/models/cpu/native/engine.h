/* What Python and the files of the engine share: the model in memory, one pass over it, and the threads.

   A result for a token never depends on the other tokens of the pass, on the number of threads or on the instruction
   set, to the bit: integer sums are exact, and every sum of floats has one fixed order. So nothing here may be compiled
   with -ffast-math, and a product and a sum are fused only where `fused` says so. With AMX, weights in bfloat16 alone
   are multiplied in another way than elsewhere, at every width. */
#pragma once
#include <stdint.h>

/* How a matrix is stored, in groups of 16 rows, the last one padded, each by units of so many columns: first numbers of
   16 bits, then signed bytes, one of each row beside the others, then lines of 64 bytes, four of each row.

   FOUR:  of 32 columns a scale and a minimum in float16, then 4 lines. Byte 4 r + k of row r in the u-th holds column
          4 u + k in its lower half and column 4 u + 16 + k in its upper half. A weight is scale q + minimum.
   FIVE:  a fifth line follows, whose bit u belongs to column 4 u + k: a fifth bit of q.
   EIGHT: of 32 columns a scale, then 8 lines, with column 4 u + k of row r at 4 r + k of the u-th. A weight is
          scale (q - 128).
   FOUR_K, FIVE_K: of 256 columns d and m in float16; of each 32 columns a byte s, then of each a byte t; then the lines
          of each as above. A weight is d s q + m t.
   SIX_K: of 256 columns d, and a number that is not used; of each 16 columns a byte s; then of each 32 columns 4 lines
          as those of FOUR, and two whose bits 2 (u % 4) and on are the upper two of q: the first of u from 0 to 3, the
          second of 4 to 7. A weight is d s (q - 32).
   BFLOAT16: of 32 columns, the last ones padded with zeros, 16 lines, with columns 2 u and 2 u + 1 of each row in the
   u-th.
   FLOAT16: of each column the weight. */
enum { FOUR, FIVE, EIGHT, FOUR_K, FIVE_K, SIX_K, BFLOAT16, FLOAT16 };
enum { GROUP = 16, BLOCK = 32 };
typedef struct {
    int columns, numbers, bytes, lines;
} Layout;
static const Layout LAYOUTS[] = {{32, 2, 0, 4},  {32, 2, 0, 5},   {32, 1, 0, 8}, {256, 2, 16, 32},
                                 {256, 2, 16, 40}, {256, 2, 16, 48}, {32, 0, 0, 16}, {1, 1, 0, 0}};
static inline int64_t unit_bytes(int kind) {
    return GROUP * (2 * LAYOUTS[kind].numbers + LAYOUTS[kind].bytes + 4 * LAYOUTS[kind].lines);
}
static inline int64_t units_of(int kind, int columns) {
    return (columns + LAYOUTS[kind].columns - 1) / LAYOUTS[kind].columns;
}

typedef struct {
    const uint8_t *data;
    const float *bias; /* (rows,) or NULL */
    int32_t kind, rows, columns;
} Matrix;

typedef struct {
    const float *attention_norm, *mlp_norm; /* (width,) */
    const float *query_norm, *key_norm;     /* (head,), or NULL */
    Matrix query_key_value, value; /* `value`: its rows, if they are stored in another way than the others */
    Matrix out;
    Matrix gate_up; /* 32 rows of gate, 32 rows of up, in turn */
    Matrix down;
} Layer;

typedef struct {
    int32_t width, inner, heads, groups, head; /* `groups`: key heads; `head`: the width of one */
    int32_t layers, vocabulary;
    int32_t wide;             /* activations of blocks: 1 for 16 bits, 0 for 8 */
    int32_t embedding_kind;   /* BFLOAT16, FLOAT16 or any other for float32 */
    float epsilon, scale;
    const Layer *layer;
    const void *embedding; /* (vocabulary, width) */
    const float *norm;         /* (width,) */
    Matrix logits;
} Model;

/* The entries of one sequence, at most `room`, a multiple of GROUP.
   keys: [layer][group][room / 16][head][16]; values: [layer][group][room][head]. */
typedef struct {
    float *keys, *values;
    const float *cosines, *sines; /* (positions, head / 2) */
    int32_t room;
} Cache;

typedef struct {
    const int32_t *ids;      /* (tokens,) */
    const int32_t *parents;  /* (branching,): of the last tokens, a tree; -1 is the last token before them */
    const int32_t *watched;  /* (watching,): layers whose output is wanted; -1 is that after the last norm */
    int32_t tokens, branching, watching;
    int32_t start; /* entries in the cache */
    int32_t keep;  /* the number of last tokens whose logits are wanted */
    float *logits; /* (keep, vocabulary) */
    int32_t *highest; /* (keep,): the first of the highest columns of each row; -1 if one of them is not a number */
    float *hidden; /* (tokens, watching * width) */
    uint8_t *scratch;
} Pass;

/* A layer that drafts from hidden states h: an MTP layer or an EAGLE-3 head (draft.c). It reads the norms of the
   embedding e of a token and of the h before it, side by side: attention does, or a product, whose output the layer
   reads. Its own output is the h of the next token. */
typedef struct {
    const Model *model; /* of one layer; `logits`: rows of the head for the draft vocabulary */
    const float *embedding_norm, *hidden_norm;
    Matrix join;            /* (width, 2 width); without rows attention reads e and h */
    Matrix added;           /* further rows of the head, or none */
    const int32_t *ids;     /* the token of each row of `logits`, then of `added` */
    int32_t norm_residual;  /* where attention reads e and h: 1 adds to the norm of h, 0 to h */
    int32_t norm_output;    /* 1: the output is that after the last norm */
    float epsilon;          /* of the norms of e and h */
} Drafter;

/* A pass of a drafter. The last tokens of the text, or tokens of a draft after it. */
typedef struct {
    const int32_t *ids, *parents; /* `parents`: of the draft's tokens up to here, -1 for the text; NULL: text */
    const float *hidden;          /* (tokens, width), that before each token */
    int32_t tokens, base, start;  /* `base`: entries of the text, if this is a draft; `start`: entries in the cache */
    int32_t position, keep;       /* `position`: of a draft's tokens; `keep`: the last tokens whose output is wanted */
    int32_t stride;               /* a multiple of GROUP; logits beyond the vocabulary become -infinity */
    float *logits, *output;       /* (keep, stride), (keep, width) */
} Step;

/* A draft, of the likeliest tokens. A chain is a tree of width 1. */
typedef struct {
    Step text;               /* one output is kept */
    int32_t depth, width;    /* the most tokens in a branch, and after each token */
    int32_t size;            /* the most tokens */
    int32_t by_last;         /* 1: ends after a token whose q is below `stop_below`; 0: when all branches together are */
    float stop_below;
    const float *cost;       /* (size + 2,), of a pass of the target over so many tokens */
    const uint8_t *refused;  /* (vocabulary,): 1 is not drafted; or NULL */
    const int32_t *ends;     /* (ending,): tokens after which nothing is drafted */
    int32_t ending;
    int32_t *ids, *parents, *rows; /* (size,): the draft, branch by branch, and the row of the logits of each */
    float *q;                /* (size,) */
    float *logits, *output;  /* (1 + width (depth - 1), stride), (width, width of the model) */
    uint8_t *scratch;
} Draft;

/* A pass of a network that drafts a block (block.c). */
typedef struct {
    const float *features; /* (reading, width), of the text's next positions */
    float *x;              /* (tokens, width): the block's embeddings, which become its states after the last norm */
    int32_t reading, tokens;
    int32_t start;         /* the text's entries in the cache */
    int32_t causal;        /* 1: a token of the block attends to those before it alone */
    uint8_t *scratch;      /* as for a pass over the larger number of tokens */
} Block;

/* pool.c */
enum { MOST_THREADS = 64 };
void run_parallel(int threads, int total, void (*work)(void *job, int thread, int begin, int end), void *job);

/* engine.c is compiled once for each instruction set. */
typedef struct {
    const char *name;
    int64_t (*scratch)(const Model *model, int tokens, int entries, int threads);
    void (*pass)(const Model *model, const Cache *cache, const Pass *pass, int threads);
    void (*gather)(const Model *model, const Cache *cache, int start, const int32_t *path, int count);
    int64_t (*product_scratch)(int columns, int tokens);
    void (*product)(const Matrix *matrix, int wide, const float *x, int tokens, float *out, int threads, uint8_t *scratch);
    int64_t (*draft_scratch)(const Drafter *drafter, const Draft *draft, int threads);
    void (*step)(const Drafter *drafter, const Cache *cache, const Step *step, int threads, uint8_t *scratch);
    int32_t (*draft)(const Drafter *drafter, const Cache *cache, const Draft *draft, int threads);
    void (*take_rows)(const Matrix *from, const int32_t *rows, int count, const Matrix *to);
    void (*block)(const Model *model, const Cache *cache, const Block *block, int threads);
} Engine;
