"""Many models in one table: a folder of Parquet files that many processes fill, and that survives being killed.

Atlas          the folder: add models, read the table, query it with SQL
AtlasStatus    how many models an atlas holds
Added          what one call of `Atlas.add` did
"""

from attngeo.atlas.atlas import Added, Atlas
from attngeo.atlas.status import AtlasStatus

__all__ = ["Added", "Atlas", "AtlasStatus"]
