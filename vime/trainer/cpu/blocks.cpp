// Kernels in bfloat16 for processors that multiply it; `vime.trainer.cpu.blocks` compiles, loads and describes them.
//
// Attention works on one sequence and one key-value head at a time, by whose blocks threads share the work. Sums are float32, and
// the number of threads changes none of them.

#include <omp.h>

#include <algorithm>
#include <cstring>

#include "multiply.h"

// [rows][columns] to [rows / 2][columns][2].
static void pair_rows(const bf16* from, Index rows, Index columns, bf16* to) {
    for (Index r = 0; r < rows; r += 2)
        for (Index c = 0; c < columns; c += VECTOR) {
            const bf16* first = from + r * columns + c;
            __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)first));
            __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)(first + columns)));
            _mm512_storeu_si512(to + r * columns + 2 * c, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
        }
}

// [rows][columns] of 32 bits to [columns][rows], by blocks of 16 × 16.
static void transpose(const void* from, Index rows, Index columns, void* to) {
    for (Index r = 0; r < rows; r += 16)
        for (Index c = 0; c < columns; c += 16) {
            __m512i x[16], y[16];
            for (int i = 0; i < 16; i++) x[i] = _mm512_loadu_si512((const int32_t*)from + (r + i) * columns + c);
            for (int i = 0; i < 16; i += 2) {
                y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
                y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
            }
            for (int i = 0; i < 16; i += 4)
                for (int j = 0; j < 2; j++) {
                    x[i + 2 * j] = _mm512_unpacklo_epi64(y[i + j], y[i + 2 + j]);
                    x[i + 2 * j + 1] = _mm512_unpackhi_epi64(y[i + j], y[i + 2 + j]);
                }
            for (int i = 0; i < 16; i += 8)
                for (int j = 0; j < 4; j++) {
                    y[i + j] = _mm512_shuffle_i32x4(x[i + j], x[i + 4 + j], 0x88);
                    y[i + 4 + j] = _mm512_shuffle_i32x4(x[i + j], x[i + 4 + j], 0xdd);
                }
            for (int j = 0; j < 8; j++) {
                x[j] = _mm512_shuffle_i32x4(y[j], y[8 + j], 0x88);
                x[8 + j] = _mm512_shuffle_i32x4(y[j], y[8 + j], 0xdd);
            }
            for (int i = 0; i < 16; i++) _mm512_storeu_si512((int32_t*)to + (c + i) * rows + r, x[i]);
        }
}

// ---- attention

struct Heads {  // [tokens][heads][channels] with strides
    bf16* data;
    Index token_stride, head_stride;
    bf16* at(Index token, Index head) const { return data + token * token_stride + head * head_stride; }
};

struct Shape {
    Index sequences, heads, groups, channels;
    const int32_t* starts;  // of each sequence in the row, and the end
    const bf16 *cos, *sin;  // [tokens][channels / 2], or null
    float scale;
    int threads;
};

// A pair of vectors, one of each half of a head, turned by the token's angle.
static inline void turn(const Shape& shape, Index token, Index c, __m512& left, __m512& right, float direction) {
    Index half = shape.channels / 2;
    __m512 cos = load(shape.cos + token * half + c), sin = _mm512_mul_ps(load(shape.sin + token * half + c), all(direction));
    __m512 first = left;
    left = _mm512_fnmadd_ps(right, sin, _mm512_mul_ps(first, cos));
    right = _mm512_fmadd_ps(first, sin, _mm512_mul_ps(right, cos));
}

// One head of a sequence as [rows][channels], turned or not; rows after the sequence are 0.
static void read(const Shape& shape, const Heads& from, Index start, Index head, Index length, Index rows, bf16* to,
                 bool turned) {
    Index channels = shape.channels, half = channels / 2;
    for (Index r = 0; r < length; r++) {
        const bf16* row = from.at(start + r, head);
        if (!turned || !shape.cos) {
            std::memcpy(to + r * channels, row, channels * 2);
            continue;
        }
        for (Index c = 0; c < half; c += VECTOR) {
            __m512 left = load(row + c), right = load(row + half + c);
            turn(shape, start + r, c, left, right, 1.0f);
            store(to + r * channels + c, left);
            store(to + r * channels + half + c, right);
        }
    }
    std::memset(to + length * channels, 0, (rows - length) * channels * 2);
}

