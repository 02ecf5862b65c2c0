/* cudaProfilerStart and cudaProfilerStop are declared beside the other runtime calls. */
#include <cuda_runtime_api.h>
