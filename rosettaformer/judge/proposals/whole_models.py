"""`new-port like`: writes a whole model in plain code, from a checkpoint's config and tensors."""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

from reference_numpy import TransformerConfig
from reference_numpy.fields import is_integer

from ...files.checkpoints import load
from ...files.checkpoints.hugging_face import FAMILIES
from ...files.checkpoints.hugging_face.family import Family
from ...files.checkpoints.hugging_face.rotary import GLOBAL, LOCAL, TYPES
from ...files.checkpoints.tables import Row
from ..templates import TEMPLATES

PARTS = ("layers", "rotation", "attention", "feed_forward", "model")  # of the text, in order
PLAIN = TEMPLATES.parents[1] / "guide" / "snippets" / "components"  # the guide's plain functions
_FIELDS = (
    "heads", "epsilon", "score_cap", "logit_cap", "logit_scale", "embedding_multiplier", "residual_multiplier", "gate_limit",
    "query_key_value_clip", "experts", "experts_per_token", "router_groups", "router_groups_kept", "router_scale",
)  # fmt: skip
_COMPUTED = {  # fields computed from entries
    "score_scale": {"query_pre_attn_scalar": 'config["query_pre_attn_scalar"] ** -0.5'},
    "logit_scale": {"logits_scaling": '1 / config["logits_scaling"]'},
    "window": {"local_attention": '(config["local_attention"] // 2 + 1)'},
}


def written(folder: Path, framework: str, file: str) -> str:
    """Returns the port's text: a checkpoint's whole model in plain code. file: its name."""
    checkpoint = load(folder, "hugging-face")
    config, said = checkpoint.config, checkpoint.foreign["config.json"]
    family = FAMILIES[said["model_type"]]
    names = _names(family, config)
    flags = config.to_dict() | _flags(family, config, names)
    values = {"file": file, "family": family.model_type, "title": family.name} | names | _values(family, config, said, flags)
    dialects = tomllib.loads((TEMPLATES / "like.toml").read_text(encoding="utf-8"))
    values |= _dialect(dialects[framework], config, flags)
    return _filled(flags | {name: name == framework for name in dialects}, values)


def _filled(flags: Mapping[str, Any], values: Mapping[str, str]) -> str:
    """Returns the template lines whose conditions (`#: if`) hold, with `$names` substituted."""
    parts = [(TEMPLATES / f"like_{part}.txt").read_text(encoding="utf-8") for part in PARTS]
    return Template("\n".join(_chosen("".join(parts).splitlines(), dict(flags)))).substitute(values) + "\n"


def _chosen(lines: list[str], flags: dict[str, Any]) -> Iterator[str]:
    around: list[tuple[bool, bool]] = []  # for each open condition: whether it holds, whether an earlier branch did
    for line in lines:
        word, _, condition = line.removeprefix("#: ").partition(" ")
        if not line.startswith("#: "):
            if all(holds for holds, _ in around):
                yield line
        elif word == "end":
            around.pop()
        else:
            before = word == "else" and any(around.pop())
            around.append((not before and (not condition or bool(eval(condition, flags))), before))


