/* Keys, and the random activations of float32 tensors in one pass over memory, for rbue.kernels.native.
 *
 * Rows lie one after the other in memory; output row r reads input row r % x_rows. table[i] is mix(element i),
 * (k1[r], k2[r]) the key of row r, and turn[r] its turn in a cycle of balanced draws, or turn is NULL: see
 * rbue.random_stream, whose words these are, bit for bit. Input and output may be the same memory. Compile without contraction of a * b + c: the formula in activations/relu.py rounds both operations.
 */

#include <stdint.h>

#define BLOCK 16384 /* elements of one task: enough to be worth a thread, few enough to share out a single row */

struct activation {
    int32_t drop;      /* 1: DropReLU, 0: RReLU */
    int32_t threshold; /* DropReLU drops the ReLU where word < threshold */
    float scale;       /* RReLU's slope is odd * scale + middle */
    float middle;
    float cap; /* NaN for none: no number is above it */
};

struct rows {
    int64_t count;
    int64_t x_count;
    int64_t elements;
};

/* The key of one row; where draws are independent its turn is 0. */
struct key {
    uint32_t k1;
    uint32_t k2;
    uint32_t turn;
};

struct keys {
    const uint32_t *k1;
    const uint32_t *k2;
    const uint32_t *turn;
};

static struct key key_of(struct keys keys, int64_t row) {
    return (struct key){keys.k1[row], keys.k2[row], keys.turn ? keys.turn[row] : 0};
}

static inline uint32_t word_of(uint32_t table, struct key key) {
    uint32_t h = (table ^ key.k1) * 0x9E3779B1u;
    h ^= h >> 15;
    return (h ^ key.k2) * 0x85EBCA77u;
}

/* DropReLU's draws are rotated within a cycle, RReLU's mirrored. */
static inline int32_t rotated(uint32_t table, struct key key) { return (int32_t)(word_of(table, key) + key.turn); }

static inline int32_t mirrored(uint32_t table, struct key key) { return (int32_t)(word_of(table, key) ^ key.turn); }

static inline float slope_of(int32_t word, float scale, float middle) {
    return (float)((word >> 8) | 1) * scale + middle;
}

static void drop_forward(const float *x, float *out, const uint32_t *table, struct key key, int64_t count,
                         int32_t threshold) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float value = x[i];
        int kept = rotated(table[i], key) >= threshold;
        out[i] = (value < 0.0f) & kept ? 0.0f : value;
    }
}

static void rrelu_forward(const float *x, float *out, const uint32_t *table, struct key key, int64_t count,
                          float scale, float middle) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float value = x[i] + 0.0f; /* -0 becomes +0 */
        float sloped = slope_of(mirrored(table[i], key), scale, middle) * value;
        out[i] = value < 0.0f ? sloped : value;
    }
}

static void cap_at(float *out, int64_t count, float cap) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) out[i] = out[i] > cap ? cap : out[i];
}

static void forward(const float *x, float *out, const uint32_t *table, struct key key, int64_t count,
                    struct activation f) {
    if (f.drop)
        drop_forward(x, out, table, key, count, f.threshold);
    else
        rrelu_forward(x, out, table, key, count, f.scale, f.middle);
    if (f.cap == f.cap) cap_at(out, count, f.cap);
}

static void drop_backward(const float *grad, const float *y, float *out, int64_t count, float cap) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        float value = y[i], passed = grad[i];
        out[i] = (value == 0.0f) | (value >= cap) ? 0.0f : passed;
    }
}

static void rrelu_backward(const float *grad, const float *y, float *out, const uint32_t *table, struct key key,
                           int64_t count, float scale, float middle, float cap) {
#pragma omp simd
    for (int64_t i = 0; i < count; i++) {
        union {
            float value;
            int32_t bits;
        } kept = {y[i]};
        float sloped = slope_of(mirrored(table[i], key), scale, middle) * grad[i];
        float passed = kept.bits < 0 ? sloped : grad[i];
        out[i] = (kept.bits == 0) | (kept.value >= cap) ? 0.0f : passed;
    }
}

static inline uint32_t mix(uint32_t x) {
    x = (x ^ x >> 16) * 0x21F0AAADu;
    x = (x ^ x >> 15) * 0x735A2D97u;
    return x ^ x >> 15;
}

