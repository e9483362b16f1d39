"""Models on the hub: headers and byte ranges are fetched, not whole files.

hub_checkpoint   open a model (`folder`)
HubRef           `org/name[/path][@revision]` (`errors`, which also words the client's errors)
is_address, parse_address   addresses of the hub's web pages (`address`)
HubModel         files and byte ranges of one model, through the hub's own client (`client`)
Snapshot         the files of one commit (`snapshot`)
"""

from attngeo.weights.sources.hub.address import is_address, parse_address
from attngeo.weights.sources.hub.client import HubModel
from attngeo.weights.sources.hub.errors import HubRef
from attngeo.weights.sources.hub.folder import hub_checkpoint
from attngeo.weights.sources.hub.snapshot import Snapshot

__all__ = ["HubModel", "HubRef", "Snapshot", "hub_checkpoint", "is_address", "parse_address"]
