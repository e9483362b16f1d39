"""Sphinx extensions behind `make docs`: docstrings as they are written here, API pages, options, notebooks."""
