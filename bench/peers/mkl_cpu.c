/*
 * scripts/figures.sh preloads this into PyTorch where the processor is AMD's. There MKL takes its slow path unless it
 * is told that the processor is Intel's, and a comparison is with PyTorch at its best.
 */
int mkl_serv_intel_cpu_true(void);
int mkl_serv_intel_cpu_true(void) { return 1; }
