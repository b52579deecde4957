"""The report: one result file becomes one self-contained HTML page, or lines for a terminal."""

from oplens.report.page import render
from oplens.report.what_if import what_if_lines

__all__ = ["render", "what_if_lines"]
