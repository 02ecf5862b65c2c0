/*
 * The real cuDNN without a device: one is described, and a module replaces the driver. cuDNN finds engines, compiles
 * their kernels and reports their workspace; nothing is executed. For suites that test its actual answers.
 */
#ifndef DEVICE_CUDNN_WITHOUT_GPU_H
#define DEVICE_CUDNN_WITHOUT_GPU_H

#include "device/cuda/cudnn/library.h"
#include "device/cuda/dlopen_libraries.h"

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* An H200. */
static const char described[] =
    "{\"cudaDeviceId\":0,\"deviceName\":\"NVIDIA H200\",\"deviceVer\":900,\"driverVer\":13000,\"isTccDriver\":0,"
    "\"l2CacheSize\":62914560,\"maxBlockSize\":[1024,1024,64],\"maxCtasPerSM\":32,"
    "\"maxGridSize\":[2147483647,65535,65535],\"maxRegistersPerSM\":65536,\"maxSharedMemoryPerBlock\":49152,"
    "\"maxSharedMemoryPerBlockOptin\":232448,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,"
    "\"memClockRateKHz\":3201000,\"multiProcessorCount\":132,\"pciDeviceId\":0,\"regsPerBlock\":65536,"
    "\"reservedSharedMemoryPerBlock\":1024,\"smClockRateKHz\":1980000,\"supportCoopLaunch\":1,"
    "\"totalGlobalMem\":150000000000,\"warpSize\":32}";

/* As numbers, because headers of the first releases of cuDNN 9 have neither name. */
#define DEVICEPROP_DESCRIPTOR ((cudnnBackendDescriptorType_t)38)
#define DEVICEPROP_JSON ((cudnnBackendAttributeName_t)2702)

/* Memory that cuDNN and its compiler keep is not a leak of ours, and Valgrind takes minutes. */
static bool is_watched(void)
{
    const char *const preloaded = getenv("LD_PRELOAD");
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
    return true;
#endif
    return preloaded && strstr(preloaded, "vgpreload");
}

static void library_open(struct rw_cudnn *dnn)
{
    struct rw_cuda cuda = { .ordinal = 0 };
    memset(dnn, 0, sizeof *dnn);
    if (is_watched()) cr_skip_test("under a sanitizer or Valgrind");
    cr_assert(dlopen(REWIND_NO_DRIVER, RTLD_NOW | RTLD_GLOBAL), "%s", dlerror());
    if (rw_cudnn_load(dnn, &cuda)) cr_skip_test("cuDNN is not installed, or older than the library uses");
    cudnnStatus_t status = dnn->BackendCreateDescriptor(DEVICEPROP_DESCRIPTOR, &dnn->described);
    if (!status)
        status = dnn->BackendSetAttribute(dnn->described, DEVICEPROP_JSON, CUDNN_TYPE_CHAR,
                                          sizeof described, described);
    if (!status) status = dnn->BackendFinalize(dnn->described);
    cr_assert_eq(status, CUDNN_STATUS_SUCCESS, "the description of a device: %d", (int)status);
}

#endif