def _names(family: Family, config: TransformerConfig) -> dict[str, str]:
    """Returns the tensors' names by the templates' words; inside a layer, relative to it."""
    stack = "encoder" if config.encoder_layers else "decoder"
    norms = ("attention_norm", "feed_forward_norm", "final_norm")
    found = {} if config.norm_scale else {name: name for name in norms}  # norms without parameters
    for row in family.table:
        parts = [part.name.removeprefix(f"{stack}.layers.*.").removeprefix(f"{stack}.") for part in row.parts]
        words = [_word(part) for part in parts]
        word = "query_key_value" if {*words} == {"query", "key", "value"} else "_".join(words)
        if row.parts[0].axes.split()[0] == "d" and word.startswith("query"):
            found["inputs_first"] = "yes"
        native = family.stored(row.name, True)
        if "*" in native:
            layer, _, native = native.partition(".*.")
            found["layer"] = f"{layer}.{{layer}}"
        network = re.match(r"feed_forward\.(experts\.|shared\.|)(gate|hidden|output)\.", parts[0])
        if config.experts and network:
            found |= _of_network(network[1].strip("."), native, word + ".bias" * parts[0].endswith("bias"))
        elif "*" in native and config.query_key_norm == "each_head":
            raise ValueError(f"`new-port like` cannot write a model with one tensor for each head; got {family.name}, with {native}")
        elif parts[0].endswith((".kernel", ".scale", ".table")):
            found[word] = native.rpartition(".")[0]
        elif word in ("sink", "selection_bias"):
            found[word] = native
        elif parts[0].endswith("logits.bias"):
            twins = {other: name for name, other in family.twins.items()}
            found["head_bias"] = twins.get(row.name, native)
    found["place"] = f'f"{{name}}.{found["place_of_dense"]}"' if "place_of_dense" in found else "name"
    return found


def _of_network(network: str, native: str, word: str) -> dict[str, str]:
    """Returns the names of a model with experts: of a stack of experts, or of a network and its layer."""
    if network == "experts" and "*" not in native:
        return {f"stacked_{word.replace('.', '_')}": native}
    place, _, own = native.removesuffix(".weight").rpartition(".")
    return {f"place_of_{network or 'dense'}": place.removesuffix(".*"), word: own}


def _word(canonical: str) -> str:
    """Returns the templates' word for a tensor: `self_attention.query.kernel` is query."""
    path = re.sub(r"^(source|target)_|\.(kernel|scale|table|bias)$", "", canonical)
    path = path.replace("masked_language_head.", "transform_").replace("transform_hidden", "transform").replace("transform_logits", "head")
    if path.startswith("feed_forward."):
        own = path.rpartition(".")[2]
        return {"output": "down"}.get(own, own)
    return path.removeprefix("self_attention.").removeprefix("self_").replace("logits", "head")


def _flags(family: Family, config: TransformerConfig, names: Mapping[str, str]) -> dict[str, Any]:
    """Returns the templates' conditions other than the config's fields."""
    layers = [config.layer_kind(layer) for layer in range(config.encoder_layers or config.decoder_layers)]
    ropes = {(kind.base, kind.scaling): kind for kind in layers if kind.rotary}
    fused = _fused(family)
    stacked, mixed = "stacked_down" in names, [config.has_experts(layer) for layer in range(len(layers))]
    return {
        "causal": not config.encoder_layers, "rotary": bool(ropes), "learned": config.positions == "learned",
        "still": bool(ropes) and not all(kind.rotary for kind in layers), "windows": any(kind.window for kind in layers),
        "two_ropes": len(ropes) > 1, "scalings": {kind.scaling.kind for kind in ropes.values()},
        "fused_attention": "query_key_value" in names, "fused_pieces": fused.groups != 1,
        "fused_by_group": fused.groups == "g", "fused_gate": "gate_hidden" in names,
        "inputs_first": "inputs_first" in names, "kinds": layers,
        "dense": not all(mixed), "stacked": stacked, "feed_forward": not all(mixed) or config.shared_width or not stacked,
        "stack": next((row for row in family.table if row.parts[0].name.endswith(".experts.gate.kernel")), family.table[0]),
    }  # fmt: skip


def _fused(family: Family) -> Row:
    """Returns the row that starts with the queries' kernel."""
    return next(row for row in family.table if row.parts[0].name.endswith("attention.query.kernel"))


