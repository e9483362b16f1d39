"""Logits from queries, keys and masks: scale, grouped keys, soft-cap, position bias."""

from __future__ import annotations

import torch

from attngeo.live.attention_hook import MASKED, allowed_pairs, attention_logits, logit_scale, repeat_keys

GENERATOR = torch.Generator().manual_seed(0)
QUERY = torch.randn(1, 4, 5, 8, generator=GENERATOR)  # [1, H, Q, r]
KEY = torch.randn(1, 2, 6, 8, generator=GENERATOR)  # [1, G, K, r]
PRODUCTS = torch.stack([QUERY[0, head] @ KEY[0, head // 2].T for head in range(4)])  # [H, Q, K]


def test_heads_of_a_group_read_one_key_head() -> None:
    assert torch.equal(repeat_keys(KEY, 4)[0, [0, 1, 2, 3]], KEY[0, [0, 0, 1, 1]])
    assert repeat_keys(KEY, 2) is KEY


def test_the_default_scale_is_one_over_root_r() -> None:
    assert logit_scale(QUERY, None) == 8**-0.5
    assert logit_scale(QUERY, 0.25) == 0.25
    torch.testing.assert_close(attention_logits(QUERY, KEY, None, {}), PRODUCTS / 8**0.5)
    torch.testing.assert_close(attention_logits(QUERY, KEY, None, {"scaling": 1.0}), PRODUCTS)


def test_soft_cap_bias_and_mask() -> None:
    capped = 0.5 * torch.tanh(PRODUCTS / 0.5)
    torch.testing.assert_close(attention_logits(QUERY, KEY, None, {"scaling": 1.0, "softcap": 0.5}), capped)
    bias = torch.randn(1, 4, 5, 6, generator=GENERATOR)
    options = {"scaling": 1.0, "position_bias": bias}
    torch.testing.assert_close(attention_logits(QUERY, KEY, None, options), PRODUCTS + bias[0])
    # finite entries of an additive mask are a bias, the others leave the logits as they are
    mask = bias.clone()
    mask[..., 3:] = torch.finfo(torch.float32).min
    expected = PRODUCTS + bias[0] * (torch.arange(6) < 3)
    torch.testing.assert_close(attention_logits(QUERY, KEY, mask, {"scaling": 1.0}), expected)
    torch.testing.assert_close(attention_logits(QUERY, KEY, torch.arange(6) < 3, {"scaling": 1.0}), PRODUCTS)


def test_allowed_pairs_of_boolean_and_additive_masks() -> None:
    assert allowed_pairs(torch.tensor([0.0, -3.0, MASKED, -float("inf")])).tolist() == [True, True, False, False]
    assert allowed_pairs(torch.tensor([True, False])).tolist() == [True, False]
