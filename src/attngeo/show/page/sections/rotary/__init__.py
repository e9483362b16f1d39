"""The section on rotary position embedding: `rotary_section`."""

from attngeo.show.page.sections.rotary.section import rotary_section

__all__ = ["rotary_section"]
