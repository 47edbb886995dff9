#!/bin/sh
# Start examples/two_hosts.py on one of two hosts. On both, at about the same time:
#
#     sh examples/two_hosts.sh FIRST-HOST [OPTIONS OF two_hosts.py]
#
# FIRST-HOST is the name or address of one of them, as both can reach it. WORKERS=2 starts two workers on this host
# instead of one; PORT is where the hosts meet. On hosts with several networks, name the interface that both share:
# GLOO_SOCKET_IFNAME=eth0.
set -eu
if [ $# -lt 1 ]; then
    echo "usage: sh $0 FIRST-HOST [--graph my.store] [--epochs 20] [--out runs/two]" >&2
    exit 2
fi
first=$1
shift
exec torchrun --nnodes "${HOSTS:-2}" --nproc-per-node "${WORKERS:-1}" --max-restarts "${RESTARTS:-0}" \
    --rdzv-backend c10d --rdzv-endpoint "$first:${PORT:-29500}" --rdzv-id outgrow \
    "$(dirname "$0")/two_hosts.py" "$@"
