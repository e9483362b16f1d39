"""What would make a verdict wrong: the sentences are about the score that was judged."""

from __future__ import annotations

from attngeo import score
from attngeo.show.page.doubts import doubts
from attngeo.weights.scoring.published.verdict import two_digits, verdicts


def test_a_rotary_model_is_doubted_by_its_score_over_all_offsets(smollm2):
    frame = score(smollm2, heads=False, layers=range(4), folded=False).frame
    own, other = (two_digits(frame[column].median()) for column in ("symmetry_rope", "symmetry_rope_repaired"))
    assert own == two_digits(verdicts(frame)[0].median)
    assert any(f"In it they give {other} instead of {own}" in line for line in doubts(frame, verdicts(frame), ["it"]))
