"""Which system calls code behind the walls may make.

Two policies: :func:`deny_list` refuses what no ordinary program needs and much has been broken
with; :func:`allow_list` lets through what Python, its scientific packages, bash and coreutils need,
and nothing else.
"""

from __future__ import annotations

import errno
import functools
import os
import socket
import stat
import sys
from collections.abc import Mapping

from kernelbox.walls import syscalls
from kernelbox.walls.bpf import (
    ALLOW,
    ENOSYS,
    EPERM,
    Case,
    Check,
    Program,
    Rule,
    Verdict,
    assemble,
    refuse,
)

# New namespaces would give user code capabilities over much kernel code that it cannot reach else.
# CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}; of clone() alone, where the bit of CLONE_NEWTIME is
# part of a signal's number.
_NEW_NAMESPACES = 0x7E020000
_CLONE = Rule((Case((Check(0, (0,), mask=_NEW_NAMESPACES),), ALLOW),), EPERM)

# What types into, or takes over, a terminal that others read.
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
_IOCTL = Rule((Case((Check(1, (_TIOCSTI, _TIOCLINUX, _TIOCSETD)),), EPERM),), ALLOW)

# 0 is plain Linux, the other only asks: what is left is old bugs, and no random addresses.
_PERSONALITY = Rule((Case((Check(0, (0, 0xFFFFFFFF)),), ALLOW),), EPERM)


def _mknod(mode: int) -> Rule:
    devices = Check(mode, (stat.S_IFCHR, stat.S_IFBLK), mask=0xF000)
    special = Check(mode, _SPECIAL_BITS, mask=0o7000)
    return Rule((Case((devices,), EPERM), Case((special,), EPERM)), ALLOW)


_PR_SET_SECCOMP, _PR_SET_MM, _PR_SET_NO_NEW_PRIVS, _PR_SET_MEMORY_MERGE = 22, 35, 38, 67
_PR_SET_PTRACER, _PR_SET_VMA = 0x59616D61, 0x53564D41
_PRCTL_DENIED = Rule(
    (Case((Check(0, (_PR_SET_MM, _PR_SET_MEMORY_MERGE, _PR_SET_PTRACER)),), EPERM),), ALLOW
)
_PRCTL_ALLOWED = Rule(
    (
        Case(
            (
                Check(
                    0,
                    (
                        *(1, 2, 3, 4),  # signal at the parent's death, dumpable
                        *(7, 8),  # keep capabilities (there are none)
                        *(15, 16),  # name
                        *(21, _PR_SET_SECCOMP, 23, 24),  # seccomp; the bounding set: read, drop
                        *(27, 29, 30),  # read secure bits; timer slack
                        *(36, 37, _PR_SET_NO_NEW_PRIVS, 39, 40),  # subreaper; address of the tid
                        *(41, 42, 47),  # huge pages; ambient capabilities
                        *(50, 51, 54, 55, 56, 60, 61, 63, 64),  # aarch64: vectors, pointer keys
                        *(52, 53),  # speculation
                        _PR_SET_VMA,  # names of mappings, which malloc gives
                    ),
                ),
            ),
            ALLOW,
        ),
    ),
    EPERM,
)

_TYPE = 0xF  # the rest of a socket's type are flags
_STREAM, _DGRAM, _SEQPACKET = (
    int(kind) for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_SEQPACKET)
)
_UNIX = Check(0, (int(socket.AF_UNIX),))
_INTERNET = Check(0, (int(socket.AF_INET), int(socket.AF_INET6)))
# Asked for by getifaddrs(): a list of our own interfaces.
_ROUTES = (Check(0, (16,)), Check(2, (0,)))  # AF_NETLINK, NETLINK_ROUTE
_ANY_UNIX = Case((_UNIX, Check(1, (_STREAM, _DGRAM, _SEQPACKET), mask=_TYPE)), ALLOW)
_TCP_UDP_TYPES = Check(1, (_STREAM, _DGRAM), mask=_TYPE)

