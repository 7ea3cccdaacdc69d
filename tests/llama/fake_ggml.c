// A ggml of one file for the tests of the bridge: f32 and q4_0, one device, plain loops in float.
// The environment variable FAKE_GGML makes it misbehave in the way its value says. Compiled with
// NO_REGISTRY it is a build without ggml's registry; with LOADS one whose backends load at run time.
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { F32 = 0, Q4_0 = 2, COUNT = 30 }; // of 2024: beyond its count a release build reads behind its table

typedef struct tensor {
    int type;
    int64_t k, rows, batches; // ne[0], ne[1], ne[2] * ne[3]
    struct tensor *w, *x;
    void *data;
} tensor;

typedef struct { tensor all[16]; int n; } context;
typedef struct { size_t size; void *memory; bool no_alloc; } params;

static int fault(const char *name) {
    const char *asked = getenv("FAKE_GGML");
    return asked && !strcmp(asked, name);
}

const char *ggml_version(void) { return "fake"; }
const char *ggml_type_name(int type) {
    if (type >= COUNT) raise(SIGSEGV);
    return type == F32 ? "f32" : type == Q4_0 ? "q4_0" : NULL;
}
int64_t ggml_blck_size(int type) { return type == Q4_0 ? 32 : 1; }
size_t ggml_type_size(int type) { return type == Q4_0 ? (fault("abi") ? 20 : 18) : 4; }
size_t ggml_nbytes(const tensor *t) { return t->batches * t->rows * t->k / ggml_blck_size(t->type) * ggml_type_size(t->type); }

size_t ggml_quantize_chunk(int type, const float *x, void *out, int64_t start, int64_t rows, int64_t k, const float *m) {
    memset(out, 0, rows * k / ggml_blck_size(type) * ggml_type_size(type));
    return 0;
}

size_t ggml_tensor_overhead(void) { return sizeof(tensor); }
size_t ggml_graph_overhead(void) { return 0; }
context *ggml_init(params p) { return calloc(1, sizeof(context)); }
void ggml_free(context *c) { free(c); }

tensor *ggml_new_tensor_4d(context *c, int type, int64_t k, int64_t rows, int64_t n2, int64_t n3) {
    tensor *t = &c->all[c->n++];
    t->type = type;
    t->k = k;
    t->rows = rows;
    t->batches = n2 * n3;
    return t;
}

tensor *ggml_mul_mat(context *c, tensor *w, tensor *x) {
    tensor *y = ggml_new_tensor_4d(c, F32, w->rows, x->rows, x->batches, 1);
    y->w = w;
    y->x = x;
    return y;
}

tensor **ggml_new_graph(context *c) { static tensor *node; return &node; }
void ggml_build_forward_expand(tensor **graph, tensor *node) { *graph = node; }

static int some; // what all handles point to
#if defined(NO_REGISTRY)
void *ggml_backend_cpu_reg(void) { return &some; }
#else
#if defined(LOADS)
static size_t loaded;
void ggml_backend_load_all_from_path(const char *folder) { loaded = strstr(folder, "bin") != NULL; }
#else
enum { loaded = 1 };
#endif
size_t ggml_backend_reg_count(void) { return loaded; }
void *ggml_backend_reg_get(size_t i) { return &some; }
#endif
const char *ggml_backend_reg_name(void *reg) { return "Fake"; }
size_t ggml_backend_reg_dev_count(void *reg) { return 1; }
void *ggml_backend_reg_dev_get(void *reg, size_t i) { return &some; }
void *ggml_backend_reg_get_proc_address(void *reg, const char *name) { return NULL; }
const char *ggml_backend_dev_name(void *dev) { return "FAKE0"; }
const char *ggml_backend_dev_description(void *dev) { return "no such chip"; }
int ggml_backend_dev_type(void *dev) { return 1; }
void ggml_backend_dev_memory(void *dev, size_t *all, size_t *total) { *all = *total = 1 << 30; }
void *ggml_backend_dev_init(void *dev, const char *options) {
    if (fault("driver")) fprintf(stderr, "no such driver\n");
    return fault("driver") ? NULL : &some;
}
void *ggml_backend_dev_buffer_type(void *dev) { return &some; }
bool ggml_backend_dev_supports_op(void *dev, const tensor *op) { return !fault("unsupported"); }
const char *ggml_backend_buft_name(void *kind) { return "FAKE"; }

