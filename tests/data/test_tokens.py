"""Texts as rows of tokens, by a stand-in that needs no files and by the tokenizers of transformers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from thinpipe.data.glue import load_glue
from thinpipe.data.locate import DamagedDataError, DataError
from thinpipe.data.texts import Texts, TextSet
from thinpipe.data.tokens import HashTokenizer, LocalTokenizer, tokenize

DATA = Path(os.environ.get("THINPIPE_DATA", Path(__file__).parents[3] / "shared" / "data"))
ROBERTA = DATA / "roberta_tokenizer"


def texts(first, second=None):
    return Texts(first, second, torch.zeros(len(first), dtype=torch.int64))


def test_rows_look_like_robertas():
    made = HashTokenizer()(texts(["A cat.", "a CAT ."]), 8)
    assert made.ids.shape == made.mask.shape == (2, 8) and made.types is None
    assert made.ids[0, [0, 4]].tolist() == [0, 2] and made.ids[0, 5:].tolist() == [1, 1, 1]
    assert made.mask[0].tolist() == [1] * 5 + [0] * 3
    assert torch.equal(made.ids[0], made.ids[1])  # capitals and spaces do not count


def test_pairs_tell_their_second_text_where_it_is_asked_for():
    made = HashTokenizer(pad=0, types=True)(texts(["a b"], ["c"]), 10)
    assert made.ids[0, [0, 3, 4, 6]].tolist() == [1, 2, 2, 2] and made.ids[0, 7:].tolist() == [0] * 3
    assert made.types[0].tolist() == [0, 0, 0, 0, 1, 1, 1, 0, 0, 0]
    assert set(made.inputs()) == {"input_ids", "attention_mask", "token_type_ids"}
    assert made.inputs(torch.tensor([0]))["input_ids"].shape == (1, 10)


sentence = st.text("ab .", max_size=60)


@given(st.lists(st.tuples(sentence, sentence), max_size=4), st.integers(8, 40), st.booleans())
def test_every_row_ends_and_fits(pairs, length, paired):
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    made = HashTokenizer(vocabulary=50)(texts(first, second if paired else None), length)
    assert made.ids.shape == (len(pairs), length)
    assert ((made.ids == 1) == (made.mask == 0)).all()
    assert ((made.ids >= 0) & (made.ids < 50)).all()
    for row, mask in zip(made.ids, made.mask, strict=True):
        used = int(mask.sum())
        assert row[used - 1] == 2 and (row[:used] == 2).sum() == (3 if paired else 1)


def test_the_longer_text_of_a_pair_is_cut_first():
    long, short = " ".join("abcdefghij"), "y z"
    made = HashTokenizer()(texts([long, short, long], [short, long, long]), 12)
    lengths = [(row == 2).nonzero().flatten().tolist() for row in made.ids]
    # Eight tokens have room: six and two, two and six, four and four.
    assert lengths == [[7, 8, 11], [3, 4, 11], [5, 6, 11]]


def test_numbers_are_the_same_in_every_process():
    code = (
        "import torch; from thinpipe.data.texts import Texts; from thinpipe.data.tokens import HashTokenizer;"
        "print(HashTokenizer()(Texts(['a cat'], None, torch.zeros(1)), 8).ids[0].tolist())"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    out = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert out.stdout.strip() == str(HashTokenizer()(texts(["a cat"]), 8).ids[0].tolist())


def test_a_whole_set_keeps_its_labels():
    data = TextSet(Texts(["a", "b"], None, torch.tensor([1, 0])), Texts(["c"], None, torch.tensor([1])), ("no", "yes"))
    made = tokenize(data, HashTokenizer(), 16)
    assert made.train.labels.tolist() == [1, 0] and made.classes == ("no", "yes") and len(made.test) == 1


def test_what_makes_no_sense_is_refused():
    with pytest.raises(ValueError, match="at least 8 tokens and pads with 0 or 1"):
        HashTokenizer(vocabulary=3)
    with pytest.raises(ValueError, match="rows have at least 8 tokens"):
        tokenize(TextSet(texts(["a"]), texts(["b"]), ("x",)), HashTokenizer(), 4)
    with pytest.raises(ValueError, match="as many labels as texts"):
        texts(["a", "b"], ["c"])


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'thinpipe[hf]'")
    with pytest.raises(DataError, match="is no folder"):
        LocalTokenizer(tmp_path / "none")
    with pytest.raises(DataError, match=r"put tokenizer\.json"):
        LocalTokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DamagedDataError, match="finds no tokenizer"):
        LocalTokenizer(tmp_path)


def test_without_transformers_the_error_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ImportError, match=r"pip install 'thinpipe\[hf\]'"):
        LocalTokenizer(tmp_path)


def test_a_bert_of_ones_own(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "cat", "dog", "a"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    tokenizer = LocalTokenizer(tmp_path)
    assert (tokenizer.vocabulary, tokenizer.pad) == (8, 0)
    made = tokenizer(texts(["a cat", "A zebra"], ["dog", "dog"]), 8)
    assert made.ids.tolist() == [[2, 7, 5, 3, 6, 3, 0, 0], [2, 7, 1, 3, 6, 3, 0, 0]]
    assert made.types[0].tolist() == [0, 0, 0, 0, 1, 1, 0, 0]
    assert transformers.__name__ in type(tokenizer._tokenizer).__module__


@pytest.mark.skipif(not ROBERTA.exists(), reason="RoBERTa's vocabulary is not here; set THINPIPE_DATA")
def test_robertas_vocabulary_alone_is_enough():
    pytest.importorskip("transformers", reason="transformers is not installed: pip install 'thinpipe[hf]'")
    tokenizer = LocalTokenizer(ROBERTA)
    made = tokenizer(texts(["Hello world"], ["a b"]), 12)
    assert made.ids[0].tolist() == [0, 31414, 232, 2, 2, 102, 741, 2, 1, 1, 1, 1]
    assert made.mask.sum() == 8 and tokenizer.pad == 1 and tokenizer.vocabulary <= 50265
    data = load_glue("cola", DATA)
    rows = tokenize(TextSet(data.test, data.test, data.classes), tokenizer, 64)
    assert rows.test.ids.shape == (1043, 64) and (rows.test.ids < 50265).all()
    assert len(rows.test.ids.unique()) > 2000
