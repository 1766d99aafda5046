"""Argument checks shared by all implementations.

The functions take plain facts (shapes, dtype names, smallest and largest id) instead of arrays, so
that the ports can call them too. A size of None is unknown in a traced program and is not checked.
Symbolic sizes are only compared for equality, which every framework supports.
"""

from collections.abc import Sequence

__all__ = [
    "check_attention",
    "check_attention_mask",
    "check_batch",
    "check_bias",
    "check_choice",
    "check_classes",
    "check_features",
    "check_held",
    "check_keep",
    "check_labels",
    "check_length",
    "check_logits",
    "check_mask",
    "check_memory",
    "check_next_token",
    "check_not_empty",
    "check_penalties",
    "check_pooled",
    "check_prefix",
    "check_prefix_given",
    "check_rotated",
    "check_router_loss",
    "check_rows",
    "check_same_batch",
    "check_same_length",
    "check_sampling",
    "check_segments",
    "check_sink",
    "check_source",
    "check_source_given",
    "check_splits",
    "check_target",
    "check_target_given",
    "check_token_mask",
    "check_tokens",
    "check_uniform",
]

Shape = Sequence[int | None]
Bound = int | None
_INTEGERS = ("int", "uint")  # prefixes of the names of integer dtypes


def check_tokens(
    name: str,
    shape: Shape,
    dtype: str,
    vocabulary: int,
    lowest: Bound = None,
    highest: Bound = None,
) -> None:
    """Token ids must be integers `b t` in 0 .. v-1, or soft one-hot floats `b t v`, with t >= 1."""
    soft = dtype.endswith(("float16", "float32", "float64")) and len(shape) == 3
    if not soft:
        wanted = "integer token ids of axes b t, or floating one-hot rows of axes b t v"
        _check_integers(name, wanted, shape, dtype, 2)
    check_not_empty(name, shape)
    if len(shape) == 3 and shape[2] not in (vocabulary, None):
        raise ValueError(
            f"{name} rows must have the vocabulary's size {vocabulary}; got shape {_show(shape)}"
        )
    check_held(vocabulary, lowest, highest, name=name)


def check_rows(
    name: str, shape: Shape, dtype: str, rows: int, lowest: Bound = None, highest: Bound = None
) -> None:
    """Row indices of a table must be integers `b t` from 0 to rows - 1."""
    _check_integers(name, "integers of axes b t", shape, dtype, 2)
    if lowest is not None and highest is not None and (lowest < 0 or highest >= rows):
        raise ValueError(f"{name} must be in 0 .. {rows - 1}; got {lowest} .. {highest}")


def check_length(length: int | None, most: int) -> None:
    """A table of learned positions supports at most `most` tokens; 0 means no limit."""
    if most and length is not None and length > most:
        raise ValueError(f"the position table serves {most} tokens; got {length}")


def check_source_given(encoder_layers: int, source: object, **of_source: object) -> None:
    """An encoder needs a source; a decoder-only model takes no source, mask or segments.

    of_source: the mask and segments of the source, by name; None if absent.
    """
    for name, value in {"source": source, **of_source}.items():
        if value is not None and not encoder_layers:
            raise ValueError(f"a decoder-only model (encoder_layers=0) takes no {name}; got one")
    if encoder_layers and source is None:
        raise ValueError("an encoder needs a source; got None")


def check_target_given(decoder_layers: int, target: object, **of_target: object) -> None:
    """A decoder needs a target; an encoder-only model takes neither target nor target mask.

    of_target: the mask of the target, by name; None if absent.
    """
    for name, value in {"target": target, **of_target}.items():
        if value is not None and not decoder_layers:
            raise ValueError(f"an encoder-only model takes no {name}; got one")
    if decoder_layers and target is None:
        raise ValueError("a decoder needs a target; got None")


def check_batch(batch: int | None, rows: int | None) -> None:
    """The target has as many rows as the memory; a decoder-only model needs batch instead."""
    if rows is None and batch is None:
        raise ValueError("a decoder-only model needs batch, the number of rows; got None")
    if None not in (rows, batch) and rows != batch:
        raise ValueError(f"memory and batch must have equally many rows; got {rows} and {batch}")


