"""Replaying one episode: found in a run's tables or a file, stepped through in the terminal, written as a page."""

from flows.replay.find import Found, find_trace
from flows.replay.page import write_page
from flows.replay.terminal import step_through

__all__ = ["Found", "find_trace", "step_through", "write_page"]
