"""Forms of chosen heads agree with the score table and with the dense form, and so do their spectra."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import attngeo
from attngeo.data import bundled
from attngeo.errors import InputError
from attngeo.weights.scoring.form import extreme_heads, head_forms, part_spectra


def test_forms_agree_with_the_score_table():
    ref = bundled("encoder")
    frame = attngeo.score(ref, nulls=False).frame
    chosen = extreme_heads(frame)
    heads = frame.drop_nulls("head")
    assert len(chosen) == 3
    symmetries = [heads.filter(stack=s, layer=n, head=h)["symmetry"][0] for s, n, h in chosen]
    assert symmetries[0] == heads["symmetry"].max() and symmetries[2] == heads["symmetry"].min()
    middle = heads["symmetry"].sort()
    assert middle[len(middle) // 2 - 1] <= symmetries[1] <= middle[len(middle) // 2]
    layers = {weights.layer: weights for weights in attngeo.attention_layers(ref)}
    for (stack, layer, head), form in zip(chosen, head_forms(ref, chosen), strict=True):
        row = heads.filter(stack=stack, layer=layer, head=head).row(0, named=True)
        assert (form.stack, form.layer, form.head, form.model) == (stack, layer, head, row["model"])
        assert form.symmetry == pytest.approx(row["symmetry"], abs=1e-6)
        assert form.directionality == pytest.approx(row["directionality"], abs=1e-6)
        dense = layers[layer].query[head].astype(float) @ layers[layer].key[head].astype(float).T
        np.testing.assert_allclose(form.row_norms, np.linalg.norm(dense, axis=1), rtol=1e-5)
        np.testing.assert_allclose(form.column_norms, np.linalg.norm(dense, axis=0), rtol=1e-5)
        for norms, limit in ((form.row_norms, form.row_threshold), (form.column_norms, form.column_threshold)):
            assert limit == pytest.approx(norms.mean() + 2 * norms.std(ddof=1))
        assert np.square(form.symmetric).sum() / form.norm**2 == pytest.approx((1 + form.symmetry) / 2, abs=1e-6)


def test_grouped_queries_read_their_key_head(smollm2):
    """Heads 1, 3 and 5 of 9 read key heads 0, 1 and 1 of 3; heads 0, 4 and 8 would not tell h // 3 from h mod 3."""
    frame = attngeo.score(smollm2, layers=[3], nulls=False, folded=False).frame
    for form in head_forms(smollm2, [("decoder", 3, head) for head in (8, 1, 3, 5)]):
        row = frame.filter(pl.col("head") == form.head).row(0, named=True)
        assert form.symmetry == pytest.approx(row["symmetry"], abs=1e-5)


def test_a_missing_head_is_named():
    with pytest.raises(InputError, match="the encoder has no head L1H9 of self-attention"):
        head_forms(bundled("encoder"), [("encoder", 1, 9)])


@pytest.mark.parametrize(("d", "r"), [(40, 4), (40, 20), (9, 9)])
def test_spectra_are_those_of_the_dense_parts(d, r):
    query, key = np.random.default_rng(d + r).normal(size=(2, d, r))
    form = query @ key.T
    count = min(2 * r, d)
    for found, part in zip(part_spectra(query, key), ((form + form.T) / 2, (form - form.T) / 2j), strict=True):
        dense = np.linalg.eigvalsh(part)  # ascending, with d − count zeros
        largest = dense[np.argsort(-abs(dense))][:count]
        assert found.shape == (count,)
        np.testing.assert_allclose(found, np.sort(largest)[::-1], atol=1e-10 * abs(form).max() * d)