def check_memory(
    cross_attention: bool, width: int, memory: Shape | None, mask: object = None
) -> None:
    """The memory must be `b s d` if the decoder attends to an encoder, and None otherwise."""
    if memory is None:
        if cross_attention:
            wanted = "a decoder with cross-attention needs the encoder's memory, b s d"
            raise ValueError(f"{wanted}; got None")
    elif not cross_attention:
        raise ValueError(
            f"a decoder-only model (encoder_layers=0) takes no memory; got shape {_show(memory)}"
        )
    else:
        check_features("memory", memory, width)
    if mask is not None and not cross_attention:
        raise ValueError("a decoder-only model (encoder_layers=0) takes no source mask; got one")


def check_segments(
    segments: int,
    shape: Shape,
    dtype: str,
    source: Shape,
    lowest: Bound = None,
    highest: Bound = None,
) -> None:
    """The segment of every source token must be a row of the segment table."""
    got = _show(shape)
    if not segments:
        raise ValueError(f"the model has no segments (segments=0); got segments of shape {got}")
    check_rows("segment", shape, dtype, segments, lowest, highest)
    if tuple(shape) != tuple(source[:2]):
        raise ValueError(f"segment must have axes b s = {_show(source[:2])}; got shape {got}")


def check_features(name: str, shape: Shape, width: int) -> None:
    """Activations must be `b t d`, where d is the width of the parameters and t at least 1."""
    if len(shape) != 3 or shape[2] not in (width, None):
        raise ValueError(f"{name} must have axes b t d with d={width}; got shape {_show(shape)}")
    check_not_empty(name, shape)


def check_not_empty(name: str, shape: Shape) -> None:
    """The length, the second axis, must be at least 1."""
    if shape[1] == 0:
        raise ValueError(f"{name} must have length at least 1; got shape {_show(shape)}")


def check_pooled(shape: Shape, width: int) -> None:
    """A classifier takes one vector per row."""
    if len(shape) != 2 or shape[1] not in (width, None):
        raise ValueError(f"pooled must have axes b r with r={width}; got shape {_show(shape)}")


def check_same_batch(**shapes: Shape) -> None:
    """All arguments must have the same batch size.

    In a traced program, sizes may be symbols, which can be compared but not hashed.
    """
    for name, shape in shapes.items():
        if not len(shape):
            raise ValueError(f"{name} must have a batch axis; got shape ()")
    sizes = [(name, shape[0]) for name, shape in shapes.items() if shape[0] is not None]
    if any(size != sizes[0][1] for _, size in sizes[1:]):
        got = ", ".join(f"{name} {size}" for name, size in sizes)
        raise ValueError(f"batch sizes must be equal; got {got}")


def check_same_length(query: Shape, memory: Shape) -> None:
    """Rotary positions are only valid in self-attention."""
    if query[1] != memory[1] and None not in (query[1], memory[1]):
        raise ValueError(
            "rotary positions require self-attention, where query and memory have equal lengths; "
            f"got lengths {query[1]} and {memory[1]}"
        )


def check_attention(query: Shape, key: Shape, value: Shape) -> None:
    """query must be `b t h k`, key `b s g k` and value `b s g e`, where g divides h."""
    for name, shape in (("query", query), ("key", key), ("value", value)):
        if len(shape) != 4:
            wanted = "four axes (batch, position, heads, head size)"
            raise ValueError(f"{name} must have {wanted}; got shape {_show(shape)}")
        check_not_empty(name, shape)
        if 0 in shape[2:]:
            wanted = "at least one head, of size at least 1"
            raise ValueError(f"{name} must have {wanted}; got shape {_show(shape)}")
    check_same_batch(query=query, key=key, value=value)
    if query[3] != key[3]:
        raise ValueError(f"query and key head sizes must be equal; got {query[3]} and {key[3]}")
    if key[1:3] != value[1:3] and None not in (*key[1:3], *value[1:3]):
        got = f"{_show(key)} and {_show(value)}"
        raise ValueError(f"key and value must have the same positions and heads; got shapes {got}")
    if query[2] % key[2]:  # type: ignore[operator]
        raise ValueError(f"key heads must divide query heads; got h={query[2]}, g={key[2]}")


