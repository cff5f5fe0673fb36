"""A guest of a few hundred bytes, without an operating system, that answers on the serial console. No assembler is needed.

Commands, a letter each: `i` adds one to a counter in memory; `g` prints it (16 hex digits); `d` and a letter write the counter
into the first word of 256 pages (`a`), 512 (`b`), ... from 64 MiB on and answer `D`; `s` and a letter print the sum of these
words; `x` makes the processor triple-fault, which ends the machine. It begins with the line `R`.
"""

from __future__ import annotations

import struct
from pathlib import Path

LOAD_ADDRESS = 0x1000000
DIRTY_ADDRESS = 64 << 20
PAGE = 4096

_PROGRAM = """
fa                    cli
48 8d 25 38 01 00 00  lea stack_top(%rip), %rsp
b0 52                 mov $'R', %al
e8 cb 00 00 00        call putc
e8 c4 00 00 00        call newline
e8 8e 00 00 00        loop: call getc
3c 69                 cmp $'i', %al
74 12                 je increment
3c 67                 cmp $'g', %al
74 17                 je get
3c 64                 cmp $'d', %al
74 21                 je dirty
3c 73                 cmp $'s', %al
74 45                 je sum
3c 78                 cmp $'x', %al
74 5d                 je die
eb e5                 jmp loop
48 ff 05 aa 00 00 00  increment: incq counter(%rip)
eb dc                 jmp loop
48 8b 1d a1 00 00 00  get: mov counter(%rip), %rbx
e8 74 00 00 00        call puthex
eb ce                 jmp loop
e8 48 00 00 00        dirty: call pages
48 8b 05 8e 00 00 00  mov counter(%rip), %rax
48 89 07              1: mov %rax, (%rdi)
48 81 c7 00 10 00 00  add $4096, %rdi
ff c9                 dec %ecx
75 f2                 jnz 1b
b0 44                 mov $'D', %al
e8 73 00 00 00        call putc
e8 6c 00 00 00        call newline
eb a6                 jmp loop
e8 20 00 00 00        sum: call pages
31 db                 xor %ebx, %ebx
48 03 1f              1: add (%rdi), %rbx
48 81 c7 00 10 00 00  add $4096, %rdi
ff c9                 dec %ecx
75 f2                 jnz 1b
e8 30 00 00 00        call puthex
eb 8a                 jmp loop
0f 01 1d 57 00 00 00  die: lidt nothing(%rip)
0f 0b                 ud2
e8 0f 00 00 00        pages: call getc
0f b6 c8              movzbl %al, %ecx
83 e9 60              sub $('a' - 1), %ecx
c1 e1 08              shl $8, %ecx
bf 00 00 00 04        mov $0x4000000, %edi
c3                    ret
66 ba fd 03           getc: mov $0x3fd, %dx
f3 90                 1: pause
ec                    in %dx, %al
a8 01                 test $1, %al
74 f9                 jz 1b
66 ba f8 03           mov $0x3f8, %dx
ec                    in %dx, %al
c3                    ret
41 b8 10 00 00 00     puthex: mov $16, %r8d
48 c1 c3 04           1: rol $4, %rbx
88 d8                 mov %bl, %al
24 0f                 and $15, %al
04 30                 add $'0', %al
3c 3a                 cmp $('9' + 1), %al
72 02                 jb 2f
04 27                 add $39, %al
e8 07 00 00 00        2: call putc
41 ff c8              dec %r8d
75 e6                 jnz 1b
b0 0a                 newline: mov $10, %al
66 ba f8 03           putc: mov $0x3f8, %dx
ee                    out %al, %dx
c3                    ret
00 00 00 00 00 00 00 00        counter: .quad 0
00 00 00 00 00 00 00 00 00 00  nothing: .skip 10, then the stack up to 0x140
"""
_HANGS = "f3 90  1: pause\neb fc  jmp 1b"


def _code(listing: str) -> bytes:
    return b"".join(bytes.fromhex(line.split("  ")[0]) for line in listing.strip().splitlines())


def _elf(code: bytes, memory_bytes: int) -> bytes:
    """An executable of one segment, loaded and entered at LOAD_ADDRESS in 64-bit mode (Linux's boot protocol)."""
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, LOAD_ADDRESS, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 7, PAGE, LOAD_ADDRESS, LOAD_ADDRESS, len(code), memory_bytes, PAGE)
    return (header + segment).ljust(PAGE, b"\0") + code


def write_guest(path: Path) -> Path:
    """The guest as a kernel file."""
    path.write_bytes(_elf(_code(_PROGRAM), 0x140))
    return path


def write_hanging_guest(path: Path) -> Path:
    """A kernel that never says a word."""
    path.write_bytes(_elf(_code(_HANGS), PAGE))
    return path
