/* Results files (docs/results.md), read back. */
#ifndef ET_HARNESS_RECORDS_H
#define ET_HARNESS_RECORDS_H

#include "judge.h"

/* What a line says of a run, as far as two results files are compared. */
struct et_record {
    char *id, *device;                /* device NULL: none was needed, or none is named */
    int same;                         /* lines before it with the same id and device */
    char *reason, *order;             /* or NULL */
    char *inputs, *outputs;           /* digests of the steps with a space between, or NULL */
    char *broken;                     /* "CHECK: TEXT" of each broken check, one a line, or NULL */
    enum et_outcome check[ET_CHECKS]; /* as far as their names are known here */
    bool owed;       /* the order has a name and its replay was not skipped: bytes are promised */
    double headroom; /* NaN: none, or no number */
    enum et_verdict verdict;
    int line;
};

struct et_records {
    struct et_record *at; /* sorted by id, device, same */
    int count;
    int announced; /* by the headers; negative: one says nothing */
    char *device;  /* NULL: none, or more than one */
    char *tool;    /* etalon and commit of the first header */
    int last_line;
};

/*
 * A file of at most 256 MiB, or several one after the other in one: header, lines, header, lines. ET_INVALID
 * with "file:line[:column]: sentence" for what is no such file or ends in the middle of a line, with
 * "file: sentence" for what cannot be read or is larger. Keys that it does not know are left alone.
 */
enum et_status et_records_read(const char *path, struct et_records *records, struct et_error *error);
/* ET_INVALID where fewer runs are there than the headers announce. */
enum et_status et_records_whole(const char *path, const struct et_records *records, struct et_error *error);
/* Index of the first of that id, or -1. */
int et_records_find(const struct et_records *records, const char *id);
void et_records_free(struct et_records *records);

/* FAIL, ERROR, MISTRUSTED, XPASS: what makes a run of etalon fail. */
bool et_verdict_bad(enum et_verdict verdict);

#endif
