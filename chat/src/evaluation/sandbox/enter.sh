# Builds the file system of a sandbox in fresh namespaces, and replaces itself with the program in it.
#
# usage: enter.sh ROOT TMP_SIZE TMP_FILES (folder PATH | file PATH | link PATH TARGET)... -- COMMAND...
#
# ROOT is a folder of the system that the sandbox does not show. The command starts in ROOT and makes it its root
# folder: all that it can then see are the given folders and files, read-only and under their own paths, and an
# empty /tmp of TMP_SIZE bytes and TMP_FILES files. The mounts end with the namespaces, so nothing is left of them.
set -eu
umask 022
root=$1
tmp="size=$2,nr_inodes=$3"
shift 3
mount -t tmpfs -o size=1m,nr_inodes=1k,mode=755,nosuid,nodev tmpfs "$root"
mkdir "$root/tmp"
mount -t tmpfs -o "$tmp,mode=1777,nosuid,nodev" tmpfs "$root/tmp"

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
