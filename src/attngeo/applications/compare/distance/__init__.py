"""How far apart are two networks of any shape, on the same inputs?

HeadGeometry               affinities, depths and sparsity of the heads of one network
network_distance           fused Gromov–Wasserstein distance, its null, difference of sparsity → NetworkDistance
fused_gromov_wasserstein   the distance alone
profile_difference         how two score profiles over depth differ
"""

from attngeo.applications.compare.distance.gromov_wasserstein import fused_gromov_wasserstein
from attngeo.applications.compare.distance.head_geometry import HeadGeometry
from attngeo.applications.compare.distance.network_distance import NetworkDistance, network_distance, profile_difference

__all__ = ["HeadGeometry", "NetworkDistance", "fused_gromov_wasserstein", "network_distance", "profile_difference"]
