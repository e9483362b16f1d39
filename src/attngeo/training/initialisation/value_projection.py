"""Find the value and output projections of a layer, which two published initialisations write as well."""

from __future__ import annotations

from torch import Tensor

from attngeo.errors import LayoutError
from attngeo.live.parameters import AttentionParameters, LayerParameters, matrix_view
from attngeo.weights.layout.storage.base import VALUE_NAMES, ValueRows

# Names of the output projection below the path of the layer's queries and keys.
_OUTPUT_NAMES = ("o_proj", "out_proj", "o", "out_lin", "c_proj", "dense", "Wo", "wo", "linear_out", "to_out.0", "proj")


def value_tensor(model: AttentionParameters, layer: LayerParameters) -> str:
    """Return the name of the parameter that holds the values of a layer."""
    site = layer.site
    if site.storage.value_rows is not ValueRows.OWN_TENSOR:
        return site.key
    leaf = site.key.removeprefix(site.path + ".").removesuffix(".weight")
    name = f"{site.path}.{VALUE_NAMES.get(leaf, '?')}.weight"
    if name not in model.parameters:
        raise LayoutError(f"{layer.label}: no value projection found beside {site.key}")
    return name


def value_and_output(model: AttentionParameters, layer: LayerParameters) -> tuple[Tensor, Tensor, tuple[str, str]]:
    """Return the value and output projections as views [out, in], both d×d, and the names of their parameters."""
    site, d = layer.site, layer.width
    if site.storage.value_rows is ValueRows.INTERLEAVED:
        raise LayoutError(
            f"{layer.label}: values are stored between queries and keys; writing them there is not supported"
        )
    name = value_tensor(model, layer)
    values = matrix_view(site, name, model.parameters)[-d:]
    around = site.path.rpartition(".")[0]
    candidates = [f"{site.path}.{leaf}.weight" for leaf in _OUTPUT_NAMES] + [f"{around}.output.dense.weight"]
    output = next((name for name in candidates if name in model.parameters), None)
    if output is None:
        raise LayoutError(f"{layer.label}: no output projection found; the initialisation of values needs one")
    outputs = matrix_view(site, output, model.parameters)
    if values.shape != (d, d) or outputs.shape != (d, d):
        raise LayoutError(
            f"{layer.label}: values {list(values.shape)} and output {list(outputs.shape)}; "
            f"the initialisation of values expects [{d}, {d}]"
        )
    return values, outputs, (name, output)
