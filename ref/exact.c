#include "exact.h"

int64_t et_code_digits(int64_t rows)
{
    int64_t digits = 1;
    for (int64_t last = rows - 1; last >= 16; last /= 16)
        digits++;
    return digits;
}

float et_code(int64_t digits, int64_t row, int64_t d)
{
    const int64_t lap = d / digits, digit = row >> 4 * (d % digits) & 15;
    const int64_t value = ((2 * (lap / 16 % 8) + 1) * digit + lap + lap / 16) % 16 + 1;
    return (float)(lap / 128 % 2 ? -value : value);
}

/* The first `digits` channels are the number, plain; the others must agree. */
int64_t et_code_row(int64_t digits, const double *got, int64_t n)
{
    int64_t row = 0;
    if (digits > n)
        return -1;
    for (int64_t d = 0; d < digits; d++)
        row |= got[d] >= 1 && got[d] <= 16 ? ((int64_t)got[d] - 1) << 4 * d : 0;
    for (int64_t d = 0; d < n; d++)
        if (got[d] != (double)et_code(digits, row, d))
            return -1;
    return row;
}
