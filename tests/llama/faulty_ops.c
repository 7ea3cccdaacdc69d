// Kernels of libggml-cpu with a fault, for LD_PRELOAD: the library calls its own by names that we take.
// FAULTY says which: "fused" spoils an element where RMS_NORM and MUL are fused, "fused-mul" leaves the MUL out,
// "fused-later" spoils the one of ffn_norm-0 for a single token, "fused-rounds" rounds otherwise there, "race" spoils
// an addition now and then, "rope" and other operations spoil an element there, "glu-rounds" rounds SWIGLU otherwise.
// With FAULTY_IN only libraries with that in their path have the fault, with FAULTY_NODE only the node of that name;
// with FAULTY_BY an element is larger by that, instead of another one. "argsort" exchanges the first and the last rank
// of the first row. "lifetime": the result of norm-1 lies over that of l_out-0, as a wrong allocator would place it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void (*one_t)(const void *, void *);
typedef void (*two_t)(const void *, void *, void *);
typedef void * (*data_t)(const void *);
typedef const char * (*name_t)(const void *);
typedef int64_t (*count_t)(const void *);

enum { WIDTH = 128 };

static void * real(const char * name) { return dlsym(RTLD_NEXT, name); }

static int faulty(const char * fault) {
    const char * wanted = getenv("FAULTY");
    const char * where = getenv("FAULTY_IN");
    Dl_info info;
    if (!wanted || strcmp(wanted, fault)) return 0;
    return !where || (dladdr(real("ggml_compute_forward_add"), &info) && strstr(info.dli_fname, where));
}

static float * data(const void * tensor) { return (float *) ((data_t) dlsym(RTLD_DEFAULT, "ggml_get_data"))(tensor); }

static const char * name(const void * tensor) { return ((name_t) dlsym(RTLD_DEFAULT, "ggml_get_name"))(tensor); }

static int64_t count(const void * tensor) { return ((count_t) dlsym(RTLD_DEFAULT, "ggml_nelements"))(tensor); }

void ggml_compute_forward_rms_norm_mul_fused(const void * params, void * norm, void * product) {
    if (faulty("fused-mul")) {
        ((one_t) real("ggml_compute_forward_rms_norm"))(params, norm);
        if (data(norm) != data(product)) memcpy(data(product), data(norm), 4 * count(product));
        return;
    }
    ((two_t) real("ggml_compute_forward_rms_norm_mul_fused"))(params, norm, product);
    if (faulty("fused-later") && !strcmp(name(product), "ffn_norm-0") && count(product) == WIDTH) data(product)[5] += 0.5f;
    if (faulty("fused")) data(product)[5] += 0.5f;
    if (faulty("fused-rounds")) data(product)[5] = nextafterf(data(product)[5], 1e9f);
}

// Kernels whose node FAULTY names: one element of their result is another one; "op-refuses": an assertion fails.
#define SPOILED(op)                                             \
    void ggml_compute_forward_##op(const void * params, void * result) { \
        if (faulty(#op "-refuses")) refuse(#op);                \
        ((one_t) real("ggml_compute_forward_" #op))(params, result);     \
        if (faulty(#op)) spoil(result);                         \
    }

static int elsewhere(const void * result) {
    const char * node = getenv("FAULTY_NODE");
    return node && strcmp(name(result), node);
}

static void spoil(const void * result) {  // of f32 and of f16 alike: the sign of its last byte, and the exponent
    uint8_t * bytes = (uint8_t *) data(result);
    if (elsewhere(result)) return;
    if (getenv("FAULTY_BY")) {
        data(result)[0] += atof(getenv("FAULTY_BY"));
        return;
    }
    bytes[3] = getenv("FAULTY_NAN") ? 0x7F : bytes[3] ^ 0xA0;
    if (getenv("FAULTY_NAN")) bytes[2] = 0xC0;
}

static void refuse(const char * op) {
    fprintf(stderr, "ops.cpp:7: GGML_ASSERT(%s == NULL) failed\n", op);
    abort();
}

SPOILED(get_rows)
SPOILED(set_rows)
SPOILED(mul)
SPOILED(rope)
SPOILED(soft_max)
SPOILED(flash_attn_ext)
SPOILED(rms_norm)
SPOILED(div)
SPOILED(sum_rows)
SPOILED(arange)

void ggml_compute_forward_add(const void * params, void * result) {
    static int calls;
    ((one_t) real("ggml_compute_forward_add"))(params, result);
    if (faulty("add")) spoil(result);
    if (faulty("race") && ++calls % 7 == 0) data(result)[3] += 0.25f;
}

// Functions of libggml-base by which libllama allocates a graph.
typedef int (*alloc_t)(void *, void *);
typedef void * (*node_t)(void *, int);
typedef int (*length_t)(void *);

enum { TENSOR = 336 };  // bytes of ggml_tensor, among which is the address of its data

static void * named(void * graph, const char * wanted) {
    node_t node = (node_t) dlsym(RTLD_DEFAULT, "ggml_graph_node");
    int n = ((length_t) dlsym(RTLD_DEFAULT, "ggml_graph_n_nodes"))(graph);
    for (int i = 0; i < n; ++i)
        if (!strcmp(name(node(graph, i)), wanted)) return node(graph, i);
    return NULL;
}

int ggml_backend_sched_alloc_graph(void * sched, void * graph) {
    int done = ((alloc_t) real("ggml_backend_sched_alloc_graph"))(sched, graph);
    const char * wanted = getenv("FAULTY");
    if (!wanted || strcmp(wanted, "lifetime")) return done;
    void * norm = named(graph, "norm-1");
    void * residual = named(graph, "l_out-0");
    if (!norm || !residual) return done;
    for (void ** field = norm; (char *) field < (char *) norm + TENSOR - sizeof(void *); ++field)
        if (*field == (void *) data(norm)) {
            *field = data(residual);
            break;
        }
    return done;
}

void ggml_compute_forward_argsort(const void * params, void * result) {
    ((one_t) real("ggml_compute_forward_argsort"))(params, result);
    int32_t * ranks = (int32_t *) data(result);
    int64_t last = count(result) / ((count_t) dlsym(RTLD_DEFAULT, "ggml_nrows"))(result) - 1;
    if (!faulty("argsort") || elsewhere(result)) return;
    int32_t first = ranks[0];
    ranks[0] = ranks[last];
    ranks[last] = first;
}

void ggml_compute_forward_glu(const void * params, void * result) {
    ((one_t) real("ggml_compute_forward_glu"))(params, result);
    if (faulty("glu")) spoil(result);
    for (int64_t i = 0; faulty("glu-rounds") && i < count(result); ++i) data(result)[i] = nextafterf(data(result)[i], 1e9f);
}