# Told by what is left: there are forty families, most of them modules that a socket() loads, and a
# raw socket has more than one name (SOCK_PACKET of AF_INET).
_SOCKET_DENIED = Rule(
    (_ANY_UNIX, Case((_INTERNET, _TCP_UDP_TYPES), ALLOW), Case(_ROUTES, ALLOW)), EPERM
)
# The protocols are named here: others come with these types, too (multipath TCP, SCTP, ping),
# and Landlock's rules for TCP say nothing about them.
_SOCKET_ALLOWED = Rule(
    (
        _ANY_UNIX,
        Case(
            (
                _INTERNET,
                _TCP_UDP_TYPES,
                Check(2, (0, int(socket.IPPROTO_TCP), int(socket.IPPROTO_UDP))),
            ),
            ALLOW,
        ),
        Case(_ROUTES, ALLOW),
    ),
    EPERM,
)
_PAIR = Rule((_ANY_UNIX,), EPERM)
# No datagrams where there shall be no sockets: one end of such a pair can send to any address.
_CONNECTED_PAIR = Rule((Case((_UNIX, Check(1, (_STREAM, _SEQPACKET), mask=_TYPE)), ALLOW),), EPERM)

# A set-uid file in a folder of the host would be one of the caller's there, where no wall is.
_SPECIAL_BITS = tuple(
    bits << 9 for bits in range(2, 8)
)  # set-uid, set-gid, with and without sticky
_CREATES = tuple(
    bits
    for bits in (
        os.O_CREAT,
        os.O_TMPFILE & ~os.O_DIRECTORY,
        os.O_CREAT | (os.O_TMPFILE & ~os.O_DIRECTORY),
    )
)


def _plain_mode(mode: int, flags: int | None = None) -> Rule:
    """No set-uid and no set-gid bits; with ``flags``, only where the call makes a file: otherwise
    that argument is whatever was in a register."""
    special = Check(mode, _SPECIAL_BITS, mask=0o7000)
    if flags is None:
        return Rule((Case((special,), EPERM),), ALLOW)
    made = Check(flags, _CREATES, mask=os.O_CREAT | (os.O_TMPFILE & ~os.O_DIRECTORY))
    return Rule((Case((made, special), EPERM),), ALLOW)


_TO_ONESELF = Rule((Case((Check(0, (0,)),), ALLOW),), EPERM)

# Before others in the queue: Linux lets nobody who has no rights, but gVisor does not ask.
_BEHIND = Rule((Case((Check(2, (1 << 31,), mask=1 << 31),), refuse(errno.EACCES)),), ALLOW)

_CHECKED: dict[str, Verdict] = {
    "chmod": _plain_mode(1),
    "fchmod": _plain_mode(1),
    "fchmodat": _plain_mode(2),
    "fchmodat2": _plain_mode(2),
    "creat": _plain_mode(1),
    "open": _plain_mode(2, 1),
    "openat": _plain_mode(3, 2),
    "openat2": ENOSYS,  # its mode is in memory, where no filter can look
    # The stub has the same uid, and could not start anything any more.
    "prlimit64": _TO_ONESELF,
    "clone": _CLONE,
    # Its flags are in memory, where no filter can look; libc then uses clone.
    "clone3": ENOSYS,
    "ioctl": _IOCTL,
    "mknod": _mknod(1),
    "mknodat": _mknod(2),
    "personality": _PERSONALITY,
    "setpriority": _BEHIND,
}

_DENIED = """
mount umount2 pivot_root move_mount open_tree open_tree_attr fsopen fsconfig fsmount fspick
mount_setattr chroot unshare setns
ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd
bpf perf_event_open uprobe userfaultfd memfd_secret
io_uring_setup io_uring_enter io_uring_register
keyctl add_key request_key
kexec_load kexec_file_load init_module finit_module delete_module create_module query_module
get_kernel_syms reboot swapon swapoff acct quotactl quotactl_fd nfsservctl lookup_dcookie syslog
settimeofday clock_settime adjtimex clock_adjtime
iopl ioperm modify_ldt vhangup uselib _sysctl sysfs ustat vserver
name_to_handle_at open_by_handle_at fanotify_init fanotify_mark
"""

