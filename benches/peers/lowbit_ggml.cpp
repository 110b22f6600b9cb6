// Times ggml's products for lowbit.py: TQ2_0 as "ternary", Q4_0 in the order of its CPU's repacking as "int4", Q8_0 (repacked
// where it can be) as "int8".
//
//     cmake -S LLAMA_CPP -B BUILD -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF && cmake --build BUILD --target ggml
//     g++ -O2 -std=c++17 -I LLAMA_CPP/ggml/include lowbit_ggml.cpp BUILD/ggml/src/libggml.a BUILD/ggml/src/libggml-cpu.a \
//         BUILD/ggml/src/libggml-base.a -fopenmp -o lowbit_ggml
#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml.h"
#include "lowbit_timing.h"
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

// The order that ggml's CPU keeps such weights in, if it has one for them.
static ggml_backend_buffer_type_t place_of(ggml_backend_t cpu, ggml_tensor * product) {
    ggml_backend_dev_t device = ggml_backend_get_device(cpu);
    ggml_backend_reg_t library = ggml_backend_dev_backend_reg(device);
    auto more = (ggml_backend_dev_get_extra_bufts_t) ggml_backend_reg_get_proc_address(library, "ggml_backend_dev_get_extra_bufts");
    for (ggml_backend_buffer_type_t * place = more ? more(device) : nullptr; place && *place; place++) {
        // Whether a place takes a product is asked with weights that are there.
        ggml_tensor * weights = product->src[0];
        weights->buffer = ggml_backend_buft_alloc_buffer(*place, 0);
        const bool takes = ggml_backend_dev_supports_op(device, product);
        ggml_backend_buffer_free(weights->buffer);
        weights->buffer = nullptr;
        if (takes) return *place;
    }
    return ggml_backend_cpu_buffer_type();
}

int main(int argc, char ** argv) {
    const int threads = argc > 1 ? std::atoi(argv[1]) : 1;
    ggml_backend_t cpu = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(cpu, threads);
    return serve([&](const Case & c) -> std::pair<Pass, int> {
        const ggml_type type = c.weights == "ternary" ? GGML_TYPE_TQ2_0 : c.weights == "int4" ? GGML_TYPE_Q4_0 : GGML_TYPE_Q8_0;
        const size_t bytes = ggml_row_size(type, c.k) * c.n;
        const int count = products(c, bytes), copies = c.from == "hot" ? 1 : count;

        struct All {
            ggml_context *weights, *rest;
            ggml_backend_buffer_t in_weights, in_rest;
            ~All() {
                ggml_backend_buffer_free(in_weights), ggml_backend_buffer_free(in_rest);
                ggml_free(weights), ggml_free(rest);
            }
        };
        auto all = std::make_shared<All>();
        const ggml_init_params room = { ggml_tensor_overhead() * (count + 8) + ggml_graph_overhead_custom(count + 8, false), nullptr, true };
        all->weights = ggml_init(room), all->rest = ggml_init(room);
        std::vector<ggml_tensor *> matrices;
        for (int i = 0; i < copies; i++) matrices.push_back(ggml_new_tensor_2d(all->weights, type, c.k, c.n));
        ggml_tensor * rows = ggml_new_tensor_2d(all->rest, GGML_TYPE_F32, c.k, c.m);
        ggml_cgraph * graph = ggml_new_graph_custom(all->rest, count + 8, false);
        ggml_tensor * first = nullptr;
        for (int i = 0; i < count; i++) {
            ggml_tensor * product = ggml_mul_mat(all->rest, matrices[i % copies], rows);
            first = first ? first : product;
            ggml_build_forward_expand(graph, product);
        }
        ggml_backend_buffer_type_t place = place_of(cpu, first);
        std::fprintf(stderr, "ggml: %s weights %ld x %ld are kept as %s\n", ggml_type_name(type), c.k, c.n, ggml_backend_buft_name(place));
        all->in_weights = ggml_backend_alloc_ctx_tensors_from_buft(all->weights, place);
        all->in_rest = ggml_backend_alloc_ctx_tensors_from_buft(all->rest, ggml_backend_cpu_buffer_type());

        std::mt19937 random(1);
        std::vector<float> numbers(c.k * c.n);
        for (float & x : numbers) x = type == GGML_TYPE_TQ2_0 ? (float) (int) (random() % 3) - 1 : (float) random() / 4294967296.0f - 0.5f;
        std::vector<char> packed(bytes);
        ggml_quantize_chunk(type, numbers.data(), packed.data(), 0, c.n, c.k, nullptr);
        for (ggml_tensor * matrix : matrices) ggml_backend_tensor_set(matrix, packed.data(), 0, bytes);
        for (long i = 0; i < c.m * c.k; i++) numbers[i] = (float) random() / 4294967296.0f - 0.5f;
        ggml_backend_tensor_set(rows, numbers.data(), 0, c.m * c.k * sizeof(float));
        return { [cpu, graph, all] { ggml_backend_graph_compute(cpu, graph); }, count };
    });
}
