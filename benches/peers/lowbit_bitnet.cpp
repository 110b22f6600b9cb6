// Times the product of bitnet.cpp's I2_S kernel for lowbit.py, as "ternary": rows are rounded to 8 bits, each thread takes part of
// the outputs, and sums are scaled, as bitnet.cpp does around it.
//
//     g++ -O3 -march=native -std=c++17 -fpermissive -fopenmp -I BITNET/include -I FORK/ggml/include -I FORK/ggml/src \
//         lowbit_bitnet.cpp BITNET/src/ggml-bitnet-mad.cpp LLAMA_BUILD/ggml/src/libggml-base.a -o lowbit_bitnet
//
// FORK is the llama.cpp that bitnet.cpp comes with; of the library only a function is linked that is never called.
#include "gemm-config.h"
#include "lowbit_timing.h"
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <random>

extern "C" void ggml_vec_dot_i2_i8_s(int n, float * s, size_t bs, const void * vx, size_t bx, const void * vy, size_t by, int nrc);
void ggml_vec_dot_i2_i8_s_1x1(int n, float * s, size_t bs, const void * vx, size_t bx, const void * vy, size_t by, int nrc);

struct Operands {
    std::vector<uint8_t *> matrices;
    std::vector<float> rows, out, steps;
    std::vector<int> sums;
    int8_t * rounded = nullptr;
    ~Operands() {
        for (uint8_t * matrix : matrices) std::free(matrix);
        std::free(rounded);
    }
};

static void round_rows(Operands & o, long m, long k) {
    for (long i = 0; i < m; i++) {
        const float * x = &o.rows[i * k];
        float most = 1e-5f;
        for (long j = 0; j < k; j++) most = std::max(most, std::fabs(x[j]));
        const float inverse = 127 / most;
        int sum = 0;
        for (long j = 0; j < k; j++) {
            const int8_t q = (int8_t) (int) (x[j] * inverse + (x[j] < 0 ? -0.5f : 0.5f));
            o.rounded[i * k + j] = q;
            sum += q;
        }
        o.steps[i] = most / 127, o.sums[i] = sum;
    }
}

// Outputs from `first` up to `last`, in the blocks that bitnet.cpp's configuration names.
static void part(Operands & o, const uint8_t * matrix, long m, long k, long n, long first, long last) {
    if (m == 1) {
        ggml_vec_dot_i2_i8_s_1x1((int) k, &o.out[first], n, matrix + first * k / 4, k, o.rounded, k, (int) (last - first));
    } else {
        for (long c0 = first; c0 < last; c0 += COL_BLOCK_SIZE)
            for (long r0 = 0; r0 < m; r0 += ROW_BLOCK_SIZE)
                for (long c = c0; c < std::min(last, c0 + COL_BLOCK_SIZE); c++)
                    ggml_vec_dot_i2_i8_s((int) k, &o.out[r0 * n + c], n, matrix + c * k / 4, k, o.rounded + r0 * k, k, ROW_BLOCK_SIZE);
    }
    for (long i = 0; i < m; i++)
        for (long j = first; j < last; j++) o.out[i * n + j] = (o.out[i * n + j] - o.sums[i]) * o.steps[i];
}

int main(int argc, char ** argv) {
    const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
    return serve([&](const Case & c) -> std::pair<Pass, int> {
        if (c.weights != "ternary") return {};
        const size_t bytes = c.k * c.n / 4;
        const int count = products(c, bytes);
        auto o = std::make_shared<Operands>();
        std::mt19937 random(1);
        for (int i = 0; i < (c.from == "hot" ? 1 : count); i++) {
            o->matrices.push_back((uint8_t *) std::aligned_alloc(64, bytes));
            for (size_t at = 0; at < bytes; at++) {
                const unsigned r = random();
                o->matrices[i][at] = (r % 3) | (r / 3 % 3) << 2 | (r / 9 % 3) << 4 | (r / 27 % 3) << 6;
            }
        }
        for (long i = 0; i < c.m * c.k; i++) o->rows.push_back((float) random() / 4294967296.0f - 0.5f);
        o->out.resize(c.m * c.n), o->steps.resize(c.m), o->sums.resize(c.m);
        o->rounded = (int8_t *) std::aligned_alloc(64, c.m * c.k);
        return { [=] {
            #pragma omp parallel num_threads(threads)
            for (int i = 0; i < count; i++) {
                #pragma omp single
                round_rows(*o, c.m, c.k);
                #pragma omp for schedule(static)
                for (int t = 0; t < threads; t++)
                    part(*o, o->matrices[i % o->matrices.size()], c.m, c.k, c.n, c.n * t / threads, c.n * (t + 1) / threads);
            }
        }, count };
    });
}
