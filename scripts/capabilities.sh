#!/bin/sh
# Runs tests as on other processors: torch, MKL, oneDNN and Numba are told to use fewer instructions than this one has, so
# that sums are rounded otherwise. A test that fails under one of them asks for more digits than arithmetic has.
# usage: sh scripts/capabilities.sh TIMES COMMAND...    COMMAND runs pytest; CAPABILITIES names some of: native avx2 generic
set -u
times=$1
shift
said=$(mktemp)
trap 'rm -f "$said"' EXIT
failed=0

totals() {
    grep -E ' (passed|failed|errors?|deselected).* in [0-9]' "$said" | paste -s -d ';' -
}

case $(uname -m) in
x86_64) every="native avx2 generic" ;;
*) every="native generic" ;;
esac

for capability in ${CAPABILITIES:-$every}; do
    case $capability in
    native) settings="" ;;
    avx2)
        settings="ATEN_CPU_CAPABILITY=avx2 MKL_CBWR=AVX2 ONEDNN_MAX_CPU_ISA=AVX2 NUMBA_CPU_NAME=haswell NUMBA_CPU_FEATURES=+avx2,+fma,+f16c"
        ;;
    generic)
        settings="ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE ONEDNN_MAX_CPU_ISA=SSE41 NUMBA_CPU_NAME=generic NUMBA_CPU_FEATURES="
        ;;
    *)
        echo "capabilities: no such capability: $capability" >&2
        exit 2
        ;;
    esac
    round=1
    while [ "$round" -le "$times" ]; do
        # shellcheck disable=SC2086
        if env $settings "$@" -q -rfE > "$said" 2>&1; then
            echo "$capability, round $round: $(totals)"
        else
            failed=1
            echo "$capability, round $round: FAILED: $(totals)"
            grep -E '^(FAILED|ERROR|E  )' "$said" | head -n 60 || tail -n 30 "$said"
        fi
        round=$((round + 1))
    done
done
exit "$failed"
