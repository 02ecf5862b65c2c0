/*
 * Limits oneDNN to the calling thread. A oneDNN that was built with OpenMP, such as Debian's, would start OpenMP
 * threads for each of our threads. The number that OpenMP allows is a setting of the calling thread: it is 1 while
 * oneDNN runs, and is then restored. A oneDNN without OpenMP starts no threads.
 */
#ifndef RW_DEVICE_CPU_ONEDNN_SINGLE_THREAD_H
#define RW_DEVICE_CPU_ONEDNN_SINGLE_THREAD_H

/* For the calling thread. leave() takes the result of enter(). */
int rw_onednn_threads_enter(void);
void rw_onednn_threads_leave(int allowed);

#endif
