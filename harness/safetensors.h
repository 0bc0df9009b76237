/*
 * safetensors files: 8 bytes of little-endian header length, a JSON header, then the tensors without holes.
 * Source: the format's public description (huggingface/safetensors, README "Format").
 */
#ifndef ET_HARNESS_SAFETENSORS_H
#define ET_HARNESS_SAFETENSORS_H

#include "../ocl/memory.h"

struct et_file_tensor {
    const char *name;
    enum et_dtype dtype; /* ET_DTYPES: one of the format's that is none of ours */
    int rank;
    int64_t size[ET_RANK];
    void *data;
    size_t bytes;
};

/*
 * Creates the file (replacing, not rewriting, one that is there) with room for n tensors and maps it for
 * writing; sets bytes and data of each, aligned to its type: wider types come first. The file is whole, all
 * zero, on success; nothing is left behind on failure.
 */
enum et_status et_tensors_create(const char *path, struct et_file_tensor *tensors, int n, void **map,
                                 size_t *bytes, struct et_error *error);

/*
 * Maps a file read-only. The tensors, in the order of their data, point into it. Every offset is checked
 * against the file's size, every size against its shape and type; holes, overlaps, more than ET_RANK
 * dimensions and data that are not aligned to their type are refused: ET_INVALID.
 */
struct et_tensors {
    struct et_file_tensor *at;
    int count;
    void *map; /* the whole file */
    size_t bytes;
    bool read; /* map is memory of ours */
    char *names;
};

enum et_status et_tensors_open(const char *path, struct et_tensors *tensors, struct et_error *error);
/*
 * The same, but read into memory, for a file that others may still cut: a mapping would then be a SIGBUS.
 * ET_INVALID where it holds more than `most` bytes of data, before any are read.
 */
enum et_status et_tensors_read(const char *path, size_t most, struct et_tensors *tensors,
                               struct et_error *error);
void et_tensors_close(struct et_tensors *tensors);
const struct et_file_tensor *et_tensors_find(const struct et_tensors *tensors, const char *name);
void et_unmap(void *map, size_t bytes); /* NULL is allowed */

#endif
