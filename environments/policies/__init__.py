"""Policies that answer messages; engines that answer tokens live in `training/`."""

from environments.policies.openai import OpenAIChatPolicy, Usage
from environments.policies.scripted import ScriptedPolicy

__all__ = ["OpenAIChatPolicy", "ScriptedPolicy", "Usage"]
