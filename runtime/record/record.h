/* What else recording offers to the library itself. */
#ifndef RW_RECORD_RECORD_H
#define RW_RECORD_RECORD_H

#include "record/tape.h"

extern const rw_op_def rw_op_assign; /* rw_assign(): a stateful node whose output is the buffer's memory */

#endif
