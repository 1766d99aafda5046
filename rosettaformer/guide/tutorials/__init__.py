"""Tutorials (port a model, add a backend or component) and the documents on ports."""

import re
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import TYPE_CHECKING

from ..site import Page
from .documents import Document
from .session import Session

if TYPE_CHECKING:
    from ..build import Run

# search terms, each a string or (string, fragment of a section)
Names = tuple[str | tuple[str, str], ...]
NUMBERS = "From an empty file to the same numbers as transformers, with"
PORT: Names = (
    "port a model", ("new-port", "#start"), ("rosettaformer list", "#start"), ("rosettaformer check", "#parts"), ("config", "#parts"),
    ("rosettaformer diagnose", "#attention"), ("dtypes", "#half"), ("noise", "#half"), ("tolerance", "#half"),
    ("check --checkpoint", "#weights"), ("rosettaformer convert", "#weights"), ("JUnit", "#ci"), ("pytest", "#ci"),
)  # fmt: skip
DECODER = "RMS norms, RoPE, a gated feed-forward, grouped heads, a KV cache"
LLAMA: Names = (
    "port a model", "Llama", "LlamaForCausalLM", ("RoPE", "#rotation"), ("SwiGLU", "#parts"), ("RMSNorm", "#parts"),
    ("grouped-query attention", "#attention"), ("GQA", "#attention"), ("bfloat16", "#half"), ("KV cache", "#cache"),
    ("check --checkpoint", "#weights"), ("safetensors", "#weights"),
)  # fmt: skip
# (file, folder of its snippets, title, summary, names for the search)
TUTORIALS: tuple[tuple[str, str, str, str, Names], ...] = (
    ("port-pytorch", "port_torch", "Port GPT-2 to PyTorch in an afternoon", f"{NUMBERS} nn.Linear.", PORT),
    ("port-keras", "port_keras", "Port GPT-2 to Keras in an afternoon", f"{NUMBERS} Dense.", PORT),
    ("port-flax", "port_flax", "Port GPT-2 to Flax NNX in an afternoon", f"{NUMBERS} nnx.Linear.", PORT),
    (
        "port-bert", "port_bert", "Port BERT to PyTorch, coming from Keras",
        "An encoder: padding masks, segments, post-norm, pooler, masked-language head.",
        ("port a model", "BERT", "BertForMaskedLM", "Keras to PyTorch", ("mask_zero", "#padding"), ("padding_idx", "#padding"),
         ("padding mask", "#padding"), ("segments", "#padding"), ("pooler", "#padding"), ("LayerNormalization", "#parts"),
         ("epsilon", "#parts"), ("GELU", "#parts"), ("post-norm", "#layers"), ("MultiHeadAttention", "#attention"),
         ("MaskedLMHead", "#head"), ("tied weights", "#head"), ("check --checkpoint", "#weights"), ("BertBackbone", "#keras"),
         ("BertMaskedLM", "#keras"), ("KerasHub", "#keras"), ("variable.path", "#keras"), ("checkpoints.save", "#keras")),
    ),
    ("port-llama", "port_llama", "Port Llama 3 to PyTorch", f"{DECODER}.", LLAMA),
    (
        "port-llama-flax", "port_llama_flax", "Port Llama 3 to Flax NNX", f"{DECODER}, and the differences from PyTorch.",
        (*LLAMA, "PyTorch to Flax", ("nnx.LinearGeneral", "#attention"), ("nnx.Einsum", "#attention"), ("nnx.Cache", "#cache"),
         ("static cache", "#cache"), ("dynamic_update_slice", "#cache"), ("jax_enable_x64", "#parts"), ("nnx.eval_shape", "#weights")),
    ),
    (
        "add-a-backend", "add_a_backend", "Add a backend", "A backend in plain Python lists, from softmax to the whole model.",
        ("rosettaformer.ports", "entry point", "NotCovered", "another language"),
    ),
    (
        "add-a-component", "add_a_component", "Add a component", "LayerScale: reference, gradient, cases, known bug, three ports.",
        ("LayerScale", "contributing"),
    ),
)  # fmt: skip
# folder -> `file#region` with a deliberate bug -> the sections that fix it
REPAIRED: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "port_torch": {"gpt2.py#dot_product": ("attention", "half")},
    "port_keras": {"gpt2.py#feed_forward": ("parts",), "gpt2.py#dot_product": ("half",), "port.py#multi_head": ("heads",)},
    "port_flax": {"port.py#start": ("parts",), "gpt2.py#dot_product": ("attention", "half")},
    "port_bert": {"bert.py#feed_forward": ("parts",), "bert.py#encoder": ("padding",)},
    "port_llama": {"llama.py#rotary": ("rotation", "half")},
    "port_llama_flax": {"llama.py#norm": ("half",), "llama.py#rotary": ("rotation",)},
}
# (page, file of docs/, title, summary, names for the search)
DOCUMENTS: tuple[tuple[str, str, str, str, Names], ...] = (
    (
        "the-port-file", "ports.md", "The port file", "All options of a port file: components, weights, call, config, dtypes and modes.",
        ("port file", "port.py", "framework", "components", "modes", ("config", "#cover-more-than-one-config"), ("NotCovered", "#call"),
         ("zeros_btd", "#call"), ("keep", "#inputs-and-outputs"), ("dtypes", "#dtypes-modes-and-suite"),
         ("evaluation mode", "#components"), ("fused kernel", "#weights"), ("rename table", "#weights")),
    ),
    (
        "what-diagnosis-says", "diagnosis.md", "Understanding a diagnosis", "How diagnosis finds a bug, and what each verdict means.",
        ("diagnose", "rosettaformer diagnose", "module_paths", ("verdict", "#verdicts"), ("unexplained", "#verdicts"),
         ("indistinguishable", "#verdicts")),
    ),
)  # fmt: skip
START: Names = (
    ("install", "#install"), ("check", "#commands"), ("diagnose", "#commands"), ("rosettaformer check", "#commands"),
    ("rosettaformer diagnose", "#commands"),
)  # fmt: skip


