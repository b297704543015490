/* Writes one line for each kernel and copy of a CUDA program: its name, its beginning and its end in nanoseconds.
 *
 *     cc -shared -fPIC -I INCLUDE kernels.c -o libkernels.so -l:libcupti.so.13
 *     KERNELS_OUT=kernels.tsv LD_PRELOAD=./libkernels.so PROGRAM...
 *
 * The lines come from the activity interface of NVIDIA's CUPTI, which the CUDA toolkit and torch's package bring along.
 */
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>

enum { BUFFER_BYTES = 8 << 20 };

static FILE *out;

static void CUPTIAPI take_buffer(uint8_t **buffer, size_t *size, size_t *max_records) {
    *size = BUFFER_BYTES;
    *buffer = aligned_alloc(8, BUFFER_BYTES);
    *max_records = 0;
}

static void CUPTIAPI write_records(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t used) {
    (void)context, (void)stream, (void)size;
    CUpti_Activity *record = NULL;
    while (cuptiActivityGetNextRecord(buffer, used, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            /* The fields that are read lie at the same place in every version of the record since the fourth. */
            const CUpti_ActivityKernel9 *kernel = (const CUpti_ActivityKernel9 *)record;
            fprintf(out, "%s\t%llu\t%llu\n", kernel->name, (unsigned long long)kernel->start, (unsigned long long)kernel->end);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const CUpti_ActivityMemcpy5 *copy = (const CUpti_ActivityMemcpy5 *)record;
            static const char *const kinds[] = {[1] = "host to device", [2] = "device to host", [8] = "device to device"};
            const char *kind = copy->copyKind <= 8 && kinds[copy->copyKind] ? kinds[copy->copyKind] : "other";
            fprintf(out, "copy, %s\t%llu\t%llu\n", kind, (unsigned long long)copy->start, (unsigned long long)copy->end);
        }
    }
    free(buffer);
}

static void finish(void) {
    cuptiActivityFlushAll(1);
    fclose(out);
}

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("KERNELS_OUT");
    /* Children of the program would write over the file. */
    unsetenv("KERNELS_OUT");
    if (!path || !(out = fopen(path, "w"))) return;
    cuptiActivityRegisterCallbacks(take_buffer, write_records);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
    atexit(finish);
}
