"""Pairs of models as libraries publish them: transformers on the left, KerasHub or Flax on the right."""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sides_in_process
from invoke import Outcome, invoke

MODELS = Path(__file__).resolve().parents[1] / "compared"
FLAX = Path(sys.prefix) / "flax-transformers"
# family -> the left model of an equal pair with KerasHub, and with Flax
FIXED = ("roberta", "qwen3", "gpt_oss")  # families in which KerasHub fixes something to another value
ALIKE = (
    "bert", "distilbert", "gpt2", "llama", "mistral", "qwen2", "gemma", "t5", "bart", "vit", "mixtral", "qwen2_moe", "qwen3_moe",
)  # fmt: skip
PAIRS = {family: f"torch.py:{family}" for family in ALIKE} | {family: f"planted.py:{family}" for family in FIXED}
NO_FLAX = "transformers 4 has no Flax model of it"
WITHOUT_FLAX = {
    **dict.fromkeys(("qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss"), NO_FLAX),
    "t5": "its Flax model calls `jnp.clip(a_max=...)`, which JAX 0.10 has not",
}
UNTRAINED = ("mixtral", "qwen2_moe", "qwen3_moe")  # KerasHub's auxiliary loss of routers fails in float64


@dataclass(frozen=True)
class Plant:
    """A planted difference. where: the layer, or the two between which it is; fused: the same if a library holds all three projections
    in one layer on both sides. said: what the first sentence of the report mentions.
    """

    what: str
    where: tuple[str, ...]
    said: str
    fused: tuple[str, ...] = ()

    def is_named(self, report: dict[str, Any]) -> bool:
        """Whether the report locates and explains the difference."""
        where, said = told(report)
        return where in (self.where, self.fused) and self.said in said


ATTENTION = ("layers.0.self_attn.v_proj", "layers.0.self_attn.o_proj")
FEED_FORWARD = ("layers.0.mlp.up_proj", "layers.0.mlp.down_proj")
OF_BERT = ("encoder.layer.0.intermediate.dense", "encoder.layer.0.output.dense")
ROTARY = Plant("rotary layout", ATTENTION, "rotary positions that pair the halves of a head with the frequencies of neighboring features")
GROUPS = Plant("group order", ATTENTION, "the left has tiled key heads, the right repeated key heads")
OVER_ALL = Plant(
    "weights of experts", ("layers.0.mlp.gate", "layers.1.input_layernorm"), "the left weights 2 experts by the softmax over all 5"
)
BIAS = "the same vector at every position"


def _gelu(left: str, right: str, *where: str, of: str = "{}(dense)") -> Plant:
    return Plant("activation", where, f"the left has {of.format(left)}, the right {of.format(right)}")


def _epsilon(left: str, right: str, where: str) -> Plant:
    return Plant("epsilon", (where,), f"epsilon {left} on the left, {right} on the right")


def _scale(left: str, *where: str, fused: tuple[str, ...] = ()) -> Plant:
    return Plant("scale", where, f"the left has {left}, the right scores over sqrt(k)", fused)


