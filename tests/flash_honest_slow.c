/* All configurations of flash_honest.c. */
#define EVERY 1
#include "flash_honest.c"
