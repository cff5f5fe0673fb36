"""Seccomp deny-lists, assembled here as classic BPF so that no library or download is needed.

:func:`sandbox_filter` is for every process of a sandbox; :func:`pure_code_filter` comes on top for code that only has to
compute (it takes away new processes, programs, sockets and shared memory). A forkable sandbox starts under
:func:`server_filter`, which its process 1 alone keeps, and its interpreters run under :func:`interpreter_filter`.
A foreign architecture or the x32 interface kills the process: their numbers would slip past the list.
See seccomp(2) and Linux' ``include/uapi/linux/{filter,seccomp}.h`` for the encoding.
"""

from __future__ import annotations

import errno
import platform
import struct
from dataclasses import dataclass
from functools import cache

from environments.errors import MissingDependencyError

_LOAD, _AND, _JEQ, _JGE, _RET = 0x20, 0x54, 0x15, 0x35, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

# Numbers from arch/x86/entry/syscalls/syscall_64.tbl and include/uapi/asm-generic/unistd.h; None: the call does not exist there.
_TABLE: dict[str, tuple[int | None, int | None]] = {
    # name: (x86_64, aarch64)
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280), "chroot": (161, 51),
    "clock_adjtime": (305, 266), "clock_settime": (227, 112), "clone": (56, 220), "clone3": (435, 435), "delete_module": (176, 106),
    "execve": (59, 221), "execveat": (322, 281), "fanotify_init": (300, 262), "finit_module": (313, 273), "fork": (57, None),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433), "init_module": (175, 105),
    "io_uring_enter": (426, 426), "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "ioctl": (16, 29),
    "ioperm": (173, None), "iopl": (172, None), "ioprio_set": (251, 30), "kcmp": (312, 272), "kexec_file_load": (320, 294),
    "kexec_load": (246, 104), "keyctl": (250, 219), "listmount": (458, 458), "lookup_dcookie": (212, 18), "mbind": (237, 235),
    "memfd_create": (319, 279), "memfd_secret": (447, 447), "migrate_pages": (256, 238), "modify_ldt": (154, None), "mount": (165, 40),
    "mount_setattr": (442, 442), "move_mount": (429, 429), "move_pages": (279, 239), "mq_open": (240, 180), "msgget": (68, 186),
    "name_to_handle_at": (303, 264), "nfsservctl": (180, 42), "open_by_handle_at": (304, 265), "open_tree": (428, 428),
    "open_tree_attr": (467, 467), "perf_event_open": (298, 241), "pidfd_open": (434, 434), "statmount": (457, 457),
    "personality": (135, 92), "pidfd_getfd": (438, 438), "pivot_root": (155, 41), "prlimit64": (302, 261), "process_madvise": (440, 440),
    "process_mrelease": (448, 448), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271), "ptrace": (101, 117),
    "quotactl": (179, 60), "quotactl_fd": (443, 443), "reboot": (169, 142), "request_key": (249, 218), "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274), "sched_setparam": (142, 118), "sched_setscheduler": (144, 119), "semget": (64, 190),
    "set_mempolicy": (238, 237), "set_mempolicy_home_node": (450, 450), "setdomainname": (171, 162), "sethostname": (170, 161),
    "setns": (308, 268), "setpriority": (141, 140), "settimeofday": (164, 170), "shmget": (29, 194), "socket": (41, 198),
    "socketpair": (53, 199), "swapoff": (168, 225), "swapon": (167, 224), "syslog": (103, 116), "umount2": (166, 39),
    "unshare": (272, 97), "userfaultfd": (323, 282), "vfork": (58, None), "vhangup": (153, 58),
}  # fmt: skip

_DENIED = (
    "acct", "add_key", "adjtimex", "bpf", "chroot", "clock_adjtime", "clock_settime", "delete_module", "fanotify_init",
    "finit_module", "fsconfig", "fsmount", "fsopen", "fspick", "init_module", "io_uring_enter", "io_uring_register",
    "io_uring_setup", "ioperm", "iopl", "kcmp", "kexec_file_load", "kexec_load", "keyctl", "listmount", "lookup_dcookie", "mbind",
    "memfd_secret", "migrate_pages", "modify_ldt", "mount", "mount_setattr", "move_mount", "move_pages", "name_to_handle_at",
    "nfsservctl", "open_by_handle_at", "open_tree", "open_tree_attr", "perf_event_open", "personality", "pidfd_getfd", "pivot_root",
    "process_madvise", "process_mrelease", "process_vm_readv", "process_vm_writev", "ptrace", "quotactl", "quotactl_fd", "reboot",
    "request_key", "set_mempolicy", "set_mempolicy_home_node", "setdomainname", "sethostname", "setns", "settimeofday", "statmount",
    "swapoff", "swapon", "syslog", "umount2", "unshare", "userfaultfd", "vhangup",
)  # fmt: skip
_HIDDEN_MEMORY = ("memfd_create", "msgget", "semget", "shmget")
"""Memory that no limit of a process counts once it is unmapped; absent, as on a kernel built without them."""
_SERVER = ("mount", "setns", "umount2", "unshare")
"""What process 1 of a forkable sandbox needs to make branches."""
_DENIED_PURE = (
    "execve", "execveat", "fork", "vfork", "ioprio_set", "memfd_create", "mq_open", "msgget", "sched_setaffinity", "sched_setattr",
    "sched_setparam", "sched_setscheduler", "semget", "setpriority", "shmget", "socket", "socketpair",
)  # fmt: skip

