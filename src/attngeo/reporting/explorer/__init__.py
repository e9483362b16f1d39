"""The explorer: a page on this machine that organises the attention of one model on any text.

explore           serve the page until it is interrupted
ExplorerServer    the HTTP server; it can also be started in a thread
TextSession       one loaded model that organises texts, the newest request first
"""

from attngeo.reporting.explorer.server import ExplorerServer, explore
from attngeo.reporting.explorer.text_session import TextSession

__all__ = ["ExplorerServer", "TextSession", "explore"]
