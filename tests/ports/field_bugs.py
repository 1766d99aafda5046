"""A port of a whole transformers model with one bug from the field, which FIELD_BUG selects.

    FIELD_BUG=20 rosettaformer check tests/ports/field_bugs.py --like qwen3

A bug changes the library's source, the config read, the tensors read, or the call of the model.
"""

import functools
import importlib
import inspect
import os
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers
from safetensors.torch import load_file

dtypes = ("float32", "bfloat16")
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
STRETCHED = {"rope_type": "dynamic", "rope_theta": 5000.0, "alpha": 50.0, "factor": 2.0}
PARTIAL = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}


def nothing(*given: Any) -> None:
    """Changes nothing."""


@dataclass(frozen=True)
class Bug:
    """A bug in a family's model. settings, checkpoint: entries of its config.json, and a change of its file's tensors, which reveal it.

    source: library text -> replacement. config, weights, model: change the config, the model's tensors by name (given the config), the
    model that has them. call: changes the arguments of a call, given the model and the cache of a step. logits: changes the output.
    """

    family: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    checkpoint: Callable[[dict[str, Any], Any], Any] = nothing
    source: tuple[tuple[str, str], ...] = ()
    config: Callable[[Any], Any] = nothing
    weights: Callable[[dict[str, Any], Any], Any] = nothing
    model: Callable[[Any], Any] = nothing
    call: Callable[[Any, dict[str, Any]], Any] = nothing
    logits: Callable[[Any], Any] = lambda logits: logits


# turns the library's halves into adjacent pairs
INTERLEAVED = (
    ("emb = torch.cat((freqs, freqs), dim=-1)", "emb = torch.repeat_interleave(freqs, 2, dim=-1)"),
    ("    x1 = x[..., : x.shape[-1] // 2]\n", "    return torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)\n"),
    ("    x2 = x[..., x.shape[-1] // 2 :]\n    return torch.cat((-x2, x1), dim=-1)\n", ""),
)
ANGLES = "position_ids[..., None].float() * self.inv_freq.to(device=x.device, dtype=torch.float)"


def of(name: str, value: Any) -> Callable[[Any], Any]:
    """Sets an entry of the config; dots reach nested entries."""

    def change(config: Any) -> None:
        *outer, last = name.split(".")
        held = functools.reduce(lambda held, part: held[part] if isinstance(held, dict) else getattr(held, part), outer, config)
        held.update({last: value}) if isinstance(held, dict) else setattr(held, last, value)

    return change


def of_kernels(names: str, change: Callable[[Any, Any], Any]) -> Callable[[dict[str, Any], Any], Any]:
    """Changes the tensors whose names end in a suffix."""

    def changed(tensors: dict[str, Any], config: Any) -> None:
        for name in [name for name in tensors if name.endswith(tuple(names.split()))]:
            tensors[name] = change(tensors[name], config)

    return changed


def permuted(kernel: Any, heads: int) -> Any:
    """Reorders rows from halves to adjacent pairs, as in GGUF files."""
    return kernel.view(heads, 2, -1, kernel.shape[1]).transpose(1, 2).reshape(kernel.shape)


