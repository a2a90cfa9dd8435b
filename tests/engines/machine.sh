#!/bin/sh
# A machine's first process: makes a root of its own, then waits (machines.py). The end of the input, however it comes,
# ends the machine. Usage: machine.sh ROOT NAME ADDRESS MAC HOSTS VOLUME KEPT...
set -eu
root=$1 name=$2 address=$3 mac=$4 hosts=$5 volume=$6
shift 6
read -r pid _ </proc/self/stat # as the harness sees it, since /proc is still the harness's

# Only what is listed here exists on the machine; programs are read-only.
mount -t tmpfs -o mode=755 "$name" "$root"
cd "$root"
mkdir dev home mnt old proc root run srv sys tmp usr var
chmod 700 root
chmod 1777 tmp
mkdir -p var/cache var/lib var/log var/spool
mkdir -m 1777 var/tmp
ln -s /run var/run
for place in /bin /sbin /lib /lib32 /lib64; do
    if [ -L "$place" ]; then cp -a "$place" .; elif [ -d "$place" ]; then
        mkdir ".$place"
        mount --rbind -o ro "$place" ".$place"
    fi
done
cp -a /etc .
rm -f etc/hosts etc/resolv.conf
printf '%s\n' "$hosts" >etc/hosts
: >etc/resolv.conf
sed -i 's/^root:[^:]*/root:*/' etc/shadow # no password, and not locked
for place in /usr "$@"; do
    mkdir -p ".$place"
    mount --bind -o ro "$place" ".$place"
done
if [ -n "$volume" ]; then
    mkdir -p ".$volume"
    mount --bind "$volume" ".$volume"
fi
mount --rbind /dev dev
mount -t tmpfs -o mode=1777 shm dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
mount -t sysfs sysfs sys
if [ -d sys/fs/cgroup ]; then mount --rbind /sys/fs/cgroup sys/fs/cgroup; fi
mount -t proc proc proc
pivot_root . old
cd /
umount -l /old
rmdir /old
echo "$name" >/proc/sys/kernel/hostname
echo "$pid"

exec 3<&0
read -r _ <&3 # the cable is plugged in
ip link set lo up
ip link set eth0 address "$mac"
ip addr add "$address/24" dev eth0
ip link set eth0 up
echo up
exec >/dev/null

trap 'exit 0' TERM
while :; do # anew, should the one that reads be killed: Slurm may take it for a job's
    { read -r _ <&3 || true; kill -TERM 1; } &
    wait || true # also for processes whose parents have ended
done
