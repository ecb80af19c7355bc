/* A GPU that is not there: what torch asks of the CUDA runtime and driver before any kernel runs.

   Loaded before the real ones (LD_PRELOAD), it says that there is one device, of the capability in
   PLAYED_CAPABILITY. Streams and events do nothing. Memory, copies and kernels are refused: a tensor without
   values needs none, so whoever asks has a tensor with values on the GPU. */

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DONE return cudaSuccess
#define REFUSED return cudaErrorNotSupported

static intptr_t handle(void) {
    static intptr_t next = 16;
    return next += 16;
}

cudaError_t cudaGetDeviceCount(int *count) { *count = 1; DONE; }
cudaError_t cudaGetDevice(int *device) { *device = 0; DONE; }
cudaError_t cudaSetDevice(int device) { (void)device; DONE; }
cudaError_t cudaDriverGetVersion(int *version) { *version = CUDART_VERSION; DONE; }
cudaError_t cudaGetLastError(void) { DONE; }
cudaError_t cudaPeekAtLastError(void) { DONE; }
cudaError_t cudaDeviceSynchronize(void) { DONE; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b) { (void)a; (void)b; *can = 0; DONE; }
cudaError_t cudaDeviceGetPCIBusId(char *id, int room, int device) {
    (void)device;
    snprintf(id, (size_t)room, "0000:00:00.0");
    DONE;
}

static void capability(int *major, int *minor) {
    const char *text = getenv("PLAYED_CAPABILITY");
    *major = 9, *minor = 0;
    if (text) sscanf(text, "%d.%d", major, minor);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *of, int device) {
    (void)device;
    memset(of, 0, sizeof *of);
    capability(&of->major, &of->minor);
    snprintf(of->name, sizeof of->name, "played GPU of capability %d.%d", of->major, of->minor);
    of->totalGlobalMem = (size_t)80 << 30;
    of->sharedMemPerBlock = 48 << 10;
    of->sharedMemPerBlockOptin = (of->major == 8 ? 163 : 227) << 10;
    of->sharedMemPerMultiprocessor = (of->major == 8 ? 164 : 228) << 10;
    of->regsPerBlock = of->regsPerMultiprocessor = 65536;
    of->warpSize = 32;
    of->maxThreadsPerBlock = 1024;
    of->maxThreadsPerMultiProcessor = 2048;
    of->multiProcessorCount = of->major == 8 ? 108 : of->major == 9 ? 132 : 148;
    of->l2CacheSize = 50 << 20;
    DONE;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device) {
    struct cudaDeviceProp of;
    cudaGetDeviceProperties(&of, device);
    *value = attribute == cudaDevAttrComputeCapabilityMajor              ? of.major
             : attribute == cudaDevAttrComputeCapabilityMinor            ? of.minor
             : attribute == cudaDevAttrMultiProcessorCount               ? of.multiProcessorCount
             : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin      ? (int)of.sharedMemPerBlockOptin
                                                                         : 0;
    DONE;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0, *greatest = -5; DONE; }
cudaError_t cudaStreamCreate(cudaStream_t *stream) { *stream = (cudaStream_t)handle(); DONE; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    (void)flags;
    return cudaStreamCreate(stream);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority) {
    (void)flags, (void)priority;
    return cudaStreamCreate(stream);
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority) { (void)stream; *priority = 0; DONE; }
cudaError_t cudaStreamDestroy(cudaStream_t stream) { (void)stream; DONE; }
cudaError_t cudaStreamQuery(cudaStream_t stream) { (void)stream; DONE; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) { (void)stream; DONE; }
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    (void)stream, (void)event, (void)flags;
    DONE;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status) {
    (void)stream;
    *status = cudaStreamCaptureStatusNone;
    DONE;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode) { (void)mode; DONE; }

cudaError_t cudaEventCreate(cudaEvent_t *event) { *event = (cudaEvent_t)handle(); DONE; }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    (void)flags;
    return cudaEventCreate(event);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) { (void)event; DONE; }
