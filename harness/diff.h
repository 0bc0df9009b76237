/* etalon diff: what changed between two results files (docs/results.md). */
#ifndef ET_HARNESS_DIFF_H
#define ET_HARNESS_DIFF_H

/*
 * argv[0] is "diff". Prints the changes to stdout, sentences to stderr. Exit status: 0 no regression, 1 some,
 * 2 usage, or a file that is no whole results file.
 */
int et_diff(int argc, char **argv);

#endif
