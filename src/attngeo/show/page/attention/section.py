"""`attention_section`: the part of a page in which a reader looks at the attention of single heads."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attngeo.organization.quantised import ENERGY, HEAD_ENERGY
from attngeo.show.organization_text import compact_labels
from attngeo.show.page.attention.data import attention_data
from attngeo.show.page.document import AttentionSection

if TYPE_CHECKING:
    from attngeo.organization.organize import Organization

READING = (
    "Each row is a query and each column a key, both in the order of their trees, which are drawn at the margins: "
    "positions that attend, or are attended to, in the same way lie side by side, so structure shows as blocks. Pick a "
    "head in the tree, in the layer × head map or in the list; heads that are close in the tree "
    "have similar colours. A click on a branch of a query or key tree enlarges it. The slider says from how many Haar "
    "coefficients the picture is made: with few, only coarse blocks appear."
)


def attention_section(organization: Organization, *, id: str = "attention") -> AttentionSection:
    """Return the section with the attention of every head of an organised network.

    >>> section = attention_section(organize(planted((16, 12, 8), seed=0)[0]))
    >>> section.notes[0]
    'The page holds 99.9% of the energy of all heads, at least 99.9% of each head.'
    """
    data = attention_data(organization)
    least, held = min(data["headShares"][-1]), data["shares"][-1]
    notes = [f"The page holds {_percent(held)} of the energy of all heads, at least {_percent(least)} of each head."]
    if data["short"]:
        notes.append(
            f"Less than {_percent(HEAD_ENERGY)} of the energy is held of {len(data['short'])} heads, whose pictures "
            f"are coarser: {compact_labels(data['short'])}."
        )
    if held < ENERGY:
        notes.append(f"The tensor is too large for the page: less than {_percent(ENERGY)} of its energy is held.")
    return AttentionSection(id, "Organised attention of single heads", READING, (), tuple(notes), data)


def _percent(share: float) -> str:
    """Return a share as a percentage that is never rounded up.

    >>> _percent(0.99999)
    '99.9%'
    """
    return f"{int(1000 * max(share, 0)) / 10:g}%"
