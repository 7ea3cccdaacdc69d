// A command as llama.cpp builds its own: the main function in a shared library, under its C++ name.
// Structs stay opaque: the library returns and takes them by value, and this is larger than any of them.
#include <stdint.h>
#include <string.h>

struct opaque { uint8_t bytes[1024]; };
struct opaque llama_model_default_params(void);
struct opaque llama_context_default_params(void);
struct opaque llama_batch_get_one(int32_t * tokens, int32_t n, int32_t position, int32_t sequence);
void * llama_model_load_from_file(const char * path, struct opaque params);
void * llama_init_from_model(void * model, struct opaque params);
int32_t llama_decode(void * context, struct opaque batch);

int _Z9fake_tooliPPc(int argc, char ** argv) {
    const char * path = 0;
    for (int i = 1; i + 1 < argc; ++i) {
        if (!strcmp(argv[i], "-m")) path = argv[i + 1];
    }
    if (!path) return 3;
    void * model = llama_model_load_from_file(path, llama_model_default_params());
    if (!model) return 4;
    void * context = llama_init_from_model(model, llama_context_default_params());
    if (!context) return 5;
    int32_t tokens[3] = {5, 6, 7};
    if (llama_decode(context, llama_batch_get_one(tokens, 3, 0, 0))) return 6;
    if (llama_decode(context, llama_batch_get_one(tokens, 1, 3, 0))) return 7;
    return argc > 3 && !strcmp(argv[argc - 1], "fail") ? 8 : 0;
}
