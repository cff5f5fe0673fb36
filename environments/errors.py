"""Typed errors. Four roots, because who failed decides what happens next.

- :class:`InputError`: the user's input is wrong. Stop, name the value and the fix.
- :class:`InfrastructureError`: a box, an engine, a disk or a worker failed. Retry elsewhere; never a reward.
- :class:`AgentError`: the agent did something invalid. It is told so; the episode goes on; it is data.
- :class:`VerifierError`: the judge failed. The verdict is *no-verdict*: neither 0 nor 1.

All are picklable (Dask ships them between processes) and print as ``message. Fix: fix``.
"""

from __future__ import annotations


class NinefoldError(Exception):
    """Base of every error raised on purpose. `fix` says what the reader can do about it."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message, fix)
        self.message = message
        self.fix = fix

    def __str__(self) -> str:
        return f"{self.message}. Fix: {self.fix}" if self.fix else self.message


class InputError(NinefoldError):
    """The user's input is wrong."""


class ConfigError(InputError):
    """A configuration file or option is invalid (unknown key, bad value)."""


class UnknownSeedError(InputError):
    """A seed concept that occurs nowhere in the corpus."""


class EmptyCorpusError(InputError):
    """A corpus without any document."""


class CorruptArtifactError(InputError):
    """A file of ours (Parquet, manifest, checkpoint, journal) that does not read back as what it claims to be."""


class RunExistsError(InputError):
    """A run of that name exists and `--resume` was not given."""


class MissingDependencyError(InputError):
    """Something that must be installed is not; `fix` is the exact command."""


class InfrastructureError(NinefoldError):
    """A machine part failed: sandbox, engine, disk, worker, port. Retried elsewhere; never a reward."""


class SandboxError(InfrastructureError):
    """A sandbox could not be created, or died."""


class CaptureError(SandboxError):
    """A pause, fork or snapshot failed. `recoverable`: the sandbox runs on; otherwise it is gone."""

    def __init__(self, message: str, fix: str = "", recoverable: bool = True) -> None:
        super().__init__(message, fix)
        self.args = (message, fix, recoverable)
        self.recoverable = recoverable


class UnsupportedError(SandboxError):
    """A sandbox backend was asked for what it cannot do."""


class EngineError(InfrastructureError):
    """A generation engine died or answered garbage."""


class DiskFullError(InfrastructureError):
    """No space left while writing; whatever was finished is kept."""


class PortBusyError(InfrastructureError):
    """A port that a service needs is taken."""


class AgentError(NinefoldError):
    """The agent did something invalid; it reads this text as the tool's answer."""


class MalformedCallError(AgentError):
    """A tool call that cannot be parsed."""


class UnknownToolError(AgentError):
    """A call of a tool that the task does not offer."""


class BadArgumentsError(AgentError):
    """A call with missing, unknown or wrongly typed arguments."""


class VerifierError(NinefoldError):
    """The verifier crashed, timed out or returned something that is not a score."""


class NonFiniteRewardError(VerifierError):
    """A reward that is not a finite number in [0, 1]."""
