#!/bin/sh
# Open MPI's way to other hosts (plm_rsh_agent), for hosts that are network namespaces: mpi-agent.sh <address> <command…>
# where 10.77.0.k is the namespace $BENCH_NETWORK-(k−1). Each gets a host name of its own: Open MPI tells hosts apart by it.
set -e
address=$1
shift
host=$((${address##*.} - 1))
exec ip netns exec "$BENCH_NETWORK-$host" unshare --uts sh -c "hostname host-$host && $*"
