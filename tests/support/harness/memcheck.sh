#!/bin/sh
# tollgate under valgrind, for make memcheck: an error is written to $TOLLGATE_MEMCHECK, a file per process, and makes the exit code 99.
# Leaks are for the sanitizers' build; this one finds what depends on memory without a value.
exec valgrind -q --error-exitcode=99 --leak-check=no --log-file="$TOLLGATE_MEMCHECK" "$TOLLGATE_BUILD_DIR/tollgate" "$@"
