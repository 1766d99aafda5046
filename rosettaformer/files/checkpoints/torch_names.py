"""Maps a user's state dict names to those of `torch_layout`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reference_numpy import TransformerConfig
from reference_numpy.parameters import mismatches
from reference_numpy.suggestions import nearest

from . import CheckpointError, recognise, torch_layout
from .strict import contiguous_layers

_INNER = re.compile(r"(.*\.)?(?:en|de)coder\.layers\.\d+\.(?:self_attn|multihead_attn|linear[12]|norm[123])\.")
State = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Names:
    """The user's names for tensors; None where the user set none.

    prefix: the text before `encoder.layers...`, detected if None. source_embedding,
    target_embedding, logits: the modules outside nn.Transformer, or their weights.
    """

    prefix: str | None = None
    source_embedding: str | None = None
    target_embedding: str | None = None
    logits: str | None = None

    def find(self, name: str, state: State, ignore: Sequence[str]) -> "Found":
        """Finds the tensors. Raises CheckpointError if any essential one is missing."""
        problems = [f"--ignore {key}: there is no such tensor{nearest(key, state)}" for key in ignore if key not in state]
        rest = {key: tensor for key, tensor in state.items() if key not in ignore}
        if not any(re.fullmatch(recognise.NATIVE, key) for key in rest):
            recognise.refuse_tensors(rest, name)
        prefix = self.prefix if self.prefix is not None else _find_prefix(name, rest)
        keys = {}
        for native in torch_layout.OUTER:
            key, given = self._outer(native, rest)
            if key in rest:
                keys[native] = key
            elif given and not native.endswith(".bias"):
                problems.append(f"--name {_part(native)}={given}: there is no such tensor{nearest(key, rest)}")
        outer = set(keys.values())
        for key in rest:
            if key not in outer and key.startswith((f"{prefix}encoder.", f"{prefix}decoder.")):
                keys[key.removeprefix(prefix)] = key
        if not any(native.startswith(("encoder.layers.", "decoder.layers.")) for native in keys):
            raise CheckpointError(name, [*problems, f"has no torch.nn.Transformer at the prefix {prefix!r}"])
        taken = set(keys.values())
        return Found(name, prefix, keys, [key for key in rest if key not in taken], problems)

    def rename(self, natives: Mapping[str, Any], config: TransformerConfig) -> dict[str, Any]:
        """Renames native tensors. Raises ValueError if two different tensors get the same name."""
        prefix = "transformer." if self.prefix is None else self.prefix
        stored = torch_layout.ties(config)
        result: dict[str, Any] = {}
        owner: dict[str, str] = {}
        for native, tensor in natives.items():
            key = self._outer(native, {})[0] if native in torch_layout.OUTER else prefix + native
            root = stored.get(native, native)
            if owner.setdefault(key, root) != root:
                raise ValueError(f"{native} and {owner[key]} cannot both be named {key}: the config does not tie them. Rename one of them")
            result[key] = tensor
        return result

    def _outer(self, native: str, state: State) -> tuple[str, str | None]:
        """Returns the name of a tensor outside nn.Transformer, and the user's name if set."""
        module, _, kind = native.rpartition(".")
        given = getattr(self, module)
        if given is None:
            return native, None
        if given in state and kind == "weight":
            return given, given
        return f"{given.removesuffix('.weight')}.{kind}", given


