/* See signals.h. */
#include "signals.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

enum { SIGNALS = 3, HANGUP = 2 };

static const int signals[SIGNALS] = { SIGINT, SIGTERM, [HANGUP] = SIGHUP };
static bool catches[SIGNALS];
static volatile sig_atomic_t caught;

/* The second signal ends the process, but for SIGHUP: a lost connection may send it twice, from the shell and from the
   kernel. */
static void note_signal(int s)
{
    if (!caught) caught = s;
    for (int i = 0; i < HANGUP; i++)
        if (catches[i]) signal(signals[i], SIG_DFL);
}

/* An ignored signal, such as SIGINT of a background program in a script or SIGHUP under nohup, stays ignored. A line
   that cannot be printed, because the reader of a pipe has ended or a file has reached its limit, must not end the run
   before it has saved: main() reports it at the end. */
void catch_signals(void)
{
    struct sigaction before[SIGNALS];
    const struct sigaction action = { .sa_handler = note_signal, .sa_flags = SA_RESTART };
    for (int i = 0; i < SIGNALS; i++)
        catches[i] = !sigaction(signals[i], NULL, &before[i]) && before[i].sa_handler != SIG_IGN;
    for (int i = 0; i < SIGNALS; i++)
        if (catches[i]) sigaction(signals[i], &action, NULL);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

int caught_signal(void)
{
    return caught;
}
