"""The report of a run: one HTML file that needs no network and no server."""

from flows.report.build import write_report

__all__ = ["write_report"]