_NEW_NAMESPACE = 0x7E020080  # every CLONE_NEW* flag
_ENTERED = (0x00020000, 0x08000000, 0x20000000, 0x40000000)  # mount, ipc, pid, network; never a user namespace
_CLONE_THREAD = 0x00010000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  # typing into somebody's terminal
_FAMILIES = (1, 2, 10)  # AF_UNIX, AF_INET, AF_INET6; the network namespace holds only a loopback


@dataclass(frozen=True)
class _Rule:
    """Refuse `name` with `code` when `(argument & mask)` is (`equal`) or is not (`not equal`) among `values`; always without a mask."""

    name: str
    code: int = errno.EPERM
    argument: int = 0
    mask: int = 0
    values: tuple[int, ...] = ()
    equal: bool = True


def _instruction(code: int, k: int, jt: int = 0, jf: int = 0) -> bytes:
    return struct.pack("=HBBI", code, jt, jf, k)


def _assemble(machine: str, rules: list[_Rule]) -> bytes:
    column = 0 if machine == "x86_64" else 1
    code = [
        _instruction(_LOAD, 4),
        _instruction(_JEQ, _AUDIT_ARCH[machine], 1, 0),
        _instruction(_RET, _KILL_PROCESS),
        _instruction(_LOAD, 0),
    ]
    if machine == "x86_64":
        code += [_instruction(_JGE, _X32_BIT, 0, 1), _instruction(_RET, _KILL_PROCESS)]
    for rule in rules:
        number = _TABLE[rule.name][column]
        if number is None:
            continue
        refuse = _instruction(_RET, _ERRNO | rule.code)
        if not rule.mask:
            code += [_instruction(_JEQ, number, 0, 1), refuse]
            continue
        count = len(rule.values)
        # The low word of the argument: flags, families, requests and pids are 32 bits wide.
        body = [_instruction(_LOAD, 16 + 8 * rule.argument), _instruction(_AND, rule.mask)]
        for position, value in enumerate(rule.values):
            to_refuse, to_allow = count - position - 1, count - position
            body.append(
                _instruction(_JEQ, value, to_refuse if rule.equal else to_allow, 0 if position < count - 1 else (1 if rule.equal else 0))
            )
        body += [refuse, _instruction(_LOAD, 0)]
        code += [_instruction(_JEQ, number, 0, len(body)), *body]
    return b"".join([*code, _instruction(_RET, _ALLOW)])


def _machine() -> str:
    machine = platform.machine()
    if machine not in _AUDIT_ARCH:
        raise MissingDependencyError(f"no seccomp table for {machine}", "run on x86_64 or aarch64")
    return machine


def _rules(allowed: tuple[str, ...] = ()) -> list[_Rule]:
    return [
        *(_Rule(name) for name in _DENIED if name not in allowed),
        *(_Rule(name, errno.ENOSYS) for name in _HIDDEN_MEMORY),
        _Rule("clone3", errno.ENOSYS),  # its flags lie in memory where a filter cannot look; libraries fall back to clone
        _Rule("ioctl", argument=1, mask=0xFFFFFFFF, values=(_TIOCSTI, _TIOCLINUX)),
        _Rule("prlimit64", argument=0, mask=0xFFFFFFFF, values=(0,), equal=False),  # no limits put on somebody else
        _Rule("socket", errno.EAFNOSUPPORT, argument=0, mask=0xFFFFFFFF, values=_FAMILIES, equal=False),
        _Rule("clone", argument=0, mask=_NEW_NAMESPACE, values=(0,), equal=False),
    ]


@cache
def sandbox_filter(machine: str | None = None) -> bytes:
    """The program for every process of a sandbox, as `bwrap --seccomp` reads it (`struct sock_filter[]`)."""
    return _assemble(machine or _machine(), _rules())


@cache
def server_filter(machine: str | None = None) -> bytes:
    """For process 1 of a forkable sandbox: the same, but it may make namespaces and mount. Filters only add up: the strict one follows."""
    return _assemble(machine or _machine(), _rules(_SERVER))


@cache
def interpreter_filter(machine: str | None = None) -> bytes:
    """For an interpreter that can be forked: the strict one, but it may enter mount, network, ipc and pid namespaces that it holds.

    A pidfd would stand for the namespaces of its process, also one of another branch, so it gets none.
    """
    enter = _Rule("setns", argument=1, mask=0xFFFFFFFF, values=_ENTERED, equal=False)
    return _assemble(machine or _machine(), [*_rules(("setns",)), enter, _Rule("pidfd_open", errno.ENOSYS)])


@cache
def pure_code_filter(machine: str | None = None) -> bytes:
    """The further program for code that only computes: threads yes; processes, programs, sockets, shared memory no."""
    rules = [_Rule(name) for name in _DENIED_PURE]
    rules.append(_Rule("clone", argument=0, mask=_CLONE_THREAD, values=(0,)))
    return _assemble(machine or _machine(), rules)