// The other way: float32 of a head, turned back or not.
static void write(const Shape& shape, const float* from, const Heads& to, Index start, Index head, Index length, bool turned) {
    Index half = shape.channels / 2;
    for (Index r = 0; r < length; r++) {
        const float* row = from + r * shape.channels;
        for (Index c = 0; c < half; c += VECTOR) {
            __m512 left = _mm512_loadu_ps(row + c), right = _mm512_loadu_ps(row + half + c);
            if (turned && shape.cos) turn(shape, start + r, c, left, right, -1.0f);
            store(to.at(start + r, head) + c, left);
            store(to.at(start + r, head) + half + c, right);
        }
    }
}

// A thread's memory, which the caller has given, handed out in pieces; a copy begins where the original is.
struct Memory {
    char* next;
    template <class T> T* take(Index count) {
        char* piece = next;
        next += (count * sizeof(T) + 63) / 64 * 64;
        return (T*)piece;
    }
};

static Index padded(Index length) { return (length + BLOCK - 1) / BLOCK * BLOCK; }

static Index longest(const Shape& shape) {
    Index most = 0;
    for (Index s = 0; s < shape.sequences; s++) most = std::max<Index>(most, shape.starts[s + 1] - shape.starts[s]);
    return padded(most);
}

// Attention of 32 queries: scores to probabilities times their sum, whose inverse goes to `inverse`.
static void softmax(float* scores, Index first, Index columns, float scale, bf16* result, float* inverse, float* log_total) {
    for (Index r = 0; r < BLOCK; r++) {
        float* row = scores + r * columns;
        Index seen = first + r + 1;
        __m512 largest = all(-INFINITY), total = all(0.0f);
        for (Index c = 0; c < seen; c += VECTOR)
            largest = _mm512_mask_max_ps(largest, lanes(seen - c), largest, _mm512_loadu_ps(row + c));
        float most = _mm512_reduce_max_ps(largest) * scale;
        for (Index c = 0; c < columns; c += VECTOR) {
            __mmask16 mask = c < seen ? lanes(seen - c) : 0;
            __m512 value = exponential(_mm512_fmsub_ps(_mm512_loadu_ps(row + c), all(scale), all(most)));
            value = _mm512_maskz_mov_ps(mask, value);
            total = _mm512_add_ps(total, value);
            store(result + r * columns + c, value);
        }
        float sum = _mm512_reduce_add_ps(total);
        inverse[r] = 1.0f / sum;
        log_total[r] = std::log(sum) + most;
    }
}

static void attend_group(const Shape& shape, Index sequence, Index group, const Heads& query, const Heads& key,
                         const Heads& value, const Heads& output, float* log_total, Memory memory) {
    Index start = shape.starts[sequence], length = shape.starts[sequence + 1] - start, rows = padded(length);
    Index channels = shape.channels, ratio = shape.heads / shape.groups;
    bf16 *plain = memory.take<bf16>(rows * channels), *keys = memory.take<bf16>(rows * channels);
    bf16 *values = memory.take<bf16>(rows * channels), *weights = memory.take<bf16>(BLOCK * rows);
    float *scores = memory.take<float>(BLOCK * rows), *result = memory.take<float>(rows * channels);
    float inverse[BLOCK], log_sums[BLOCK];
    read(shape, key, start, group, length, rows, plain, true);
    transpose(plain, rows, channels / 2, keys);
    read(shape, value, start, group, length, rows, plain, false);
    pair_rows(plain, rows, channels, values);
    for (Index head = group * ratio; head < (group + 1) * ratio; head++) {
        read(shape, query, start, head, length, rows, plain, true);
        for (Index q = 0; q < rows; q += BLOCK) {
            Index seen = q + BLOCK;
            multiply(plain + q * channels, channels, keys, rows, scores, seen, BLOCK, seen, channels);
            softmax(scores, q, seen, shape.scale, weights, inverse, log_sums);
            multiply(weights, seen, values, channels, result + q * channels, channels, BLOCK, channels, seen);
            for (Index r = 0; r < BLOCK; r++) {
                float* row = result + (q + r) * channels;
                for (Index c = 0; c < channels; c += VECTOR)
                    _mm512_storeu_ps(row + c, _mm512_mul_ps(_mm512_loadu_ps(row + c), all(inverse[r])));
                if (q + r < length) log_total[(start + q + r) * shape.heads + head] = log_sums[r];
            }
        }
        write(shape, result, output, start, head, length, false);
    }
}

