"""The report: one result file becomes one self-contained HTML page."""

from oplens.report.page import render

__all__ = ["render"]
