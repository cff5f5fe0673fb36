"""Policies that answer messages; engines that answer tokens live in `training/`."""

from environments.policies.openai import OpenAIChatPolicy, Usage

__all__ = ["OpenAIChatPolicy", "Usage"]
