// gcc reader.c -o reader -lm && ./reader vectors/q4_0 all_codes hostile_scales scales_not_finite

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Your decoder; this one is of q4_0. */
enum { BYTES = 18, ELEMENTS = 32 };
static void decode(const uint8_t *block, float *out) {
    _Float16 d;
    memcpy(&d, block, 2);
    for (int j = 0; j < 16; j++) {
        out[j] = (float)d * ((block[2 + j] & 15) - 8);
        out[j + 16] = (float)d * ((block[2 + j] >> 4) - 8);
    }
}

static void *whole(const char *folder, const char *name, const char *role, size_t *size) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s.%s", folder, name, role);
    FILE *file = fopen(path, "rb");
    if (!file) { perror(path); exit(2); }
    fseek(file, 0, SEEK_END);
    *size = (size_t)ftell(file);
    rewind(file);
    void *data = malloc(*size + 1);
    if (fread(data, 1, *size, file) != *size) exit(2);
    fclose(file);
    return data;
}

static size_t wrong(const float *got, const float *want, const float *bound, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++) {
        int fits = fabs((double)got[i] - want[i]) <= bound[i];
        int wild = !isfinite(want[i]) || isinf(bound[i]);
        count += !(fits || (wild && !isfinite(got[i])));
    }
    return count;
}

int main(int argc, char **argv) {            /* vectors/q4_0 all_codes hostile_scales … */
    int status = 0;
    for (int i = 2; i < argc; i++) {
        size_t bytes, n;
        uint8_t *blocks = whole(argv[1], argv[i], "blocks", &bytes);
        float *want = whole(argv[1], argv[i], "values", &n);
        float *bound = whole(argv[1], argv[i], "bounds", &n);
        float *got = malloc(n);
        for (size_t b = 0; b < bytes / BYTES; b++)
            decode(blocks + b * BYTES, got + b * ELEMENTS);
        size_t bad = wrong(got, want, bound, n / sizeof(float));
        printf("%s: %zu of %zu values are wrong\n", argv[i], bad, n / sizeof(float));
        status |= bad != 0;
    }
    return status;
}
