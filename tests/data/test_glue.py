"""GLUE's files: tabs between columns, a header or none, and quotation marks that mean nothing."""

import os
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinpipe.data.glue import TASKS, load_glue, read_tsv
from thinpipe.data.locate import DamagedDataError, DataError
from thinpipe.errors import ThinpipeError

DATA = Path(os.environ.get("THINPIPE_DATA", Path(__file__).parents[3] / "shared" / "data"))
RTE = "index\tsentence1\tsentence2\tlabel\n"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode())
    return path


def test_pairs_and_their_classes(tmp_path):
    write(tmp_path / "glue/RTE/train.tsv", RTE + "0\tIt rains.\tIt is wet.\tentailment\n1\tA\tB\tnot_entailment\n")
    write(tmp_path / "glue/RTE/dev.tsv", RTE + "0\tC\tD\tnot_entailment\n")
    data = load_glue("rte", tmp_path)
    assert data.train.first == ("It rains.", "A") and data.train.second == ("It is wet.", "B")
    assert data.train.labels.tolist() == [0, 1] and data.train.labels.dtype == torch.int64
    assert data.test.labels.tolist() == [1] and data.classes == ("entailment", "not_entailment")


@pytest.mark.parametrize("header", ["source\tlabel\tmark\tsentence\n", ""])
def test_cola_with_and_without_a_header(tmp_path, header):
    path = write(tmp_path / "train.tsv", header + "gj04\t1\t\tHe slept.\ngj04\t0\t*\tSlept he the.\n")
    texts = read_tsv(path, "cola")
    assert texts.first == ("He slept.", "Slept he the.") and texts.second is None
    assert texts.labels.tolist() == [1, 0]


def test_a_header_decides_about_the_order_of_columns(tmp_path):
    texts = read_tsv(write(tmp_path / "t.tsv", "sentence\tlabel\nWho?\t1\n"), "cola")
    assert texts.first == ("Who?",) and texts.labels.tolist() == [1]


def test_a_quotation_mark_that_never_closes_swallows_nothing(tmp_path):
    texts = read_tsv(write(tmp_path / "t.tsv", RTE + '0\t"A\tB\t0\n1\tC\t"D" E\t1\n'), "rte")
    assert texts.first == ('"A', "C") and texts.second == ("B", '"D" E')


def test_lines_end_at_line_ends_alone(tmp_path):
    path = write(tmp_path / "t.tsv", "\ufeff" + RTE.replace("\n", "\r\n") + "0\tA\u2028B\x85C\tD\t0\r\n\r\n")
    assert read_tsv(path, "rte").first == ("A\u2028B\x85C",)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (RTE + "0\tA\tB\tentailment\n1\tA\tB\n", "line 3: 3 columns instead of 4"),
        (RTE + "0\tA\tB\tmaybe\n", "line 2: the label 'maybe' is none of entailment, not_entailment, 0, 1"),
        (RTE, "has no rows"),
        ("", "has no rows"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, text, expected):
    with pytest.raises(DamagedDataError, match=expected):
        read_tsv(write(tmp_path / "t.tsv", text), "rte")


def test_rows_that_are_missing_and_texts_that_are_empty_are_told(tmp_path):
    rows = [f"{row}\tA\tB\t{row % 2}\n" for row in range(199)]
    write(tmp_path / "RTE/train.tsv", RTE + "".join(rows) + "199\tA\t \t0\n")
    write(tmp_path / "RTE/dev.tsv", RTE + "0\tC\tD\t0\n")
    data = load_glue("rte", tmp_path)
    assert len(data.train) == 200
    missing, empty, tested = data.notes
    assert "train.tsv has 200 rows, and that of the published rte 2,490" in missing and "277" in tested
    assert "1 of 200 rows" in empty and empty.endswith("an empty text: rows 200 (0.50%)")
    write(tmp_path / "RTE/train.tsv", RTE + "".join(rows[:9]) + "9\t\tB\t0\n")
    with pytest.raises(DamagedDataError, match=r"1 of 10 rows .* 10\.0%.* --set max_damaged=0\.1"):
        load_glue("rte", tmp_path)
    assert len(load_glue("rte", tmp_path, max_damaged=0.1).train) == 10


def test_other_files_and_tasks_are_refused(tmp_path):
    (tmp_path / "t.tsv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DamagedDataError, match="no text in UTF-8"):
        read_tsv(tmp_path / "t.tsv", "rte")
    with pytest.raises(DataError, match="unpack the archive of rte"):
        read_tsv(tmp_path / "none.tsv", "rte")
    with pytest.raises(DataError, match="there are rte, cola"):
        load_glue("mnli", tmp_path)


word = st.text(st.characters(exclude_characters="\t\n\r", exclude_categories=["Cs"]), max_size=20)


@given(st.lists(st.tuples(word, word, st.integers(0, 1)), min_size=1, max_size=8), st.booleans())
def test_what_is_written_is_read(tmp_path_factory, rows, header):
    lines = [f"{place}\t{first}\t{second}\t{label}" for place, (first, second, label) in enumerate(rows)]
    path = write(tmp_path_factory.mktemp("glue") / "t.tsv", (RTE if header else "") + "\n".join(lines))
    texts = read_tsv(path, "rte")
    assert list(zip(texts.first, texts.second, texts.labels.tolist(), strict=True)) == rows


@given(st.binary(max_size=200) | st.text("ab01\t\n", max_size=200).map(str.encode), st.sampled_from(sorted(TASKS)))
def test_garbage_is_read_or_refused_and_nothing_else(tmp_path_factory, content, task):
    path = tmp_path_factory.mktemp("glue") / "t.tsv"
    path.write_bytes(content)
    try:
        texts = read_tsv(path, task)
    except ThinpipeError as error:
        assert "t.tsv" in str(error)
    else:
        assert len(texts) and set(texts.labels.tolist()) <= {0, 1}


@pytest.mark.skipif(not (DATA / "glue/CoLA/dev.tsv").exists(), reason="GLUE is not here; set THINPIPE_DATA")
@pytest.mark.parametrize(("task", "sizes", "share"), [("rte", (2490, 277), 0.53), ("cola", (8551, 1043), 0.31)])
def test_the_real_tasks_have_all_their_rows(task, sizes, share):
    data = load_glue(task, DATA)
    assert (len(data.train), len(data.test)) == sizes
    # The share of class 0 in the validation part, as published: entailment, or not acceptable.
    assert abs((data.test.labels == 0).float().mean().item() - share) < 0.01
