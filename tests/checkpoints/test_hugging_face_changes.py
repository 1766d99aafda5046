"""A folder in which one thing is changed is read as `transformers` reads it, or refused by one message that says what is required: files
that are absent, cut, or something else; entries of every type and size.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from model_folders import bert, gpt2

tokenizers = pytest.importorskip("tokenizers")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
torch = pytest.importorskip("torch")

from rosettaformer.inference.folder import open_folder  # noqa: E402
from rosettaformer.inference.generation import Answer, generate  # noqa: E402
from rosettaformer.inference.models import open_model  # noqa: E402
from rosettaformer.inference.options import GenerationOptions  # noqa: E402

TEXTS = ("the quick fox", "née Zoë [SEP] dog")
VALUES: tuple[Any, ...] = (
    None, "x", "", -1, 0, 1, 1.5, 10**9, 2**63, 10**30, float("nan"), float("inf"), -1e300, True, False, [], [1], {}, {"a": 1}, "\ud800",
)  # fmt: skip
CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda raw: b"", "half": lambda raw: raw[: len(raw) // 2], "longer": lambda raw: raw + b"x", "zeros": lambda raw: bytes(300),
    "random": lambda raw: np.random.default_rng(1).bytes(500), "null": lambda raw: b"null", "number": lambda raw: b"3",
    "text": lambda raw: b'"abc"', "list": lambda raw: b"[null]", "object": lambda raw: b"{}", "deep": lambda raw: b"[" * 5000,
    "utf-16": lambda raw: raw.decode("latin-1").encode("utf-16"), "twice": lambda raw: b'{"a": 1, "a": 2}',
    "surrogate": lambda raw: b'{"a": "\\ud800"}', "windows": lambda raw: raw.replace(b"\n", b"\r\n"),
}  # fmt: skip
PLACES: dict[str, Callable[[Path], Any]] = {
    "absent": lambda path: None, "folder": Path.mkdir, "pipe": os.mkfifo, "endless": lambda path: path.symlink_to("/dev/zero"),
    "itself": lambda path: path.symlink_to(path.name), "nowhere": lambda path: path.symlink_to("nowhere"),
}  # fmt: skip
FILES = {
    "bert": ("config.json", "model.safetensors"),
    "gpt2": ("config.json", "model.safetensors", "generation_config.json"),
}
# entries that are put into files beside those that are there
MORE = {
    "config.json": ("num_labels", "problem_type", "architectures", "n_inner", "note"),
    "generation_config.json": tuple(GenerationOptions.__dataclass_fields__.keys() - {"do_sample", "seed"}),
}  # fmt: skip
# of which the library takes some types alone, and which change nothing that is computed
SET_ASIDE = {"use_cache", "initializer_range", "dtype"}
OF_PYTHON = re.compile(r"Traceback|object (is|has)|not (an instance|iterable)|argument|unsupported operand|invalid literal|<lambda>")


class Change(NamedTuple):
    """content: what stands in the place of a file, bytes or something else that is made there."""

    family: str
    file: str
    name: str
    content: bytes | Callable[[Path], Any]

    def make(self, folder: Path) -> None:
        (folder / self.file).unlink()
        if isinstance(self.content, bytes):
            (folder / self.file).write_bytes(self.content)
        else:
            self.content(folder / self.file)


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {family: tmp_path_factory.mktemp(family) for family in FILES}
    bert(found["bert"])
    gpt2(found["gpt2"])
    return found


def changes(bases: dict[str, Path]) -> Iterator[Change]:
    """Every one of them."""
    for family, files in FILES.items():
        for file in files:
            raw = (bases[family] / file).read_bytes()
            made: dict[str, Any] = {name: content(raw) for name, content in CONTENTS.items()} | PLACES
            said = json.loads(raw) if file in MORE else {}
            for entry in dict.fromkeys([*said, *MORE.get(file, ())]):
                for value in VALUES if entry not in SET_ASIDE else ():
                    made[f"{entry}={value!r:.30}"] = json.dumps({**said, entry: value}).encode()
            yield from (Change(family, file, f"{file} {name}", content) for name, content in made.items())


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
    for change in every[::step]:
        path = tmp_path / "changed"
        shutil.copytree(bases[change.family], path)
        change.make(path)
        try:
            found = ours(path, change.family)
        except ValueError as error:
            assert len(str(error)) < 3000, change.name
            wrong += [(change.name, str(error))] if OF_PYTHON.search(str(error)) else []
        else:
            read += 1
            if " num_labels=" not in change.name:  # of which the library makes names, however many
                wrong += [(change.name, said) for said in differences(found, path, change.family)]
        shutil.rmtree(path)
    assert not wrong, "\n".join(f"{name}: {said}" for name, said in wrong)
    assert read > len(every[::step]) / 10


def differences(found: list[Any], path: Path, family: str) -> Iterator[str]:
    """What the library gives otherwise, where it gives anything."""
    try:
        wanted = theirs(path, family)
    except Exception:  # of a type that it does not take, where it matters to nothing
        return
    for got, one in zip(found, wanted, strict=True):
        same = np.shape(got) == np.shape(one) and np.allclose(got, one, rtol=0, atol=1e-9) if family == "bert" else got == one
        if not same:
            yield f"got {got}, the library {one}"
