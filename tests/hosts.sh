#!/bin/sh
# Two hosts, each a network namespace of its own on this machine: the ranks meet over a virtual cable, talk over Gloo, and end with the
# same weights as one process. Needs root and `ip`.
#
#     tests/hosts.sh PROGRAM RUN.toml OUT
set -eu
program=$1 run=$2 out=$3
ip netns add cc0; ip netns add cc1
trap 'ip netns del cc0; ip netns del cc1' EXIT
ip link add cable0 netns cc0 type veth peer name cable1 netns cc1
for host in 0 1; do
    ip -n cc$host addr add 10.77.0.$((host + 1))/24 dev cable$host
    ip -n cc$host link set cable$host up
    ip -n cc$host link set lo up
done
rank() {
    ip netns exec cc$1 env GLOO_SOCKET_IFNAME=cable$1 "$program" launch --nnodes 2 --node-rank "$1" --nproc 2 \
        --master-addr 10.77.0.1 --logs "$out/logs$1" -- sft --config "$run" --set out="$out/run"
}
rank 1 &
rank 0
wait
