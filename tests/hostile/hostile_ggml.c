// The fake ggml of the bridge's tests with trouble in each of its functions. HOSTILE="flood mul_mat" in
// the environment is the trouble and where it strikes: load, devices, quantize, dequantize, mul_mat.
// Processes that it starts are noted in the file HOSTILE_PIDS.
#define _GNU_SOURCE
#define ggml_version calm_version
#define ggml_backend_dev_description calm_description
#define ggml_quantize_chunk calm_quantize
#define ggml_backend_graph_compute calm_compute
#include "../llama/fake_ggml.c"
#undef ggml_version
#undef ggml_backend_dev_description
#undef ggml_quantize_chunk
#undef ggml_backend_graph_compute
#include <fcntl.h>
#include <pthread.h>

static const char *asked(void) { return getenv("HOSTILE") ? getenv("HOSTILE") : ""; }
static int is(const char *trouble) {
    size_t n = strcspn(asked(), " ");
    return n == strlen(trouble) && !strncmp(asked(), trouble, n);
}

static void note(int pid) {
    FILE *file = fopen(getenv("HOSTILE_PIDS"), "a");
    fprintf(file, "%d\n", pid);
    fclose(file);
}

static void child(void (*before)(void)) {
    int pid = fork();
    if (pid) { note(pid); return; }
    if (before) before();
    for (;;) pause();
}

static void leave(void) { setsid(); }

static void shout(int first, int last) {
    static const char line[] = "\x1b[31mwhat a library says to whoever listens\n";
    for (int fd = first; fd < last; fd++) {
        if (fcntl(fd, F_GETFD) >= 0 && write(fd, line, sizeof line - 1) < 0) continue; // not to be written
    }
}

static void *end_soon(void *unused) { usleep(500 + getpid() % 7 * 300); _exit(5); }
static void *shout_on(void *unused) { for (int i = 0; i < 200; i++) { shout(100, 1024); usleep(50); } return NULL; }

static void beside(void *(*work)(void *)) {
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
    pthread_detach(thread);
}

static void flood(void) {
    static char lines[1 << 16];
    memset(lines, 'x', sizeof lines);
    for (int i = 0; i < 2000; i++) if (write(2, lines, sizeof lines) < 0) return;
    fprintf(stderr, "the last words\n");
}

static void trouble(const char *where) {
    const char *place = strchr(asked(), ' ');
    if (!place || strcmp(place + 1, where)) return;
    if (is("spin")) for (;;) { }
    if (is("stop")) raise(SIGSTOP);
    if (is("slow")) usleep(3000);
    if (is("abort")) abort();
    if (is("escape")) { fprintf(stderr, "\x1b]0;owned\x07\x1b[2J\rgone \xff\xe2\x80\xae\n"); abort(); }
    if (is("flood")) { flood(); abort(); }
    if (is("flood_on")) for (;;) flood();
    if (is("fork")) child(NULL);
    if (is("fork_exit")) { child(NULL); _exit(4); }
    if (is("fork_spin")) { child(NULL); for (;;) { } }
    if (is("leave_exit")) { child(leave); _exit(4); }
    if (is("leave_spin")) { child(leave); for (;;) { } }
    if (is("leave_flood")) { child(flood); flood(); child(leave); _exit(4); }
    if (is("shout_low")) shout(3, 100);
    if (is("shout")) shout(0, 1024);
    if (is("shout_on")) beside(shout_on);
    if (is("end_soon")) beside(end_soon);
    if (is("close")) for (int fd = 0; fd < 1024; fd++) close(fd);
    if (is("close_spin")) { for (int fd = 0; fd < 1024; fd++) close(fd); for (;;) { } }
}

const char *ggml_version(void) { trouble("load"); return is("names") ? "1\x1b[31m\xff\n2" : "hostile"; }
const char *ggml_backend_dev_description(void *dev) {
    trouble("devices");
    return is("names") ? "a chip\x1b]0;owned\x07\nof two lines" : is("nameless") ? NULL : "no such chip";
}
size_t ggml_quantize_chunk(int type, const float *x, void *out, int64_t start, int64_t rows, int64_t k, const float *m) {
    trouble("quantize");
    return calm_quantize(type, x, out, start, rows, k, m);
}
void dequantize_row_q4_0(const void *blocks, float *out, int64_t n) {
    trouble("dequantize");
    for (int64_t i = 0; i < n; i++) out[i] = (float)i;
}
int ggml_backend_graph_compute(void *backend, tensor **graph) {
    trouble("mul_mat");
    return calm_compute(backend, graph);
}