// Works on the transposed scores of 32 keys at a time, so that probabilities lie as the products with them want it.
static void attend_group_backward(const Shape& shape, Index sequence, Index group, const Heads& query, const Heads& key,
                                  const Heads& value, const Heads& output, const Heads& gradient, const float* log_total,
                                  const Heads& of_query, const Heads& of_key, const Heads& of_value, Memory memory) {
    Index start = shape.starts[sequence], length = shape.starts[sequence + 1] - start, rows = padded(length);
    Index channels = shape.channels, ratio = shape.heads / shape.groups, size = rows * channels;
    bf16 *keys = memory.take<bf16>(size), *values = memory.take<bf16>(size), *across = memory.take<bf16>(size);
    bf16 *queries = memory.take<bf16>(size), *paired_queries = memory.take<bf16>(size), *plain = memory.take<bf16>(size);
    bf16 *outward = memory.take<bf16>(size), *paired_outward = memory.take<bf16>(size);
    bf16 *weights = memory.take<bf16>(BLOCK * rows), *slopes = memory.take<bf16>(BLOCK * rows);
    bf16* paired_slopes = memory.take<bf16>(rows * rows);
    float *scores = memory.take<float>(BLOCK * rows), *of_weights = memory.take<float>(BLOCK * rows);
    float *key_sum = memory.take<float>(size), *value_sum = memory.take<float>(size);
    float *log_sums = memory.take<float>(rows), *dots = memory.take<float>(rows);
    float *query_across = memory.take<float>(size), *query_sum = memory.take<float>(size);
    read(shape, key, start, group, length, rows, keys, true);
    read(shape, value, start, group, length, rows, values, false);
    pair_rows(keys, rows, channels, plain);
    transpose(plain, rows / 2, channels, across);
    for (Index head = group * ratio; head < (group + 1) * ratio; head++) {
        bool adds = head > group * ratio;
        read(shape, query, start, head, length, rows, plain, true);
        transpose(plain, rows, channels / 2, queries);
        pair_rows(plain, rows, channels, paired_queries);
        read(shape, gradient, start, head, length, rows, plain, false);
        transpose(plain, rows, channels / 2, outward);
        pair_rows(plain, rows, channels, paired_outward);
        for (Index r = 0; r < rows; r++) {
            __m512 dot = all(0.0f);
            for (Index c = 0; c < channels && r < length; c += VECTOR)
                dot = _mm512_fmadd_ps(load(plain + r * channels + c), load(output.at(start + r, head) + c), dot);
            dots[r] = _mm512_reduce_add_ps(dot);
            log_sums[r] = r < length ? log_total[(start + r) * shape.heads + head] : INFINITY;  // padding attends to nothing
        }
        for (Index k = 0; k < rows; k += BLOCK) {
            Index columns = rows - k;  // queries that see these keys
            multiply(keys + k * channels, channels, queries + 2 * k, rows, scores, columns, BLOCK, columns, channels);
            multiply(values + k * channels, channels, outward + 2 * k, rows, of_weights, columns, BLOCK, columns, channels);
            for (Index r = 0; r < BLOCK; r += 2)
                for (Index c = 0; c < columns; c += VECTOR) {
                    __m512 shift = _mm512_loadu_ps(log_sums + k + c), dot = _mm512_loadu_ps(dots + k + c);
                    __m512i pair[2];
                    for (Index i = r; i < r + 2; i++) {
                        Index unseen = std::clamp<Index>(i - c, 0, VECTOR), at = i * columns + c;
                        __mmask16 mask = 0xffffu << unseen;
                        __m512 score = _mm512_fmsub_ps(_mm512_loadu_ps(scores + at), all(shape.scale), shift);
                        __m512 weight = _mm512_maskz_mov_ps(mask, exponential(score));
                        __m512 slope = _mm512_mul_ps(weight, _mm512_sub_ps(_mm512_loadu_ps(of_weights + at), dot));
                        __m256i rounded_slope = narrow(_mm512_mul_ps(slope, all(shape.scale)));
                        store(weights + at, weight);
                        _mm256_storeu_si256((__m256i*)(slopes + at), rounded_slope);
                        pair[i - r] = _mm512_cvtepu16_epi32(rounded_slope);
                    }
                    __m512i both = _mm512_or_si512(pair[0], _mm512_slli_epi32(pair[1], 16));
                    _mm512_storeu_si512(paired_slopes + (k + r) * rows + 2 * (k + c), both);
                }
            Index at = k * channels;
            multiply(weights, columns, paired_outward + at, channels, value_sum + at, channels, BLOCK, channels, columns, adds);
            multiply(slopes, columns, paired_queries + at, channels, key_sum + at, channels, BLOCK, channels, columns, adds);
        }
        for (Index q = 0; q < rows; q += BLOCK)
            multiply(across, rows, paired_slopes + 2 * q, rows, query_across + q, rows, channels, BLOCK, q + BLOCK);
        transpose(query_across, channels, rows, query_sum);
        write(shape, query_sum, of_query, start, head, length, true);
    }
    write(shape, key_sum, of_key, start, group, length, true);
    write(shape, value_sum, of_value, start, group, length, false);
}

