/* Codes of the exact family: what a row of values holds so that a sum of rows says which ones it is of. */
#ifndef ET_REF_EXACT_H
#define ET_REF_EXACT_H

#include <stdint.h>

enum { ET_CODE_BITS = 4 }; /* |code| <= 2^4: whole numbers that every type holds, f8e4m3fn too */

/* Hexadecimal digits that number so many rows. */
int64_t et_code_digits(int64_t rows);

/* Digit d % digits of the row's number, plus 1. Each lap of channels permutes the 16 values in its own way,
 * so that one channel does not pass for another. Of one channel all codes have the same sign. */
float et_code(int64_t digits, int64_t row, int64_t d);

/* The row whose code those n channels are, or -1: of none, or fewer channels than digits. */
int64_t et_code_row(int64_t digits, const double *got, int64_t n);

#endif
