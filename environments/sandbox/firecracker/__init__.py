"""MicroVMs: :class:`Machine` is the life cycle alone, :class:`FirecrackerSandbox` a box for agents' code on top of it."""

from environments.sandbox.firecracker.backend import FirecrackerBackend
from environments.sandbox.firecracker.machine import GuestConfig, Image, Machine
from environments.sandbox.firecracker.sandbox import FirecrackerSandbox
from environments.sandbox.firecracker.vmm import Programs, reap_orphans

__all__ = ["FirecrackerBackend", "FirecrackerSandbox", "GuestConfig", "Image", "Machine", "Programs", "reap_orphans"]
