"""The organised attention of all heads for a browser: quantised Haar coefficients as compressed bytes, and the trees.

attention_data      an organised network as the plain data from which `assets/attention.js` rebuilds and draws any head
attention_section   the section of a page that holds it
"""

from attngeo.show.page.attention.data import attention_data
from attngeo.show.page.attention.section import attention_section

__all__ = ["attention_data", "attention_section"]
