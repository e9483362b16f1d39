"""Pages: results as sections that a browser draws."""

from attngeo.show.page.section import PageFigure, Section

__all__ = ["PageFigure", "Section"]