// Bytes of memory for all threads.
extern "C" Index attention_bytes(const Shape* shape) {
    Index rows = longest(*shape);
    return shape->threads * rows * (shape->channels * 10 + BLOCK * 6);
}

extern "C" Index attention_backward_bytes(const Shape* shape) {
    Index rows = longest(*shape);
    return shape->threads * rows * (shape->channels * 32 + BLOCK * 12 + rows * 2 + 8);
}

// Calls `work` with memory for each sequence and group, on all threads.
template <class Work> static void for_each_group(const Shape& shape, char* memory, Index bytes, Work work) {
#pragma omp parallel num_threads(shape.threads)
    {
        char* own = memory + bytes / shape.threads * omp_get_thread_num();
        Multiplier multiplier;
#pragma omp for schedule(dynamic)
        for (Index task = 0; task < shape.sequences * shape.groups; task++)
            work(task / shape.groups, task % shape.groups, Memory{own});
    }
}

extern "C" void attention(const Shape* shape, const Heads* query, const Heads* key, const Heads* value, const Heads* output,
                          float* log_total, char* memory) {
    for_each_group(*shape, memory, attention_bytes(shape), [&](Index sequence, Index group, Memory own) {
        attend_group(*shape, sequence, group, *query, *key, *value, *output, log_total, own);
    });
}

extern "C" void attention_backward(const Shape* shape, const Heads* query, const Heads* key, const Heads* value,
                                   const Heads* output, const Heads* gradient, const float* log_total, const Heads* of_query,
                                   const Heads* of_key, const Heads* of_value, char* memory) {
    for_each_group(*shape, memory, attention_backward_bytes(shape), [&](Index sequence, Index group, Memory own) {
        attend_group_backward(*shape, sequence, group, *query, *key, *value, *output, *gradient, log_total, *of_query, *of_key,
                              *of_value, own);
    });
}

// ---- gradients of weights

static const Index TILE = 16 * 32;  // values of a tile
// What a core's caches hold: steps of 32 tokens, outputs and inputs of a task, outputs that are packed together.
static const Index STEPS = 12, LARGEST = 512, PART = 128;

// 32 columns of 32 tokens, or of all that are left and zeros.
struct Rows {
    const bf16* from;
    Index stride;
    alignas(64) bf16 copy[32 * 32];
    Rows(const bf16* from, Index stride, Index tokens) : from(from), stride(stride) {
        if (tokens >= 32) return;
        std::memset(copy, 0, sizeof(copy));
        for (Index r = 0; r < tokens; r++) std::memcpy(copy + r * 32, from + r * stride, 64);
        this->from = copy, this->stride = 32;
    }
    Rows(const Rows&) = delete;
    const bf16* at(Index row) const { return from + row * stride; }
};

// 32 columns as two tiles of pairs of rows, [16][columns][2].
static inline void pack_pairs(const Rows& rows, bf16* tile, Index next) {
    alignas(64) static const int16_t ORDER[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                                  8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    __m512i order = _mm512_load_si512(ORDER);
    for (Index r = 0; r < 16; r++)
        for (Index half = 0; half < 2; half++) {
            const bf16 *first = rows.at(2 * r) + half * 16, *second = rows.at(2 * r + 1) + half * 16;
            __m512i both = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)first));
            both = _mm512_inserti64x4(both, _mm256_loadu_si256((const __m256i*)second), 1);
            _mm512_store_si512(tile + half * next + r * 32, _mm512_permutexvar_epi16(order, both));
        }
}

