"""ScoreTable: summary, equality, concatenation, saving and loading."""

from __future__ import annotations

import polars as pl
import pytest

from attngeo.data import NAMES, bundled
from attngeo.errors import AttngeoError, InputError, SourceError
from attngeo.io.tables import parquet_bytes
from attngeo.weights.scoring.gaussian_null import gaussian_null, rotary_null
from attngeo.weights.scoring.score import score
from attngeo.weights.scoring.score_table import (
    COLUMNS,
    FREQUENCIES,
    MODEL_TYPES,
    NOTES,
    SCORES,
    ScoreTable,
    head_nulls,
    layer_nulls,
)


def score_row(layer: int, head: int | None, symmetry: float | None, directionality: float | None, **more) -> dict:
    about = {"model": "m", "stack": "encoder", "layer": layer, "head": head, "cross": False}
    about |= {"query_width": 64, "key_width": 64, "rank": 8}
    return about | {"symmetry": symmetry, "directionality": directionality} | more


@pytest.fixture
def table() -> ScoreTable:
    rows = [score_row(layer, None, layer / 10, -layer / 10) for layer in range(4)]
    rows += [score_row(0, head, s, 0.5, dominance=-head / 2) for head, s in enumerate((0.0, 0.25, 1.0))]
    rows += [score_row(1, 0, None, None), score_row(0, None, 0.9, 0.9, stack="cross", cross=True)]
    return ScoreTable.of(rows, ("a note", "and <another>"))


def test_a_table_has_every_column_with_its_type(table):
    assert {name: str(kind) for name, kind in table.frame.schema.items()} == COLUMNS
    assert ScoreTable.of([]).frame.schema == table.frame.schema
    assert len(table) == 9
    assert table.frame["norm"].null_count() == 9


def test_the_summary_has_medians_and_quartiles_per_stack_and_level(table):
    assert table.summary().to_dicts() == [
        {
            "model": "m",
            "stack": "encoder",
            "level": "layer",
            "count": 4,
            "symmetry_median": pytest.approx(0.15),
            "symmetry_q25": pytest.approx(0.075),
            "symmetry_q75": pytest.approx(0.225),
            "directionality_median": pytest.approx(-0.15),
            "directionality_q25": pytest.approx(-0.225),
            "directionality_q75": pytest.approx(-0.075),
            **{
                f"{score}_{name}": None for score in ("symmetry_rope", "dominance") for name in ("median", "q25", "q75")
            },
        },
        {
            "model": "m",
            "stack": "encoder",
            "level": "head",
            "count": 3,  # the head without a score is not counted
            "symmetry_median": 0.25,
            "symmetry_q25": 0.125,
            "symmetry_q75": 0.625,
            "directionality_median": 0.5,
            "directionality_q25": 0.5,
            "directionality_q75": 0.5,
            **{f"symmetry_rope_{name}": None for name in ("median", "q25", "q75")},
            "dominance_median": -0.5,
            "dominance_q25": -0.75,
            "dominance_q75": -0.25,
        },
    ]
    assert ScoreTable.of([]).summary().height == 0


def test_a_table_is_an_immutable_value(table):
    assert table == ScoreTable(table.frame.clone(), table.notes)
    assert table != ScoreTable(table.frame, ())
    assert table != ScoreTable(table.frame.head(3), table.notes)
    assert table != "table"
    with pytest.raises(AttributeError):
        table.notes = ()


def test_tables_are_concatenated_with_their_notes(table):
    other = ScoreTable.of([score_row(0, None, 0.1, 0.2, model="n")], ("a note", "third"))
    both = table + other
    assert len(both) == len(table) + 1
    assert both.notes == ("a note", "and <another>", "third")
    assert both.summary()["model"].to_list() == ["m", "m", "n"]


