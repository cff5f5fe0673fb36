"""The gate before training: every task is validated, attacked, and only then accepted."""

from environments.hardening.attempt import Attempt, replay
from environments.hardening.config import HardeningConfig
from environments.hardening.exploits import EXPLOITS, WAITING, Exploit, exploits_for
from environments.hardening.gate import Decision, gate
from environments.hardening.probe import probe
from environments.hardening.validate import validate

__all__ = [
    "EXPLOITS",
    "WAITING",
    "Attempt",
    "Decision",
    "Exploit",
    "HardeningConfig",
    "exploits_for",
    "gate",
    "probe",
    "replay",
    "validate",
]
