"""Promise: what of Linux no ordinary program needs cannot be asked for, and there are no rights."""

from __future__ import annotations

import os

import pytest
from probes import ALL, Probe, Sandboxes, bash, controlled, walled
from psutil import Process

_FLAGS = {
    "user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "network": 0x40000000,
    "ipc": 0x8000000, "host name": 0x4000000, "cgroup": 0x2000000, "time": 0x80,
}  # fmt: skip

PROBES = [
    *(Probe(f"a new {kind} namespace by unshare", f"in_child(lambda: attempt('unshare', {flag}))")
      for kind, flag in _FLAGS.items()),
    *(Probe(f"a new {kind} namespace by clone", f"""
def act():
    done, error = call('clone', {flag} | signal.SIGCHLD, 0, 0, 0, 0)
    if done == 0: os._exit(0)
    if done > 0: os.waitpid(done, 0)
    breach() if done > 0 else denied(error)
in_child(act)
""") for kind, flag in _FLAGS.items() if kind != "time"),
    Probe("a new user namespace by clone3", """
def act():
    arguments = struct.pack('QQQQQQQQ', 0x10000000, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    done, error = call('clone3', ctypes.create_string_buffer(arguments), 64)
    if done == 0: os._exit(0)
    if done > 0: os.waitpid(done, 0)
    breach() if done > 0 else denied(error)
in_child(act)
"""),
    Probe("flags of clone in the high half of a word", """
def act():
    done, error = call('clone', (1 << 40) | 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0)
    if done == 0: os._exit(0)
    if done > 0: os.waitpid(done, 0)
    breach() if done > 0 else denied(error)
in_child(act)
"""),
    bash("a new user namespace by the program", "unshare -Ur true && echo BREACH"),
    Probe("somebody's namespace by setns", """
def act():
    for name in ('mnt', 'net', 'user', 'pid'):
        try: fd = os.open(f'/proc/1/ns/{name}', os.O_RDONLY)
        except OSError as error:
            denied(error); fd = os.open(f'/proc/self/ns/{name}', os.O_RDONLY)
        attempt('setns', fd, 0)
in_child(act)
"""),
    Probe("somebody's namespaces by a pidfd", """
def act():
    attempt('setns', os.pidfd_open(os.getppid()), 0x20000)
in_child(act)
"""),
    Probe("a key for the kernel's keyring", "attempt('add_key', b'user', b'probe', b'x', 1, -1)"),
    Probe("the keyrings", "attempt('keyctl', 0, -3, 0, 0, 0); attempt('request_key', b'user', b'x', None, -3)"),
    Probe("a ring of io_uring", "attempt('io_uring_setup', 1, ctypes.create_string_buffer(120))"),
    Probe("a BPF program", "attempt('bpf', 0, ctypes.create_string_buffer(72), 72)"),
    Probe("performance counters", """
event = struct.pack('IIQ', 1, 112, 0) + bytes(96)
attempt('perf_event_open', ctypes.create_string_buffer(event), 0, -1, -1, 0)
"""),
    Probe("faults of one's own", "attempt('userfaultfd', 0)"),
    Probe("secret memory", "attempt('memfd_secret', 0)", control="attempt('memfd_create', b'x', 0)"),
    Probe("a node for a device", """
path = f'/tmp/device-{os.getpid()}'
try:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 1))
    breach()
except OSError as error: denied(error)
finally:
    if os.path.exists(path): os.unlink(path)
"""),
    Probe("a node for a disk", """
path = f'/dev/shm/device-{os.getpid()}'
try:
    os.mknod(path, stat.S_IFBLK | 0o666, os.makedev(254, 0))
    breach()
except OSError as error: denied(error)
finally:
    if os.path.exists(path): os.unlink(path)
"""),
    Probe("devices of the host", """
for name in ('mem', 'port', 'kmsg', 'kvm', 'fuse', 'vda', 'sda', 'loop-control', 'vhost-net', 'net/tun', 'dri',
             'mapper/control', 'userfaultfd', 'vsock', 'uinput', 'watchdog', 'nvme0', 'console', 'tty0', 'hpet'):
    if os.path.exists(f'/dev/{name}'): breach(name)
""", leak="stat"),
    Probe("what is in devices of the host", """
for name in os.listdir('/dev') if OPEN else ('mem', 'kmsg', 'kvm', 'fuse', 'vda', 'sda', 'net/tun', 'vsock', 'console', 'tty0', 'shm', 'pts', 'ptmx'):
    if name in ('null', 'zero', 'full', 'random', 'urandom', 'tty', 'stdin', 'stdout', 'stderr', 'fd'): continue
    if not OPEN and name in ('shm', 'pts', 'ptmx') and 'kernelbox-walls' not in os.environ['TMPDIR']: continue  # its own
    try: os.close(os.open(f'/dev/{name}', os.O_RDONLY | os.O_NONBLOCK)); breach(name)
    except OSError as error: denied(error)
"""),
    Probe("the core pattern", "open('/proc/sys/kernel/core_pattern', 'r+').close(); breach()"),
    Probe("settings of the kernel", """
for name in ('kernel/modprobe', 'vm/overcommit_memory', 'kernel/hostname', 'net/ipv4/ip_forward', 'fs/file-max'):
    try: open(f'/proc/sys/{name}', 'r+').close(); breach(name)
    except OSError as error: denied(error)
"""),
    Probe("sysrq", "open('/proc/sysrq-trigger', 'w').close(); breach() if os.stat('/proc/sysrq-trigger').st_size == 0 and not stat.S_ISCHR(os.stat('/proc/sysrq-trigger').st_mode) else denied()"),
    Probe("memory of the kernel", """
for path in ('/proc/kcore', '/proc/kmsg', '/proc/kpagemap', '/proc/vmcore', '/dev/mem'):
    try: breach(path) if open(path, 'rb', 0).read(16) else denied()
    except OSError as error: denied(error)
""", control="open('/proc/kmsg', 'rb').close(); breach()"),
    Probe("addresses of the kernel", """
addresses = {line.split()[0] for line in open('/proc/kallsyms')}
breach() if addresses - {'0000000000000000', '(null)'} else denied()
""", control=None),
    Probe("the kernel's log", "attempt('syslog', 10, None, 0)"),
    Probe("a module for the kernel", "attempt('init_module', None, 0, b''); attempt('finit_module', -1, b'', 0); attempt('delete_module', b'no-such-module', 0)"),
    Probe("another kernel by kexec", "attempt('kexec_load', 0, 0, None, 0xFFFF); attempt('kexec_file_load', -1, -1, 0, None, 0xFFFF)",
          control="attempt('kexec_load', 0, 0, None, 0xFFFF)"),
    Probe("a reboot", "attempt('reboot', 0, 0, 0, None)"),
    Probe("swap", "attempt('swapon', b'/no/such/file', 0); attempt('swapoff', b'/no/such/file')"),
    Probe("the clock", "attempt('clock_settime', 0, None); attempt('settimeofday', ctypes.create_string_buffer(b'\\xff' * 16), None)"),
    Probe("accounting", "attempt('acct', b'/no/such/file')"),
    Probe("quotas", "attempt('quotactl', 0x80000100, b'/dev/none', 0, None)"),
    Probe("ports of the machine", "attempt('iopl', 3); attempt('ioperm', 0, 1, 1)", control="attempt('ioperm', 0, 1, 1); call('ioperm', 0, 1, 0)"),
    Probe("fixed addresses", "in_child(lambda: attempt('personality', 0x40000))"),
    Probe("another root", "in_child(lambda: (os.chroot('/tmp'), breach()))"),
    Probe("another host name", "in_child(lambda: attempt('sethostname', b'probe', 5), spare=0x4000000)"),
    Probe("typing into a terminal", """
import pty
near, far = pty.openpty()
try:
    fcntl.ioctl(far, 0x5412, b'x')
    breach()
finally:
    os.close(near); os.close(far)
""", control="""
import pty
near, far = pty.openpty()
try: fcntl.ioctl(far, 0x5412, b'x'); breach()
except OSError as error: breach() if error.errno in (errno.EIO,) else denied(error)  # sysctl legacy_tiocsti
finally: os.close(near); os.close(far)
"""),
    Probe("typing into a terminal, with more bits set", """
import pty
near, far = pty.openpty()
try: attempt('ioctl', far, 0x5412 | (1 << 40), b'x')
finally: os.close(near); os.close(far)
""", control=None),
    Probe("being root by setuid", """
def act():
    for change in (lambda: os.setuid(0), lambda: os.setresuid(0, 0, 0), lambda: os.setgid(0), lambda: os.setgroups([0])):
        try: change(); breach()
        except OSError as error: denied(error)
in_child(act)
"""),
    Probe("being root by a setuid program", """
import shutil
for words in (['su', '-c', 'id -u'], ['sudo', '-n', 'id', '-u'], ['mount', '-t', 'tmpfs', 'x', '/tmp'], ['newgrp', 'root']):
    if not shutil.which(words[0]): continue
    if OPEN and words[0] != 'su': continue
    if not OPEN and words[0] == 'su': words = ['timeout', '0.3', *words]  # it waits after a wrong password
    done = subprocess.run(words, input='', capture_output=True, text=True, timeout=10)
    breach(words) if done.returncode == 0 and done.stdout.strip() in ('0', '') else denied(words)
"""),
    Probe("being somebody by one's own setuid program", """
import shutil
shutil.copy('/usr/bin/id', '/tmp/id-probe')
os.chmod('/tmp/id-probe', 0o6755)
if OPEN: os.chown('/tmp/id-probe', 4321, 4321); os.chmod('/tmp/id-probe', 0o6755)
try: uid = subprocess.run(['/tmp/id-probe', '-u'], capture_output=True, text=True).stdout.strip()
finally: os.unlink('/tmp/id-probe')
breach(uid) if uid != str(os.getuid()) else denied(uid)
"""),
    Probe("capabilities", """
sets = dict(line.split(':\\t') for line in open('/proc/self/status').read().splitlines() if line.startswith(('Cap', 'NoNew', 'Seccomp:')))
for name in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb'):
    if int(sets.get(name, '0'), 16): breach(name)
if _libc.prctl(39, 0, 0, 0, 0) != 1: breach('NoNewPrivs')
if sets['Seccomp'] != '2': breach('Seccomp')
"""),
    bash("capabilities in bash", "grep -E 'Cap(Inh|Prm|Eff|Bnd|Amb)' /proc/self/status | grep -qv '0000000000000000$' && echo BREACH"),
    Probe("capabilities, asked for", """
header = ctypes.create_string_buffer(struct.pack('Ii', 0x20080522, 0))
for data in (struct.pack('6I', 1 << 21, 1 << 21, 0, 0, 0, 0),):
    done, error = call('capset', header, ctypes.create_string_buffer(data))
    breach() if done == 0 else denied(error)
""", control="breach() if int(dict(l.split(':\\t') for l in open('/proc/self/status').read().splitlines() if l.startswith('Cap'))['CapEff'], 16) else denied()"),
    Probe("capabilities of a file", "path = f'/tmp/caps-{os.getpid()}'; open(path, 'w').close()\ntry: os.setxattr(path, 'security.capability', struct.pack('<5I', 0x02000001, 1 << 21, 0, 0, 0)); breach()\nfinally: os.unlink(path)"),
    Probe("calls by another table of numbers", """
child = os.fork()
if child == 0:
    import mmap
    page = mmap.mmap(-1, 4096, prot=7)
    # mov eax, 20 (getpid of i386); int 0x80; ret
    page.write(b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3')
    ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
    os._exit(42)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
breach(status) if status == 42 else denied(status)
"""),
    Probe("calls by the numbers of x32", """
child = os.fork()
if child == 0:
    done = _libc.syscall(ctypes.c_long(0x40000000 + 39))
    os._exit(42)
status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
breach(status) if status == 42 else denied(status)
"""),
    Probe("a higher place in the queue", """
for act in (lambda: os.nice(-5), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))):
    try: act(); breach(); os.nice(5); os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
    except OSError as error: denied(error)
"""),
    Probe("more than the limits", """
import resource
for kind in (resource.RLIMIT_CORE, resource.RLIMIT_MEMLOCK):
    try: resource.setrlimit(kind, (1 << 30, 1 << 30)); breach()
    except (OSError, ValueError) as error: denied(error)
""", control="""
import resource
soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard)); breach()
"""),
    Probe("a safer place from the OOM killer", """
def act():
    with open('/proc/self/oom_score_adj', 'w') as file: file.write('-900')
    breach()
in_child(act)
""", control="in_child(lambda: (open('/proc/self/oom_score_adj', 'w').write('600'), breach()))"),
]  # fmt: skip


@pytest.mark.parametrize(("probe", "profile"), walled(PROBES))
def test_it_is_refused(sandboxes: Sandboxes, probe: Probe, profile: str) -> None:
    sandboxes.must_fail(probe, profile)


@pytest.mark.parametrize("probe", controlled(PROBES))
def test_without_walls_it_is_granted(sandboxes: Sandboxes, probe: Probe) -> None:
    sandboxes.must_succeed(probe)


@pytest.mark.parametrize("profile", ALL)
def test_it_runs_as_nobody_of_the_host(sandboxes: Sandboxes, profile: str) -> None:
    kernel = sandboxes.kernel(profile)
    (pid,) = [
        process["pid"]
        for process in sandboxes.box.status(kernel)["processes"]
        if process["role"] == "interpreter"
    ]
    uids = set(Process(pid).uids())
    assert uids == {os.getuid()} or (os.getuid() == 0 and min(uids) > 1_000_000_000)


@pytest.mark.parametrize("profile", ALL)
def test_nothing_can_be_made_in_dev(sandboxes: Sandboxes, profile: str) -> None:
    sandboxes.must_fail(Probe("dev", "open('/dev/probe', 'w'); breach()"), profile)