def test_rows_that_both_tables_have_are_counted_once(table):
    assert table + table == table
    rows = [score_row(3, None, 0.3, -0.3), score_row(4, None, 0.4, -0.4)]  # of which the first is in the table
    assert (table + ScoreTable.of(rows)).summary()["count"].to_list() == [5, 3]
    encoder = score(bundled("encoder"), nulls=False)
    parts = score(bundled("encoder"), nulls=False, layers=[0, 1]) + score(
        bundled("encoder"), nulls=False, layers=[2, 3]
    )
    assert encoder + parts == parts + encoder == encoder


def test_two_models_of_one_name_are_refused(table):
    other = ScoreTable.of([score_row(5, None, 0.1, 0.1), score_row(0, 1, 0.2, 0.5)])
    with pytest.raises(
        InputError, match=r"^m: encoder layer 0 head 1 has different scores in the two tables, expected"
    ):
        table + other
    with pytest.raises(InputError, match=r"^m: cross layer 0 has different scores"):
        table + ScoreTable.of([score_row(0, None, 0.8, 0.9, stack="cross", cross=True)])


def test_a_saved_table_loads_back(table, tmp_path):
    path = tmp_path / "scores.parquet"
    table.save(path)
    assert ScoreTable.load(path) == table
    assert pl.read_parquet(path).equals(table.frame)  # any Parquet reader can read it
    larger = table + ScoreTable.of([score_row(4, None, 0.1, 0.2)])
    larger.save(str(path))
    assert ScoreTable.load(str(path)) == larger
    assert [file.name for file in tmp_path.iterdir()] == ["scores.parquet"]


def test_other_suffixes_than_parquet_are_refused(table, tmp_path):
    with pytest.raises(ValueError, match=r"scores.csv: a score table is saved as .parquet"):
        table.save(tmp_path / "scores.csv")
    assert not list(tmp_path.iterdir())


def test_a_failed_save_keeps_the_old_file(table, tmp_path, monkeypatch):
    path = tmp_path / "scores.parquet"
    table.save(path)

    def disk_full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", disk_full)
    with pytest.raises(AttngeoError, match=r"scores\.parquet: cannot be written \(No space left on device\)"):
        ScoreTable(table.frame, ("another note",)).save(path)
    monkeypatch.undo()
    assert ScoreTable.load(path) == table
    assert [file.name for file in tmp_path.iterdir()] == ["scores.parquet"]


@pytest.mark.parametrize("content", [b"", b"PAR1", b"no parquet", "cut"])
def test_the_error_about_a_damaged_file_names_it(table, tmp_path, content):
    path = tmp_path / "scores.parquet"
    table.save(path)
    path.write_bytes(path.read_bytes()[:-40] if content == "cut" else content)
    with pytest.raises(SourceError, match=r"scores.parquet: is damaged") as caught:
        ScoreTable.load(path)
    assert "\n" not in str(caught.value)


def test_other_parquet_files_are_refused(table, tmp_path):
    path = tmp_path / "other.parquet"
    pl.DataFrame({"a": [1]}).write_parquet(path)
    with pytest.raises(SourceError, match=r"other.parquet: is not a score table"):
        ScoreTable.load(path)
    table.frame.write_parquet(path)  # without notes
    with pytest.raises(SourceError, match="is not a score table"):
        ScoreTable.load(path)


def test_the_error_about_a_missing_file_names_it(tmp_path):
    with pytest.raises(SourceError, match=r"none.parquet: cannot be read \(No such file or directory\)"):
        ScoreTable.load(tmp_path / "none.parquet")


def test_repr_shows_the_scores(smollm2):
    printed = repr(score(smollm2, layers=[0]))
    title, _, _, names, *_ = printed.splitlines()
    assert title == f"{smollm2}: 10 rows; .frame has all 45 columns"
    assert [name.strip() for name in names.strip("│").split("┆")] == [
        *("layer", "head", "symmetry", "symmetry_rope", "directionality", "dominance", "symmetry_z")
    ]
    both = repr(score(bundled("encoder"), nulls=False) + score(bundled("decoder"), nulls=False))
    assert "model" in both.splitlines()[3] and "dominance" in both.splitlines()[3] and "_z" not in both


