#include "rng.h"

uint32_t et_name_hash(const char *name)
{
    uint32_t hash = 0x811c9dc5;
    for (; *name; name++)
        hash = (hash ^ (unsigned char)*name) * 0x01000193;
    return hash;
}

struct et_stream et_stream(uint64_t seed, const char *name)
{
    return (struct et_stream){{(uint32_t)seed, (uint32_t)(seed >> 32)}, et_name_hash(name)};
}

void et_normal_n(const struct et_stream *s, uint64_t index, int64_t n, float *dst)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = et_normal(s, index + (uint64_t)i);
}

void et_uniform_n(const struct et_stream *s, uint64_t index, int64_t n, float *dst)
{
    for (int64_t i = 0; i < n; i++)
        dst[i] = et_uniform(s, index + (uint64_t)i);
}