/* The keys of every row at every site, (2, sites, rows); sample numbers are one for all rows or one each. */
void rbue_keys(const uint32_t *state, const uint32_t *samples, int64_t sample_stride, const uint32_t *images,
               const uint32_t *numbers, int64_t rows, int64_t sites, uint32_t *out) {
    for (int64_t lane = 0; lane < 2; lane++) {
        for (int64_t site = 0; site < sites; site++) {
            uint32_t *keys = out + (lane * sites + site) * rows;
#pragma omp simd
            for (int64_t row = 0; row < rows; row++)
                keys[row] = mix(mix(mix(state[lane] ^ samples[row * sample_stride]) ^ images[row]) ^ numbers[site]);
        }
    }
}

/* A block of one row: the work is shared out in these. */
struct piece {
    int64_t row;
    int64_t start;
    int64_t count;
};

static int64_t blocks_of(struct rows rows) { return (rows.elements + BLOCK - 1) / BLOCK; }

static struct piece piece_of(int64_t task, struct rows rows) {
    int64_t start = task % blocks_of(rows) * BLOCK, left = rows.elements - start;
    return (struct piece){task / blocks_of(rows), start, left < BLOCK ? left : BLOCK};
}

void rbue_forward(const float *x, float *out, const uint32_t *table, struct keys keys, struct rows rows,
                  struct activation f, int threads) {
    int64_t tasks = rows.count * blocks_of(rows);
    if (threads > tasks) threads = (int)tasks;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t task = 0; task < tasks; task++) {
        struct piece p = piece_of(task, rows);
        const float *from = x + p.row % rows.x_count * rows.elements + p.start;
        float *to = out + p.row * rows.elements + p.start;
        forward(from, to, table + p.start, key_of(keys, p.row), p.count, f);
    }
}

/* Add up the pixels of a block: of whole channels one after the other, or of pixels whose channels lie side by side. */
static void add_planes(const float *block, float *sums, int64_t channels, int64_t pixels) {
    for (int64_t channel = 0; channel < channels; channel++) {
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < pixels; i++) sum += block[channel * pixels + i];
        sums[channel] += sum;
    }
}

static void add_pixels(const float *block, float *sums, int64_t channels, int64_t pixels) {
    for (int64_t pixel = 0; pixel < pixels; pixel++) {
#pragma omp simd
        for (int64_t i = 0; i < channels; i++) sums[i] += block[pixel * channels + i];
    }
}

/* The mean over the pixels of the activation, (rows, channels): its values never leave the cache. A block has planes of
 * some channels, part of a long plane, or some pixels with all channels, of which there are at most BLOCK. */
void rbue_pooled(const float *x, float *out, const uint32_t *table, struct keys keys, struct rows rows,
                 struct activation f, int64_t channels, int channels_last, int threads) {
    int64_t pixels = rows.elements / channels;
    int64_t wide = channels_last ? channels : pixels, many = channels_last ? pixels : channels;
    int64_t together = wide < BLOCK ? BLOCK / wide : 1;
    if (threads > rows.count) threads = (int)rows.count;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t row = 0; row < rows.count; row++) {
        float block[BLOCK];
        float *sums = out + row * channels;
        for (int64_t i = 0; i < channels; i++) sums[i] = 0.0f;
        for (int64_t first = 0; first < many; first += together) {
            int64_t end = (many - first < together ? many : first + together) * wide;
            for (int64_t at = first * wide; at < end; at += BLOCK) {
                int64_t count = end - at < BLOCK ? end - at : BLOCK, plane = wide < count ? wide : count;
                const float *from = x + row % rows.x_count * rows.elements + at;
                forward(from, block, table + at, key_of(keys, row), count, f);
                if (channels_last)
                    add_pixels(block, sums, channels, count / channels);
                else
                    add_planes(block, sums + first, count / plane, plane);
            }
        }
        for (int64_t i = 0; i < channels; i++) sums[i] /= (float)pixels;
    }
}

void rbue_backward(const float *grad, const float *y, float *out, const uint32_t *table, struct keys keys,
                   struct rows rows, struct activation f, int threads) {
    int64_t tasks = rows.count * blocks_of(rows);
    if (threads > tasks) threads = (int)tasks;
#pragma omp parallel for num_threads(threads) if (threads > 1) schedule(static)
    for (int64_t task = 0; task < tasks; task++) {
        struct piece p = piece_of(task, rows);
        int64_t at = p.row * rows.elements + p.start;
        if (f.drop)
            drop_backward(grad + at, y + at, out + at, p.count, f.cap);
        else
            rrelu_backward(grad + at, y + at, out + at, table + p.start, key_of(keys, p.row), p.count, f.scale,
                           f.middle, f.cap);
    }
}
