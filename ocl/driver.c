/* What ocl-icd, the usual OpenCL loader, looks at: see libOpenCL(7). The loader itself tells nobody. */
#define _POSIX_C_SOURCE 200809L

#include "device.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char vendors[] = "/etc/OpenCL/vendors";

static bool ends_with_icd(const char *name)
{
    const size_t length = strlen(name);
    return length >= 4 && strcmp(name + length - 4, ".icd") == 0;
}

/* A driver without that is passed over (cl_khr_icd), and no call says so. */
static const char entry_point[] = "clGetExtensionFunctionAddress";

static void report_library(const char *library, struct et_text *report)
{
    void *handle = dlopen(library, RTLD_LAZY | RTLD_LOCAL);
    if (!handle)
        et_text_add(report, "%s cannot be opened: %s\n", library, dlerror());
    else if (!dlsym(handle, entry_point))
        et_text_add(report, "%s opens but is no OpenCL driver: it has no %s\n", library, entry_point);
    else
        et_text_add(report, "%s opens\n", library);
    if (handle)
        dlclose(handle);
}

static void report_file(const char *path, struct et_text *report)
{
    et_text_add(report, "%s: ", path);
    char line[4096] = "";
    FILE *file = fopen(path, "r");
    if (!file) {
        et_text_add(report, "cannot be read: %s\n", strerror(errno));
        return;
    }
    if (!fgets(line, sizeof line, file))
        line[0] = '\0';
    const int code = ferror(file) ? errno : 0;
    fclose(file);
    line[strcspn(line, "\r\n")] = '\0';
    if (code)
        et_text_add(report, "cannot be read: %s\n", strerror(code));
    else if (line[0] != '\0')
        report_library(line, report);
    else
        et_text_add(report, "names no library\n");
}

static int is_driver_file(const struct dirent *entry)
{
    return ends_with_icd(entry->d_name);
}

static void report_folder(const char *folder, struct et_text *report)
{
    struct dirent **entries;
    const int n = scandir(folder, &entries, is_driver_file, alphasort);
    if (n < 0) {
        et_text_add(report, "%s: cannot be read: %s\n", folder, strerror(errno));
        return;
    }
    if (n == 0)
        et_text_add(report, "%s: holds no .icd file\n", folder);
    for (int i = 0; i < n; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%s", folder, entries[i]->d_name);
        report_file(path, report);
        free(entries[i]);
    }
    free(entries);
}

/* The value of a variable, which is told of, or NULL where it says nothing. */
static const char *variable(const char *name, struct et_text *report)
{
    const char *value = getenv(name);
    if (!value || value[0] == '\0')
        return NULL;
    et_text_add(report, "%s is %s\n", name, value);
    return value;
}

static void report_drivers(struct et_text *report)
{
    const char *given = variable("OCL_ICD_VENDORS", report);
    const char *path = variable("OPENCL_VENDOR_PATH", report);
    const char *folder = path ? path : vendors;
    if (!given) {
        report_folder(folder, report);
        return;
    }
    struct stat info;
    char named[4096];
    if (stat(given, &info) == 0 && S_ISDIR(info.st_mode)) {
        report_folder(given, report);
    } else if (!ends_with_icd(given)) {
        report_library(given, report);
    } else {
        snprintf(named, sizeof named, "%s/%s", folder, given);
        report_file(!strchr(given, '/') && stat(named, &info) == 0 ? named : given, report);
    }
}

/* An .icd file may hold anything: what a terminal would obey is left out. */
void et_driver_report(struct et_text *report)
{
    const size_t before = report->length;
    report_drivers(report);
    for (size_t i = before; i < report->length; i++) {
        const unsigned char c = (unsigned char)report->data[i];
        if ((c < ' ' && c != '\n') || c == 127)
            report->data[i] = '?';
    }
}

/* A process that loads Oclgrind empties the file that OCLGRIND_LOG names, so each has one of its own. */
enum et_status et_driver_environment(struct et_error *error)
{
    const char *log = getenv("OCLGRIND_LOG");
    if (!log || !*log)
        return ET_OK;
    char *own = et_print(error, "%s.%ld", log, (long)getpid());
    const bool set = own && setenv("OCLGRIND_LOG", own, 1) == 0;
    et_free(own);
    return set ? ET_OK : et_fail(error, ET_FAILED, "OCLGRIND_LOG cannot be set: %s", strerror(errno));
}
