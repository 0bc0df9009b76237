/* Counter-based random inputs: element i of a tensor is a function of (seed, tensor name, i) and of nothing
 * else.
 *
 * Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3. SC 2011), with
 *   key     = seed, low and high word
 *   counter = index low, index high, FNV-1a-32 of the tensor's name, block
 * No function here calls libm or rounds; all are thread-safe and none fails.
 */
#ifndef ET_RNG_H
#define ET_RNG_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct et_stream {
    uint32_t key[2];
    uint32_t name;
};

struct et_stream et_stream(uint64_t seed, const char *name);

/* FNV-1a, 32 bits, of the bytes of `name` without the final zero. */
uint32_t et_name_hash(const char *name);

/* Ten rounds of Philox4x32. */
static inline void et_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xd2511f53 * c0;
        const uint64_t p1 = (uint64_t)0xcd9e8d57 * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9e3779b9;
        k1 += 0xbb67ae85;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* The four words of one block of element `index`: independent, uniform over all 2^32 values. */
static inline void et_block(const struct et_stream *s, uint64_t index, uint32_t block, uint32_t out[4])
{
    const uint32_t counter[4] = {(uint32_t)index, (uint32_t)(index >> 32), s->name, block};
    et_philox(counter, s->key, out);
}

/* The first word of a block: for sampling rows and permutations. */
static inline uint32_t et_word(const struct et_stream *s, uint64_t index, uint32_t block)
{
    uint32_t word[4];
    et_block(s, index, block, word);
    return word[0];
}

/* Nearly normal, mean 0, variance 1 - 2^-32, |x| < 6: a sum of 12 uniforms of 16 bits (Irwin-Hall), centred.
 * A multiple of 2^-16, exact in f32. */
static inline float et_normal(const struct et_stream *s, uint64_t index)
{
    uint32_t a[4], b[4];
    et_block(s, index, 0, a);
    et_block(s, index, 1, b);
    const uint32_t words[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    int32_t sum = 0;
    for (int i = 0; i < 6; i++)
        sum += (int32_t)(words[i] & 0xffff) + (int32_t)(words[i] >> 16);
    /* sum / 65536 - 6 + 6/65536: each half's mean is 32767.5 */
    return (float)(sum - 6 * 65535) / 65536;
}

/* Uniform on the multiples of 2^-23 in [-1, 1). */
static inline float et_uniform(const struct et_stream *s, uint64_t index)
{
    return (float)((int32_t)(et_word(s, index, 0) >> 8) - (1 << 23)) / 8388608;
}

/* The same for n elements from `index` on. */
void et_normal_n(const struct et_stream *s, uint64_t index, int64_t n, float *dst);
void et_uniform_n(const struct et_stream *s, uint64_t index, int64_t n, float *dst);

#ifdef __cplusplus
}
#endif

#endif
