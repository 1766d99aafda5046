"""A folder with one entry of another type or size is read as `transformers` reads it, or
rejected with one message that states the requirement.
"""

import json
import re
import shutil
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_folders import bert, edit, gpt2

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
torch = pytest.importorskip("torch")

from rosettaformer.use.inference.folder import open_folder  # noqa: E402
from rosettaformer.use.inference.generation import Answer, generate  # noqa: E402
from rosettaformer.use.inference.models import open_model  # noqa: E402
from rosettaformer.use.inference.options import GenerationOptions  # noqa: E402

TEXTS = ("the quick fox", "née Zoë [SEP] dog")
VALUES: tuple[Any, ...] = (
    None, "x", "", -1, 0, 1, 1.5, 10**9, 2**63, 10**30, float("nan"), float("inf"), -1e300, True, False, [], [1], {}, {"a": 1}, "\ud800",
)  # fmt: skip
# entries added to existing files
MORE = {
    "config.json": ("num_labels", "problem_type", "architectures", "n_inner", "note"),
    "generation_config.json": tuple(GenerationOptions.__dataclass_fields__.keys() - {"do_sample", "seed"}),
}  # fmt: skip
# entries whose types the library restricts, although they change no computation
SET_ASIDE = {"use_cache", "initializer_range", "dtype"}
OF_PYTHON = re.compile(r"Traceback|object (is|has)|not (an instance|iterable)|argument|unsupported operand|invalid literal|<lambda>")


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {family: tmp_path_factory.mktemp(family) for family in ("bert", "gpt2")}
    bert(found["bert"])
    gpt2(found["gpt2"])
    return found


def changes(bases: dict[str, Path]) -> Iterator[tuple[str, str, str, Any]]:
    """Yields all changes: family, file, entry and value."""
    for family, path in bases.items():
        for file, more in MORE.items():
            said = json.loads((path / file).read_text()) if (path / file).exists() else {}
            entries = [entry for entry in dict.fromkeys([*said, *more]) if said and entry not in SET_ASIDE]
            yield from product([family], [file], entries, VALUES)


def ours(path: Path, family: str) -> list[Any]:
    found = open_folder(path, "classify" if family == "bert" else "generate")
    model = open_model(found.checkpoint, "numpy", "float64")
    if family == "bert":
        return [model.classify(*found.tokenizer.read([text], model.config))[0] for text in TEXTS]
    options = GenerationOptions(**found.defaults)
    prompts = [found.tokenizer.prompt(text) for text in TEXTS]
    return [[one.tokens for one in generate(model, [prompt], options) if isinstance(one, Answer)] for prompt in prompts]


def theirs(path: Path, family: str) -> list[Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(path)
    kind = transformers.BertForSequenceClassification if family == "bert" else transformers.GPT2LMHeadModel
    model = kind.from_pretrained(path, dtype=torch.float64).eval()
    given = [tokenizer(text, truncation=family == "bert", return_tensors="pt") for text in TEXTS]
    with torch.inference_mode():
        if family == "bert":
            return [model(**one).logits[0].numpy() for one in given]
        return [[tuple(row) for row in model.generate(**one, pad_token_id=0)[:, one["input_ids"].shape[1] :].tolist()] for one in given]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("step", [83, pytest.param(1, marks=pytest.mark.conformance)])
def test_a_folder_with_one_change_is_read_as_the_library_reads_it_or_refused(tmp_path: Path, bases: dict[str, Path], step: int) -> None:
    every, wrong, read = [*changes(bases)], [], 0
    transformers.logging.set_verbosity_error()
    for family, file, entry, value in every[::step]:
        path, label = tmp_path / "changed", f"{file} {entry}={value!r:.30}"
        shutil.copytree(bases[family], path)
        edit(path, file, **{entry: value})
        try:
            found = ours(path, family)
        except ValueError as error:
            assert len(str(error)) < 3000, label
            wrong += [(label, str(error))] if OF_PYTHON.search(str(error)) else []
        else:
            read += 1
            if entry != "num_labels":  # the library makes any number of label names from it
                wrong += [(label, said) for said in differences(found, path, family)]
        shutil.rmtree(path)
    assert not wrong, "\n".join(f"{name}: {said}" for name, said in wrong)
    assert read > len(every[::step]) / 10


def differences(found: list[Any], path: Path, family: str) -> Iterator[str]:
    """Yields the library's differing results, if it has results."""
    try:
        wanted = theirs(path, family)
    except Exception:  # a rejected type of an irrelevant entry
        return
    for got, one in zip(found, wanted, strict=True):
        same = np.shape(got) == np.shape(one) and np.allclose(got, one, rtol=0, atol=1e-9) if family == "bert" else got == one
        if not same:
            yield f"got {got}, the library {one}"