def _values(family: Family, config: TransformerConfig, said: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, str]:
    """Returns the expressions for entries of config.json."""
    entries = family.entry_names()
    defaults = {entry.name: entry.default for entry in family.entries} | {
        name: default for joint in family.joints for name, default in joint.entries.items()
    }

    def of(field: str) -> str:
        """Returns a field's expression: its entry of config.json, or its value."""
        entry = entries.get(field, "")
        if entry in _COMPUTED.get(field, {}):
            return _COMPUTED[field][entry]
        return f'config["{entry}"]' if said.get(entry) is not None else repr(getattr(config, field))

    heads, width = of("heads"), of("model_width")
    size = entries.get("key_size", "")
    values = {field: of(field) for field in _FIELDS}
    values |= {"groups": of("key_value_heads"), "count": of("encoder_layers" if config.encoder_layers else "decoder_layers")}
    values["head_size"] = f'config["{size}"]' if said.get(size) else f"{width} // {heads}"
    values["score_scale"] = of("score_scale") if config.score_scale else "self.size**-0.5"
    values["position_offset"] = f" + {config.position_offset}" if config.position_offset else ""
    values["rotary_size"] = values["head_size"]
    shares = [entries.get("rotary_fraction", ""), *(name for name, entry in family.aliases.items() if entry == "partial_rotary_factor")]
    if named := next((name for name in shares if said.get(name) is not None), ""):
        share = f'config["{named}"]'
        values["rotary_size"] = share if is_integer(said[named]) else f"int({values['head_size']} * {share})"
    elif config.rotary_fraction < 1:
        rope = "self.ropes[0]" if flags["two_ropes"] else "self.rope"
        values["rotary_size"] = f'int({values["head_size"]} * {rope}["partial_rotary_factor"])'
    values |= {"routed": ", routed" if config.experts else "", "unused": ", materialize_grads=True" * config.selection_bias}
    fused = _fused(family)
    values["fused_order"] = ", ".join(_word(part.name.rpartition("layers.*.")[2]) for part in fused.parts)
    values["fused_pieces"] = "self.heads" if fused.groups == "h" else str(fused.groups)
    bases = [name for name, entry in family.aliases.items() if entry == "rope_theta" and name in said]
    theta = said[bases[0]] if bases else defaults.get("rope_theta", config.rotary_base)
    values |= {"theta": repr(theta), "near": "before_ts" if flags["causal"] else "abs(before_ts)"}
    return values | _of_layers(of("window"), said, flags)


def _of_layers(window: str, said: Mapping[str, Any], flags: Mapping[str, Any]) -> dict[str, str]:
    """Returns the expressions for what differs between layers: windows and rotations. window: the expression for its size."""
    windows, rotates = [kind.window for kind in flags["kinds"]], [kind.rotary for kind in flags["kinds"]]
    if said.get("layer_types"):
        of_windows = f'[{window} * (kind == "{LOCAL}") for kind in config["layer_types"]]'
    elif all(windows) and said.get("sliding_window"):
        of_windows = f'[config["sliding_window"]] * {len(windows)}'
    else:
        of_windows = repr(windows)
    entry = next((name for name, value in said.items() if isinstance(value, list) and value == rotates), "")
    return {
        "windows": of_windows, "rotates": f'config["{entry}"]' if entry else repr(rotates),
        "turned": _turned(flags),
        "rope": 'config | (config.get("rope_scaling") or config.get("rope_parameters") or {})',
        "ropes": f'[config | config["rope_parameters"][kind] for kind in ("{GLOBAL}", "{LOCAL}")]',
        "rope_kinds": " or ".join(sorted(name for name, own in TYPES.items() if own in flags["scalings"])),
    }  # fmt: skip


def _turned(flags: Mapping[str, Any]) -> str:
    """Returns the expression for a layer's rotation."""
    if not flags["rotary"]:
        return "None"
    found = "turned[window > 0]" if flags["two_ropes"] else "turned"
    return f"{found} if self.rotates[index] else None" if flags["still"] else found


