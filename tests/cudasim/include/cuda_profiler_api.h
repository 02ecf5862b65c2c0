/* An empty header: cudaProfilerStart and cudaProfilerStop are declared with the other runtime calls. */
#include <cuda_runtime_api.h>