def pages(run: "Run") -> Iterator[Page]:
    """Yields the index and a page for each tutorial and document."""
    first = _session(run, "index", "start", {})
    yield Page(
        "tutorials/index.html", "Start here", "tutorials.html.jinja", first, "Installation, two commands, and which page to read.", START
    )
    for file, folder, title, summary, names in TUTORIALS:
        template = f"tutorial-{file}.html.jinja"
        headings = _headings(template)
        steps = {fragment: number for number, _, fragment in headings}
        wrong = {place: tuple((steps[one], one) for one in ones) for place, ones in REPAIRED.get(folder, {}).items()}
        found = (*names, *((text, f"#{fragment}") for _, text, fragment in headings))
        yield Page(f"tutorials/{file}.html", title, template, _session(run, file, folder, wrong), summary, found)
    links = {file: f"{page}.html" for page, file, *_ in DOCUMENTS}
    for page, file, title, summary, names in DOCUMENTS:
        document = Document.of_package(file, links, {"keep": "../components/keep.html"})
        found = (*names, *((text, f"#{fragment}") for text, fragment in document.headings))
        yield Page(f"tutorials/{page}.html", title, "document.html.jinja", {"document": document, "lead": summary}, summary, found)


def _session(run: "Run", page: str, folder: str, repaired: Mapping[str, tuple[tuple[str, str], ...]]) -> dict[str, Session | str]:
    """Returns the template's values. step: the `make evidence` step with its output."""
    step = f"tutorial-{page}"
    return {"session": Session(folder, repaired, run.evidence and run.evidence / step), "step": step}


def _headings(template: str) -> tuple[tuple[str, str, str], ...]:
    """Returns a template's numbered headings, bases included: (number, text, fragment)."""
    text = (resources.files(__package__.rpartition(".")[0]) / "page" / template).read_text(encoding="utf-8")
    base = re.search(r'{% extends "(.*?)" %}', text)
    own = re.findall(r'<h2 id="([^"]+)"><span>(\d+)</span> (.+?)</h2>', text)
    return (*((number, title, fragment) for fragment, number, title in own), *(_headings(base[1]) if base else ()))
