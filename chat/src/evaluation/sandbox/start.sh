# Starts a sandbox, and replaces itself with the command.
#
# usage: start.sh PARENT COMMAND...
#
# The kernel kills this process when its parent ends, which may have happened before it was asked to. Where memory
# runs out, the kernel ends a sandbox before anything else.
set -eu
[ "$PPID" = "$1" ] || exit 1
shift
echo 1000 > /proc/self/oom_score_adj
exec "$@"
