"""Makes a page for each defect of the catalogue: wrong and right in each framework, its effect on cases, how diagnosis reports it."""

import functools
import multiprocessing
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TYPE_CHECKING, Any

from ..conformance.case import Case
from ..conformance.cases import all_cases
from ..conformance.catalogue import Defect, all_defects
from ..conformance.catalogue.effect import Effect, effect
from ..conformance.catalogue.mistakes import FRAMEWORKS, NOTHING, Edit, all_mistakes, all_sayings
from ..conformance.reference import tolerance
from ..conformance.reference.components import COMPONENTS
from .code import Code
from .site import Page

if TYPE_CHECKING:
    from .build import Run

TITLES = {"torch": "PyTorch", "tf": "Keras", "jax": "Flax"}
MEASURED = 6  # at most this many runs of a defect are measured: core cases first, the smallest of them
# repositories that the catalogue's evidence names without their owner
REPOSITORIES = {
    "CLIP4Clip": "ArrowLuo/CLIP4Clip",
    "FARM": "deepset-ai/FARM",
    "Megatron-LM": "NVIDIA/Megatron-LM",
    "OpenNMT-py": "OpenNMT/OpenNMT-py",
    "PaddleNLP": "PaddlePaddle/PaddleNLP",
    "TransformerEngine": "NVIDIA/TransformerEngine",
    "TransformerLens": "TransformerLensOrg/TransformerLens",
    "allennlp": "allenai/allennlp",
    "annotated-transformer": "harvardnlp/annotated-transformer",
    "fairseq": "facebookresearch/fairseq",
    "flash-attention": "Dao-AILab/flash-attention",
    "flax": "google/flax",
    "ggml": "ggml-org/ggml",
    "gpt-neox": "EleutherAI/gpt-neox",
    "jax": "jax-ml/jax",
    "keras": "keras-team/keras",
    "keras-hub": "keras-team/keras-hub",
    "keras-io": "keras-team/keras-io",
    "llama.cpp": "ggml-org/llama.cpp",
    "mlx": "ml-explore/mlx",
    "mlx-examples": "ml-explore/mlx-examples",
    "mlx-lm": "ml-explore/mlx-lm",
    "nanoGPT": "karpathy/nanoGPT",
    "optax": "google-deepmind/optax",
    "pytorch": "pytorch/pytorch",
    "pytorch-image-models": "huggingface/pytorch-image-models",
    "tensor2tensor": "tensorflow/tensor2tensor",
    "tensorflow": "tensorflow/tensorflow",
    "transformers": "huggingface/transformers",
    "vllm": "vllm-project/vllm",
    "xformers": "facebookresearch/xformers",
}


def pages(run: "Run") -> Iterator[Page]:
    """Yields the index, and the pages in the order of the components."""
    order = list(COMPONENTS)
    defects = sorted(all_defects().values(), key=lambda defect: order.index(defect.component))
    groups: dict[str, list[Defect]] = {}
    for defect in defects:
        groups.setdefault(defect.component, []).append(defect)
    yield Page("defects/index.html", "Defects", "defects.html.jinja", {"groups": groups, "count": len(defects)})
    for defect, found in zip(defects, measured([defect.id for defect in defects], run.cpus), strict=True):
        yield _page(defect, found)


def measured(identities: Sequence[str], cpus: int) -> Iterator[list[Effect]]:
    """Yields what `effects` returns for each defect; cpus: how many processes compute it."""
    with ProcessPoolExecutor(cpus, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(effects, identities, chunksize=8)


def effects(identity: str) -> list[Effect]:
    """Returns what the defect does to some of the cases that claim it, the worst first."""
    defect = all_defects()[identity]
    claiming = [case for case in _cases().values() if identity in case.catches]
    chosen = sorted(claiming, key=lambda case: (not case.core, case.size))[:MEASURED]
    runs = [case.at(dtype) for dtype in defect.dtypes for case in chosen][:MEASURED]
    return sorted((effect(defect, case, _expected(case.id, case.dtype)) for case in runs), key=lambda one: -one.times)


def _page(defect: Defect, found: list[Effect]) -> Page:
    made = all_mistakes().get(defect.id, {})
    frameworks = [_framework(defect, name, made) for name in FRAMEWORKS]
    said = all_sayings().get(defect.id, "").strip()
    values = {
        "defect": defect,
        "frameworks": frameworks,
        "effects": found,
        "evidence": _linked(defect.evidence),
        "said": Code(said, "mistakes/said.toml", "text") if said not in ("", NOTHING) else None,
    }
    names = (defect.id, defect.title, *defect.variants)
    return Page(f"defects/{defect.id}.html", f"{defect.id}: {defect.title}", "defect.html.jinja", values, defect.component, names)


def _framework(defect: Defect, framework: str, made: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what a tab shows: the mistake, if there is one."""
    mistake = made.get(framework)
    return {
        "name": framework,
        "title": TITLES[framework],
        "mistake": mistake,
        "edits": [_sides(defect, framework, edit) for edit in mistake.edits] if mistake else [],
    }


def _sides(defect: Defect, framework: str, edit: Edit) -> dict[str, Code]:
    origin, caption = f"mistakes/{defect.id}.{framework}", f"impl_{framework}/{edit.file}"
    return {side: Code(textwrap.dedent(getattr(edit, side)), origin, caption=f"{caption}, {side}") for side in ("wrong", "right")}


@functools.cache
def _cases() -> Mapping[str, Case]:
    return {case.id: case for case in all_cases(grad=True)}


@functools.cache
def _expected(identity: str, dtype: str) -> Mapping[str, tolerance.Expectation]:
    return tolerance.expect(_cases()[identity].at(dtype))


def _linked(evidence: str) -> Any:
    """Returns the evidence as HTML: `transformers#7552` and `owner/repository#7552` link to that issue or pull request."""
    from markupsafe import Markup, escape

    def link(found: re.Match[str]) -> str:
        name, number = found.groups()
        repository = name if "/" in name else REPOSITORIES.get(name)
        return f'<a href="https://github.com/{repository}/issues/{number}">{found[0]}</a>' if repository else found[0]

    return Markup(re.sub(r"([\w.-]+(?:/[\w.-]+)?)#(\d+)", link, str(escape(evidence))))
