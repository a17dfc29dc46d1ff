// Kernels that pass over rows once, for processors with AVX-512; `vime.trainer.cpu.rows` compiles, loads and describes them.
//
// `VALUE` is what rows hold, float or bf16. Sums are float32, and the number of threads changes none of them but the norm's
// weight gradient.

#include <omp.h>

#include "vectors.h"

typedef VALUE Value;

static const bool EXACT = sizeof(Value) == sizeof(float);

// 1 / (1 + e^-x), whose division is one step of Newton's method.
static inline __m512 sigmoid(__m512 x) {
    x = _mm512_max_ps(all(-80.0f), x);
    __m512 power = exponential<EXACT>(_mm512_sub_ps(all(0.0f), x));
    __m512 y = _mm512_add_ps(all(1.0f), power), guess = _mm512_rcp14_ps(y);
    return _mm512_mul_ps(guess, _mm512_fnmadd_ps(y, guess, all(2.0f)));
}

// ---- RMSNorm and SwiGLU

// Rows are [tokens][heads] with strides, results are dense; `inverse` is 1 / rms of each row.
extern "C" void rms_norm(const Value* x, Index token_stride, Index head_stride, Index tokens, Index heads, Index channels,
                         const Value* weight, float eps, Value* result, float* inverse, int threads) {
#pragma omp parallel for num_threads(threads)
    for (Index token = 0; token < tokens; token++)
        for (Index head = 0; head < heads; head++) {
            Index row = token * heads + head;
            const Value* from = x + token * token_stride + head * head_stride;
            Value* to = result + row * channels;
            __m512 squares = all(0.0f);
            for_vectors(channels, [&](Index c, __mmask16 mask) INLINE {
                __m512 value = load(from + c, mask);
                squares = _mm512_fmadd_ps(value, value, squares);
            });
            float scale = inverse[row] = 1.0f / std::sqrt(_mm512_reduce_add_ps(squares) / channels + eps);
            for_vectors(channels, [&](Index c, __mmask16 mask) INLINE {
                __m512 normal = _mm512_mul_ps(load(from + c, mask), all(scale));
                store(to + c, _mm512_mul_ps(normal, load(weight + c, mask)), mask);
            });
        }
}

// `of_weight` is [threads][channels], zeros before, a sum of each thread's rows after.
extern "C" void rms_norm_backward(const Value* gradient, const Value* x, Index token_stride, Index head_stride, Index tokens,
                                  Index heads, Index channels, const Value* weight, const float* inverse, Value* of_x,
                                  float* of_weight, int threads) {
#pragma omp parallel for num_threads(threads)
    for (Index token = 0; token < tokens; token++)
        for (Index head = 0; head < heads; head++) {
            Index row = token * heads + head;
            const Value *from = x + token * token_stride + head * head_stride, *of_result = gradient + row * channels;
            Value* to = of_x + row * channels;
            float* sum = of_weight + omp_get_thread_num() * channels;
            __m512 scale = all(inverse[row]), dots = all(0.0f);
            for_vectors(channels, [&](Index c, __mmask16 mask) INLINE {
                __m512 product = _mm512_mul_ps(load(of_result + c, mask), _mm512_mul_ps(load(from + c, mask), scale));
                dots = _mm512_fmadd_ps(product, load(weight + c, mask), dots);
                _mm512_mask_storeu_ps(sum + c, mask, _mm512_add_ps(_mm512_maskz_loadu_ps(mask, sum + c), product));
            });
            __m512 mean = _mm512_mul_ps(all(_mm512_reduce_add_ps(dots) / channels), scale);
            for_vectors(channels, [&](Index c, __mmask16 mask) INLINE {
                __m512 weighted = _mm512_mul_ps(load(of_result + c, mask), load(weight + c, mask));
                store(to + c, _mm512_mul_ps(_mm512_fnmadd_ps(mean, load(from + c, mask), weighted), scale), mask);
            });
        }
}

// `x` is [rows][gate, linear], of `channels` each.
extern "C" void swiglu(const Value* x, Index rows, Index channels, Value* result, int threads) {
#pragma omp parallel for num_threads(threads)
    for (Index row = 0; row < rows; row++) {
        const Value *gates = x + 2 * row * channels, *linears = gates + channels;
        Value* to = result + row * channels;
        for_vectors(channels, [&](Index c, __mmask16 mask) INLINE {
            __m512 gate = load(gates + c, mask), product = _mm512_mul_ps(gate, load(linears + c, mask));
            store(to + c, _mm512_mul_ps(product, sigmoid(gate)), mask);
        });
    }
}

