"""Generation options, with the names, meanings and defaults of transformers' `generate`."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from reference_numpy.fields import BOOLEAN, Fields, Rule, at_most, integer, is_integer, is_number

from ...files.checkpoints.hugging_face.reading import CONFIG, GENERATION


def _or_none(rule: Rule) -> Rule:
    return Rule(lambda value: value is None or rule.good(value), f"{rule.wanted}, or None")


ROWS, LONGEST = 2**12, 2**16  # most continuations of a prompt, each with its own cache; most tokens of a continuation

_Natural = Annotated[int, integer(0)]
_Rows = Annotated[int, integer(1), at_most(ROWS)]
_Flag = Annotated[bool, BOOLEAN]
_Limit = Annotated[int | None, _or_none(integer(1)), _or_none(at_most(LONGEST))]
_Least = Annotated[int | None, _or_none(integer(0))]
_Id = Annotated[int | None, _or_none(integer(0))]
_Ids = Annotated[
    tuple[int, ...],
    Rule(lambda value: isinstance(value, tuple) and all(is_integer(id_) and id_ >= 0 for id_ in value), "integers of at least 0"),
]
_Words = Annotated[
    tuple[tuple[int, ...], ...],
    Rule(
        lambda value: (
            isinstance(value, tuple)
            and all(isinstance(word, tuple) and word for word in value)
            and all(is_integer(id_) and id_ >= 0 for word in value for id_ in word)
        ),
        "lists of at least one id, each id at least 0",
    ),
]
_Texts = Annotated[
    tuple[str, ...],
    Rule(lambda value: isinstance(value, tuple) and all(isinstance(text, str) and text for text in value), "non-empty texts"),
]
_Temperature = Annotated[float, Rule(lambda value: is_number(value) and (value == 0 or 1e-9 <= value <= 1e9), "0, or from 1e-9 to 1e9")]
_Share = Annotated[float, Rule(lambda value: is_number(value) and 0 <= value <= 1, "from 0 to 1")]
_Cutoff = Annotated[float, Rule(lambda value: is_number(value) and 0 <= value < 1, "at least 0 and less than 1")]
_Positive = Annotated[float, Rule(lambda value: is_number(value) and 1e-9 <= value <= 1e9, "from 1e-9 to 1e9")]
_Probability = Annotated[float, Rule(lambda value: is_number(value) and 0 < value <= 1, "greater than 0 and at most 1")]
_Exponent = Annotated[float, Rule(lambda value: is_number(value) and -7 <= value <= 7, "from -7 to 7, so that n^x fits into float32")]
_Early = Annotated[bool | str, Rule(lambda value: isinstance(value, bool) or value == "never", "True, False or never")]


@dataclass(frozen=True, kw_only=True)
class GenerationOptions(Fields):
    """Options of text generation. Options that a search does not use are ignored.

    Raises ValueError naming every field that is out of range and every conflict between two fields.
    """

    KIND: ClassVar[str] = "generation option"

    max_new_tokens: _Limit = None  # includes the end token
    min_new_tokens: _Least = None  # tokens before the first end token
    max_length: _Limit = None  # of the longest prompt plus continuation, if max_new_tokens is None
    min_length: _Natural = 0  # likewise, if min_new_tokens is None
    do_sample: _Flag = False  # sample tokens; otherwise take the most likely one
    num_beams: _Rows = 1
    num_return_sequences: _Rows = 1  # continuations per prompt
    temperature: _Temperature = 1.0  # divides the logits before sampling
    top_k: _Natural = 50  # sample from the k most likely tokens; 0: from all
    top_p: _Probability = 1.0  # sample from the most likely tokens with at least this total probability
    min_p: _Share = 0.0  # sample from tokens at least this times as likely as the most likely one
    typical_p: _Probability = 1.0  # sample from the most typical tokens with this total probability
    epsilon_cutoff: _Cutoff = 0.0  # sample from tokens with at least this probability
    eta_cutoff: _Cutoff = 0.0  # likewise, but less strict if the entropy is high
    repetition_penalty: _Positive = 1.0  # makes tokens of the text so far less likely; 1: no penalty
    no_repeat_ngram_size: _Natural = 0  # no n-gram of this length appears twice; 0: no limit
    bad_words_ids: _Words = ()  # id sequences that are never generated
    length_penalty: _Exponent = 1.0  # a hypothesis of n new tokens has the score log p / n^length_penalty
    early_stopping: _Early = False  # when a beam search ends, see `beams.Beams`
    eos_token_id: _Ids = ()  # each ends a continuation
    stop_strings: _Texts = ()  # a continuation ends when it completes one of these
    forced_bos_token_id: _Id = None  # the second token of a text; of an encoder-decoder, the first generated one
    forced_eos_token_id: _Ids = ()  # the only possible last tokens of the longest continuation
    renormalize_logits: _Flag = False  # scores of tokens become log p again after penalties and bans
    decoder_start_token_id: _Id = None  # the first target token of an encoder-decoder; None: bos_token_id
    bos_token_id: _Id = None  # starts a continuation of an empty prompt
    pad_token_id: _Id = None  # pads shorter prompts on the left; no token attends to it
    seed: _Natural = 0  # for sampling

    def _conflicts(self) -> Iterator[str]:
        if self.do_sample and not self.temperature:
            yield "do_sample needs a temperature greater than 0; got 0. --no-do-sample takes the most likely token"
        if self.do_sample and self.num_beams > 1:
            yield f"do_sample needs num_beams=1, since beam search does not sample; got {self.num_beams}. --no-do-sample turns it off"
        if self.num_return_sequences > 1 and not self.do_sample and self.num_return_sequences > self.num_beams:
            yield (
                "num_return_sequences must be at most num_beams, unless do_sample is set; "
                f"got num_return_sequences={self.num_return_sequences} and num_beams={self.num_beams}"
            )

    def most(self, prompt_length: int, positions: int) -> int:
        """Returns the most tokens that may follow a prompt of this length.

        That is max_new_tokens, or what max_length leaves, or else 20, limited by the free
        positions. positions: the model's; 0 for no limit. The last token needs no position, since
        it is not read. Raises ValueError if the prompt leaves no room, or less than requested.
        """
        if positions and prompt_length > positions:
            raise ValueError(f"a prompt must have at most {positions} tokens, the model's number of positions; got {prompt_length}")
        room = positions - prompt_length + 1 if positions else None
        if self.max_new_tokens is None and self.max_length is None:
            return 20 if room is None else max(min(20, room - 1), 1)
        count = self.max_new_tokens if self.max_new_tokens is not None else (self.max_length or 0) - prompt_length
        if count < 1:
            raise ValueError(f"max_length must be greater than the prompt's length, {prompt_length}; got {self.max_length}")
        if room is not None and count > room:
            raise ValueError(
                f"max_new_tokens must be at most {room} for a prompt of {prompt_length} tokens, "
                f"since the model has {positions} positions; got {count}"
            )
        return count

    def check_vocabulary(self, size: int) -> None:
        """Raises ValueError if a banned or forced id is outside the vocabulary."""
        given = {"bad_words_ids": {id_ for word in self.bad_words_ids for id_ in word}, "forced_eos_token_id": {*self.forced_eos_token_id}}
        given |= {name: {getattr(self, name)} - {None} for name in ("forced_bos_token_id", "decoder_start_token_id")}
        for name, ids in given.items():
            if outside := sorted(id_ for id_ in ids if id_ >= size):
                raise ValueError(f"{name} must be from 0 to {size - 1}; got {', '.join(map(str, outside))}")

    @property
    def start_id(self) -> int:
        """The first target token of an encoder-decoder. Raises ValueError if there is none."""
        found = self.bos_token_id if self.decoder_start_token_id is None else self.decoder_start_token_id
        if found is None:
            raise ValueError("an encoder-decoder needs a decoder_start_token_id; got none")
        return found

    def least(self, prompt_length: int) -> int:
        """Returns how many tokens must precede an end token."""
        return self.min_new_tokens if self.min_new_tokens is not None else max(self.min_length - prompt_length, 0)


# entries other than options that do not affect the tokens: records, caches, return values
_WITHOUT_EFFECT = {
    "transformers_version", "_from_model_config", "use_cache", "cache_implementation", "cache_config", "max_cache_len", "trust_remote_code",
    "output_attentions", "output_hidden_states", "output_scores", "output_logits", "return_dict_in_generate",
    "compile_config", "disable_compile", "continuous_batching_config", "prefill_chunk_size", "low_memory", "is_assistant",
    "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold", "assistant_early_exit",
    "assistant_lookbehind", "target_lookbehind", "assistant_ensemble_weight", "max_matching_ngram_size",
}  # fmt: skip
# unsupported entries that affect the tokens -> the value without effect; null has none either
_NEUTRAL = {
    "encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0, "remove_invalid_values": False,
    "token_healing": False, "guidance_scale": 1, "num_beam_groups": 1, "diversity_penalty": 0.0,
}  # fmt: skip


def defaults(foreign: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a checkpoint's options, from generation_config.json or else config.json.

    Raises ValueError listing every unsupported entry of generation_config.json that affects tokens.
    """
    own = GENERATION in foreign
    entries = foreign.get(GENERATION, foreign.get(CONFIG, {}))
    fields = {field.name for field in dataclasses.fields(GenerationOptions)} - {"seed"}
    result = {name: value for name, value in entries.items() if name in fields and value is not None}
    others = {name: value for name, value in entries.items() if name not in fields | _WITHOUT_EFFECT and value is not None}
    if refused := [f"{name}={value!r:.100}" for name, value in others.items() if own and value != _NEUTRAL.get(name)]:
        raise ValueError(f"{GENERATION} has unsupported options; ignore each with --ignore NAME: {', '.join(refused)}")
    if is_integer(result.get("pad_token_id")) and result["pad_token_id"] < 0:  # means that there is none
        del result["pad_token_id"]
    return listed(result)


def listed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Converts options that are lists to tuples; a single value becomes a tuple of one."""
    lists = {name: options[name] for name in ("eos_token_id", "forced_eos_token_id", "stop_strings", "bad_words_ids") if name in options}
    return {**options} | {name: _tuples(value if isinstance(value, list) else [value]) for name, value in lists.items()}


def _tuples(value: Any) -> Any:
    """Converts a JSON list and its inner lists to tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