def wrong_groups(tensors: dict[str, Any], config: Any) -> None:
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    of_kernels("q_proj.weight", lambda kernel, config: permuted(kernel, heads))(tensors, config)
    of_kernels("k_proj.weight", lambda kernel, config: permuted(kernel, heads // groups))(tensors, config)


def ordered(order: Callable[[int], list[int]]) -> Callable[[dict[str, Any], Any], Any]:
    """Reads the experts in another order, a function of their number."""
    return of_kernels("experts.gate_up_proj experts.down_proj", lambda kernel, config: kernel[order(len(kernel))])


def large_biases(tensors: dict[str, Any], config: Any) -> None:
    """Makes selection biases large and nearly equal, and scores more so."""
    of_kernels("e_score_correction_bias", lambda bias, config: 7 + bias / 4)(tensors, config)
    of_kernels("mlp.gate.weight", lambda kernel, config: kernel / 64)(tensors, config)


def by_groups(kernel: Any, config: Any) -> Any:
    heads, groups = config.num_attention_heads, config.num_key_value_heads
    size = kernel.shape[0] // (heads + 2 * groups)
    parts = kernel.view(groups, heads // groups + 2, size, -1)
    return torch.cat([part.reshape(-1, kernel.shape[1]) for part in (parts[:, :-2], parts[:, -2], parts[:, -1])])


def exchanged(tensors: dict[str, Any], config: Any) -> None:
    for name in [name for name in tensors if "gate_proj" in name]:
        other = name.replace("gate_proj", "up_proj")
        tensors[name], tensors[other] = tensors[other], tensors[name]


def frequencies(rotary: Any, kind: str) -> Any:
    """Returns the frequencies of another rope_type with the same entries."""
    own = {**rotary.config.rope_parameters, "rope_type": kind}
    found = rotary.compute_default_rope_parameters(types.SimpleNamespace(**{**vars(rotary.config), "rope_parameters": own}))
    return found[0]


def unscaled_prompt(model: Any, given: dict[str, Any]) -> None:
    rotary = model.model.rotary_emb
    prompt = given.get("past_key_values") is None and given.get("use_cache")
    rotary.inv_freq = frequencies(rotary, "default") if prompt else rotary.original_inv_freq


def unscaled_within(model: Any, given: dict[str, Any]) -> None:
    rotary = model.model.rotary_emb
    within = int(given["position_ids"].max()) < rotary.config.rope_parameters["original_max_position_embeddings"]
    rotary.inv_freq = frequencies(rotary, "default") if within else rotary.original_inv_freq


def rounded_frequencies(model: Any) -> None:
    rotary = model.model.rotary_emb
    rotary.inv_freq = rotary.inv_freq.to(model.dtype).float()


def never_long(model: Any, given: dict[str, Any]) -> None:
    model.model.rotary_emb.long_inv_freq = model.model.rotary_emb.original_inv_freq


def larger_window_in_steps(model: Any, given: dict[str, Any]) -> None:
    if given.get("use_cache"):
        first = given.get("past_key_values") is None
        model.config.sliding_window = own_window(model) + (not first)
        given["past_key_values"] = transformers.DynamicCache() if first else given["past_key_values"]


def own_window(model: Any) -> int:
    model.window = getattr(model, "window", None) or model.config.sliding_window
    return model.window


def without_offset(model: Any, given: dict[str, Any]) -> None:
    cache, length = given.get("past_key_values"), given["input_ids"].shape[1]
    if cache is not None:
        real_bs = given["attention_mask"].bool()
        seen_ts = torch.ones(length, real_bs.shape[1], dtype=torch.bool).tril()
        allowed = seen_ts[None, None] & real_bs[:, None, None]
        given["attention_mask"] = torch.where(allowed, 0.0, torch.finfo(model.dtype).min).to(model.dtype)


def from_the_cache(model: Any, given: dict[str, Any]) -> None:
    past = given["attention_mask"].shape[1] - given["input_ids"].shape[1]
    given["position_ids"] = past + torch.arange(given["input_ids"].shape[1])[None]


def from_zero(model: Any, given: dict[str, Any]) -> None:
    if given.get("past_key_values") is not None:
        given["position_ids"] = torch.arange(given["input_ids"].shape[1])[None].expand(given["input_ids"].shape)


def all_real(model: Any, given: dict[str, Any]) -> None:
    given["attention_mask"] = torch.ones_like(given["attention_mask"])


def of_the_first_row(model: Any, given: dict[str, Any]) -> None:
    given["attention_mask"] = given["attention_mask"][:1].expand_as(given["attention_mask"])


def post_norm(model: Any) -> None:
    """Runs the layers as BART's classes do, whose parts have the same names."""
    bart = importlib.import_module("transformers.models.bart.modeling_bart")
    for layers, kind in ((model.model.encoder.layers, bart.BartEncoderLayer), (model.model.decoder.layers, bart.BartDecoderLayer)):
        for layer in layers:
            layer.forward = types.MethodType(kind.forward, layer)


def tied(model: Any) -> None:
    model.lm_head.weight = model.model.embed_tokens.weight


def empty_head(model: Any) -> None:
    model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(model.lm_head.weight))


def short(x: Any) -> Any:
    """Returns x in TF32: a 10-bit mantissa, rounded to nearest."""
    return ((x.contiguous().view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32) if x.dtype == torch.float32 else x


def in_tf32(model: Any) -> None:
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.forward = functools.partial(lambda own, x: torch.nn.functional.linear(short(x), short(own.weight), own.bias), module)


def over_each_head(norm: Any, x: Any, size: int) -> Any:
    heads = x.unflatten(-1, (-1, size)).float()
    normed = heads * torch.rsqrt(heads.pow(2).mean(-1, keepdim=True) + norm.variance_epsilon)
    return (norm.weight * normed.flatten(-2)).to(x.dtype)


NORMED = "= self.{0}_norm(self.{0}_proj(hidden_states).view(hidden_shape)).transpose(1, 2)"
PLAIN = "= self.{0}_proj(hidden_states).view(hidden_shape).transpose(1, 2)"
ROTATED = "query_states, key_states = apply_rotary_pos_emb(query_states, key_states, cos, sin)\n"
# of the library's routers, experts and sinks
CHOSEN = "router_top_value, router_indices = torch.topk(router_{}, self.top_k, dim=-1)"
SIGMOID, SOFTMAX = "router_logits.sigmoid()", "router_logits.softmax(-1)"
SELECTION, GATHERED = "scores + self.e_score_correction_bias", "topk_weights = scores.gather(1, topk_indices)"
BIASED = (GATHERED, f"topk_weights = ({SELECTION}).gather(1, topk_indices)")
MASKED = 'masked_fill(~score_mask.bool(), float("-inf"))'
WEIGHTED, BIAS = "out * routing_weights[token_idx, top_k_pos, None]", " + self.down_proj_bias[expert_idx]"
SINKS = "    combined_logits = torch.cat([attn_weights, sinks], dim=-1)\n"
EACH_HEAD = "over_each_head(self.{0}_norm, self.{0}_proj(hidden_states), self.head_dim)"
BUGS = {
    "1": Bug("phi3", {"rope_parameters": PARTIAL}, config=of("rope_parameters.partial_rotary_factor", 1.0)),
    "3": Bug("llama", source=INTERLEAVED),
    "4": Bug("llama", {"num_attention_heads": 8, "head_dim": 12}, source=INTERLEAVED, weights=wrong_groups),
    "7": Bug("llama", config=of("rope_parameters.rope_theta", 10000.0)),
    "8": Bug("llama", config=of("rope_parameters.rope_type", "default")),
    "9": Bug("llama", call=unscaled_prompt),
    "10": Bug("llama", {"rope_parameters": YARN | {"attention_factor": 1.15}}, config=of("rope_parameters.factor", 0.25)),
    "11": Bug("llama", call=unscaled_within),
    "12": Bug(
        "gemma3_text", config=of("rope_parameters.sliding_attention", {"rope_type": "linear", "rope_theta": 2000.0, "factor": 8.0})
    ),
    "13": Bug("gemma3_text", config=of("rope_parameters.sliding_attention.rope_theta", 1000000.0)),
    "14": Bug("gemma", model=rounded_frequencies),
    "16": Bug("llama", source=((ANGLES, "(position_ids[..., None].to(x.dtype) * self.inv_freq.to(x.dtype)).float()"),)),
    "18": Bug("phi3", call=never_long),
    "20": Bug(
        "qwen3",
        source=(
            *((NORMED.format(name), PLAIN.format(name)) for name in "qk"),
            (ROTATED, f"{ROTATED}        query_states, key_states = self.q_norm(query_states), self.k_norm(key_states)\n"),
        ),
    ),
    "21": Bug("olmo2", source=(("(self.weight * hidden_states).to(input_dtype)", "self.weight * hidden_states.to(input_dtype)"),)),
    "22": Bug(
        "gemma",
        source=(
            ("super().forward(input_ids) * self.embed_scale.to(self.weight.dtype)",
             "(super().forward(input_ids).float() * self.embed_scale).to(self.weight.dtype)"),
        ),
    ),
    "23": Bug("gemma", weights=of_kernels("norm.weight", lambda scale, config: scale + 1)),
    "24": Bug(
        "olmo2", source=tuple((f"self.{name}_norm(self.{name}_proj(hidden_states))", EACH_HEAD.format(name)) for name in "qk")
    ),
    "28": Bug("phi3", weights=of_kernels("qkv_proj.weight", by_groups)),
    "29": Bug("llama", source=(("    if n_rep == 1:", "    return hidden_states.repeat(1, n_rep, 1, 1)\n    if n_rep == 1:"),)),
    "30": Bug(
        "gemma2",
        source=(("config.query_pre_attn_scalar**-0.5", "(config.hidden_size // config.num_attention_heads) ** -0.5"),),
    ),
    "31": Bug(
        "mistral",
        source=(("self.scaling = self.head_dim**-0.5", "self.scaling = (config.hidden_size // config.num_attention_heads) ** -0.5"),),
    ),
    "32": Bug("mistral", config=lambda config: of("sliding_window", config.sliding_window + 1)(config)),
    "33": Bug("mistral", call=larger_window_in_steps),
    "34": Bug("gemma2", config=lambda config: of("layer_types", config.layer_types[1:] + config.layer_types[:1])(config)),
    "35": Bug("qwen3", call=without_offset),
    "36": Bug("gpt2", call=from_the_cache),
    "37": Bug("gpt2", call=from_zero),
    "38": Bug("gpt_oss", weights=of_kernels("sinks", lambda sink, config: torch.full_like(sink, -1e9))),
    "39": Bug("gpt_oss", source=((SINKS, f"    sinks = sinks + torch.log(torch.tensor(2.0)) * (query.shape[2] < key.shape[2])\n{SINKS}"),)),
    "40": Bug("qwen3", source=(("self.scaling = self.head_dim**-0.5", "self.scaling = self.head_dim**-1.0"),)),
    "43": Bug("gemma2", config=of("attn_logit_softcapping", None)),
    "44": Bug(
        "gemma2",
        source=(
            ("attn_weights = attn_weights / softcap", "raw = attn_weights\n        attn_weights = attn_weights / softcap"),
            ("attn_weights = attn_weights * softcap", "attn_weights = attn_weights * raw"),
        ),
    ),
    "45": Bug("gemma2", config=of("final_logit_softcapping", None)),
    "46": Bug("gemma", source=(("super().forward(input_ids) * self.embed_scale.to(self.weight.dtype)", "super().forward(input_ids)"),)),
    "47": Bug("llama", model=tied),
    "48": Bug("qwen2", model=empty_head),
    "50": Bug("llama", weights=exchanged),
    "51": Bug("phi3", weights=of_kernels("gate_up_proj.weight", lambda kernel, config: torch.cat([kernel[::2], kernel[1::2]]))),
    "52": Bug("gemma", config=of("hidden_act", "gelu")),
    "53": Bug("qwen3_moe", config=of("norm_topk_prob", False)),
    "54": Bug(
        "qwen2_moe",
        source=((CHOSEN.format("probs"), f"{CHOSEN.format('logits')}\n        router_top_value = router_top_value.softmax(-1)"),),
    ),
    "55": Bug("glm4_moe", source=((SIGMOID, SOFTMAX), BIASED)),
    "56": Bug("glm4_moe", source=((" * self.routed_scaling_factor", ""),)),
    "60": Bug("llama", model=in_tf32),
    "61": Bug("llama", logits=lambda logits: logits.bfloat16().to(logits.dtype)),
    "63": Bug(
        "gpt_oss",
        source=(
            ("F.linear(hidden_states, self.weight, self.bias)", "F.linear(hidden_states, self.weight)"),
            ("functional.softmax(router_top_value, dim=1, dtype=router_top_value.dtype)",
             "functional.softmax(router_logits, dim=1).gather(1, router_indices)"),
        ),
    ),
    "64": Bug("qwen2_moe", weights=ordered(lambda count: sorted(range(count), key=str))),
    "65": Bug("gpt_oss", source=((f"{BIAS}\n", "\n"), (WEIGHTED, f"{WEIGHTED}{BIAS}"))),
    "67": Bug("glm4_moe", checkpoint=large_biases, source=((SELECTION, f"{SELECTION}.bfloat16()"),)),
    "70": Bug("glm4_moe", source=((MASKED, MASKED.replace('float("-inf")', "0.0")),)),
    "71": Bug("glm4_moe", source=((SELECTION, "scores"),)),
    "72": Bug("glm4_moe", source=(BIASED,)),
    "76": Bug("glm4_moe", source=((SIGMOID, SOFTMAX), (SELECTION, "scores"), (f"scores_for_choice.{MASKED}", "scores"))),
    "77": Bug("qwen2_moe", config=of("norm_topk_prob", True)),
    "79": Bug("gpt_oss", config=lambda config: of("num_experts_per_tok", config.num_local_experts)(config)),
    "80": Bug(
        "mixtral",
        source=(
            ("router_logits = F.linear(hidden_states, self.weight)",
             "router_logits = F.linear(hidden_states, self.weight)\n"
             "        router_logits = router_logits.bfloat16().to(router_logits.dtype) if len(router_logits) > 8 else router_logits"),
        ),
    ),
    "83": Bug("gpt_oss", source=((SINKS, f"    sinks = sinks - 1e9 * (module.sliding_window is not None)\n{SINKS}"),)),
    "84": Bug("bert", call=all_real),
    "85": Bug("bart", source=(("            encoder_attention_mask=attention_mask,\n", ""),)),
    "86": Bug("bart", source=(("forward(position_ids + self.offset)", "forward(position_ids)"),)),
    "87": Bug("mbart", model=post_norm),
    "88": Bug("marian", source=(("return super().forward(position_ids)", "return super().forward(position_ids.clamp(max=63))"),)),
    "89": Bug("roberta", source=(("incremental_indices.long() + padding_idx", "(incremental_indices.long() - 1).clamp(min=0)"),)),
    "91": Bug("modernbert", config=lambda config: of("local_attention", 2 * config.local_attention)(config)),
    "92": Bug("modernbert", config=of("rope_parameters.sliding_attention.rope_theta", 160000.0)),
    "93": Bug("qwen3", call=from_zero),
    "94": Bug("llama", call=of_the_first_row),
    "95": Bug("qwen2", weights=of_kernels("_proj.bias", lambda bias, config: torch.zeros_like(bias))),
    "96": Bug("hunyuan_v1_dense", {"rope_parameters": STRETCHED}, config=of("rope_parameters.alpha", STRETCHED["factor"])),
    "97": Bug("smollm3", config=lambda config: of("no_rope_layers", [1 - one for one in config.no_rope_layers])(config)),
}  # fmt: skip


def class_of(config: Any, bug: Bug | None) -> Any:
    """Returns the library's class for the config, with the bug's source changes. Raises ValueError if a text is not in the source."""
    kind = getattr(transformers, config.architectures[0])
    if bug is None or not bug.source:
        return kind
    original = importlib.import_module(kind.__module__)
    source = inspect.getsource(original)
    for text, instead in bug.source:
        if text not in source:
            raise ValueError(f"{original.__name__} must hold {text!r}")
        source = source.replace(text, instead)
    made = types.ModuleType(f"{original.__name__}_with_a_bug")
    made.__package__, made.__file__ = original.__package__, original.__file__
    made.__dict__["over_each_head"] = over_each_head
    sys.modules[made.__name__] = made
    exec(compile(source, str(original.__file__), "exec"), made.__dict__)
    return getattr(made, kind.__name__)


def model_of(config: Any, tensors: Mapping[str, Any] | None, dtype: Any, bug: Bug | None) -> Any:
    """Returns the model of these tensors, or freshly initialized, with the bug."""
    kind = class_of(config, bug)
    if bug:
        bug.config(config)
    options = {"dtype": dtype, "attn_implementation": "eager"}
    if hasattr(config, "num_experts_per_tok"):
        options["experts_implementation"] = "eager"
    if tensors is None:
        model = kind._from_config(config, **options)
    else:
        model, left = kind.from_pretrained(None, config=config, state_dict=dict(tensors), output_loading_info=True, **options)
        if left["missing_keys"] or left["unexpected_keys"]:
            raise ValueError(f"the tensors must be the model's; {left}")
    if bug:
        state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        bug.weights(state, config)
        model.load_state_dict(state)
        bug.model(model)
    return model.eval()


def function_of(model: Any, bug: Bug | None) -> Any:
    """Returns the port function of a model."""

    arguments = arguments_of(model)

    @torch.no_grad()
    def run(*arrays: Any, **options: Any) -> Any:
        given = {name: torch.from_numpy(array).long() for name, array in zip(arguments, arrays, strict=False)} | options
        if "position_ids" in arguments:
            position_bt = (given["attention_mask"].cumsum(1) - 1).clamp(min=0)
            given["position_ids"] = position_bt[:, -given["input_ids"].shape[1] :]
        if bug:
            bug.call(model, given)
        return model(**given)

    def logits(*arrays: Any) -> Any:
        found = run(*arrays).logits
        return bug.logits(found) if bug else found

    def step(*arrays: Any) -> Any:
        found = run(*arrays[:-1], past_key_values=arrays[-1], use_cache=True)
        return bug.logits(found.logits) if bug else found.logits, found.past_key_values

    if "token_type_ids" not in arguments:
        logits.step = step  # type: ignore[attr-defined]
    return logits


def arguments_of(model: Any) -> tuple[str, ...]:
    """Returns the names of the model's arguments, in the order of a port's; further ones are computed."""
    if model.config.is_encoder_decoder:
        return "input_ids", "decoder_input_ids", "attention_mask", "decoder_attention_mask"
    if hasattr(model.config, "type_vocab_size"):
        return "input_ids", "attention_mask", "token_type_ids"
    return "input_ids", "attention_mask", *(() if model.config.architectures[0].endswith("MaskedLM") else ("position_ids",))


def load(folder: str) -> Any:
    """Returns the function of the folder's model."""
    bug = BUGS[name] if (name := os.environ.get("FIELD_BUG", "")) else None
    tensors = load_file(f"{folder}/model.safetensors")
    dtype = next(iter(tensors.values())).dtype
    return function_of(model_of(transformers.AutoConfig.from_pretrained(folder), tensors, dtype, bug), bug)
