/* Signals that end a training run: the step is finished and saved. */
#ifndef REWIND_EXAMPLES_SIGNALS_H
#define REWIND_EXAMPLES_SIGNALS_H

/* From now on the first SIGINT, SIGTERM or SIGHUP is recorded; a SIGINT or SIGTERM after it ends the process. */
void catch_signals(void);

/* The signal that was received; 0: none. */
int caught_signal(void);

#endif
