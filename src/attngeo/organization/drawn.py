"""Results that draw themselves."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Drawn:
    """`plot()` gives a matplotlib figure; a notebook shows it in the place of the result."""

    def plot(self) -> Figure:
        raise NotImplementedError

    def _repr_png_(self) -> bytes:
        from attngeo.show.canvas import save

        picture = io.BytesIO()
        save(self.plot(), picture)
        return picture.getvalue()