@dataclass(frozen=True)
class Found:
    """The tensors of a state dict by native name, unused tensors, and problems with names."""

    name: str
    prefix: str
    keys: dict[str, str]  # native name -> name in the state dict
    unused: list[str]
    problems: list[str]

    def shown(self, natives: State, fresh: bool) -> dict[str, Any]:
        """Returns the config fields that the tensors imply. fresh: tables will be created."""
        shapes = {native: tuple(tensor.shape) for native, tensor in natives.items()}
        width = _length(shapes, r"\.norm\d?\.weight$")
        if not width:
            raise CheckpointError(self.name, [*self.problems, f"no layer norm such as {self._missing('encoder.layers.0.norm1.weight')}"])
        layers = {f"{stack}_layers": contiguous_layers(natives, stack) for stack in ("encoder", "decoder")}
        result: dict[str, Any] = {
            "model_width": width,
            "feed_forward_width": _length(shapes, r"\.linear1\.bias$") or _length(shapes, r"\.linear1\.weight$"),
            **layers,
            "attention_bias": any(native.endswith("in_proj_bias") for native in natives),
            "final_norm": any(native.startswith(("encoder.norm.", "decoder.norm.")) for native in natives),
        }
        if source := _vocabulary(shapes, ("source_embedding.weight",), width):
            result["source_vocabulary"] = source
        elif not fresh:
            unused = ", ".join(self.unused[:20]) or "none"
            why = f"set it with --name source_embedding=NAME (tensors outside nn.Transformer: {unused})"
            alone = "if the file has only an nn.Transformer, --fresh-embeddings SEED creates tables and output layer"
            raise CheckpointError(self.name, [*self.problems, f"has no known source embedding: {why}; {alone}"])
        target = _vocabulary(shapes, ("target_embedding.weight", "logits.weight", "logits.bias"), width)
        if target or not fresh:
            result["target_vocabulary"] = target or source  # shared, or missing and reported
        if layers["decoder_layers"] and ("logits.weight" in natives or not fresh):
            result["output_bias"] = "logits.bias" in natives
        return result

    def match_problems(self, config: TransformerConfig, state: State, fresh: bool) -> list[str]:
        """Returns missing, unexpected and misshapen tensors under the user's names."""
        tied = torch_layout.ties(config)
        optional = [native for native in torch_layout.OUTER if native not in self.keys and (fresh or native in tied)]
        expected = {
            self.keys.get(native) or self._missing(native): shape
            for native, shape in torch_layout.native_shapes(config).items()
            if native not in optional
        }
        problems = [*mismatches({key: state[key] for key in self.keys.values()}, expected)]
        problems += [f"unexpected {key}: not part of nn.Transformer; use --name or --ignore {key}" for key in self.unused]
        one_table = self.keys.get("source_embedding.weight") == self.keys.get("target_embedding.weight")
        if one_table and "target_embedding.weight" in self.keys and not config.share_embeddings:
            problems.append("source and target embedding are the same table; set share_embeddings, which is False")
        return problems

    def _missing(self, native: str) -> str:
        return f"{native} (name it with --name {_part(native)}=NAME)" if native in torch_layout.OUTER else self.prefix + native


def _part(native: str) -> str:
    return native.partition(".")[0]


def _find_prefix(name: str, state: State) -> str:
    prefixes = sorted({found[1] or "" for key in state if (found := _INNER.match(key))})
    if len(prefixes) == 1:
        return prefixes[0]
    if not prefixes:
        some = ", ".join(list(state)[:5]) or "no tensors"
        raise CheckpointError(name, [f"has no torch.nn.Transformer (encoder.layers.0.self_attn...); its tensors: {some}"])
    listed = ", ".join(repr(prefix) for prefix in prefixes)
    raise CheckpointError(name, [f"has several torch.nn.Transformer modules; select one with --name prefix=NAME, one of {listed}"])


def _length(shapes: Mapping[str, tuple[int, ...]], pattern: str) -> int:
    """Returns the first size of the first tensor whose name matches; 0 if none does."""
    return next((shape[0] for native, shape in shapes.items() if shape and re.search(pattern, native)), 0)


def _vocabulary(shapes: Mapping[str, tuple[int, ...]], natives: Sequence[str], width: int) -> int | None:
    for native in natives:
        if shape := shapes.get(native):
            transposed = len(shape) == 2 and shape[0] == width != shape[1]
            return shape[1] if transposed else shape[0]
    return None