def check_sink(shape: Shape, heads: int | None) -> None:
    """Raises ValueError unless a sink is `h`: one score per head."""
    if tuple(shape) != (heads,):
        raise ValueError(f"the sink must have a score for each of {heads} heads; got shape {shape}")


def check_rotated(shape: Shape, positions: Shape, dtype: str, head_size: int) -> None:
    """Queries or keys must be `b t h k`, and their positions integers `b t`, or one row `1 t`."""
    if len(shape) != 4 or shape[3] not in (head_size, None):
        wanted = f"axes b t h k with k={head_size}"
        raise ValueError(f"queries and keys to rotate must have {wanted}; got shape {_show(shape)}")
    _check_integers("positions", "integers of axes b t", positions, dtype, 2)
    _check_broadcast("positions", positions, shape[:2], "b t")


def check_mask(shape: Shape, dtype: str, scores: Shape, axes: str = "b h t s") -> None:
    """A mask must be boolean, True = may attend, and broadcast to the axes of the scores."""
    if dtype != "bool":
        raise ValueError(f"mask must be boolean, True = may attend; got {dtype}")
    _check_broadcast("mask", shape, scores, axes)


def check_attention_mask(shape: Shape, dtype: str, scores: Shape) -> None:
    """An attention mask must be boolean or floating, and broadcast to `b h t s`."""
    if dtype != "bool" and "float" not in dtype:
        wanted = "boolean, True = may attend, or floating, added to the scores"
        raise ValueError(f"mask must be {wanted}; got {dtype}")
    _check_broadcast("mask", shape, scores, "b h t s")


def check_token_mask(name: str, shape: Shape, dtype: str, tokens: Shape | None = None) -> None:
    """A token mask must be boolean, True = real, with exactly the axes `b t` of the tokens."""
    if dtype != "bool":
        raise ValueError(f"{name} must be boolean, True = real token; got {dtype}")
    wanted = tokens or (None, None)
    if not _same(shape, wanted):
        raise ValueError(f"{name} must have axes b t = {_show(wanted)}; got shape {_show(shape)}")


def check_bias(shape: Shape, dtype: str, scores: Shape) -> None:
    """An additive bias must be floating and broadcast to `b h t s`."""
    if "float" not in dtype:
        raise ValueError(f"bias must be floating, added to the logits; got {dtype}")
    _check_broadcast("bias", shape, scores, "b h t s")


def check_keep(shape: Shape, dtype: str, x: Shape, rate: float) -> None:
    """The rate must be in [0, 1); a keep mask must be boolean and broadcast to the input."""
    if not 0 <= rate < 1:
        raise ValueError(f"dropout rate must be at least 0 and less than 1; got {rate}")
    if dtype != "bool":
        raise ValueError(f"keep must be boolean, True = keep; got {dtype}")
    _check_broadcast("keep", shape, x, "the input")


def check_splits(splits: Sequence[int], target: Shape) -> None:
    """The lengths of the steps must be at least 1 and add up to the target length t."""
    if not splits or min(splits) < 1 or sum(splits) != target[1]:
        wanted = f"lengths of at least 1 that add up to {target[1]}"
        raise ValueError(f"splits must be {wanted}; got {tuple(splits)}")


def check_target(shape: Shape, dtype: str) -> None:
    """A training target must be integer ids `b t` with t at least 2: an input and its label."""
    _check_integers("target", "integer token ids of axes b t", shape, dtype, 2)
    if shape[1] in (0, 1):
        wanted = "length at least 2, an input and its label"
        raise ValueError(f"target must have {wanted}; got shape {_show(shape)}")


