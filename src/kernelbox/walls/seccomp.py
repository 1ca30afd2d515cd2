"""Seccomp: which system calls code behind the walls may make, as a filter that the kernel runs.

Two policies: :func:`deny_list` refuses what no ordinary program needs and much has been broken
with; :func:`allow_list` lets through what Python, its scientific packages, bash and coreutils need,
and nothing else. Rules are data, the assembler is pure, and only :func:`install` acts.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kernelbox.walls import syscalls

# What a filter answers.

ALLOW = 0x7FFF0000
KILL = 0x80000000
"""The whole process, not only the thread."""


def refuse(number: int) -> int:
    """The call is not made, and its caller sees this errno."""
    return 0x00050000 | number


_EPERM, _ENOSYS = refuse(errno.EPERM), refuse(errno.ENOSYS)

# Rules.

_WHOLE = 0xFFFFFFFF


class Check(NamedTuple):
    """Holds when the low 32 bits of an argument, masked, are one of ``values``.

    Only of arguments that the kernel itself takes as 32 bits (or fewer): there a number that
    differs in its high half is the same number, and a filter that looked at it could be fooled.
    """

    argument: int
    values: Sequence[int]
    mask: int = _WHOLE


class Case(NamedTuple):
    """The answer when all checks hold."""

    checks: Sequence[Check]
    answer: int


class Rule(NamedTuple):
    """The answer of the first case that fits, or else the last word."""

    cases: Sequence[Case]
    otherwise: int


Verdict = int | Rule

# The assembler.


class Instruction(NamedTuple):
    """``struct sock_filter``: a jump counts the instructions that it skips."""

    code: int
    jump_true: int
    jump_false: int
    operand: int


@dataclass(frozen=True)
class Program:
    """A filter, ready to be installed."""

    instructions: tuple[Instruction, ...]

    @functools.cached_property
    def packed(self) -> bytes:
        """As the kernel reads it."""
        return b"".join(struct.pack("=HBBI", *each) for each in self.instructions)


_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06  # LD|W|ABS, ALU|AND|K, RET|K
_JUMP, _JUMP_EQUAL, _JUMP_AT_LEAST = 0x05, 0x15, 0x35  # JMP|JA, JMP|JEQ|K, JMP|JGE|K
_FARTHEST = 255
# Offsets in struct seccomp_data. Arguments are 64 bits wide, the low half first.
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_X32 = 0x40000000

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def assemble(machine: str, verdicts: Mapping[int, Verdict], default: Verdict) -> Program:
    """The filter that answers each call by number, with ``default`` for what is not named, and
    ENOSYS for what is younger than our table: programs expect that of a call they probe for.

    Another architecture's numbers mean other calls, so whoever uses them is killed. Then the
    number is searched for by halves: nine comparisons for three hundred calls. Where a number alone
    decides that a call is allowed, Linux (5.11 and later) finds that out when the filter is
    installed, and does not run the filter for it again; so nothing but the architecture and the
    number may be looked at before.
    """
    code = [
        Instruction(_LOAD, 0, 0, _ARCHITECTURE),
        Instruction(_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[machine]),
        Instruction(_RETURN, 0, 0, KILL),
        Instruction(_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        code.append(Instruction(_JUMP_AT_LEAST, 0, 1, _X32))
        code.append(Instruction(_RETURN, 0, 0, KILL))
    code += _search(_spans(verdicts, default, newest=syscalls.newest(machine)))
    return Program(tuple(code))


def _spans(
    verdicts: Mapping[int, Verdict], default: Verdict, *, newest: int
) -> list[tuple[int, Verdict]]:
    """``(first number, verdict)`` of each run of numbers that are answered alike."""
    spans: list[tuple[int, Verdict]] = []
    for number in range(newest + 1):
        verdict = verdicts.get(number, default)
        if not spans or spans[-1][1] != verdict:
            spans.append((number, verdict))
    spans.append((newest + 1, _ENOSYS))
    return spans


def _search(spans: Sequence[tuple[int, Verdict]]) -> list[Instruction]:
    if len(spans) == 1:
        return _judge(spans[0][1])
    middle = len(spans) // 2
    below, above = _search(spans[:middle]), _search(spans[middle:])
    first = spans[middle][0]
    if len(below) <= _FARTHEST:
        return [Instruction(_JUMP_AT_LEAST, len(below), 0, first), *below, *above]
    far = Instruction(_JUMP, 0, 0, len(below))  # a conditional jump does not reach that far
    return [Instruction(_JUMP_AT_LEAST, 0, 1, first), far, *below, *above]


def _judge(verdict: Verdict) -> list[Instruction]:
    if isinstance(verdict, int):
        return [Instruction(_RETURN, 0, 0, verdict)]
    code: list[Instruction] = []
    for case in verdict.cases:
        code += _try_case(case)
    return [*code, Instruction(_RETURN, 0, 0, verdict.otherwise)]


def _try_case(case: Case) -> list[Instruction]:
    """Ends with the answer; is jumped out of, to what follows it, when a check does not hold."""
    code = [Instruction(_RETURN, 0, 0, case.answer)]
    for check in reversed(case.checks):
        *others, last = check.values
        steps = [Instruction(_LOAD, 0, 0, _ARGUMENTS + 8 * check.argument)]
        if check.mask != _WHOLE:
            steps.append(Instruction(_AND, 0, 0, check.mask))
        for index, value in enumerate(others):
            steps.append(Instruction(_JUMP_EQUAL, len(others) - index, 0, value))
        steps.append(Instruction(_JUMP_EQUAL, 0, len(code), last))
        code = [*steps, *code]
    return code


# The policies.

# New namespaces would give user code capabilities over much kernel code that it cannot reach else.
# CLONE_NEW{NS,CGROUP,UTS,IPC,USER,PID,NET}; of clone() alone, where the bit of CLONE_NEWTIME is
# part of a signal's number.
_NEW_NAMESPACES = 0x7E020000
_CLONE = Rule((Case((Check(0, (0,), mask=_NEW_NAMESPACES),), ALLOW),), _EPERM)

# What types into, or takes over, a terminal that others read.
_TIOCSTI, _TIOCLINUX, _TIOCSETD = 0x5412, 0x541C, 0x5423
_IOCTL = Rule((Case((Check(1, (_TIOCSTI, _TIOCLINUX, _TIOCSETD)),), _EPERM),), ALLOW)

# 0 is plain Linux, the other only asks: what is left is old bugs, and no random addresses.
_PERSONALITY = Rule((Case((Check(0, (0, 0xFFFFFFFF)),), ALLOW),), _EPERM)


def _mknod(mode: int) -> Rule:
    devices = Check(mode, (stat.S_IFCHR, stat.S_IFBLK), mask=0xF000)
    special = Check(mode, _SPECIAL_BITS, mask=0o7000)
    return Rule((Case((devices,), _EPERM), Case((special,), _EPERM)), ALLOW)


_PR_SET_SECCOMP, _PR_SET_MM, _PR_SET_NO_NEW_PRIVS, _PR_SET_MEMORY_MERGE = 22, 35, 38, 67
_PR_SET_PTRACER, _PR_SET_VMA = 0x59616D61, 0x53564D41
_PRCTL_DENIED = Rule(
    (Case((Check(0, (_PR_SET_MM, _PR_SET_MEMORY_MERGE, _PR_SET_PTRACER)),), _EPERM),), ALLOW
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
    _EPERM,
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
    (_ANY_UNIX, Case((_INTERNET, _TCP_UDP_TYPES), ALLOW), Case(_ROUTES, ALLOW)), _EPERM
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
    _EPERM,
)
_PAIR = Rule((_ANY_UNIX,), _EPERM)
# No datagrams where there shall be no sockets: one end of such a pair can send to any address.
_CONNECTED_PAIR = Rule((Case((_UNIX, Check(1, (_STREAM, _SEQPACKET), mask=_TYPE)), ALLOW),), _EPERM)

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
        return Rule((Case((special,), _EPERM),), ALLOW)
    made = Check(flags, _CREATES, mask=os.O_CREAT | (os.O_TMPFILE & ~os.O_DIRECTORY))
    return Rule((Case((made, special), _EPERM),), ALLOW)


_TO_ONESELF = Rule((Case((Check(0, (0,)),), ALLOW),), _EPERM)
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
    "openat2": _ENOSYS,  # its mode is in memory, where no filter can look
    # The stub has the same uid, and could not start anything any more.
    "prlimit64": _TO_ONESELF,
    "clone": _CLONE,
    # Its flags are in memory, where no filter can look; libc then uses clone.
    "clone3": _ENOSYS,
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
        (Case((Check(0, (0,)),), ALLOW), Case((Check(1, (0,)),), ALLOW)), _EPERM
    ),
    "setpriority": Rule((Case((Check(0, (0,)), Check(1, (0,))), ALLOW),), _EPERM),
    "ioprio_set": Rule((Case((Check(0, (1,)), Check(1, (0,))), ALLOW),), _EPERM),
}

# The same of signals, where Landlock (before version 6) does not keep them inside: only to one's
# own group of processes (0), as a number tells nobody whose process it is.
_FAMILY_ONLY = Rule((Case((Check(0, (0,)),), ALLOW),), _EPERM)
_F_SETOWN, _F_SETSIG, _F_SETOWN_EX = 8, 10, 15
_FIOSETOWN, _SIOCSPGRP = 0x8901, 0x8902
_UNSIGNALLED: dict[str, Verdict] = {
    "kill": _FAMILY_ONLY,
    **dict.fromkeys(("tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo"), _EPERM),
    "pidfd_send_signal": _EPERM,
    # A descriptor can be told whom to signal when it is ready, and how.
    "fcntl": Rule((Case((Check(1, (_F_SETOWN, _F_SETSIG, _F_SETOWN_EX)),), _EPERM),), ALLOW),
    "ioctl": Rule(
        (Case((Check(1, (_TIOCSTI, _TIOCLINUX, _TIOCSETD, _FIOSETOWN, _SIOCSPGRP)),), _EPERM),),
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
        **dict.fromkeys(_DENIED.split(), _EPERM),
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
        **dict.fromkeys(_PROBED.split(), _ENOSYS),
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
        verdicts |= dict.fromkeys(_SHARED.split(), _EPERM)
    if not signals:
        verdicts |= _UNSIGNALLED
    return _compile(verdicts, _EPERM, machine=machine or os.uname().machine)


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


# The act.

_SET_MODE_FILTER, _ALL_THREADS = 1, 1
_MODE_FILTER = 2

_libc = ctypes.CDLL(None, use_errno=True)


class _SockFprog(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


def install(program: Program) -> None:
    """From now on, for all threads and all we start, the kernel asks ``program``. For good.

    Sets no_new_privs, without which only root may do this, and should not: a setuid program that
    is refused a call it relies on can be led astray.
    """
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise _failure("prctl(PR_SET_NO_NEW_PRIVS)")
    argument = ctypes.byref(_SockFprog(len(program.instructions), program.packed))
    number = syscalls.numbers(os.uname().machine)["seccomp"]
    left_out = _libc.syscall(number, _SET_MODE_FILTER, _ALL_THREADS, argument)
    if left_out == 0:
        return
    if left_out > 0:
        raise OSError(
            errno.EBUSY,
            f"seccomp: thread {left_out} has a filter of its own, so none was installed. "
            "Install ours before any thread is started.",
        )
    if ctypes.get_errno() not in (errno.ENOSYS, errno.EINVAL):
        raise _failure("seccomp")
    # The old way, which reaches only the thread that asks.
    if len(os.listdir("/proc/self/task")) > 1:
        raise OSError(
            errno.EBUSY,
            "seccomp: this kernel cannot filter all threads of a process at once, and there is "
            "more than one. Install the filter before any thread is started.",
        )
    if _libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, argument, 0, 0) != 0:
        raise _failure("prctl(PR_SET_SECCOMP)")


@functools.cache
def obstacle() -> str:
    """Why this process cannot filter system calls; empty if it can. Found out by trying, in a
    child."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        words = b""
        try:
            _prove()
        except BaseException as error:  # noqa: BLE001 (a fork must not return)
            words = str(error).encode(errors="replace")[:1000] or repr(error).encode()
        try:
            os.write(writer, words)
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as answer:
        said = answer.read().decode(errors="replace")
    try:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except ChildProcessError:  # whoever ignores SIGCHLD has nothing to wait for
        status = 0
    if status < 0:
        return f"a child with a seccomp filter was killed by {signal.Signals(-status).name}"
    return said


def _prove() -> None:
    """Install a filter, and see it refuse what is harmless without it."""
    install(deny_list())
    ctypes.set_errno(0)
    done = _libc.personality(ctypes.c_ulong(0x0040000))  # ADDR_NO_RANDOMIZE, which anybody may ask
    if done != -1 or ctypes.get_errno() != errno.EPERM:
        raise OSError(errno.ENOSYS, "a seccomp filter was accepted here, and is not obeyed")


def _failure(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
