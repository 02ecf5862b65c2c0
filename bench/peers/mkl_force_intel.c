/*
 * Preloaded into PyTorch by scripts/figures.sh on AMD processors. There MKL takes its slow path unless it detects an
 * Intel processor, and a comparison should use PyTorch at its best.
 */
int mkl_serv_intel_cpu_true(void);
int mkl_serv_intel_cpu_true(void) { return 1; }