def test_repr_and_html_contain_the_notes(table):
    assert "a note" in repr(table)
    page = table._repr_html_()
    assert "<table" in page
    assert "and &lt;another&gt;" in page


def test_a_table_plots_both_scores(table):
    symmetry, directionality = table.plot().axes
    assert symmetry.get_lines()[0].get_ydata().tolist() == [layer / 10 for layer in range(4)]
    assert directionality.get_lines()[0].get_ydata().tolist() == [-layer / 10 for layer in range(4)]


FREQUENCY = {"model": "m", "stack": "decoder", "layer": 0, "head": 1, "pair": 2, "frequency": 0.1, "energy": 0.5}


def test_frequencies_are_part_of_the_value(table, tmp_path):
    with_pairs = ScoreTable(table.frame, table.notes, ScoreTable.of([], (), [FREQUENCY]).frequencies)
    assert with_pairs.frequencies["energy"].to_list() == [0.5] and with_pairs.frequencies["alpha"].to_list() == [None]
    assert table.frequencies is None and with_pairs != table and table != with_pairs
    assert (table + with_pairs).frequencies.equals(with_pairs.frequencies)
    assert with_pairs + with_pairs == with_pairs
    more = ScoreTable.of([], (), [FREQUENCY | {"pair": 3}])
    assert (with_pairs + more).frequencies["pair"].to_list() == [2, 3]
    assert (table + table).frequencies is None
    with_pairs.save(tmp_path / "t.parquet")
    assert ScoreTable.load(tmp_path / "t.parquet") == with_pairs
    empty = ScoreTable.of([], (), [])
    empty.save(tmp_path / "empty.parquet")
    assert ScoreTable.load(tmp_path / "empty.parquet") == empty != ScoreTable.of([])


def test_model_types_are_kept(table, tmp_path):
    typed = ScoreTable.of([], model_types={"a": "diffusers:UNet2DModel"})
    both = table + typed
    assert both.model_types == {**table.model_types, "a": "diffusers:UNet2DModel"}
    assert both != ScoreTable(both.frame, both.notes, both.frequencies)
    both.save(tmp_path / "t.parquet")
    assert ScoreTable.load(tmp_path / "t.parquet") == both
    for wrong in ("[]", '{"a": 1}'):
        (tmp_path / "t.parquet").write_bytes(parquet_bytes(table.frame, {NOTES: "[]", MODEL_TYPES: wrong}))
        with pytest.raises(SourceError, match="is not a score table"):
            ScoreTable.load(tmp_path / "t.parquet")


def test_a_table_in_another_format_is_not_called_damaged(table, tmp_path):
    table.frame.write_csv(tmp_path / "t.csv")
    with pytest.raises(SourceError, match=r"t\.csv: is not a Parquet file, expected a score table saved by attngeo"):
        ScoreTable.load(tmp_path / "t.csv")


def test_damaged_frequencies_are_refused(table, tmp_path):
    good = ScoreTable.of([], (), [FREQUENCY]).frequencies
    for other in ("AAAA", "[", good.drop("pair").write_json()):
        (tmp_path / "t.parquet").write_bytes(parquet_bytes(table.frame, {NOTES: "[]", FREQUENCIES: other}))
        with pytest.raises(SourceError, match="is damaged, expected a score table"):
            ScoreTable.load(tmp_path / "t.parquet")


def test_tables_with_other_columns_are_refused(table, tmp_path):
    for wrong in (table.frame.drop("symmetry"), table.frame.with_columns(more=1), table.frame.with_columns(rotary=1)):
        (tmp_path / "t.parquet").write_bytes(parquet_bytes(wrong, {NOTES: "[]"}))
        with pytest.raises(SourceError, match="is not a score table"):
            ScoreTable.load(tmp_path / "t.parquet")


