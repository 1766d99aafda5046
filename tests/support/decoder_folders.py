"""Random decoders since Llama from the transformers library: saved, and run there in float64."""

import importlib
import inspect
import json
import math
import re
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hugging_face_folders import Drawn

from reference_numpy import parameters
from reference_numpy.presets import preset
from rosettaformer.files.checkpoints import tables
from rosettaformer.files.checkpoints.hugging_face import FAMILIES
from rosettaformer.files.checkpoints.hugging_face.entries import entries_of

# model_type -> prefix of its class names; the base class of Gemma 3 has another name
KINDS = {
    "llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "gemma": "Gemma", "gemma2": "Gemma2",
    "gemma3_text": "Gemma3", "phi3": "Phi3", "olmo2": "Olmo2", "smollm3": "SmolLM3",
    "ministral": "Ministral", "olmo3": "Olmo3", "glm": "Glm", "glm4": "Glm4", "stablelm": "StableLm", "starcoder2": "Starcoder2",
    "seed_oss": "SeedOss", "exaone4": "Exaone4", "ernie4_5": "Ernie4_5", "helium": "Helium", "gpt_neo": "GPTNeo", "opt": "OPT",
    "granite": "Granite", "mixtral": "Mixtral", "qwen2_moe": "Qwen2Moe", "qwen3_moe": "Qwen3Moe", "olmoe": "Olmoe",
    "granitemoe": "GraniteMoe", "granitemoeshared": "GraniteMoeShared", "gpt_oss": "GptOss", "glm4_moe": "Glm4Moe",
    "gpt_neox": "GPTNeoX", "phi": "Phi", "cohere": "Cohere", "cohere2": "Cohere2", "gptj": "GPTJ", "codegen": "CodeGen",
    "arcee": "Arcee", "nemotron": "Nemotron", "hunyuan_v1_dense": "HunYuanDenseV1", "biogpt": "BioGpt", "falcon": "Falcon",
    "olmo": "Olmo", "persimmon": "Persimmon",
}  # fmt: skip
FIRST = tuple(KINDS)[:5]  # families with the most tests
BASES = {family: f"{name}Model" for family, name in KINDS.items()} | {"gemma3_text": "Gemma3TextModel"}
GEMMAS = {"gemma", "gemma2", "gemma3_text"}
BY_LAYER_TYPE = ("gemma3_text", "olmo3")  # rope_parameters per layer type
MIXTURES = [family for family in KINDS if "experts" in FAMILIES[family].entry_names()]
FLAGS = (
    "attention_bias", "attention_out_bias", "use_qkv_bias", "use_bias", "enable_bias", "mlp_bias", "qkv_bias", "norm_topk_prob",
    "use_qk_norm", "use_parallel_residual", "qk_layernorm",
)  # fmt: skip
REWRITTEN = {
    "in_float64": {r"torch\.float32": "torch.float64", r"\.float\(\)": ".double()", r"dtype=torch\.float\b": "dtype=torch.float64"},
    "rounding_once": {
        r"return cos\.to\(dtype=x\.dtype\), sin\.to\(dtype=x\.dtype\)": "return cos, sin",
        r"return q_embed, k_embed\b": "return q_embed.to(q.dtype), k_embed.to(k.dtype)",
        r"torch\.matmul\(query, key_states\.transpose\(2, 3\)\)": "torch.matmul(query.float(), key_states.float().transpose(2, 3))",
    },
}


def in_float64(name: str) -> types.ModuleType:
    """Returns a module of the library whose source computes in float64 where it would compute in float32: root mean squares,
    rotary angles, the softmax, and the scale of embeddings.
    """
    return _rewritten(name, "in_float64")


@cache
def _rewritten(name: str, way: str) -> types.ModuleType:
    """Returns a module of the library with its source rewritten in one of the ways of `REWRITTEN`."""
    original = importlib.import_module(f"transformers.{name}")
    source = inspect.getsource(original)
    for pattern, instead in REWRITTEN[way].items():
        source = re.sub(pattern, instead, source)
    made = types.ModuleType(f"{original.__name__}_{way}")
    made.__package__, made.__file__ = original.__package__, original.__file__
    sys.modules[made.__name__] = made
    exec(compile(source, str(original.__file__), "exec"), made.__dict__)
    return made


