"""The filters: right numbers, right shape, for both architectures."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pytest

from environments.errors import MissingDependencyError
from environments.sandbox import seccomp

HEADERS = {
    0: [Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), Path("/usr/include/asm/unistd_64.h")],
    1: [Path("/usr/include/asm-generic/unistd.h")],
}


def run(program: bytes, number: int, arguments: tuple[int, ...] = (), arch: int = 0xC000003E) -> int:
    """A tiny interpreter of the five instructions that the filters use; the action it returns."""
    data = struct.pack("<iIQ6Q", number, arch, 0, *(*arguments, *([0] * (6 - len(arguments)))))
    code = list(struct.iter_unpack("=HBBI", program))
    accumulator, at = 0, 0
    while True:
        operation, jt, jf, k = code[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, k)
        elif operation == 0x54:
            accumulator &= k
        elif operation == 0x15:
            at += jt if accumulator == k else jf
        elif operation == 0x35:
            at += jt if accumulator >= k else jf
        elif operation == 0x06:
            return int(k)
        else:
            raise AssertionError(f"unknown instruction {operation:#x}")


ALLOW, EPERM, ENOSYS, EAFNOSUPPORT, KILL = 0x7FFF0000, 0x50001, 0x50026, 0x50061, 0x80000000


@pytest.mark.parametrize(
    ("number", "arguments", "action"),
    [
        (0, (), ALLOW),  # read
        (101, (), EPERM),  # ptrace
        (165, (), EPERM),  # mount
        (435, (), ENOSYS),  # clone3
        (56, (0x11,), ALLOW),  # clone, as fork does
        (56, (0x3D0F00,), ALLOW),  # clone, as a thread
        (56, (0x10000011,), EPERM),  # clone, new user namespace
        (56, (0x20011,), EPERM),  # clone, new mount namespace
        (41, (1,), ALLOW),
        (41, (2,), ALLOW),
        (41, (10,), ALLOW),
        (41, (16,), EAFNOSUPPORT),
        (41, (40,), EAFNOSUPPORT),
        (16, (0, 0x5412), EPERM),  # TIOCSTI
        (16, (0, 0x541C), EPERM),  # TIOCLINUX
        (16, (0, 0x5413), ALLOW),  # TIOCGWINSZ
        (302, (0,), ALLOW),  # limits of itself
        (302, (1,), EPERM),  # limits of process 1
        (0x40000000, (), KILL),  # x32
        (59, (), ALLOW),  # execve
    ],
)
def test_the_sandbox_filter(number: int, arguments: tuple[int, ...], action: int) -> None:
    assert run(seccomp.sandbox_filter("x86_64"), number, arguments) == action


@pytest.mark.parametrize("number", [319, 29, 64, 68])  # memfd_create, shmget, semget, msgget
def test_memory_that_no_process_has_mapped_is_absent(number: int) -> None:
    for program in (seccomp.sandbox_filter, seccomp.server_filter, seccomp.interpreter_filter):
        assert run(program("x86_64"), number) == ENOSYS


@pytest.mark.parametrize(
    ("number", "arguments", "server", "interpreter"),
    [
        (165, (), ALLOW, EPERM),  # mount
        (166, (), ALLOW, EPERM),  # umount2
        (272, (0x20000,), ALLOW, EPERM),  # unshare
        (155, (), EPERM, EPERM),  # pivot_root
        (308, (0, 0x20000), ALLOW, ALLOW),  # setns: a mount namespace
        (308, (0, 0x20000000), ALLOW, ALLOW),  # a pid namespace
        (308, (0, 0x10000000), ALLOW, EPERM),  # a user namespace
        (308, (0, 0), ALLOW, EPERM),  # whatever it is
        (308, (0, 0x30000000), ALLOW, EPERM),  # several
        (101, (), EPERM, EPERM),  # ptrace
        (56, (0x10000011,), EPERM, EPERM),  # clone, new user namespace
        (438, (), EPERM, EPERM),  # pidfd_getfd
        (467, (), EPERM, EPERM),  # open_tree_attr
    ],
)
def test_the_filters_of_a_forkable_sandbox(number: int, arguments: tuple[int, ...], server: int, interpreter: int) -> None:
    assert run(seccomp.server_filter("x86_64"), number, arguments) == server
    assert run(seccomp.interpreter_filter("x86_64"), number, arguments) == interpreter
    assert run(seccomp.sandbox_filter("x86_64"), number, arguments) == EPERM


def test_only_an_interpreter_that_can_be_forked_gets_no_pidfd() -> None:
    assert run(seccomp.interpreter_filter("x86_64"), 434) == ENOSYS
    assert run(seccomp.sandbox_filter("x86_64"), 434) == ALLOW


@pytest.mark.parametrize(
    ("number", "arguments", "action"),
    [(59, (), EPERM), (57, (), EPERM), (41, (1,), EPERM), (56, (0x11,), EPERM), (56, (0x3D0F00,), ALLOW), (1, (), ALLOW), (319, (), EPERM)],
)
def test_the_pure_code_filter(number: int, arguments: tuple[int, ...], action: int) -> None:
    assert run(seccomp.pure_code_filter("x86_64"), number, arguments) == action


def test_a_foreign_architecture_kills() -> None:
    for program in (seccomp.sandbox_filter("x86_64"), seccomp.pure_code_filter("x86_64")):
        assert run(program, 0, arch=0x40000003) == KILL  # i386 through int 0x80
    assert run(seccomp.sandbox_filter("aarch64"), 0, arch=0xC000003E) == KILL
    assert run(seccomp.sandbox_filter("aarch64"), 117, arch=0xC00000B7) == EPERM
    assert run(seccomp.sandbox_filter("aarch64"), 63, arch=0xC00000B7) == ALLOW


@pytest.mark.parametrize("column", [0, 1])
def test_numbers_agree_with_the_kernel_headers(column: int) -> None:
    header = next((h for h in HEADERS[column] if h.exists()), None)
    if header is None:
        pytest.skip("no kernel headers. Fix: apt-get install -y linux-libc-dev")
    known = {name: int(number) for name, number in re.findall(r"#define\s+__NR3?2?6?4?_?(\w+)\s+(\d+)", header.read_text())}
    checked = 0
    for name, numbers in seccomp._TABLE.items():
        if name in known and numbers[column] is not None:
            assert numbers[column] == known[name], name
            checked += 1
    assert checked > 50


def test_an_unknown_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seccomp.platform, "machine", lambda: "riscv64")
    with pytest.raises(MissingDependencyError, match="riscv64"):
        seccomp._machine()