_ALLOWED = """
read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close close_range
open openat creat dup dup2 dup3 pipe pipe2 fcntl flock fsync fdatasync sync syncfs sync_file_range
truncate ftruncate fallocate fadvise64 readahead sendfile splice tee copy_file_range
stat fstat lstat newfstatat statx statfs fstatfs access faccessat faccessat2
getdents getdents64 getcwd chdir fchdir umask readlink readlinkat
rename renameat renameat2 mkdir mkdirat rmdir link linkat symlink symlinkat unlink unlinkat
getxattr lgetxattr fgetxattr listxattr llistxattr flistxattr
mmap munmap mremap mprotect brk madvise process_madvise msync mincore mlock mlock2 munlock mlockall
munlockall mseal membarrier memfd_create pkey_alloc pkey_free pkey_mprotect
mbind get_mempolicy set_mempolicy
fork vfork execve execveat exit exit_group wait4 waitid set_tid_address arch_prctl rseq
restart_syscall
getpid getppid gettid getuid geteuid getgid getegid getgroups getresuid getresgid
setuid setgid setreuid setregid setresuid setresgid setfsuid setfsgid setgroups capget capset
getpgid getpgrp setpgid getsid setsid
uname sysinfo getcpu times time getrusage getrlimit setrlimit prlimit64 getpriority setpriority
ioprio_get ioprio_set
sched_yield sched_getaffinity sched_setaffinity sched_getparam sched_setparam sched_getscheduler
sched_setscheduler sched_getattr sched_setattr sched_get_priority_max sched_get_priority_min
sched_rr_get_interval
kill tkill tgkill rt_sigaction rt_sigprocmask rt_sigreturn rt_sigpending rt_sigtimedwait
rt_sigqueueinfo rt_tgsigqueueinfo rt_sigsuspend sigaltstack pause signalfd signalfd4
pidfd_open pidfd_send_signal
futex futex_waitv futex_wake futex_wait futex_requeue set_robust_list get_robust_list
poll ppoll select pselect6 epoll_create epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2
eventfd eventfd2 timerfd_create timerfd_settime timerfd_gettime
nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday alarm getitimer setitimer
timer_create timer_settime timer_gettime timer_getoverrun timer_delete
getrandom
sendto sendmsg sendmmsg recvfrom recvmsg recvmmsg shutdown getsockname getpeername getsockopt
setsockopt accept accept4
seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self
uretprobe
"""

# Harmless in namespaces of one's own. Without them Landlock would have to forbid these for what is
# outside, and has no rule for any: it is about opening files, not about their modes, owners and
# times, nor about watching them, nor about memory and queues that have a number and no path.
_SHARED = """
chmod fchmod fchmodat fchmodat2 chown fchown lchown fchownat
utime utimes futimesat utimensat
setxattr lsetxattr fsetxattr removexattr lremovexattr fremovexattr
inotify_init inotify_init1 inotify_add_watch inotify_rm_watch
shmget shmat shmctl shmdt semget semop semtimedop semctl msgget msgsnd msgrcv msgctl
mq_open mq_unlink mq_timedsend mq_timedreceive mq_notify mq_getsetattr
"""

# The same of what can be done to any process of the same user, unless it is to oneself (0).
_ALONE: dict[str, Verdict] = {
    **dict.fromkeys(("prlimit64", "sched_setaffinity", "sched_setparam"), _TO_ONESELF),
    "sched_setattr": _TO_ONESELF,
    # ZeroMQ names its thread by number, and ends the process when it may not make it ordinary (0).
    "sched_setscheduler": Rule(
        (Case((Check(0, (0,)),), ALLOW), Case((Check(1, (0,)),), ALLOW)), EPERM
    ),
    "setpriority": Rule((Case((Check(0, (0,)), Check(1, (0,))), ALLOW),), EPERM),
    "ioprio_set": Rule((Case((Check(0, (1,)), Check(1, (0,))), ALLOW),), EPERM),
}