@contextmanager
def all_in_float64() -> Iterator[None]:
    """Computes the library's rotary frequencies, and the floats it makes of integers, in float64."""
    import torch
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with mock.patch.dict(ROPE_INIT_FUNCTIONS, in_float64("modeling_rope_utils").ROPE_INIT_FUNCTIONS):
            yield
    finally:
        torch.set_default_dtype(before)


def loaded(folder: Path, kind: str, attention: str = "eager") -> Any:
    """Loads the library's model from a folder, in float64 throughout; missing or unexpected weights are an error.

    attention: "eager" returns attention maps; "sdpa" returns zeros for a query that may attend to nothing.
    """
    torch = pytest.importorskip("torch")
    with all_in_float64():
        result, said = class_of(kind).from_pretrained(
            folder, dtype=torch.float64, attn_implementation=attention, experts_implementation="eager", output_loading_info=True
        )  # fmt: skip
    assert not any(said.values()), said
    return result.eval()


def rounding_once(folder: Path, kind: str) -> Any:
    """Loads the library's model from a folder in bfloat16. It rotates in float32 and rounds once (ROTARY), as OLMo 2 does, and keeps
    attention logits in float32 until after the softmax (SOFTMAX), as fused kernels do.
    """
    torch = pytest.importorskip("torch")
    return class_of(kind, "rounding_once").from_pretrained(folder, dtype=torch.bfloat16, attn_implementation="eager").eval()


def class_of(kind: str, way: str = "in_float64") -> Any:
    """Returns the class of that name, computing in float64 or rewritten in another way."""
    transformers = pytest.importorskip("transformers")
    return getattr(_rewritten(getattr(transformers, kind).__module__.removeprefix("transformers."), way), kind)