def _dialect(dialect: dict[str, Any], config: TransformerConfig, flags: Mapping[str, Any]) -> dict[str, str]:
    """Returns a framework's expressions, including how it reads parameters."""
    usual = dict.fromkeys(("module", "read", "parameter", "close", "cast", "dtype"), "")
    values = usual | {"matmul": "{} @ {}", "times": "{} * {}", "transpose": "{}.T", "weight": "weight", "keepdims": "keepdims"} | dialect
    read, plus = values["read"], "(1 + {})" if config.norm_one_plus_scale else "{}"
    kernel = f"self.{values['weight']}{read}"
    return values | {
        "activation": dialect["activation"][config.activation], "sink_score": f"wide(self.sink{read})" if values["cast"] else "self.sink",
        "kernel": kernel if flags["inputs_first"] else values["transpose"].format(kernel),
        "scale": plus.format(f"self.scale{read}"),
        "offset": f" + self.offset{read}" * config.norm_offset, "wide_offset": f" + wide(self.offset{read})" * config.norm_offset,
        "through": ".call" * (dialect["call"] == "call" and config.experts > 0),  # Keras copies lists that layers get
        "branch": "y_btd" if config.residual_multiplier == 1 else values["times"].format("y_btd", "self.multiplier"),
        "embedded": values["times"].format("x_btd", "self.multiplier"),
        "scaled_logits": values["times"].format("logits_btv", "self.logit_scale"),
        "softmax_score": dialect["softmax"].format("score_bhts") + "[..., :-1]" * (config.attention_sinks != "none"),
        "softmax_logits": dialect["softmax"].format("logits_btx"),
    } | (_of_experts(values, config, flags) if config.experts else {})  # fmt: skip


def _of_experts(dialect: Mapping[str, Any], config: TransformerConfig, flags: Mapping[str, Any]) -> dict[str, str]:
    """Returns a framework's expressions for routers and experts."""
    read, half = dialect["read"], bool(dialect["cast"])  # half precision: torch and Flax

    def own(name: str, x: str) -> str:
        """Returns the product with an expert's kernel, and its bias."""
        kernel = f"self.{name}{read}[index]"
        found = dialect["matmul"].format(x, kernel if "d m" in flags["stack"].parts[0].axes else dialect["transpose"].format(kernel))
        return found + f" + self.{name}_bias{read}[index]" * config.feed_forward_bias

    logits = "self.router(x_btd)"
    if half and config.router_product_dtype == "float32":
        logits = f"wide(x_btd) @ wide(self.router.weight{read}).T"
    elif half:
        logits = f"wide({logits})"
    weighted = f"weight_bt1 * {'self.expert(index, x_btd)' if flags['stacked'] else 'self.experts[index](x_btd)'}"
    as_model = f".{dialect['cast']}(x_btd.dtype)" if half else ""
    wide = config.router_weight_dtype == "float32"
    return {
        "router_logits": logits, "sigmoid_logits": dialect["sigmoid"].format("logits_btx"),
        "router_epsilon": f" + {config.router_epsilon}" if config.router_epsilon else "",
        "as_model": "" if wide else as_model, "weighted_expert": f"({weighted}){as_model}" if half and wide else weighted,
        "gate_hidden_of_expert": own("gate_hidden", "x_btd"), "down_of_expert": own("down", "y_btm"),
        "offset_hidden": f"(hidden + {config.hidden_offset:g})" if config.hidden_offset else "hidden",
        "shared_gate_value": dialect["sigmoid"].format("self.shared_gate(x_btd)"),
        "choosing": "\n\n\n".join(_plain(dialect["plain"], ("largest", "in_best_groups")[: 1 + (config.router_groups > 1)])) + "\n\n",
    }  # fmt: skip


def _plain(file: str, names: Sequence[str]) -> Iterator[str]:
    """Yields functions of a plain file of the guide."""
    text = (PLAIN / file).read_text(encoding="utf-8")
    nodes = {node.name: node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}
    return ("\n".join(text.splitlines()[nodes[name].lineno - 1 : nodes[name].end_lineno]) for name in names)
