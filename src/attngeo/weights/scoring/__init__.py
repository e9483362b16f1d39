"""Symmetry and directionality of the QK form, their nulls, and the table of scores."""
