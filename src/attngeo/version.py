"""The version of attngeo, which files and pages state."""

__version__ = "0.1.0"