GATED = "{}(gate_proj) * up_proj"
PLANTED = {
    "bert_activation": _gelu("gelu_erf", "gelu_tanh", *OF_BERT),
    "bert_epsilon": _epsilon("1e-05", "1e-12", "embeddings.LayerNorm"),
    "roberta_activation": _gelu("gelu_tanh", "gelu_erf", *OF_BERT),
    "roberta_bias": Plant("missing bias", OF_BERT[1:], BIAS),
    "distilbert_activation": _gelu("gelu_tanh", "gelu_erf", "transformer.layer.0.ffn.lin1", "transformer.layer.0.ffn.lin2", of="{}(lin1)"),
    "distilbert_epsilon": _epsilon("1e-05", "1e-12", "transformer.layer.0.output_layer_norm"),
    "gpt2_scale": _scale("scores without a scale", "h.0.ln_1", "h.0.attn.c_proj", fused=("h.0.attn.c_attn", "h.0.attn.c_proj")),
    "gpt2_bias": Plant("missing bias", ("h.0.mlp.c_proj",), BIAS),
    "llama_rotary": ROTARY,
    "llama_groups": GROUPS,
    "llama_gate": Plant("gate and up", FEED_FORWARD, "the left has silu(up_proj) * gate_proj, the right silu(gate_proj) * up_proj"),
    "llama_activation": _gelu("gelu_erf", "silu", *FEED_FORWARD, of=GATED),
    "llama_epsilon": _epsilon("0.001", "1e-06", "layers.0.input_layernorm"),
    "llama_scale": _scale("scores over k", *ATTENTION),
    "mistral_rotary": ROTARY,
    "mistral_groups": GROUPS,
    "mistral_base": Plant("base of the rotation", ATTENTION, "base 1000, the right rotary positions"),
    "qwen2_groups": GROUPS,
    "qwen2_bias": Plant("missing bias", ("layers.0.self_attn.k_proj",), BIAS),
    "qwen3_rotary": ROTARY,
    "qwen3_groups": GROUPS,
    "mixtral_experts": OVER_ALL,
    "qwen3_moe_experts": OVER_ALL,
    "gemma_one": Plant("1 + scale", ("layers.0.post_attention_layernorm",), "1 + scale False on the left, True on the right"),
    "gemma_activation": _gelu("gelu_erf", "gelu_tanh", *FEED_FORWARD, of=GATED),
    "t5_scale": Plant("scale", ("encoder.block.0.layer.0.SelfAttention.v", "encoder.block.0.layer.0.SelfAttention.o"), ""),
    "t5_epsilon": _epsilon("0.001", "1e-06", "encoder.block.0.layer.0.layer_norm"),
    "bart_scale": _scale("scores over k", "decoder.layers.0.encoder_attn.v_proj", "decoder.layers.0.encoder_attn.out_proj"),
    "bart_activation": _gelu("gelu_tanh", "gelu_erf", "encoder.layers.0.fc1", "encoder.layers.0.fc2", of="{}(fc1)"),
    "vit_epsilon": _epsilon("1e-12", "1e-06", "layers.0.layernorm_before"),
    "vit_bias": Plant("missing bias", ("layers.0.attention.q_proj",), "bias only on the right"),
}

# Differences of the FIXED families as they are published
OTHERWISE = {
    "roberta": Plant("", ("embeddings.LayerNorm",), "epsilon 1e-12 on the left, 1e-05 on the right"),
    "qwen3": Plant("", ("layers.0.self_attn.q_norm",), "epsilon 1e-06 on the left, 1e-05 on the right"),
    "gpt_oss": Plant(
        "layers 0, 2, ... see n keys on the left; layers 1, 3, ... see n + 1 on the right", ATTENTION, "only positions 3 to 6 of 7 differ"
    ),
}


def family_of(name: str) -> str:
    """Returns the family of a planted difference."""
    return max((family for family in PAIRS if name.startswith(f"{family}_")), key=len)


def compare(left: str, right: str, family: str, folder: Path, *options: object) -> Outcome:
    """Runs `rosettaformer compare` on two of these models; Flax models have their own process."""
    sides = MODELS / f"published_{left}", MODELS / f"published_{right}.py:{family}"
    with sides_in_process.in_process(but="published_flax"):
        return invoke("compare", *sides, *_inputs(right, family, folder), *options, "-q", "--json", folder / "report.json")


def report_of(folder: Path) -> dict[str, Any]:
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def told(report: dict[str, Any]) -> tuple[tuple[str, ...], str]:
    """Returns the first differing place and the sentence about it."""
    first = report["first"]
    return ((first["left"],) if first["what"] == "layer" else (first["after"][0], first["before"][0])), report["sentences"][1]


def _inputs(right: str, family: str, folder: Path) -> Iterator[object]:
    if family == "vit":
        yield from ("--input", "pixel_values: b=2 y=16 x=16 c=3 float32")
    elif right == "flax" and family in ("roberta", "llama", "mistral", "gemma"):  # it makes neither positions nor its own mask
        tokens = np.random.default_rng(0).integers(3, 60, (2, 7))
        positions = np.broadcast_to(np.arange(7), (2, 7)) + (2 if family == "roberta" else 0)
        np.savez(folder / "inputs.npz", input_ids=tokens, position_ids=positions, attention_mask=np.ones_like(tokens))
        yield from ("--input", folder / "inputs.npz")
    else:
        yield from ("--input", "input_ids: b=2 t=7 int64 <60")
        if family in ("t5", "bart"):
            yield from ("--input", "decoder_input_ids: b=2 s=5 int64 <60")
