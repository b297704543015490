# Builds the file system of a sandbox in fresh namespaces, and replaces itself with the program in it.
#
# usage: enter.sh ROOT (folder PATH | file PATH | link PATH TARGET)... -- COMMAND...
#
# ROOT is an empty folder. The command starts in ROOT and makes it its root folder: all that it can then see
# are the given folders and files, read-only and under their own paths, and an empty /tmp.
set -eu
umask 022
root=$1
shift
mount -t tmpfs -o size=1m,mode=755,nosuid,nodev tmpfs "$root"
mkdir "$root/tmp"
mount -t tmpfs -o size=64m,mode=1777,nosuid,nodev tmpfs "$root/tmp"

while [ "$1" != -- ]; do
    mkdir -p "$root${2%/*}"
    case $1 in
        folder) mkdir -p "$root$2"; mount --rbind "$2" "$root$2" ;;
        file) : > "$root$2"; mount --bind "$2" "$root$2" ;;
        link) ln -s "$3" "$root$2"; shift ;;
    esac
    shift 2
done
shift

# A folder may bring mounts below it, so each mount in ROOT becomes read-only by itself. Its other flags are
# repeated: a user namespace may not drop them.
while read -r _ _ _ _ point flags _; do
    case $point in *\\*) point=$(printf %b "$point") ;; esac
    case $point in
        "$root/tmp") ;;
        "$root"/*) case $flags in rw*) mount -o "remount,bind,ro${flags#rw}" "$point" ;; esac ;;
    esac
done < /proc/self/mountinfo
mount -o remount,bind,ro,nosuid,nodev "$root"
cd "$root"
exec "$@"
