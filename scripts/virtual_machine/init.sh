#!/bin/busybox sh
# The first program of the machine: loads what the kernel needs, puts a layer that can be written over the
# host's files, and goes on there. Whatever fails ends it, and the machine with it (panic=-1).
set -e
/bin/busybox --install -s /bin
export PATH=/bin
. /order

while read -r module; do
    insmod "/modules/$module"
done </modules/order

mkdir -p /host /written /new
mount -t 9p -o ro,trans=virtio,version=9p2000.L,cache=loose,msize=512000 host /host
mount -t tmpfs -o size=75% written /written
mkdir /written/upper /written/work
mount -t overlay -o lowerdir=/host,upperdir=/written/upper,workdir=/written/work overlay /new

# Over what the host has there, which is seen as well.
mount -t proc proc /new/proc
mount -t sysfs sysfs /new/sys
mount -t devtmpfs dev /new/dev
mkdir -p /new/dev/pts /new/dev/shm
mount -t devpts devpts /new/dev/pts
mount -t tmpfs -o mode=1777 shm /new/dev/shm
mount -t tmpfs -o mode=755 run /new/run
# As systemd mounts it: what is delegated is a border that nobody crosses from inside.
mount -t cgroup2 -o nsdelegate,memory_recursiveprot cgroup2 /new/sys/fs/cgroup
ip link set lo up
hostname kernelbox-vm

# What root of the host has installed for itself alone, an ordinary user of this machine may read.
while read -r folder; do
    chmod o+rx "/new$folder"
done </closed

if [ "$KERNELBOX_VM_INIT" = systemd ]; then
    mkdir -p /new/run/systemd/system
    cp /kernelbox-vm.service /new/run/systemd/system/
    exec switch_root /new /lib/systemd/systemd --unit=kernelbox-vm.service --show-status=no
fi
exec switch_root /new "$KERNELBOX_VM_PYTHON" -u "$KERNELBOX_VM_GUEST"
