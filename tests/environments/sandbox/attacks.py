"""Attacks as Python text: each prints or returns `ALLOWED ...` when it gets through, `blocked ...` when it does not."""

from __future__ import annotations

import platform

from environments.sandbox.seccomp import _TABLE

_COLUMN = 0 if platform.machine() == "x86_64" else 1


def _syscall(name: str, *arguments: str) -> str:
    number = _TABLE[name][_COLUMN]
    return f"sysc({number}, {', '.join(arguments)})" if arguments else f"sysc({number})"


PRELUDE = """
import ctypes, os, socket
def sysc(*arguments):
    libc = ctypes.CDLL(None, use_errno=True)
    result = libc.syscall(*arguments)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
"""

SYSCALLS: dict[str, str] = {
    "mount": _syscall("mount", "b'x'", "b'/tmp'", "b'tmpfs'", "0", "None"),
    "umount": _syscall("umount2", "b'/usr'", "0"),
    "pivot_root": _syscall("pivot_root", "b'/'", "b'/'"),
    "chroot": _syscall("chroot", "b'/usr'"),
    "unshare a user namespace": _syscall("unshare", "0x10000000"),
    "unshare a mount namespace": _syscall("unshare", "0x20000"),
    "clone a user namespace": _syscall("clone", "0x10000000 | 17", "0", "0", "0", "0"),
    "clone3": _syscall("clone3", "None", "0"),
    "setns": _syscall("setns", "0", "0"),
    "ptrace": _syscall("ptrace", "0", "0", "0", "0"),
    "process_vm_readv": _syscall("process_vm_readv", "1", "None", "0", "None", "0", "0"),
    "bpf": _syscall("bpf", "0", "None", "0"),
    "perf_event_open": _syscall("perf_event_open", "None", "0", "0", "0", "0"),
    "userfaultfd": _syscall("userfaultfd", "0"),
    "io_uring": _syscall("io_uring_setup", "1", "ctypes.create_string_buffer(120)"),
    "keyctl": _syscall("keyctl", "0", "-3", "1"),
    "add_key": _syscall("add_key", "b'user'", "b'x'", "b'y'", "1", "-3"),
    "pidfd_getfd": _syscall("pidfd_getfd", "0", "0", "0"),
    "open_by_handle_at": _syscall("open_by_handle_at", "-100", "None", "0"),
    "kexec_load": _syscall("kexec_load", "0", "0", "None", "0"),
    "personality": _syscall("personality", "0x0040000"),
    "vsock": "socket.socket(40, 1, 0)",
    "netlink": "socket.socket(16, 3, 0)",
    "raw packets": "socket.socket(17, 3, 0)",
    "raw internet": "socket.socket(2, 3, 1)",
    "limits of process 1": "__import__('resource').prlimit(1, __import__('resource').RLIMIT_CPU, (0, 0))",
}
"""Kernel interfaces that must be refused in every sandbox."""


def trying(expression: str) -> str:
    """Text of an expression statement that reports how trying `expression` went; for `exec` in a sandbox's interpreter."""
    return (
        f"{PRELUDE}\ntry:\n    print('ALLOWED', repr({expression})[:200])\n"
        "except Exception as error:\n    print('blocked', type(error).__name__, error)\n"
    )


def solving(expression: str) -> str:
    """The same as the body of `solve`, for a code pool."""
    return (
        f"{PRELUDE}\ndef solve():\n    try:\n        return 'ALLOWED ' + repr({expression})[:200]\n"
        "    except Exception as error:\n        return 'blocked ' + type(error).__name__ + ' ' + str(error)\n"
    )