# The same of signals, where Landlock (before version 6) does not keep them inside: only to one's
# own group of processes (0), as a number tells nobody whose process it is.
_FAMILY_ONLY = Rule((Case((Check(0, (0,)),), ALLOW),), EPERM)
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
_FIOSETOWN, _SIOCSPGRP = 0x8901, 0x8902
_UNSIGNALLED: dict[str, Verdict] = {
    "kill": _FAMILY_ONLY,
    **dict.fromkeys(("tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"), EPERM),
    "pidfd_send_signal": EPERM,
    # A descriptor can be told whom to signal when it is ready, and how.
    "fcntl": Rule((Case((Check(1, (_F_SETOWN, _F_SETSIG, _F_SETOWN_EX)),), EPERM),), ALLOW),
    "ioctl": Rule(
        (Case((Check(1, (_TIOCSTI, _TIOCLINUX, _TIOCSETD, _FIOSETOWN, _SIOCSPGRP)),), EPERM),),
        ALLOW,
    ),
}

# Whoever calls these asks whether they are there, and has another way.
_PROBED = """
openat2 cachestat map_shadow_stack set_mempolicy_home_node statmount listmount
lsm_get_self_attr lsm_set_self_attr lsm_list_modules
setxattrat getxattrat listxattrat removexattrat file_getattr file_setattr
"""


@functools.cache
def deny_list(*, machine: str = "") -> Program:
    """All but the calls that no ordinary program needs and that lead out of walls.

    For this machine, unless another is named.
    """
    verdicts: dict[str, Verdict] = {
        **dict.fromkeys(_DENIED.split(), EPERM),
        **_CHECKED,
        "prctl": _PRCTL_DENIED,
        "socket": _SOCKET_DENIED,
        "socketpair": _PAIR,
    }
    return _compile(verdicts, ALLOW, machine=machine or os.uname().machine)


@functools.cache
def allow_list(
    *, sockets: bool, namespaces: bool = True, signals: bool = True, machine: str = ""
) -> Program:
    """Only what Python, numpy and its kin, bash and coreutils need.

    Without ``sockets`` no socket can be made, but for connected pairs, and none be given an
    address. Without ``namespaces``, where Landlock and this filter are all the walls there are,
    also nothing that would reach the user's other files and processes past Landlock. Without
    ``signals`` none can be sent but to one's own process group.
    """
    verdicts: dict[str, Verdict] = {
        **dict.fromkeys(_PROBED.split(), ENOSYS),
        **dict.fromkeys(_ALLOWED.split(), ALLOW),
        **_CHECKED,
        "prctl": _PRCTL_ALLOWED,
        "socketpair": _CONNECTED_PAIR,
    }
    if sockets:
        verdicts |= {"socket": _SOCKET_ALLOWED, "socketpair": _PAIR}
        verdicts |= dict.fromkeys(("bind", "connect", "listen"), ALLOW)
    if namespaces:
        verdicts = {**dict.fromkeys(_SHARED.split(), ALLOW), **verdicts}  # what is checked stays so
    else:
        verdicts |= _ALONE
        verdicts |= dict.fromkeys(_SHARED.split(), EPERM)
    if not signals:
        verdicts |= _UNSIGNALLED
    return _compile(verdicts, EPERM, machine=machine or os.uname().machine)


def _compile(verdicts: Mapping[str, Verdict], default: Verdict, *, machine: str) -> Program:
    if machine not in syscalls.MACHINES or sys.byteorder != "little":
        known = " and ".join(syscalls.MACHINES)
        raise OSError(
            errno.ENOSYS,
            f"no table of system calls for {machine!r} ({sys.byteorder}-endian): seccomp filters "
            f"are made for {known}. Use a driver that brings its own kernel or runtime.",
        )
    numbers = syscalls.numbers(machine)
    # aarch64 never had the oldest calls.
    there = {numbers[name]: verdict for name, verdict in verdicts.items() if name in numbers}
    return assemble(machine, there, default)
