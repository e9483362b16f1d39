"""Results that draw themselves: `draw` is the one way from a result to the functions of `attngeo.show`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(kind: str, *arguments: object, **options: object) -> Figure:
    """Return the figure that the function named `kind` in `attngeo.show` draws of these arguments."""
    from attngeo import show

    figure: Figure = getattr(show, kind)(*arguments, **options)
    return figure


class Drawable:
    """Base of results that a notebook shows as the figure that their `plot()` returns."""

    def plot(self) -> Figure:
        """Return a matplotlib figure of the result."""
        raise NotImplementedError

    def _repr_png_(self) -> bytes:
        picture: bytes = self.plot()._repr_png_()  # type: ignore[attr-defined]
        return picture
