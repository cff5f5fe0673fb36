"""Carries connections from the host to ports inside a sandbox. Runs inside, with the standard library only.

It keeps one connection to the host's port waiting; the host writes a port's number on it, reads `+` or `-`, and then speaks
with whatever listens there. Started as `python3 -I -S -c SOURCE PORT`.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import threading
import time


def pump(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            sink.sendall(data)
    with contextlib.suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def carry(host: socket.socket, port: int) -> None:
    with host:
        try:
            service = socket.create_connection(("127.0.0.1", port), timeout=5)
        except OSError:
            host.sendall(b"-")
            return
        with service:
            service.settimeout(None)
            host.sendall(b"+")
            back = threading.Thread(target=pump, args=(service, host), daemon=True)
            back.start()
            pump(host, service)
            back.join()


def main(port: int) -> None:
    failures = 0
    while failures < 10:
        try:
            host = socket.create_connection(("127.0.0.1", port))
            with host.makefile("rb", buffering=0) as lines:
                wanted = int(lines.readline(16))
        except (OSError, ValueError):  # nobody accepts, or the host has gone
            failures += 1
            time.sleep(0.2)
            continue
        failures = 0
        threading.Thread(target=carry, args=(host, wanted), daemon=True).start()


main(int(sys.argv[1]))
