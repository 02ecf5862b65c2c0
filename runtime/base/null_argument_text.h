/* Texts of messages about NULL arguments. */
#ifndef RW_BASE_NULL_ARGUMENT_TEXT_H
#define RW_BASE_NULL_ARGUMENT_TEXT_H

/* What a message expects instead of a NULL argument of that name: "where the result is stored" for ret_*. */
const char *rw_expected_of_null(const char *argument);

#endif
