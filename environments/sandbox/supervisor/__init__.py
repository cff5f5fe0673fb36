"""One owner of a host's sandboxes, and leases on them for processes that may not have children of their own."""

from environments.sandbox.supervisor.admission import SupervisorLimits
from environments.sandbox.supervisor.client import LeasedSandbox, SupervisorBackend
from environments.sandbox.supervisor.process import SupervisorProcess, start_supervisor
from environments.sandbox.supervisor.server import Supervisor
from environments.sandbox.supervisor.wire import AdmissionError, LeaseError

__all__ = [
    "AdmissionError",
    "LeaseError",
    "LeasedSandbox",
    "Supervisor",
    "SupervisorBackend",
    "SupervisorLimits",
    "SupervisorProcess",
    "start_supervisor",
]