def check_classes(shape: Shape, dtype: str) -> None:
    """Class labels must be integers, one per row."""
    _check_integers("classes", "integers of axes b", shape, dtype, 1)


def check_labels(
    logits: Shape,
    labels: Shape,
    dtype: str,
    smoothing: float,
    total: int | None,
    lowest: Bound = None,
    highest: Bound = None,
) -> None:
    """Logits must be `b t v` and labels integer ids `b t`; smoothing in [0, 1), total at least 1.

    A total that is unknown in a traced program is None.
    """
    if len(logits) != 3 or logits[2] == 0:
        raise ValueError(f"logits must have axes b t v; got shape {_show(logits)}")
    if not dtype.startswith(_INTEGERS) or not _same(labels, logits[:2]):
        wanted = f"integer ids of axes b t = {_show(logits[:2])}"
        raise ValueError(f"labels must be {wanted}; got {dtype} of shape {_show(labels)}")
    if not 0 <= smoothing < 1:
        raise ValueError(f"smoothing must be at least 0 and less than 1; got {smoothing}")
    if total is not None and total < 1:
        raise ValueError(f"total must be at least 1; got {total}")
    if logits[2] is not None:
        check_held(logits[2], lowest, highest, name="label")


def check_router_loss(
    logits: Shape, per_token: int, router_aux_weight: float, router_z_weight: float
) -> None:
    """Router logits must be `l b t x`, with x at least per_token; weights at least 0 and finite."""
    if len(logits) != 4 or 0 in (logits[0], logits[3]):
        raise ValueError(f"router logits must have axes l b t x; got shape {_show(logits)}")
    if per_token < 1 or (logits[3] is not None and per_token > logits[3]):
        raise ValueError(f"per_token must be in 1 .. {logits[3]}; got {per_token}")
    for name, weight in (("aux", router_aux_weight), ("z", router_z_weight)):
        if not 0 <= weight < float("inf"):
            raise ValueError(f"router_{name}_weight must be at least 0 and finite; got {weight}")


def check_next_token(scores: Shape, tokens: Shape, dtype: str) -> None:
    """The scores of the next token must be `b v`, and the ids of the tokens before it `b n`."""
    if len(scores) != 2 or len(tokens) != 2:
        got = f"{_show(scores)} and {_show(tokens)}"
        raise ValueError(f"scores must have axes b v and tokens b n; got shapes {got}")
    if not dtype.startswith(_INTEGERS):
        raise ValueError(f"tokens must be integer ids; got {dtype}")
    check_same_batch(scores=scores, tokens=tokens)


def check_penalties(repetition_penalty: float, no_repeat_ngram: int) -> None:
    """The penalty must be positive and finite, and no_repeat_ngram an integer of at least 0."""
    if not 0 < repetition_penalty < float("inf"):
        raise ValueError(f"repetition_penalty must be greater than 0; got {repetition_penalty}")
    _check_count("no_repeat_ngram", no_repeat_ngram)


def check_held(vocabulary: int, lowest: Bound, highest: Bound, *, name: str = "token") -> None:
    """Ids must be in 0 .. v-1, including at padding. None: the value is unknown."""
    for id_ in (lowest, highest):
        if id_ is not None and not 0 <= id_ < vocabulary:
            raise ValueError(f"{name} ids must be in 0 .. {vocabulary - 1}; got {id_}")


def check_sampling(
    logits: Shape, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0
) -> None:
    """Logits must be `b v`; temperature > 0; top_k an integer of at least 0; top_p in (0, 1]."""
    if len(logits) != 2 or logits[1] == 0:
        raise ValueError(f"logits must have axes b v; got shape {_show(logits)}")
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature must be greater than 0; got {temperature}")
    _check_count("top_k", top_k)
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be greater than 0 and at most 1; got {top_p}")