def rope(kind: str, rng: np.random.Generator, size: int) -> dict[str, Any]:
    """Returns rope_parameters of a type, with values that visibly change the rotation at 7 positions and this head size."""
    number = lambda low, high: float(rng.uniform(low, high))  # noqa: E731
    parameters: dict[str, dict[str, Any]] = {
        "default": {},
        "linear": {"factor": number(1.5, 4)},
        "dynamic": {"factor": number(1.5, 4)},
        "llama3": {"factor": number(2, 8), "low_freq_factor": 0.5, "high_freq_factor": 4.0, "original_max_position_embeddings": 32},
        "yarn": {"factor": number(2, 6), "original_max_position_embeddings": 6, "beta_fast": 0.6, "beta_slow": 0.05},
        "longrope": {
            "short_factor": rng.uniform(1, 2, size // 2).tolist(), "long_factor": rng.uniform(2, 9, size // 2).tolist(),
            "original_max_position_embeddings": int(rng.choice([5, 9])), "factor": number(2, 8),
        },
    }  # fmt: skip
    found = parameters[kind]
    if kind == "yarn":
        more: list[dict[str, Any]] = [{}, {"attention_factor": 1.3}, {"mscale": 0.7, "mscale_all_dim": 1.5}, {"truncate": False}]
        found |= more[int(rng.integers(4))]
    if kind == "longrope" and rng.integers(2):
        found |= {"attention_factor": 1.7}
    return {"rope_type": kind, "rope_theta": number(50, 200), **found}


def entries_by_field(family: str) -> dict[str, str]:
    """Maps each field to its entry of config.json."""
    return FAMILIES[family].entry_names()


def _partial(family: str) -> bool:
    """Whether the family supports partial rotation of heads."""
    return family in ("phi3", "glm", "glm4", "stablelm", "glm4_moe", "gpt_neox", "phi", "nemotron", "persimmon")


def free_heads(family: str) -> bool:
    """Whether the head size can differ from the width divided by the number of heads."""
    return "head_dim" in entries_by_field(family).values() and family not in ("phi3", "helium")


def drawn(family: str, seed: int) -> Drawn:
    """Draws a config: grouped heads, free head sizes, windows and original lengths shorter than a text, all types of
    rotary positions, biases, tied embeddings or not.
    """
    rng, entries = np.random.default_rng([seed, *map(ord, family)]), entries_by_field(family)
    groups, of_group = int(rng.integers(2, 4)), int(rng.integers(2, 4))
    heads, layers = 4 * (seed % 2 + 1) if family == "codegen" else groups * of_group, 3 + seed % 3
    size = int(rng.choice([6, 8] if not _partial(family) else [8, 12]))
    width = heads * int(rng.choice([share for share in (3, 4, 5) if share != size]))
    rates = [float(rate) for rate in rng.uniform(0, 0.5, 2)]
    window, flag = int(rng.integers(2, 5)), lambda: bool(rng.integers(2))
    by_field: dict[str, Any] = {
        "target_vocabulary": int(rng.integers(20, 60)), "model_width": width if free_heads(family) else heads * size,
        "decoder_layers": layers, "key_value_heads": groups, "heads": heads, "feed_forward_width": int(rng.integers(5, 30)),
        "key_size": size, "epsilon": [1e-6, 1e-2][seed % 2], "tie_logits": bool(seed % 2), "attention_dropout_rate": rates[0],
    }  # fmt: skip
    settings: dict[str, Any] = {entries[field]: value for field, value in by_field.items() if field in entries}
    settings |= {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": 2}
    acts = ["gelu_pytorch_tanh", "gelu"] if family in (*GEMMAS, "starcoder2") else ["silu", "relu", "gelu"]
    acts = ["relu2", *acts] if family in ("arcee", "nemotron", "persimmon") else acts
    if "activation" in entries:
        settings[entries["activation"]] = acts[seed % len(acts)] if "rotary_base" in entries else ["relu", "gelu", "gelu_new"][seed % 3]
    ropes = ("default", "longrope") if family == "phi3" else ("default", "llama3", "yarn", "dynamic", "linear", "longrope")
    start = list(KINDS).index(family)
    if "rotary_base" in entries:
        settings |= {"max_position_embeddings": 5, "rope_parameters": rope(ropes[(seed + start) % len(ropes)], rng, size)}
    settings |= {name: flag() for name in FLAGS if name in entries.values()}
    if family in ("mistral", "phi3", "starcoder2", "mixtral"):
        settings["sliding_window"] = window if seed % 3 != 1 else None
    if family in ("qwen2", "qwen3", "qwen2_moe", "qwen3_moe"):
        settings |= {"use_sliding_window": seed % 3 != 1, "sliding_window": window, "max_window_layers": int(rng.integers(0, layers))}
    if family in ("gemma2", "gemma3_text"):
        settings |= {"sliding_window": window, "query_pre_attn_scalar": int(rng.integers(2, 20))}
    if family == "gemma2":
        settings |= {"attn_logit_softcapping": None if seed % 5 == 3 else 1.5, "final_logit_softcapping": None if seed % 5 == 4 else 2.0}
    if family == "gemma3_text":
        settings |= {"final_logit_softcapping": 2.0 if flag() else None, "attn_logit_softcapping": 1.5 if flag() else None}
    if family in BY_LAYER_TYPE:
        local = rope(ropes[(seed + start + 2) % len(ropes)], rng, size)
        settings["rope_parameters"] = {"full_attention": settings["rope_parameters"], "sliding_attention": local}
        for own in settings["rope_parameters"].values():
            own.pop("truncate", None)
    if family in ("gemma3_text", "exaone4", "cohere2"):
        settings["sliding_window_pattern"] = 2 + seed % 2
    if family == "smollm3":
        settings |= {"no_rope_layer_interval": 2 + seed % 2, "use_sliding_window": flag(), "sliding_window": window}
    if family in ("ministral", "olmo3", "exaone4", "gpt_oss", "cohere2"):
        kinds = ["sliding_attention" if flag() else "full_attention" for _ in range(layers)]
        kinds = kinds if seed % 3 != 2 else ["full_attention"] * layers
        settings |= {"sliding_window": window, **({} if seed % 3 == 1 else {"layer_types": kinds})}
        settings |= {"sliding_window": None} if seed % 3 == 2 and family == "exaone4" else {}
    if _partial(family):
        share = [1.0, 0.5][seed % 2]
        kind = ropes[seed // 2 % 2] if family == "phi3" else ropes[(seed + start) % len(ropes)]
        settings["rope_parameters"] = rope(kind, rng, int(size * share)) | {"partial_rotary_factor": share}
    if family == "phi3":
        settings |= {"head_dim": size, "hidden_size": heads * size, "original_max_position_embeddings": 5 + 4 * (seed % 3 == 2)}
    if settings.get("qk_layernorm"):
        settings["hidden_size"] = heads * size
    if "rotary_dim" in entries.values():
        settings["rotary_dim"] = size - 2 * (seed % 2)
    if "logit_scale" in entries.values():
        settings["logit_scale"] = float(rng.uniform(0.1, 2))
    if family == "gpt_neo":
        settings |= {"attention_types": [[["global"], layers - 2], [["local"], 2]], "window_size": window, "max_position_embeddings": 30}
    if family == "opt":
        placed = {"do_layer_norm_before": seed % 4 != 3, "_remove_final_layer_norm": seed % 4 == 2}
        settings |= {"max_position_embeddings": 30, "word_embed_proj_dim": [None, heads * size][seed % 2], **placed}
    if "query_key_value_clip" in entries:
        settings[entries["query_key_value_clip"]] = [0.5, None, 1.0][seed % 3]
    if family in MIXTURES:
        settings |= experts(family, rng, layers)
    if "score_scale" in entries and family.startswith("granite"):
        names = ("embedding_multiplier", "residual_multiplier", "attention_multiplier", "logits_scaling")
        settings |= {name: float(rng.uniform(0.3, 3)) for name in names}
    settings |= {entry.name: rates[1] for entry in FAMILIES[family].entries if entry.fields == ("dropout_rate",)}
    dtype = ("float64", "bfloat16", "float32", "float16")[seed % 4]
    return Drawn(f"{KINDS[family]}ForCausalLM", settings, dtype, {"max_shard_size": "2KB"} if seed % 4 == 1 else {})


def experts(family: str, rng: np.random.Generator, layers: int) -> dict[str, Any]:
    """Draws the entries for experts: often more than ten, several for a token, and some layers without."""
    width, dense = int(rng.integers(3, 9)), sorted({*rng.integers(0, layers, 2).tolist()})
    sizes = {"experts": int(rng.choice([4, 8, 12])), "experts_per_token": int(rng.integers(2, 4)), "expert_width": width}
    found = {name: sizes[field] for field, name in entries_by_field(family).items() if field in sizes}
    if family in ("qwen2_moe", "qwen3_moe"):
        found |= {"mlp_only_layers": dense[:-1], "decoder_sparse_step": int(rng.integers(1, 3))}
    if family == "qwen2_moe":
        found |= {"shared_expert_intermediate_size": int(rng.integers(3, 9))}
    if family == "granitemoeshared":
        found |= {"shared_intermediate_size": int(rng.choice([0, 5]))}
    if family == "gpt_oss":
        found |= {"swiglu_limit": float(rng.uniform(0.3, 2))}
    if family == "glm4_moe":
        found |= {
            "first_k_dense_replace": int(rng.integers(0, layers)), "n_shared_experts": int(rng.integers(1, 3)),
            "routed_scaling_factor": float(rng.uniform(0.5, 3)), "n_group": 2, "topk_group": int(rng.integers(1, 3)),
        }  # fmt: skip
        found["num_experts_per_tok"] = 2
    return found


def sparse(folder: Path, layers: int, vocabulary: int) -> int:
    """Writes a bfloat16 Llama as a sparse file of zeros, 61 million weights per layer; returns its size in bytes."""
    config = preset(
        "llama2_7b", model_width=2048, heads=16, key_value_heads=8, key_size=128, value_size=128, feed_forward_width=8192,
        decoder_layers=layers, source_vocabulary=vocabulary, target_vocabulary=vocabulary, tie_logits=True,
    )  # fmt: skip
    family = FAMILIES["llama"]
    said, problems = entries_of(family, config, {})
    assert not problems
    (folder / "config.json").write_text(json.dumps(said))
    places, end = {}, 0
    for native in tables.natives(family.table, config):
        if native.parts[0][0].name in parameters.axes(config):
            size = 2 * math.prod(native.shape)
            name = family.stored(native.name, True)
            places[name] = {"dtype": "BF16", "shape": native.shape, "data_offsets": [end, end + size]}
            end += size
    head = json.dumps(places).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + end)
    return end
