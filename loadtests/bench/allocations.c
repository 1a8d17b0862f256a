/* Counts calls of Python's allocator that ask for memory: installed into a running process through ctypes. The
 * struct is PyMemAllocatorEx of Python's C API; the headers of Python are not needed. */
#include <stddef.h>

typedef struct {
    void *context;
    void *(*malloc)(void *, size_t);
    void *(*calloc)(void *, size_t, size_t);
    void *(*realloc)(void *, void *, size_t);
    void (*free)(void *, void *);
} Allocator;

extern void PyMem_GetAllocator(int domain, Allocator *);
extern void PyMem_SetAllocator(int domain, Allocator *);

static Allocator originals[3];
unsigned long long allocations; /* both domains are used under the interpreter's lock only */

static void *count_malloc(void *context, size_t size) {
    Allocator *original = context;
    allocations++;
    return original->malloc(original->context, size);
}

static void *count_calloc(void *context, size_t count, size_t size) {
    Allocator *original = context;
    allocations++;
    return original->calloc(original->context, count, size);
}

static void *count_realloc(void *context, void *block, size_t size) {
    Allocator *original = context;
    allocations++;
    return original->realloc(original->context, block, size);
}

static void pass_free(void *context, void *block) {
    Allocator *original = context;
    original->free(original->context, block);
}

void count_allocations(void) {
    for (int domain = 1; domain < 3; domain++) { /* PYMEM_DOMAIN_MEM, PYMEM_DOMAIN_OBJ */
        PyMem_GetAllocator(domain, &originals[domain]);
        Allocator counting = {&originals[domain], count_malloc, count_calloc, count_realloc, pass_free};
        PyMem_SetAllocator(domain, &counting);
    }
}
