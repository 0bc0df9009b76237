/* Every function of one argument over all 2^32 inputs, div over more pairs than the default suite has time
 * for.
 *
 * With ETALON_PROGRESS=FILE the file gets a line for each finished 2^24 inputs of a function, and a later run
 * goes on behind the last of them.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fmath_sample.h"
#include "suite.h"

/* What is known of a function after its first `done` chunks. */
struct progress {
    uint32_t done;
    uint64_t hash;
    double worst;
    uint32_t at; /* the input whose error is worst */
};

enum { CHUNK_BITS = 24, CHUNKS = 1 << (32 - CHUNK_BITS) };

static void add_chunk(const struct function *f, struct progress *progress)
{
    const uint32_t first = progress->done << CHUNK_BITS;
    for (uint32_t i = 0; i < 1U << CHUNK_BITS; i++) {
        const float x = et_as_f32(first + i), got = f->portable(x);
        const double error = error_of(f, x, got);
        if (!(error <= progress->worst)) {
            progress->worst = error;
            progress->at = first + i;
        }
        progress->hash = hash_add(progress->hash, got);
    }
    progress->done++;
}

/* A line counts only for a function that still gives the bits it gave when the line was written. */
static struct progress read_progress(const char *path, const struct function *f, uint64_t of_sample)
{
    struct progress last = {.hash = hash_start};
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[200];
    while (file && fgets(line, sizeof line, file)) {
        char name[16];
        unsigned long long key, hash;
        unsigned int done, at;
        double worst;
        const int read = sscanf(line, "%15s %llx %u %llx %la %x\n", name, &key, &done, &hash, &worst, &at);
        if (read == 6 && strchr(line, '\n') && !strcmp(name, f->name) && key == of_sample && done > last.done)
            last = (struct progress){done, hash, worst, at};
    }
    if (file)
        fclose(file);
    return last;
}

static void write_progress(const char *path, const struct function *f, uint64_t of_sample,
                           const struct progress *progress)
{
    FILE *file = path ? fopen(path, "a") : NULL;
    if (!file)
        return;
    fprintf(file, "%s %016llx %u %016llx %a %08x\n", f->name, (unsigned long long)of_sample, progress->done,
            (unsigned long long)progress->hash, progress->worst, progress->at);
    fclose(file);
}

START_TEST(every_input_is_within_the_limit_and_gives_the_recorded_bits)
{
    const struct function *f = &functions[_i];
    const char *path = getenv("ETALON_PROGRESS");
    const uint64_t of_sample = sample_hash(f);
    struct progress progress = read_progress(path, f, of_sample);
    while (progress.done < CHUNKS) {
        add_chunk(f, &progress);
        write_progress(path, f, of_sample, &progress);
    }
    printf("%s: %.4f ulp at most, at 0x%08x; hash 0x%016llx\n", f->name, progress.worst, progress.at,
           (unsigned long long)progress.hash);
    fflush(stdout);
    ck_assert_double_le(progress.worst, f->limit);
    ck_assert_double_eq_tol(progress.worst, f->worst, 1e-4);
    ck_assert_uint_eq(progress.hash, f->hash);
}
END_TEST

static void check_significands(uint32_t a, uint32_t b)
{
    const float x = et_as_f32(0x3f800000 | a), y = et_as_f32(0x3f800000 | b);
    if (et_as_u32(et_div(x, y)) != et_as_u32(x / y))
        ck_abort_msg("%a / %a is %a, not %a", (double)x, (double)y, (double)et_div(x, y), (double)(x / y));
}

START_TEST(div_rounds_correctly_for_every_dividend_of_a_hard_divisor)
{
    /* All ones, its neighbour, and the two smallest above 1. */
    static const uint32_t divisors[] = {0x7fffff, 0x7ffffe, 1, 2};
    for (int i = 0; i < 4; i++) {
        for (uint32_t a = 0; a < 1 << 23; a++)
            check_significands(a, divisors[i]);
    }
}
END_TEST

START_TEST(div_rounds_correctly_for_random_significands)
{
    uint64_t state = 5;
    for (uint32_t i = 0; i < 1 << 28; i++) {
        const uint64_t word = random_bits(&state);
        check_significands((uint32_t)(word >> 41), (uint32_t)word & 0x7fffff);
    }
}
END_TEST

Suite *et_suite(void)
{
    Suite *suite = suite_create("fmath_slow");
    TCase *tcase = tcase_create("all inputs");
    tcase_set_timeout(tcase, 3600);
    tcase_add_loop_test(tcase, every_input_is_within_the_limit_and_gives_the_recorded_bits, 0, FUNCTIONS);
    tcase_add_test(tcase, div_rounds_correctly_for_every_dividend_of_a_hard_divisor);
    tcase_add_test(tcase, div_rounds_correctly_for_random_significands);
    suite_add_tcase(suite, tcase);
    return suite;
}
