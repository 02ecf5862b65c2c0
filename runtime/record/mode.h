/* What REWIND_VERIFY asks of every rw_backward(). */
#ifndef RW_RECORD_MODE_H
#define RW_RECORD_MODE_H

enum rw_verify_mode {
    RW_VERIFY_OFF,
    RW_VERIFY_FULL,  /* REWIND_VERIFY=1: ckpt_verify() first */
    RW_VERIFY_DIGEST /* REWIND_VERIFY=digest: each replayed value against the digest of its first computation */
};

int rw_verify_mode_of(const char *value); /* of the variable's text, which may be NULL */

#endif
