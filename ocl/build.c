#include "device.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "source.h"

struct et_program {
    struct et_program *next;
    char *source, *options;
    cl_program program;
};

static void free_program(struct et_session *session, struct et_program *program)
{
    if (program->program)
        session->cl.clReleaseProgram(program->program);
    et_free(program->source);
    et_free(program->options);
    et_free(program);
}

void et_programs_free(struct et_session *session)
{
    while (session->programs) {
        struct et_program *program = session->programs;
        session->programs = program->next;
        free_program(session, program);
    }
}

/* Puts the compiler's log behind the sentence in error. */
static void add_log(struct et_session *session, cl_program program, struct et_error *error)
{
    const struct et_cl *cl = &session->cl;
    size_t bytes = 0;
    cl_int code = cl->clGetProgramBuildInfo(program, session->id, CL_PROGRAM_BUILD_LOG, 0, NULL, &bytes);
    char *log = code == CL_SUCCESS && bytes > 0 ? et_alloc(bytes + 1, 1, NULL) : NULL;
    if (log)
        code = cl->clGetProgramBuildInfo(program, session->id, CL_PROGRAM_BUILD_LOG, bytes, log, NULL);
    if (log && code == CL_SUCCESS) {
        const struct et_error sentence = *error;
        et_fail(error, ET_FAILED, "%.450s: %.1500s", sentence.text, log);
    }
    et_free(log);
}

static enum et_status build(struct et_session *session, struct et_program *program, struct et_error *error)
{
    const struct et_cl *cl = &session->cl;
    const char *source = program->source;
    cl_int code;
    program->program = cl->clCreateProgramWithSource(session->context, 1, &source, NULL, &code);
    enum et_status status = et_cl_done(cl, "clCreateProgramWithSource", code, error);
    if (status != ET_OK)
        return status;
    code = cl->clBuildProgram(program->program, 1, &session->id, program->options, NULL, NULL);
    status = et_cl_done(cl, "clBuildProgram", code, error);
    if (status != ET_OK && error)
        add_log(session, program->program, error);
    return code == CL_BUILD_PROGRAM_FAILURE ? ET_UNBUILT : status;
}

static enum et_status write_file(const char *stem, const char *ending, const void *bytes, size_t n,
                                 struct et_error *error)
{
    char *path = et_print(error, "%s.%s", stem, ending);
    if (!path)
        return ET_FAILED;
    FILE *file = fopen(path, "wb");
    const bool whole = file && fwrite(bytes, 1, n, file) == n;
    int trouble = whole ? 0 : errno ? errno : EIO;
    if (file && fclose(file) != 0 && whole)
        trouble = errno;
    const enum et_status status =
        trouble == 0 ? ET_OK : et_fail(error, ET_FAILED, "%s: %s", path, strerror(trouble));
    et_free(path);
    return status;
}

/* *binary is the caller's. The context has one device, and so the program one binary. */
static enum et_status get_binary(const struct et_session *session, const struct et_program *program,
                                 unsigned char **binary, size_t *bytes, struct et_error *error)
{
    const struct et_cl *cl = &session->cl;
    *bytes = 0;
    *binary = NULL;
    enum et_status status = et_cl_done(
        cl, "clGetProgramInfo",
        cl->clGetProgramInfo(program->program, CL_PROGRAM_BINARY_SIZES, sizeof *bytes, bytes, NULL), error);
    if (status == ET_OK && *bytes == 0)
        status = et_fail(error, ET_FAILED, "the driver gives no binary of a program built with %s",
                         program->options);
    if (status == ET_OK)
        *binary = et_alloc(*bytes, 1, error);
    if (!*binary)
        return ET_FAILED;
    return et_cl_done(
        cl, "clGetProgramInfo",
        cl->clGetProgramInfo(program->program, CL_PROGRAM_BINARIES, sizeof *binary, binary, NULL), error);
}

static enum et_status save(const struct et_session *session, const char *file,
                           const struct et_program *program, struct et_error *error)
{
    const uint64_t source = XXH3_64bits(program->source, strlen(program->source));
    const uint64_t hash = XXH3_64bits_withSeed(program->options, strlen(program->options), source);
    char *stem = et_print(error, "%s/%.*s-%016llx@%s", session->binaries, (int)strcspn(file, "."), file,
                          (unsigned long long)hash, session->device.place);
    char *line = stem ? et_print(error, "%s %s\n", file, program->options) : NULL;
    unsigned char *binary = NULL;
    size_t bytes;
    enum et_status status = line ? get_binary(session, program, &binary, &bytes, error) : ET_FAILED;
    if (status == ET_OK)
        status = write_file(stem, "bin", binary, bytes, error);
    if (status == ET_OK)
        status = write_file(stem, "txt", line, strlen(line), error);
    et_free(binary);
    et_free(line);
    et_free(stem);
    return status;
}

static const struct et_program *find(const struct et_session *session, const char *source,
                                     const char *options)
{
    const struct et_program *program = session->programs;
    while (program && (strcmp(program->source, source) != 0 || strcmp(program->options, options) != 0))
        program = program->next;
    return program;
}

static enum et_status add_program(struct et_session *session, const char *file, const char *source,
                                  const char *options, struct et_error *error)
{
    struct et_program *program = et_alloc(1, sizeof *program, error);
    if (!program)
        return ET_FAILED;
    enum et_status status = ET_FAILED;
    program->source = et_strdup(source, error);
    program->options = program->source ? et_strdup(options, error) : NULL;
    if (program->options)
        status = build(session, program, error);
    if (status == ET_OK && session->binaries)
        status = save(session, file, program, error);
    if (status == ET_OK) {
        program->next = session->programs;
        session->programs = program;
    } else {
        free_program(session, program);
    }
    return status;
}

static enum et_status make(struct et_session *session, const char *file, const char *source,
                           const char *options, const char *kernel, cl_kernel *dst, struct et_error *error)
{
    if (!find(session, source, options)) {
        const enum et_status status = add_program(session, file, source, options, error);
        if (status != ET_OK)
            return status;
    }
    cl_int code;
    *dst = session->cl.clCreateKernel(find(session, source, options)->program, kernel, &code);
    const enum et_status status = et_cl_done(&session->cl, "clCreateKernel", code, error);
    return code == CL_INVALID_KERNEL_NAME ? ET_UNBUILT : status;
}

enum et_status et_kernel(struct et_session *session, const char *folder, const char *file,
                         const char *options, const char *kernel, cl_kernel *dst, struct et_error *error)
{
    *dst = NULL;
    const struct et_places places = {session->overrides, folder};
    struct et_text source = {0};
    char *all = et_print(error, "-cl-std=CL1.2 %s", options);
    enum et_status status = all ? et_source(&places, file, &source, error) : ET_FAILED;
    if (status == ET_OK) {
        session->cl.kernel = kernel;
        session->cl.options = all;
        status = make(session, file, source.data, all, kernel, dst, error);
        session->cl.kernel = session->cl.options = NULL;
    }
    et_text_free(&source);
    et_free(all);
    return status;
}
