"""Results that draw themselves: the one place where results reach the `show` room."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(kind: str, *arguments: Any, **options: Any) -> Figure:
    """Return the figure that the function `kind` of `attngeo.show` draws of a result."""
    from attngeo import show

    figure: Figure = getattr(show, kind)(*arguments, **options)
    return figure


class Drawable:
    """A result with `plot()`, which returns a matplotlib figure; a notebook shows that figure for the result."""

    def plot(self) -> Figure:
        raise NotImplementedError

    def _repr_png_(self) -> bytes:
        from attngeo import show

        picture = io.BytesIO()
        show.save_figure(self.plot(), picture)
        return picture.getvalue()
