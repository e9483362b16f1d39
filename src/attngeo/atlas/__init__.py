"""Many models in one table: a folder of Parquet files that many processes fill, and that survives being killed.

Atlas          the folder: add models, read the table, query it with SQL
AtlasStatus    how many models an atlas holds
Added          what one call of `Atlas.add` did
Organized      what one call of `Atlas.organize` did
hub_models, hub_revisions   references to all models of an organisation, to all revisions of a model
"""

from attngeo.atlas.atlas import Added, Atlas
from attngeo.atlas.listing import hub_models, hub_revisions
from attngeo.atlas.organized import Organized
from attngeo.atlas.status import AtlasStatus

__all__ = ["Added", "Atlas", "AtlasStatus", "Organized", "hub_models", "hub_revisions"]
