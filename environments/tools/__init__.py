"""The agent's tools: a stateful interpreter, a shell, files, a browser; and the service by which code inside calls all others."""

from environments.tools.toolbox import SANDBOX_TOOLS, TOOLS, Toolbox, toolbox_for

__all__ = ["SANDBOX_TOOLS", "TOOLS", "Toolbox", "toolbox_for"]