extern "C" void swiglu_backward(const Value* gradient, const Value* x, Index rows, Index channels, Value* of_x, int threads) {
#pragma omp parallel for num_threads(threads)
    for (Index row = 0; row < rows; row++) {
        const Value *gates = x + 2 * row * channels, *linears = gates + channels, *of_result = gradient + row * channels;
        Value *of_gates = of_x + 2 * row * channels, *of_linears = of_gates + channels;
        for_vectors(channels, [&](Index c, __mmask16 mask) INLINE {
            __m512 gate = load(gates + c, mask), part = sigmoid(gate), activated = _mm512_mul_ps(gate, part);
            __m512 slope = _mm512_fmadd_ps(part, _mm512_sub_ps(gate, activated), part), outer = load(of_result + c, mask);
            store(of_gates + c, _mm512_mul_ps(_mm512_mul_ps(outer, load(linears + c, mask)), slope), mask);
            store(of_linears + c, _mm512_mul_ps(outer, activated), mask);
        });
    }
}

// ---- logprob and entropy

// Of each row of logits, divided by the temperature: logprob of the target, entropy, logarithm of the sum of exponentials.
extern "C" void logprobs(const Value* logits, const int64_t* target, Index rows, Index vocabulary, float temperature,
                         float* logprob, float* entropy, float* log_total, int threads) {
    __m512 factor = all(1.0f / temperature);
#pragma omp parallel for num_threads(threads)
    for (Index row = 0; row < rows; row++) {
        const Value* from = logits + row * vocabulary;
        __m512 largest = all(-INFINITY), total = all(0.0f), weighted = all(0.0f);
        for_vectors(vocabulary, [&](Index v, __mmask16 mask) INLINE {
            largest = _mm512_mask_max_ps(largest, mask, largest, _mm512_mul_ps(load(from + v, mask), factor));
        });
        float most = _mm512_reduce_max_ps(largest);
        for_vectors(vocabulary, [&](Index v, __mmask16 mask) INLINE {
            __m512 shifted = _mm512_fmsub_ps(load(from + v, mask), factor, all(most));
            __m512 value = _mm512_maskz_mov_ps(mask, exponential<EXACT>(shifted));
            total = _mm512_add_ps(total, value);
            weighted = _mm512_fmadd_ps(value, shifted, weighted);
        });
        float sum = _mm512_reduce_add_ps(total), log_sum = std::log(sum);
        float own = _mm512_cvtss_f32(load(from + target[row], 1)) / temperature;
        logprob[row] = own - most - log_sum;
        entropy[row] = log_sum - _mm512_reduce_add_ps(weighted) / sum;
        log_total[row] = log_sum + most;
    }
}

// `by_logprob` and `by_entropy` are the gradients of the two results.
extern "C" void logprobs_backward(const Value* logits, const int64_t* target, Index rows, Index vocabulary, float temperature,
                                  const float* by_logprob, const float* by_entropy, const float* entropy,
                                  const float* log_total, Value* of_logits, int threads) {
    __m512 factor = all(1.0f / temperature);
#pragma omp parallel for num_threads(threads)
    for (Index row = 0; row < rows; row++) {
        const Value* from = logits + row * vocabulary;
        Value* to = of_logits + row * vocabulary;
        float own = by_logprob[row] / temperature, other = by_entropy[row] / temperature;
        __m512 total = all(log_total[row]), constant = all(-own - other * entropy[row]), slope = all(-other);
        auto of_all = [&](Index v, __mmask16 mask) INLINE {
            __m512 logprob = _mm512_fmsub_ps(load(from + v, mask), factor, total);
            return _mm512_mul_ps(exponential<EXACT>(logprob), _mm512_fmadd_ps(slope, logprob, constant));
        };
        for_vectors(vocabulary, [&](Index v, __mmask16 mask) INLINE { store(to + v, of_all(v, mask), mask); });
        store(to + target[row], _mm512_add_ps(of_all(target[row], 1), all(own)), 1);
    }
}