cudaError_t cudaEventQuery(cudaEvent_t event) { (void)event; DONE; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { (void)event, (void)stream; DONE; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
    (void)event, (void)stream, (void)flags;
    DONE;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) { (void)event; DONE; }
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to) {
    (void)from, (void)to;
    *ms = 0;
    DONE;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function, unsigned version,
                                             unsigned long long flags, enum cudaDriverEntryPointQueryResult *result) {
    (void)symbol, (void)version, (void)flags;
    *function = NULL;
    if (result) *result = cudaDriverEntryPointSymbolNotFound;
    DONE;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
                                     unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes,
                                     const cudaGraphEdgeData **edges, size_t *count) {
    (void)id, (void)graph, (void)nodes, (void)edges, (void)count;
    return cudaStreamIsCapturing(stream, status);
}
cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int device) {
    (void)device;
    *pool = (cudaMemPool_t)handle();
    DONE;
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    (void)pool, (void)attribute;
    *(uint64_t *)value = 0;
    DONE;
}
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, enum cudaMemPoolAttr attribute, void *value) {
    (void)pool, (void)attribute, (void)value;
    DONE;
}

cudaError_t cudaMemGetInfo(size_t *free, size_t *total) { *free = *total = (size_t)80 << 30; DONE; }
cudaError_t cudaFree(void *pointer) { (void)pointer; DONE; }
cudaError_t cudaMalloc(void **pointer, size_t bytes) {
    (void)pointer;
    fprintf(stderr, "played GPU: %zu bytes of values were asked for\n", bytes);
    REFUSED;
}
cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) {
    (void)flags;
    *pointer = malloc(bytes);
    DONE;
}
cudaError_t cudaFreeHost(void *pointer) { free(pointer); DONE; }
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s) {
    (void)to, (void)from, (void)kind, (void)s;
    fprintf(stderr, "played GPU: a copy of %zu bytes\n", bytes);
    REFUSED;
}
cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream) {
    (void)to, (void)value, (void)bytes, (void)stream;
    REFUSED;
}
cudaError_t cudaLaunchKernel(const void *f, dim3 grid, dim3 block, void **args, size_t shared, cudaStream_t s) {
    (void)f, (void)grid, (void)block, (void)args, (void)shared, (void)s;
    fprintf(stderr, "played GPU: a kernel was launched\n");
    REFUSED;
}

/* The driver: torch asks whether the device's context is there, which it is, and nothing else. */

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    (void)device;
    *flags = 0, *active = 1;
    return 0;
}
int cuCtxGetCurrent(void **context) { *context = (void *)16; return 0; }
int cuCtxSetCurrent(void *context) { (void)context; return 0; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }

#define ABSENT(name) int name(void) { fprintf(stderr, "played GPU: " #name "\n"); return 801; }
ABSENT(cuDeviceGetAttribute) ABSENT(cuDevicePrimaryCtxRetain) ABSENT(cuFuncGetAttribute)
ABSENT(cuFuncSetAttribute) ABSENT(cuFuncSetCacheConfig) ABSENT(cuGetErrorString)
ABSENT(cuLaunchCooperativeKernel) ABSENT(cuLaunchKernel) ABSENT(cuLinkAddData_v2) ABSENT(cuLinkComplete)
ABSENT(cuLinkCreate_v2) ABSENT(cuModuleGetFunction) ABSENT(cuModuleLoad) ABSENT(cuModuleLoadData)
ABSENT(cuModuleLoadDataEx) ABSENT(cuModuleUnload) ABSENT(cuOccupancyMaxActiveBlocksPerMultiprocessor)
ABSENT(cuPointerGetAttribute) ABSENT(cuTensorMapEncodeTiled)

/* Named by what Triton builds for itself. */
ABSENT(cuCtxGetLimit) ABSENT(cuCtxSetLimit) ABSENT(cuDriverGetVersion)