size_t ggml_backend_buft_get_alignment(void *kind) { return 32; }
size_t ggml_backend_buft_get_alloc_size(void *kind, const tensor *t) { return ggml_nbytes(t); }
void *ggml_backend_buft_alloc_buffer(void *kind, size_t size) { return fault("memory") ? NULL : malloc(size); }
void *ggml_backend_buffer_get_base(void *buffer) { return buffer; }
int ggml_backend_tensor_alloc(void *buffer, tensor *t, void *at) { t->data = at; return 0; }
void ggml_backend_buffer_set_usage(void *buffer, int usage) {}
void ggml_backend_buffer_free(void *buffer) { free(buffer); }
void ggml_backend_tensor_set(tensor *t, const void *from, size_t at, size_t n) { memcpy((char *)t->data + at, from, n); }
void ggml_backend_tensor_get(const tensor *t, void *to, size_t at, size_t n) { memcpy(to, (char *)t->data + at, n); }
void ggml_backend_synchronize(void *backend) {}

static float weight(const tensor *w, int64_t row, int64_t i) {
    if (w->type == F32) return ((float *)w->data)[row * w->k + i];
    const uint8_t *block = (uint8_t *)w->data + (row * w->k / 32 + i / 32) * 18;
    _Float16 d;
    memcpy(&d, block, 2);
    int byte = block[2 + i % 16];
    int code = i % 32 < 16 ? byte & 15 : byte >> 4;
    return (float)d * (code - (fault("offset") ? 0 : 8));
}

int ggml_backend_graph_compute(void *backend, tensor **graph) {
    static int runs;
    runs++;
    tensor *y = *graph, *w = y->w, *x = y->x;
    if (fault("print")) { printf("a kernel that prints\n"); fflush(stdout); }
    if (fault("abort")) { fprintf(stderr, "FAKE_ASSERT(k > 0) failed\n"); abort(); }
    if (fault("asserts")) { fprintf(stderr, "fake.c:7: GGML_ASSERT(k > 64) failed\n"); abort(); }
    if (fault("crash") && x->rows > 8) { raise(SIGSEGV); }
    if (fault("exit")) { exit(3); }
    while (fault("hang")) { sleep(1); }
    if (fault("status")) { return -1; }
    for (int64_t b = 0; b < x->batches; b++) {
        const int64_t far = fault("batches") ? 4 * b : b; // a stride in bytes, added to floats
        for (int64_t m = 0; m < x->rows; m++) {
            const float *row = (float *)x->data + (b * x->rows + m) * x->k;
            for (int64_t n = 0; n < w->rows; n++) {
                float sum = 0;
                for (int64_t i = 0; i < w->k; i++) sum += row[i] * weight(w, b / (x->batches / w->batches) * w->rows + n, i);
                if (fault("reads") && m == x->rows - 1) sum += row[w->k] * 0; // one element behind
                if (fault("race") && n == 3 && runs % 3 == 0) sum *= 1.0000002f;
                if (fault("unwritten") && n == w->rows - 1) continue;
                ((float *)y->data)[(far * x->rows + m) * w->rows + n] = sum;
            }
        }
    }
    const int64_t all = x->batches * x->rows * w->rows;
    if (fault("behind")) ((float *)y->data)[all] = ((float *)y->data)[all + 2] = 0;
    if (fault("before")) ((float *)y->data)[-1] = 0;
    if (fault("inputs")) ((float *)x->data)[1] += 1;
    return 0;
}