def check_uniform(
    shape: Shape,
    wanted: Shape,
    lowest: float | None = None,
    highest: float | None = None,
    *,
    rounded: bool = False,
) -> None:
    """Every drawn token needs a uniform number in [0, 1): `b`, or `b n` for n tokens.

    rounded: a number may have been rounded up to 1.
    """
    if not _same(shape, wanted):
        numbers = f"a number for every token, {_show(wanted)}"
        raise ValueError(f"uniform must have {numbers}; got shape {_show(shape)}")
    for number in (lowest, highest):
        if number is not None and not (0 <= number < 1 or (rounded and number == 1)):
            raise ValueError(f"uniform numbers must be at least 0 and less than 1; got {number}")


def check_source(shape: Shape, dtype: str) -> None:
    """The source of a search must be integer ids `b s`."""
    _check_integers("source", "integer token ids of axes b s", shape, dtype, 2)


def check_prefix(
    shape: Shape,
    dtype: str,
    padding_id: int | None,
    last: Sequence[Sequence[int]],
    real: Sequence[bool] = (),
) -> None:
    """A prefix must be integer ids `b p`, padded only on the left.

    last: the ids of its last column. real: the last column of its mask, if it has one.
    """
    axes = None if len(shape) == 2 and shape[1] == 0 else 2
    _check_integers("prefix", "integer token ids of axes b p, p at least 1", shape, dtype, axes)
    wanted = "prefix must be padded on the left and end in a real token"
    if padding_id is not None and any(padding_id in row for row in last):
        raise ValueError(f"{wanted}; its last column contains the padding id {padding_id}")
    if not all(real):
        raise ValueError(f"{wanted}; the last column of its mask is not all True")


def check_prefix_given(prefix: bool, source: bool, start_id: int | None) -> None:
    """An answer continues a prefix or the start token; a decoder-only model needs a prefix."""
    if not prefix and not source:
        raise ValueError("a decoder-only model needs a prefix (the prompt); got None")
    if not prefix and start_id is None:
        raise ValueError("an answer needs a prefix or a start_id; got neither")


def check_logits(fit: bool) -> None:
    """Logits must be less than inf; -inf excludes a token, while inf and NaN have no `log p`."""
    if not fit:
        raise ValueError("logits must be less than inf; got inf or NaN")


def check_choice(largest: Sequence[float]) -> None:
    """Each row of logits, given its largest value (NaN if it has one), must allow some token."""
    check_logits(all(value < float("inf") for value in largest))
    if float("-inf") in largest:
        raise ValueError("every row of logits must have an entry above -inf; got a row of -inf")


def _check_integers(name: str, wanted: str, shape: Shape, dtype: str, axes: int | None) -> None:
    """axes: the number of axes; None: the shape is already known to be wrong."""
    if not dtype.startswith(_INTEGERS) or len(shape) != axes:
        raise ValueError(f"{name} must be {wanted}; got {dtype} of shape {_show(shape)}")


def _check_count(name: str, value: int) -> None:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < 0:
        raise ValueError(f"{name} must be an integer of at least 0; got {value}")


def _check_broadcast(name: str, shape: Shape, wanted: Shape, axes: str) -> None:
    sizes = zip(shape, wanted, strict=False)
    if len(shape) != len(wanted) or not all(_broadcasts(size, want) for size, want in sizes):
        axes = f"{axes} = {_show(wanted)}"
        raise ValueError(f"{name} must broadcast to {axes}; got shape {_show(shape)}")


def _same(shape: Shape, wanted: Shape) -> bool:
    """Returns whether all known sizes are equal."""
    pairs = [pair for pair in zip(shape, wanted, strict=False) if not any(x is None for x in pair)]
    return len(shape) == len(wanted) and all(have == want for have, want in pairs)


def _broadcasts(size: int | None, want: int | None) -> bool:
    """Compares a symbolic size with 1 last, since a graph traced afterward excludes that size."""
    if size is None or want is None or (isinstance(size, int) and size == 1):
        return True
    return bool(size == want or size == 1)


def _show(shape: Shape) -> str:
    sizes = ", ".join("?" if size is None else str(size) for size in shape)
    return f"({sizes},)" if len(shape) == 1 else f"({sizes})"
