"""The report: ask the other rooms for what is missing, and hand everything to `show` as one page.

report           models or results → one HTML file
"""

from attngeo.reporting.report import report

__all__ = ["report"]