# ---- the chance level of the layers and heads of each stack


def test_the_null_of_each_stack_has_the_shape_of_its_layers():
    table = sum((score(bundled(name)) for name in NAMES[1:]), score(bundled(NAMES[0])))
    nulls = layer_nulls(table.frame)
    assert list(nulls) == [(str(bundled(name)), name) for name in NAMES]
    for row in table.frame.filter(pl.col("head").is_null()).iter_rows(named=True):
        null = gaussian_null(row["query_width"], row["key_width"], row["rank"])
        levels = nulls[row["model"], row["stack"]]
        assert (levels["symmetry"].mean, levels["symmetry"].std) == (1 / row["query_width"], null.symmetry_std)
        assert (levels["directionality"].mean, levels["directionality"].std) == (0, null.directionality_std)
        assert row["symmetry_z"] == (row["symmetry"] - levels["symmetry"].mean) / levels["symmetry"].std


def test_a_table_without_nulls_has_means_only():
    nulls = layer_nulls(score(bundled("encoder"), nulls=False).frame)
    ((_, levels),) = nulls.items()
    assert [(level.mean, level.std) for level in levels.values()] == [(1 / 128, None)] + 3 * [(0, None)]
    (of_heads,) = head_nulls(score(bundled("encoder"), nulls=False).frame).values()
    assert of_heads["symmetry"].mean == 1 / 128  # of the width, not of the rank


def test_cross_attention_has_no_standard_deviation():
    ((_, levels),) = layer_nulls(score(bundled("encoder")).frame.with_columns(cross=True)).items()
    assert {level.std for level in levels.values()} == {None}


def test_rotary_scores_and_finer_figures_have_their_nulls(smollm2):
    frame = score(smollm2, layers=[0, 1], folded=False).frame
    ((_, levels),) = layer_nulls(frame).items()
    rope = rotary_null(576, 576, 3, 32, 0)
    assert levels["symmetry_rope"].mean == pytest.approx(rope.symmetry_mean, abs=1e-9)
    assert levels["symmetry_rope"].std == pytest.approx(rope.symmetry_std, rel=1e-9)
    assert levels["directionality_rope"].std == pytest.approx(rope.directionality_std, rel=1e-9)
    assert levels["dominance"].std == gaussian_null(576, 576, 192).dominance_std
    assert levels["self_attending"].std == pytest.approx((192 * 576) ** -0.5)
    ((_, one),) = layer_nulls(frame.head(1)).items()
    assert one["symmetry_rope"] == levels["symmetry_rope"]
    assert one["directionality_rope"].std == pytest.approx(rope.directionality_std, rel=1e-9)
    ((_, encoder),) = layer_nulls(score(bundled("encoder"), nulls=False).frame).items()
    assert "symmetry_rope" not in encoder and encoder["dominance"].std is None


@pytest.mark.parametrize("model", ["encoder", "smollm2"])
def test_the_null_of_the_heads_gives_them_their_z(model, request):
    rotary = model == "smollm2"
    ref = request.getfixturevalue(model) if rotary else bundled(model)
    frame = score(ref, layers=[0, 1], folded=False).frame
    ((key, levels),) = head_nulls(frame).items()
    assert key == frame.select("model", "stack").row(0)
    assert set(levels) == set(SCORES) - (set() if rotary else {"symmetry_rope", "directionality_rope"})
    for name, level in levels.items():
        heads = frame.drop_nulls(["head", f"{name}_z"])
        assert heads.height > 4
        expected = (heads[name] - level.mean) / level.std
        assert heads[f"{name}_z"].to_list() == pytest.approx(expected.to_list(), rel=1e-9, abs=1e-9)


def test_a_table_without_heads_has_no_null_of_heads():
    assert head_nulls(score(bundled("encoder"), heads=False).frame) == {}