// 32 columns as two tiles of [columns][32 tokens]. Each lane of 128 bits transposes 8 tokens of 8 columns.
static inline void pack_transposed(const Rows& rows, bf16* tile, Index next) {
    for (Index c = 0; c < 32; c += 8) {
        __m512i x[8], y[8], z[8];
        for (Index r = 0; r < 8; r++) {
            auto lane = [&](Index i) INLINE { return _mm_loadu_si128((const __m128i*)(rows.at(8 * i + r) + c)); };
            x[r] = _mm512_castsi128_si512(lane(0));
            x[r] = _mm512_mask_broadcast_i32x4(x[r], 0x00f0, lane(1));
            x[r] = _mm512_mask_broadcast_i32x4(x[r], 0x0f00, lane(2));
            x[r] = _mm512_mask_broadcast_i32x4(x[r], 0xf000, lane(3));
        }
        for (Index i = 0; i < 8; i += 2) {
            y[i] = _mm512_unpacklo_epi16(x[i], x[i + 1]);
            y[i + 1] = _mm512_unpackhi_epi16(x[i], x[i + 1]);
        }
        for (Index i = 0; i < 8; i += 4)
            for (Index j = 0; j < 2; j++) {
                z[i + 2 * j] = _mm512_unpacklo_epi32(y[i + j], y[i + 2 + j]);
                z[i + 2 * j + 1] = _mm512_unpackhi_epi32(y[i + j], y[i + 2 + j]);
            }
        bf16* to = tile + c / 16 * next + c % 16 * 32;
        for (Index j = 0; j < 4; j++) {
            _mm512_store_si512(to + 2 * j * 32, _mm512_unpacklo_epi64(z[j], z[4 + j]));
            _mm512_store_si512(to + (2 * j + 1) * 32, _mm512_unpackhi_epi64(z[j], z[4 + j]));
        }
    }
}

// Bytes of memory: for each thread some steps of a task's inputs, and of a part of its outputs.
extern "C" Index weight_gradient_bytes(int threads) { return threads * STEPS * BLOCK * (LARGEST + PART) * sizeof(bf16); }

// sum[outputs][inputs] += gradient[tokens][outputs] transposed · x[tokens][inputs]; both widths are multiples of 32.
extern "C" void add_weight_gradient(const bf16* gradient, const bf16* x, Index tokens, Index outputs, Index inputs, float* sum,
                                    char* memory, int threads) {
    Index height = std::min(LARGEST, outputs), width = std::min(LARGEST, inputs), next = STEPS * TILE;
    auto count = [](Index size, Index part) { return (size + part - 1) / part; };
    auto tasks = [&] { return count(outputs, height) * count(inputs, width); };
    while (tasks() % threads && tasks() < 4 * threads && std::max(height, width) > BLOCK) {
        Index& longer = height > BLOCK && 2 * height >= width ? height : width;  // the gradient is dearer to pack
        longer = padded(longer / 2);
    }
#pragma omp parallel num_threads(threads)
    {
        bf16* left = (bf16*)memory + STEPS * BLOCK * (LARGEST + PART) * omp_get_thread_num();
        bf16* right = left + STEPS * BLOCK * PART;
        Multiplier multiplier;
#pragma omp for collapse(2) schedule(dynamic)
        for (Index top = 0; top < outputs; top += height)
            for (Index side = 0; side < inputs; side += width)
                for (Index start = 0; start < tokens; start += STEPS * BLOCK) {
                    Index steps = std::min(STEPS, count(tokens - start, BLOCK));
                    auto rows = [&](const bf16* from, Index stride, Index k) {
                        Index token = start + k * BLOCK;
                        return Rows(from + token * stride, stride, tokens - token);
                    };
                    Index bottom = std::min(top + height, outputs), end = std::min(side + width, inputs);
                    for (Index k = 0; k < steps; k++)
                        for (Index i = side; i < end; i += BLOCK)
                            pack_pairs(rows(x + i, inputs, k), right + (i - side) / 16 * next + k * TILE, next);
                    for (Index part = top; part < bottom; part += PART) {
                        Index last = std::min(part + PART, bottom);
                        for (Index k = 0; k < steps; k++)
                            for (Index o = part; o < last; o += BLOCK)
                                pack_transposed(rows(gradient + o, outputs, k), left + (o - part) / 16 * next + k * TILE, next);
                        for (Index o = part; o < last; o += BLOCK)
                            for (Index i = side; i < end; i += BLOCK)
                                add_products(sum + o * inputs + i, inputs, true, steps, 32, 32, [&](Index k) INLINE {
                                    const bf16* rows = left + (o - part) / 16 * next + k * TILE;
                                    const bf16* columns = right + (i - side) / 16 * next + k * TILE;
                                    return Factors{rows, rows + next, columns, columns + next};
                                });
                    }
                }
    }
}
