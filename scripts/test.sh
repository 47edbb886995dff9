#!/bin/sh
# Runs the tests that are not slow: sh scripts/test.sh PYTHON [ARGUMENTS OF PYTEST]
# First with kernels that run on one thread, which take a third of the time to compile and give the same bits; then, with
# kernels that run on all threads, the tests of kernels (marked parallel_kernels). What launches workers has
# kernels as users have them.
python=$1
shift
status=0

run() {
    "$python" -m pytest -n auto --dist loadfile "$@"
    found=$?
    if [ "$found" -eq 2 ]; then
        exit 2 # interrupted, by somebody or by an error in a test file
    elif [ "$found" -ne 0 ] && [ "$found" -ne 5 ]; then # 5: the arguments choose none of these
        status=$found
    fi
}

# Where byte code is not wanted beside the sources it goes elsewhere: without any, each process compiles the library.
if [ -n "${PYTHONDONTWRITEBYTECODE:-}" ]; then
    unset PYTHONDONTWRITEBYTECODE
    export PYTHONPYCACHEPREFIX="$PWD/.pytest_cache/bytecode"
fi
export OUTGROW_KERNELS=serial
run "$@"
export OUTGROW_KERNELS=parallel
run -m "parallel_kernels and not slow" "$@"
exit "$status"
