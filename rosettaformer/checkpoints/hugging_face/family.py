"""What is said of a family of Hugging Face's models: the entries of its config.json, its classes and heads, and its tensors."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from reference_numpy import TransformerConfig

from ..tables import Table

__all__ = ["GELU", "HARMLESS", "ONLY", "Entry", "Family", "Head"]


@dataclass(frozen=True)
class Entry:
    """An entry of config.json that fields of the config hold.

    default: what the library takes where it is absent. words: its values, and those of the fields; of two that mean the same the first is
    written. otherwise: what holds where it is null, given all entries.
    """

    name: str
    default: Any
    fields: tuple[str, ...]
    words: Mapping[str, str] = field(default_factory=dict)
    otherwise: Callable[[Mapping[str, Any]], Any] = lambda entries: None


@dataclass(frozen=True)
class Head:
    """What stands on the last layer. tensors: the pattern of their names. flag: the field of the config that has it, "" where every config
    of the family has it, None where none has. shown: of heads whose tensors have the same names, whether tensors of these shapes are its,
    where the config.json names no class and counts so many labels.
    """

    name: str
    tensors: str
    flag: str | None = None
    shown: Callable[[Mapping[str, tuple[int, ...]], int], bool] = lambda shapes, labels: False


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models. Tensors are named here as in the base class, without its prefix.

    fixed: fields of the config that are the same in all. unused: fields that mean nothing in them. only: entries with one supported value.
    harmless: entries without effect on what is computed. aliases: other names of entries. prefix: before the tensors of the base class in
    a class with a head, but not before `outside`. classes: the heads of each class, those that are written first; base: the class
    without any. older: ends of names that earlier versions of the library gave. buffers: stored, but no parameters.
    twins: tensors that equal another, beside those that the config ties. tokenizer: the library's class of its tokenizers.
    """

    name: str
    model_type: str
    fixed: Mapping[str, Any]
    unused: tuple[str, ...]
    entries: tuple[Entry, ...]
    only: Mapping[str, Any]
    harmless: frozenset[str]
    aliases: Mapping[str, str]
    prefix: str
    outside: str
    base: str
    classes: Mapping[str, tuple[str, ...]]
    heads: tuple[Head, ...]
    table: Table
    older: Mapping[str, str]
    buffers: str
    twins: Mapping[str, str]
    tokenizer: str

    def native(self, key: str) -> str:
        """The name of a stored tensor as it is in the base class, by this version of the library."""
        name = key.removeprefix(self.prefix)
        return next((name.removesuffix(old) + new for old, new in self.older.items() if name.endswith(old)), name)

    def owns(self, said: Mapping[str, Any], names: Iterable[str]) -> bool:
        """Whether a model is of this family, whose config.json has no model_type: by its class, or by tensors under the family's prefix."""
        if named := said.get("architectures"):
            return isinstance(named, list) and any(name in named for name in self.classes)
        natives = {self.native(name) for name in names if name.startswith(self.prefix)}
        heads = "|".join([self.outside, *(head.tensors for head in self.heads)])
        return all(row.name.replace("*", "0") in natives for row in self.table if not re.fullmatch(heads, row.name))

    def stored(self, native: str, prefixed: bool) -> str:
        """The name under which a tensor is stored, the inverse of `native`."""
        return native if not prefixed or re.fullmatch(self.outside, native) else self.prefix + native

    def heads_of(self, config: TransformerConfig) -> set[str]:
        """The heads that a config has by one of its fields."""
        return {head.name for head in self.heads if head.flag and getattr(config, head.flag)}

    def classes_of(self, config: TransformerConfig) -> list[str]:
        """The classes that have the config's heads, and those alone but for a pooler, which some files hold without need."""
        own, always = self.heads_of(config), {head.name for head in self.heads if head.flag == ""}
        found = [name for name, heads in self.classes.items() if own - {"pooler"} <= {*heads} <= own | always]
        return found or ([] if own else [self.base])


_TANH = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python_tanh")
# names of transformers.activations -> ours
GELU = {"gelu": "gelu_erf", "gelu_python": "gelu_erf", **dict.fromkeys(_TANH, "gelu_tanh"), "quick_gelu": "gelu_sigmoid", "relu": "relu"}

# entries of every family, which have one supported value
ONLY: dict[str, Any] = {
    "is_encoder_decoder": False, "add_cross_attention": False, "cross_attention_hidden_size": None, "per_layer_config": None,
    "pruned_heads": None, "tie_last_hidden_states": None, "quantization_config": None, "auto_map": None,
}  # fmt: skip
# entries of every family that change nothing that is computed: how a program runs, what it is trained on, what it generates
HARMLESS = frozenset({
    "_attn_implementation", "_attn_implementation_autoset", "_commit_hash", "_name_or_path", "_num_labels", "architectures",
    "assistant_confidence_threshold", "assistant_lookbehind", "attn_implementation", "bad_words_ids", "begin_suppress_tokens",
    "bos_token_id", "chunk_size_feed_forward", "decoder_start_token_id", "diversity_penalty", "do_sample", "dtype", "early_stopping",
    "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "eos_token_id", "epsilon_cutoff", "eta_cutoff",
    "exponential_decay_length_penalty", "finetuning_task", "forced_bos_token_id", "forced_eos_token_id", "gradient_checkpointing",
    "id2label", "initializer_range", "label2id", "length_penalty", "max_length", "min_length", "model_type", "name_or_path",
    "no_repeat_ngram_size", "num_assistant_tokens", "num_assistant_tokens_schedule", "num_beam_groups", "num_beams", "num_labels",
    "num_return_sequences", "output_attentions", "output_hidden_states", "output_past", "output_scores", "pad_token_id", "prefix",
    "problem_type", "remove_invalid_values", "repetition_penalty", "return_dict", "return_dict_in_generate", "sep_token_id",
    "suppress_tokens", "target_lookbehind", "task_specific_params", "temperature", "tf_legacy_loss", "tie_encoder_decoder",
    "tokenizer_class", "top_k", "top_p", "torch_dtype", "torchscript", "transformers_version", "typical_p", "use_bfloat16",
    "use_cache",
})  # fmt: skip
