"""The configuration of a Transformer: a field for every choice on which published models differ."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from textwrap import fill, indent
from typing import Annotated, ClassVar, NamedTuple

from . import fields
from .gate import Gate
from .rotary_scaling import RotaryScaling
from .scores import Scores

__all__ = [
    "ACTIVATIONS",
    "ATTENTION_SINKS",
    "COMPUTE_DTYPES",
    "EXPERT_WEIGHTED",
    "GROUP_MASKS",
    "GROUP_SCORES",
    "LAYER_KINDS",
    "NORMS",
    "NORM_PLACEMENTS",
    "PARALLEL",
    "POOLER_ACTIVATIONS",
    "POSITIONS",
    "POSITION_STARTS",
    "QUERY_KEY_NORMS",
    "ROTARY_LAYOUTS",
    "ROUTER_SCORES",
    "SINUSOID_LAYOUTS",
    "Group",
    "LayerKind",
    "TransformerConfig",
]

ACTIVATIONS = ("relu", "relu_squared", "gelu_erf", "gelu_tanh", "gelu_sigmoid", "silu")
POOLER_ACTIVATIONS = ("tanh", "relu")
NORMS = ("layer", "rms")
NORM_PLACEMENTS = ("post", "pre", "sandwich", "after", "parallel", "parallel_shared")
PARALLEL = ("parallel", "parallel_shared")
POSITIONS = ("none", "sinusoidal", "learned", "rotary")
POSITION_STARTS = ("first_token", "row")
SINUSOID_LAYOUTS = ("interleaved", "halves", "tensor2tensor")
ROTARY_LAYOUTS = ("halves", "interleaved")
QUERY_KEY_NORMS = ("none", "head", "width", "each_head")
LAYER_KINDS = ("global", "local")
ATTENTION_SINKS = ("none", "local", "all")
ROUTER_SCORES = ("softmax", "sigmoid", "chosen_softmax", "chosen_sigmoid")
GROUP_SCORES = ("best", "best_two")
GROUP_MASKS = ("zero", "minus_infinity")
EXPERT_WEIGHTED = ("output", "input")
COMPUTE_DTYPES = ("model", "float32")

_Size = Annotated[int, fields.INTEGER, fields.at_least(1)]
_Count = Annotated[int, fields.INTEGER, fields.at_least(0)]
_Flag = Annotated[bool, fields.BOOLEAN]
_Rate = Annotated[float, fields.NUMBER, fields.SHARE]
_Positive = Annotated[float, fields.NUMBER, fields.POSITIVE, fields.MODERATE]
_PositiveOrNone = Annotated[
    float | None, fields.NUMBER_OR_NONE, fields.POSITIVE_OR_NONE, fields.MODERATE
]
_Number = Annotated[float, fields.NUMBER, fields.MODERATE_OR_ZERO]
_Epsilon = Annotated[float, fields.NUMBER, fields.at_least(0)]
_Fraction = Annotated[float, fields.NUMBER, fields.FRACTION]
_Id = Annotated[int | None, fields.INTEGER_OR_NONE]
_Positions = Annotated[str, fields.NAME, fields.one_of(POSITIONS)]
_Start = Annotated[str, fields.NAME, fields.one_of(POSITION_STARTS)]
_SinusoidLayout = Annotated[str, fields.NAME, fields.one_of(SINUSOID_LAYOUTS)]
_RotaryLayout = Annotated[str, fields.NAME, fields.one_of(ROTARY_LAYOUTS)]
_Activation = Annotated[str, fields.NAME, fields.one_of(ACTIVATIONS)]
_PoolerActivation = Annotated[str, fields.NAME, fields.one_of(POOLER_ACTIVATIONS)]
_Norm = Annotated[str, fields.NAME, fields.one_of(NORMS)]
_Placement = Annotated[str, fields.NAME, fields.one_of(NORM_PLACEMENTS)]
_QueryKeyNorm = Annotated[str, fields.NAME, fields.one_of(QUERY_KEY_NORMS)]
_Scaling = Annotated[
    RotaryScaling, fields.Rule(lambda value: isinstance(value, RotaryScaling), "a RotaryScaling")
]
_Sinks = Annotated[str, fields.NAME, fields.one_of(ATTENTION_SINKS)]
_RouterScores = Annotated[str, fields.NAME, fields.one_of(ROUTER_SCORES)]
_GroupScore = Annotated[str, fields.NAME, fields.one_of(GROUP_SCORES)]
_GroupMask = Annotated[str, fields.NAME, fields.one_of(GROUP_MASKS)]
_Weighted = Annotated[str, fields.NAME, fields.one_of(EXPERT_WEIGHTED)]
_Dtype = Annotated[str, fields.NAME, fields.one_of(COMPUTE_DTYPES)]
_Kinds = Annotated[tuple[str, ...], fields.sequence_of(fields.one_of(LAYER_KINDS))]
_Flags = Annotated[tuple[bool, ...], fields.sequence_of(fields.BOOLEAN)]

_SCALINGS = ("rotary_scaling", "local_rotary_scaling")  # field names


class LayerKind(NamedTuple):
    """The choices of one layer's self-attention that may differ from other layers of its stack.

    window: how many keys a query may attend to, including its own; 0 for all. rotary: whether
    queries and keys rotate, with this base and scaling.
    """

    window: int
    rotary: bool
    base: float
    scaling: RotaryScaling


class Group(str):
    """The heading of the config fields below it."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(fields.Fields):
    """Sizes and choices of a Transformer.

    Encoder and decoder: Vaswani et al. 2017, "Attention Is All You Need"; encoder-only: Devlin et
    al. 2019, BERT; decoder-only: Radford et al. 2019, GPT-2; Touvron et al. 2023, Llama. No field
    has a default, so that every choice a framework would make silently is written down.
    `presets.PRESETS` has named configs; `preset(name, **changes)` starts from one.

    Fields do not imply one another: a field that does not apply, such as rotary_base with learned
    positions, is ignored. `attention_bias` sets both query_key_value_bias and
    attention_output_bias. Raises ValueError naming every field that is out of range, with the
    requirement and the value.
    """

    KIND: ClassVar[str] = "config"
    TOGETHER: ClassVar[dict[str, tuple[str, ...]]] = {
        "attention_bias": ("query_key_value_bias", "attention_output_bias")
    }

    SIZES: ClassVar = Group("sizes")
    source_vocabulary: _Size  # v of the encoder embedding and of the masked-language logits
    target_vocabulary: _Size  # v of the decoder embedding and of its logits
    model_width: _Size  # d, the size of a token vector
    heads: _Size  # h, query heads
    key_value_heads: _Size  # g, key and value heads; each serves h / g query heads
    key_size: _Size  # k, the size of a query or key head
    value_size: _Size  # e, the size of a value head
    feed_forward_width: _Size  # f, the size of the hidden layer
    encoder_layers: _Count  # 0: decoder-only, without source embedding and cross-attention
    decoder_layers: _Count  # 0: encoder-only, without target embedding and logits

    EMBEDDING: ClassVar = Group("embedding")
    scale_embedding: _Flag  # multiply embeddings by sqrt(d)
    round_embedding_scale: _Flag  # first round sqrt(d) to the dtype of the embedding
    embedding_multiplier: _Positive  # multiplies embeddings
    share_embeddings: _Flag  # source and target share one table
    segments: _Count  # rows of the segment table, added to source tokens; 0: no table
    embedding_norm: _Flag  # norm of the sum of embedding, position and segment
    padding_id: _Id  # the token that is masked in attention; None: every token is real

    POSITIONS: ClassVar = Group("positions")
    positions: _Positions  # sinusoidal or learned: added to embeddings; rotary: queries and keys
    sinusoid_layout: _SinusoidLayout  # sines and cosines alternate, or sines come first, also in
    # tensor2tensor, whose last frequency is 1 / 10000
    max_positions: _Count  # tokens that a learned table supports; 0 unless positions is learned
    position_offset: _Count  # learned: row of position 0; sinusoidal: added to every position
    position_start: _Start  # token at position 0: the first real token, or the first of the row

    ROTARY: ClassVar = Group("rotary")
    rotary_layout: _RotaryLayout  # pairs (i, i + n/2) of the n rotating features, or (2i, 2i+1)
    rotary_fraction: _Fraction  # fraction of each head's features, from the first, that rotates
    rotary_base: _Positive  # the angle per position falls from 1 to nearly 1 / base
    rotary_scaling: _Scaling  # frequency scaling for long texts
    local_rotary_base: _Positive  # rotary_base of local layers
    local_rotary_scaling: _Scaling  # rotary_scaling of local layers
    rotary_pattern: _Flags  # which layers rotate, repeated over the layers

    ATTENTION: ClassVar = Group("attention")
    layer_pattern: _Kinds  # global (all keys) or local (a window), repeated over the layers
    window: _Count  # keys visible in a local layer, including the query's own; 0: no local layers
    score_scale: _PositiveOrNone  # multiplies attention scores; None: k ** -0.5
    score_cap: _PositiveOrNone  # attention scores become cap tanh(scores / cap)
    attention_sinks: _Sinks  # layers whose self-attention has a sink, a learned score per head
    query_key_value_bias: _Flag  # biases of the query, key and value projections
    attention_output_bias: _Flag  # bias of the output projection of attention

    QUERY_KEY_VALUE: ClassVar = Group("query-key-value")
    query_key_norm: _QueryKeyNorm  # norm per head, with one scale or each_head's own, or over all
    query_key_norm_offset: _Flag  # these norms too add an offset, if norm_offset
    query_key_norm_after_rotation: _Flag  # after the rotation instead of before
    query_key_value_clip: _PositiveOrNone  # clips queries, keys and values on both sides; None: no

    FEED_FORWARD: ClassVar = Group("feed-forward")
    activation: _Activation  # activation of the feed-forward and the masked-language head
    gated_feed_forward: _Flag  # multiply the hidden layer by activation(x W_g)
    feed_forward_bias: _Flag  # biases of the feed-forward projections
    gate_limit: _PositiveOrNone  # gated: clips x W_g from above and x W_1 on both sides; None: no
    hidden_offset: _Number  # gated: added to x W_1 before the product

    EXPERTS: ClassVar = Group("experts")
    experts: _Count  # x, feed-forward networks in place of one; 0: no layer has experts
    experts_per_token: _Count  # experts that a token chooses
    expert_width: _Count  # m, the size of an expert's hidden layer
    expert_pattern: _Flags  # which layers have experts, repeated over the layers
    expert_weighted: _Weighted  # the weight multiplies an expert's output or its input
    shared_width: _Count  # w, the hidden size of an expert for all tokens; 0: there is none
    shared_gate: _Flag  # multiply the shared expert's output by sigmoid(x w)

    ROUTER: ClassVar = Group("router")
    router_scores: _RouterScores  # of all experts, or of the chosen ones after the choice
    router_bias: _Flag  # bias of the router's projection
    selection_bias: _Flag  # a learned bias of the choice only, not of the weights
    router_normalize: _Flag  # divide the weights by their sum
    router_epsilon: _Epsilon  # added to that sum
    router_scale: _Positive  # multiplies the weights, after the division
    router_product_dtype: _Dtype  # of x W_r; model: that of the model, in half precision
    router_score_dtype: _Dtype  # of scores, choice and division
    router_weight_dtype: _Dtype  # of the weights in the sum

    ROUTER_GROUPS: ClassVar = Group("expert-groups")
    router_groups: _Size  # groups of experts that are chosen first; 1: no groups
    router_groups_kept: _Size  # groups from which the experts are chosen
    router_group_score: _GroupScore  # a group's best score, or the sum of its two best
    router_group_mask: _GroupMask  # the score of experts in other groups

    NORM: ClassVar = Group("norm")
    norm: _Norm  # divide by the standard deviation (layer) or the root mean square (rms)
    norm_scale: _Flag  # norms multiply by a learned scale
    norm_offset: _Flag  # norms add an offset after the scale
    norm_one_plus_scale: _Flag  # norms multiply by 1 + scale
    norm_cast_before_scale: _Flag  # half precision rounds normalized values before the scale
    norm_placement: _Placement  # of x + f(x): pre norm(x), post norm(x + f(x)), after norm(f(x));
    # parallel x + f(norm(x)) + g(norm(x))
    first_norm: _Flag  # pre: the first layer too has a norm of its self-attention's input
    residual_multiplier: _Positive  # multiplies f(x) before it is added to x
    final_norm: _Flag  # norm after the last layer of encoder and decoder
    epsilon: _Positive  # added to the variance or mean square inside the root

    OUTPUT: ClassVar = Group("output")
    tie_logits: _Flag  # the logits kernel is the transposed target table
    output_bias: _Flag  # bias of the logits
    logit_scale: _Positive  # multiplies the logits
    logit_cap: _PositiveOrNone  # logits become cap tanh(logits / cap)
    pooler: _Flag  # encoder-only: activation(x W + b) of the first token
    pooler_activation: _PoolerActivation  # activation of the pooler
    classes: _Count  # c, classes of a head on the pooled token; 0: no head
    masked_language_head: _Flag  # encoder-only: dense layer, activation, norm and logits
    head_bias: _Flag  # bias of that dense layer

    DROPOUT: ClassVar = Group("dropout")
    dropout_rate: _Rate  # of embedded tokens, after their norm, and of every sub-layer's output
    attention_dropout_rate: _Rate  # of the attention weights
    hidden_dropout_rate: _Rate  # of the hidden layer of the feed-forward
    classifier_dropout_rate: _Rate  # of the pooled token, before the classification head

    def __post_init__(self) -> None:
        for name in _SCALINGS:
            if isinstance(value := getattr(self, name), Mapping):
                try:
                    scaling = RotaryScaling.from_dict(value)
                except ValueError as error:
                    raise ValueError(f"{name}: {error}") from None
                object.__setattr__(self, name, scaling)
        for name in ("layer_pattern", "rotary_pattern", "expert_pattern"):
            if isinstance(value := getattr(self, name), list):
                object.__setattr__(self, name, tuple(value))
        super().__post_init__()

    @classmethod
    def groups(cls) -> dict[str, list[str]]:
        """Returns the fields of each group, in order."""
        found, group = dict[str, list[str]](), list[str]()
        for name in TransformerConfig.__annotations__:
            if isinstance(heading := getattr(TransformerConfig, name, None), Group):
                found[heading] = group = []
            else:
                group.append(name)
        return found

    def __repr__(self) -> str:
        """Returns Python code that builds this config, one paragraph per group."""
        lines = [f"{type(self).__name__}("]
        for heading, names in self.groups().items():
            values = "".join(f"{name}={getattr(self, name)!r}, " for name in names)
            lines += [f"    # {heading}", indent(fill(values, 96, break_on_hyphens=False), "    ")]
        return "\n".join([*lines, ")"])

    def to_dict(self) -> fields.Values:
        return super().to_dict() | {name: getattr(self, name).to_dict() for name in _SCALINGS}

    def _conflicts(self) -> Iterator[str]:
        source, target = self.source_vocabulary, self.target_vocabulary
        if self.heads >= 1 and self.key_value_heads >= 1 and self.heads % self.key_value_heads:
            yield f"key heads must divide query heads; got h={self.heads}, g={self.key_value_heads}"
        if self.share_embeddings and source != target:
            got = f"source_vocabulary={source}, target_vocabulary={target}"
            yield f"shared embeddings need equal vocabularies; got {got}"
        if self.padding_id is not None and not 0 <= self.padding_id < min(source, target):
            yield f"padding_id must be a token of both vocabularies; got {self.padding_id}"
        if not self.encoder_layers and not self.decoder_layers:
            yield "a model needs a layer; got encoder_layers=0, decoder_layers=0"
        if (self.positions == "learned") != (self.max_positions > 0):
            got = f"positions={self.positions}, max_positions={self.max_positions}"
            yield f'max_positions must be set if, and only if, positions is "learned"; got {got}'
        if self.position_offset and self.positions not in ("learned", "sinusoidal"):
            got = f"{self.position_offset} with positions={self.positions}"
            yield f"position_offset requires learned or sinusoidal positions; got {got}"
        if self.segments and not self.encoder_layers:
            yield f"segments require an encoder; got segments={self.segments}, encoder_layers=0"
        if self.decoder_layers and (self.pooler or self.masked_language_head):
            got = f"pooler={self.pooler}, masked_language_head={self.masked_language_head}"
            yield (
                "only an encoder-only model has a pooler or a masked-language head; "
                f"got {got}, decoder_layers={self.decoder_layers}"
            )
        if self.parallel and self.cross_attention:
            got = f"{self.norm_placement} with encoder_layers={self.encoder_layers}"
            yield f"parallel sub-layers exclude cross-attention; got norm_placement={got}"
        if self.classes and not self.pooler:
            yield f"a classification head needs a pooler; got classes={self.classes}, pooler=False"
        if self.norm_placement == "pre" and not self.first_norm and not self.norm_scale:
            yield "a first layer without norm needs norms with a scale; got norm_scale=False"
        if "local" in self.layer_pattern and not self.window:
            yield "local layers need a window; got window=0"
        if self.experts > 0 and self.router_groups > 0:
            yield from self._expert_conflicts()
        if self.positions == "rotary":
            yield from self._rotary_conflicts()

    def _expert_conflicts(self) -> Iterator[str]:
        count, groups = self.experts, self.router_groups
        per_token, width = self.experts_per_token, self.expert_width
        if per_token < 1 or width < 1:
            got = f"experts_per_token={per_token}, expert_width={width}"
            yield f"experts need experts_per_token and expert_width of at least 1; got {got}"
        got = f"experts={count}, experts_per_token={per_token}, "
        got += f"router_groups={groups}, router_groups_kept={self.router_groups_kept}"
        if count % groups or self.router_groups_kept > groups:
            yield f"groups must divide the experts, and those kept be among them; got {got}"
        elif per_token > count // groups * self.router_groups_kept:
            yield f"a token can choose at most the experts of the kept groups; got {got}"
        elif self.router_group_score == "best_two" and groups > 1 and count // groups < 2:
            yield f"router_group_score best_two needs groups of at least two experts; got {got}"

    def _rotary_conflicts(self) -> Iterator[str]:
        size, got = self.rotary_size, f"{self.rotary_fraction} of key_size={self.key_size}"
        if size < 2 or size % 2:
            yield f"the number of rotating features must be even; got {size}, {got}"
            return
        for name in _SCALINGS:
            scaling = getattr(self, name)
            factors = scaling.short_factors
            if factors is not None and 2 * len(factors) != size:
                yield f"{name} needs a factor for each of {size // 2} pairs; got {len(factors)}"
            base = name.replace("scaling", "base")
            if scaling.kind == "yarn" and getattr(self, base) == 1:
                yield f"{base} must not be 1 if {name} is yarn; got {getattr(self, base)}"
            if scaling.kind == "dynamic" and size == 2:
                yield f"{name} must not be dynamic with a single rotary pair; got {got}"

    @property
    def cross_attention(self) -> bool:
        """Whether the decoder layers attend to an encoder."""
        return self.encoder_layers > 0 and self.decoder_layers > 0

    @property
    def attention_bias(self) -> bool:
        """Whether all attention projections have biases.

        Raises SeveralValues if the output projection differs from the others.
        """
        if self.query_key_value_bias != self.attention_output_bias:
            raise fields.SeveralValues(
                "attention_bias is two fields, query_key_value_bias and attention_output_bias; "
                f"got {self.query_key_value_bias} and {self.attention_output_bias}"
            )
        return self.query_key_value_bias

    @property
    def rotary_size(self) -> int:
        """The number of features of a query or key that rotate."""
        return int(self.key_size * self.rotary_fraction)

    def layer_kind(self, layer: int) -> LayerKind:
        """Returns the self-attention choices of a layer by index; patterns repeat over layers."""
        local = self.layer_pattern[layer % len(self.layer_pattern)] == "local"
        rotates = self.rotary_pattern[layer % len(self.rotary_pattern)]
        rotary = self.positions == "rotary" and rotates
        if local:
            return LayerKind(self.window, rotary, self.local_rotary_base, self.local_rotary_scaling)
        return LayerKind(0, rotary, self.rotary_base, self.rotary_scaling)

    def scores(self, layer: int | None, causal: bool = False) -> Scores:
        """Returns how a layer's self-attention treats its scores; layer None: cross-attention."""
        window = 0 if layer is None else self.layer_kind(layer).window
        return Scores(self.score_scale, self.score_cap, window, causal, self.has_sink(layer))

    @property
    def of_query_key_norm(self) -> "TransformerConfig":
        """The choices of the norms of queries and keys, as those of all norms."""
        return self if self.query_key_norm_offset else self.replace(norm_offset=False)

    @property
    def parallel(self) -> bool:
        """Whether the feed-forward reads the input of the layer, next to the self-attention."""
        return self.norm_placement in PARALLEL

    def input_norm(self, sublayer: str) -> str:
        """Returns the name of the norm of a sub-layer's input; empty if it has none."""
        if self.norm_placement == "parallel_shared":
            return "self_attention_norm"
        return f"{sublayer}_norm" if self.norm_placement in ("pre", "sandwich", "parallel") else ""

    def skips_norm(self, layer: int | None) -> bool:
        """Whether the self-attention of this layer reads x itself, although others read norm(x)."""
        return layer == 0 and self.norm_placement == "pre" and not self.first_norm

    def output_norm(self, sublayer: str) -> str:
        """Returns the name of the norm of a sub-layer's output; empty if it has none."""
        names = {"sandwich": f"{sublayer}_output_norm", "after": f"{sublayer}_norm"}
        return names.get(self.norm_placement, "")

    @property
    def rotary_switches(self) -> set[int]:
        """The text lengths beyond which rotating layers switch to other factors (longrope)."""
        return {
            scaling.original_length
            for scaling in self._scalings
            if scaling.kind == "longrope" and scaling.original_length is not None
        }

    @property
    def rotary_by_length(self) -> bool:
        """Whether frequencies depend on the longest row of a batch, including its padding."""
        return any(scaling.by_length for scaling in self._scalings)

    @property
    def _scalings(self) -> set[RotaryScaling]:
        """How the frequencies of rotating layers are scaled."""
        layers = range(max(self.encoder_layers, self.decoder_layers))
        return {kind.scaling for kind in map(self.layer_kind, layers) if kind.rotary}

    @property
    def gate(self) -> Gate:
        """How a gated feed-forward network multiplies its gate and hidden layer."""
        return Gate(self.gate_limit, self.hidden_offset)

    def has_experts(self, layer: int) -> bool:
        """Whether the feed-forward of this layer is a mixture of experts."""
        pattern = self.expert_pattern
        return self.experts > 0 and pattern[layer % len(pattern)]

    def has_sink(self, layer: int | None) -> bool:
        """Whether the self-attention of this layer has a sink; None: cross-attention, which has
        none.
        """
        if layer is None or self.attention_sinks == "none":
            return False
        kind = self.layer_pattern[layer % len(self.layer_pattern)]
        return self.attention_sinks == "all" or kind == self.attention_sinks

    @property
    def sizes(self) -> dict[str, int]:
        """The size of every parameter axis except v, by letter."""
        return {
            "d": self.model_width,
            "r": self.model_width,
            "h": self.heads,
            "g": self.key_value_heads,
            "k": self.key_size,
            "e": self.value_size,
            "f": self.feed_forward_width,
            "x": self.experts,
            "m": self.expert_width,
            "w": self.shared_width,
            "p": self.max_positions + self.position_offset,
            "a": self.segments,
            "c": self.classes,
        }

    def need_encoder(self) -> None:
        """Raises ValueError if the config has no encoder."""
        if not self.encoder_layers:
            raise ValueError("encoding needs at least one encoder layer; got encoder_layers=0")

    def need_decoder(self) -> None:
        """Raises ValueError if the config has no decoder."""
        if not self.decoder_layers:
            raise ValueError("decoding needs at least one decoder layer; got decoder_layers=0")

    def need(self, head: str) -> None:
        """Raises ValueError if the config lacks this head, given by its field."""
        if not getattr(self, head):
            raise ValueError(f"the config has no {head}; got {head}={getattr(self, head)}")

    @property
    def only_head(self) -> str:
        """The head that calling an encoder-only model runs, by its field; empty if there is none.

        Raises ValueError if there are two, since the call would be ambiguous.
        """
        if self.classes and self.masked_language_head:
            wanted = "two heads must be called through `classify` or `masked_language_logits`"
            raise ValueError(f"an encoder-only model with {wanted}; got a call of the model")
        if self.classes:
            return "classes"
        return "masked_language_head" if self.masked_language_head else ""

    def need_router_loss(self) -> None:
        """Raises ValueError unless the model is decoder-only and has experts (BALANCE)."""
        if self.encoder_layers or not any(map(self.has_experts, range(self.decoder_layers))):
            got = f"encoder_layers={self.encoder_layers}, experts={self.experts}"
            wanted = "router losses need a decoder-only model, in which a layer has experts"
            raise ValueError(f"{wanted}; got {got}, expert_pattern={self.expert_pattern}")

    def need_objective(self) -> None:
        """Raises ValueError if no loss reaches every parameter.

        An encoder-only model is trained on classes and must not have a masked-language head.
        """
        if not self.decoder_layers and (not self.classes or self.masked_language_head):
            got = f"classes={self.classes}, masked_language_head={self.masked_language_head}"
            wanted = "needs classes and no masked-language head"
            raise ValueError(f"training an encoder-only model {wanted}; got {got}")
