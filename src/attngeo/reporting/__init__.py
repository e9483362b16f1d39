"""The report: ask the other rooms for what is missing, and hand everything to `show` as one page.

report           models or results → one HTML file
explore          a page on this machine: type a text, see its organised attention
"""

from attngeo.reporting.explorer import explore
from attngeo.reporting.report import report

__all__ = ["explore", "report"]
