"""Worked examples: manually computed numbers, the paper's counts, presets, validation, parameter declarations and layouts."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from messages import mentions
from numpy.testing import assert_array_equal
from strategies import DTYPES, configs, draw_parameters

from reference_numpy import TransformerConfig, layout, parameters, preset
from reference_numpy.presets import PRESETS
from reference_numpy.rotary_scaling import RotaryScaling

seeded = settings(max_examples=30, deadline=None, derandomize=True)


def paper_count(d: int = 512, f: int = 2048, h: int = 8, e: int = 64) -> int:
    """Counts the paper's model without the declarations: no attention biases, one table for source, target and logits."""
    attend = 2 * d * h * 64 + 2 * d * h * e
    network = d * f + f + f * d + d
    norm = 2 * d
    return 37000 * d + 6 * ((attend + network + 2 * norm) + (2 * attend + network + 3 * norm))


def test_count_is_the_paper_models() -> None:
    base = preset("paper_base")
    assert parameters.count(base) == paper_count()
    assert parameters.count(preset("paper_big")) == paper_count(d=1024, f=4096, h=16)
    assert parameters.count(base.replace(value_size=24)) == paper_count(e=24)
    assert sum(value.size for value in parameters.initialise(base, 0, np.float32).values()) == paper_count()


# Table 3 of the paper: the fields changed from the base model, and millions of parameters. All rows have the base's width and table.
TABLE_3 = [
    ({"encoder_layers": 2, "decoder_layers": 2}, 36),
    ({"encoder_layers": 4, "decoder_layers": 4}, 50),
    ({"encoder_layers": 6, "decoder_layers": 6}, 65),
    ({"encoder_layers": 8, "decoder_layers": 8}, 80),
    ({"key_size": 16}, 58),
    ({"key_size": 32}, 60),
    ({"feed_forward_width": 1024}, 53),
    ({"feed_forward_width": 4096}, 90),
]


@pytest.mark.parametrize(("changes", "millions"), TABLE_3)
def test_count_differs_between_rows_of_table_3_as_printed(changes: dict[str, int], millions: int) -> None:
    """Each figure is rounded to a million, so differences of two are off by at most one; they do not depend on the vocabulary."""
    for other_changes, other_millions in TABLE_3:
        difference = parameters.count(preset("paper_base", **changes)) - parameters.count(preset("paper_base", **other_changes))
        assert abs(difference / 1e6 - (millions - other_millions)) <= 1


PAPER = [
    "paper_base", "paper_big", "tiny",
    "nn_transformer", "separate_tables", "unscaled_embedding", "feed_forward_dropout", "one_encoder_layer",
]  # fmt: skip
DECODERS = ["llama2_7b", "llama31_8b", "mistral_7b", "qwen3_600m", "gemma2_2b", "gemma3_1b", "mixtral_8x7b", "gpt_oss_20b"]


def test_presets_are_the_named_ones_and_one_encoder_layer_has_no_decoder() -> None:
    assert list(PRESETS) == [*PAPER, "bert_base", "gpt2_small", *DECODERS]
    c = preset("one_encoder_layer")
    assert (c.attention_bias, c.final_norm, c.epsilon) == (True, False, 1e-5)
    assert (c.dropout_rate, c.attention_dropout_rate, c.hidden_dropout_rate) == (0, 0, 0)
    assert {name.split(".")[0] for name in parameters.axes(c)} == {"source_embedding", "encoder"}
    assert all(field.default is field.default_factory is dataclasses.MISSING for field in dataclasses.fields(TransformerConfig))


def test_every_field_is_in_one_group_in_its_order_and_a_config_prints_as_python_that_makes_it() -> None:
    groups = TransformerConfig.groups()
    assert [name for names in groups.values() for name in names] == [field.name for field in dataclasses.fields(TransformerConfig)]
    assert max(map(len, groups.values())) <= 10 and list(preset("tiny").to_dict()) == [name for names in groups.values() for name in names]
    names = {"TransformerConfig": TransformerConfig, "RotaryScaling": RotaryScaling}
    for config in (*PRESETS.values(), preset("llama2_7b", rotary_scaling={"kind": "linear", "factor": 2.0})):
        text = str(config)
        assert eval(text, names) == config and max(map(len, text.splitlines())) <= 100
        assert [line.strip("# ") for line in text.splitlines() if line.startswith("    #")] == list(groups)


def test_the_big_model_of_the_paper_has_its_sizes_and_its_dropout() -> None:
    base, big = preset("paper_base"), preset("paper_big")
    sizes = "model_width", "heads", "key_value_heads", "feed_forward_width"
    assert base.replace(**{name: 2 * getattr(base, name) for name in sizes}, dropout_rate=0.3) == big


@pytest.mark.parametrize("name", PAPER)
def test_preset_has_the_sizes_of_the_paper(name: str) -> None:
    c = preset(name)
    sizes = {"paper_big": (1024, 16, 64, 64, 4096), "tiny": (32, 4, 8, 8, 64)}.get(name, (512, 8, 64, 64, 2048))
    assert (c.model_width, c.heads, c.key_size, c.value_size, c.feed_forward_width) == sizes
    assert c.key_value_heads == c.heads
    assert (c.encoder_layers, c.decoder_layers) == {"tiny": (2, 2), "one_encoder_layer": (1, 0)}.get(name, (6, 6))
    assert c.source_vocabulary == c.target_vocabulary == (101 if name == "tiny" else 37000)
    assert c.padding_id == (None if name == "one_encoder_layer" else 0)


BAD_VALUES: list[tuple[str, Any, str]] = [
    *((name, 0, f"{name} … 1; got 0") for name in ("source_vocabulary", "target_vocabulary", "model_width", "heads",
      "key_value_heads", "key_size", "value_size", "feed_forward_width")),
    ("encoder_layers", -1, "encoder_layers … 0; got -1"),
    ("decoder_layers", -1, "decoder_layers … 0; got -1"),
    ("key_value_heads", 3, "h=4, g=3"),
    ("heads", 6, "h=6, g=4"),
    ("activation", "gelu", "activation … gelu_erf, gelu_tanh, gelu_sigmoid … 'gelu'"),
    ("norm_placement", "middle", "norm_placement … 'middle'"),
    ("epsilon", 0.0, "epsilon … 0; got 0.0"),
    *((name, 1.0, f"{name} … 0 … 1; got 1.0") for name in ("dropout_rate", "attention_dropout_rate",
      "hidden_dropout_rate")),
    ("dropout_rate", -0.1, "dropout_rate … 0 … 1; got -0.1"),
    ("source_vocabulary", 9, "source_vocabulary=9, target_vocabulary=101"),
    ("positions", "alibi", "positions … 'alibi'"),
    ("norm", "batch", "norm … 'batch'"),
    ("query_key_norm", True, "query_key_norm … True"),
    ("rotary_fraction", 0, "rotary_fraction … 0 … 1; got 0"),
    ("score_scale", -1.0, "score_scale … 0, or None; got -1.0"),
    ("logit_cap", "30", "logit_cap … None; got '30'"),
    ("window", -1, "window … 0; got -1"),
    ("layer_pattern", (), "layer_pattern"),
    ("layer_pattern", ("local",), "window=0"),
    ("rotary_pattern", (1,), "rotary_pattern … True or False; got (1,)"),
    ("rotary_scaling", 8.0, "rotary_scaling must be a RotaryScaling; got 8.0"),
    ("rotary_scaling", {"kind": "ntk"}, "rotary_scaling … llama3 … 'ntk'"),
    ("rotary_scaling", {"kind": "linear"}, "rotary_scaling: linear scaling needs factor; got None"),
    ("local_rotary_scaling", {"factor": 2.0}, "local_rotary_scaling: none scaling has no factor; got 2.0"),
    ("positions", "learned", "max_positions … positions=learned, max_positions=0"),
    ("max_positions", 7, "max_positions … positions=sinusoidal, max_positions=7"),
    ("position_start", "token", "position_start … first_token … 'token'"),
    ("segments", -1, "segments … 0; got -1"),
    ("pooler", True, "encoder-only … masked-language … pooler=True, masked_language_head=False, decoder_layers=2"),
    ("classes", 2, "classes=2, pooler=False"),
    ("padding_id", 101, "padding_id … 101"),
    ("padding_id", -1, "padding_id … -1"),
    ("model_width", 32.0, "model_width … 32.0"),
    ("epsilon", "1e-6", "epsilon must be a finite number; got '1e-6'"),
    ("dropout_rate", None, "dropout_rate must be a finite number; got None"),
    ("final_norm", 1, "final_norm must be True or False; got 1"),
    ("activation", None, "activation … None"),
    ("padding_id", 0.0, "padding_id … None; got 0.0"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "message"), BAD_VALUES)
def test_config_refuses_and_says_what_is_required_then_what_came(field: str, value: Any, message: str) -> None:
    alone = (
        {} if field == "source_vocabulary" and value == 9 else {"share_embeddings": False, "padding_id": None}
    )  # so that no other field is rejected
    with pytest.raises(ValueError) as caught:
        preset("tiny", **(alone | {field: value}))
    assert mentions(str(caught.value), message)


def test_config_names_all_problems_at_once_and_unknown_and_missing_names() -> None:
    with pytest.raises(ValueError, match=r"encoder_layers=0, decoder_layers=0$"):
        preset("tiny", encoder_layers=0, decoder_layers=0)
    with pytest.raises(ValueError, match=r"2 with positions=rotary$"):
        preset("llama2_7b", position_offset=2)
    with pytest.raises(ValueError, match=r"segments=2, encoder_layers=0$"):
        preset("gpt2_small", segments=2)
    with pytest.raises(ValueError, match=r"decoder_layers=0$"):
        preset("bert_base").need_decoder()
    with pytest.raises(ValueError, match=r"encoder_layers=0$"):
        preset("gpt2_small").need_encoder()
    with pytest.raises(ValueError, match=r"classes=0$"):
        preset("bert_base").need("classes")
    with pytest.raises(ValueError) as caught:
        preset("tiny", heads=0, decoder_layers=-1, activation="swish", epsilon=-1.0, hidden_dropout_rate=2, padding_id=500)
    bad = "heads … 0 … decoder_layers … -1 … activation … 'swish' … epsilon … -1.0 … hidden_dropout_rate … 2 … padding_id … 500"
    assert mentions(str(caught.value), bad)
    with pytest.raises(ValueError) as caught:
        preset("tiny", heads="four", final_norm="no", padding_id="0")
    assert mentions(str(caught.value), "heads … 'four' … padding_id … '0' … final_norm … 'no'")
    with pytest.raises(ValueError, match=r"^unknown config field 'head' \(nearest: heads\); unknown config field 'zzz'$"):
        preset("tiny", head=4, zzz=1)
    with pytest.raises(ValueError, match=r"paper_base, paper_big, tiny, .*; got 'paper' \(nearest: paper_big\)$"):
        preset("paper")
    fields = preset("tiny").to_dict()
    del fields["heads"], fields["epsilon"]
    with pytest.raises(ValueError, match="heads"):
        TransformerConfig.from_dict(fields)


@seeded
@given(configs())
def test_config_survives_a_dictionary_and_is_frozen(config: TransformerConfig) -> None:
    assert TransformerConfig.from_dict(config.to_dict()) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.heads = 1  # type: ignore[misc]


CONFIG = preset("tiny", source_vocabulary=11, target_vocabulary=13, share_embeddings=False, tie_logits=False, model_width=10, heads=6,
                key_value_heads=2, key_size=3, value_size=5, feed_forward_width=7, attention_bias=True, output_bias=True,
                final_norm=True)  # fmt: skip


def test_parameter_names_and_shapes() -> None:
    shapes = parameters.shapes(CONFIG)
    assert shapes["source_embedding.table"] == (11, 10)
    assert shapes["target_embedding.table"] == (13, 10)
    assert (shapes["logits.kernel"], shapes["logits.bias"]) == ((10, 13), (13,))
    attend = {"query.kernel": (10, 6, 3), "query.bias": (6, 3), "key.kernel": (10, 2, 3), "key.bias": (2, 3), "value.kernel": (10, 2, 5),
              "value.bias": (2, 5), "output.kernel": (6, 5, 10), "output.bias": (10,)}  # fmt: skip
    network = {"hidden.kernel": (10, 7), "hidden.bias": (7,), "output.kernel": (7, 10), "output.bias": (10,)}
    norm = {"scale": (10,), "offset": (10,)}
    assert parameters.shapes(CONFIG, "multi_head_attention") == attend
    assert parameters.shapes(CONFIG, "feed_forward") == network
    assert parameters.shapes(CONFIG, "layer_norm") == norm
    parts = {"self_attention": attend, "self_attention_norm": norm, "feed_forward": network, "feed_forward_norm": norm}
    decoder_parts = parts | {"cross_attention": attend, "cross_attention_norm": norm}
    for component, expected in (("encoder_layer", parts), ("decoder_layer", decoder_parts)):
        assert parameters.shapes(CONFIG, component) == parameters.flatten(expected)
    layers = {f"{stack}.layers.{i}": p for stack, p in (("encoder", parts), ("decoder", decoder_parts)) for i in range(2)}
    ends = {"encoder.final_norm": norm, "decoder.final_norm": norm}
    rest = {"source_embedding.table", "target_embedding.table", "logits.kernel", "logits.bias"}
    assert set(shapes) == set(parameters.flatten(layers | ends)) | rest
    assert parameters.axes(CONFIG)["decoder.layers.1.cross_attention.output.kernel"] == "h e d"


@pytest.mark.parametrize(
    ("share", "tie", "expected"),
    [
        (False, False, {}),
        (True, False, {"target_embedding.table": "source_embedding.table"}),
        (False, True, {"logits.kernel": "target_embedding.table"}),
        (True, True, {"target_embedding.table": "source_embedding.table", "logits.kernel": "source_embedding.table"}),
    ],
)
def test_a_tied_tensor_is_stored_once(share: bool, tie: bool, expected: dict[str, str]) -> None:
    config = CONFIG.replace(target_vocabulary=11, share_embeddings=share, tie_logits=tie)
    names = parameters.axes(config)
    assert parameters.ties(config) == expected
    assert not names.keys() & expected.keys()
    assert set(expected.values()) <= names.keys()
    assert parameters.ties(config.replace(decoder_layers=0)) == {}


@seeded
@given(configs())
def test_nest_and_flatten_are_inverse(config: TransformerConfig) -> None:
    flat = draw_parameters(config, 0)
    nested = parameters.nest(flat)
    assert nested["encoder"]["layers"]["0"]["self_attention"]["query"]["kernel"] is flat["encoder.layers.0.self_attention.query.kernel"]
    assert parameters.flatten(nested) == flat
    assert list(parameters.flatten(nested)) == list(flat)


def test_match_lists_every_problem_at_once() -> None:
    expected = {"a.kernel": (2, 3), "b.bias": (3,), "c.scale": (4,)}
    arrays = {"a.kernel": np.zeros((3, 2)), "b.biass": np.zeros(3), "c.scale": np.zeros(4, np.float32)}
    with pytest.raises(ValueError) as caught:
        parameters.match(arrays, expected, "float64")
    wanted = "missing b.bias … (3,) … b.biass … a.kernel is transposed … (3, 2) … (2, 3) … unexpected b.biass … c.scale … float64 … float32"
    assert mentions(str(caught.value), wanted)
    parameters.match({name: np.zeros(shape) for name, shape in expected.items()}, expected, "float64")
    with pytest.raises(ValueError, match=r".*; got 'attention' \(nearest: multi_head_attention\)$"):
        parameters.shapes(CONFIG, "attention")


def test_relayout_by_hand_is_strict() -> None:
    kernel = np.arange(12).reshape(2, 3, 2)  # d h k
    sizes = {"d": 2, "h": 3, "k": 2}
    assert_array_equal(layout.relayout(kernel, "d h k", "(h k) d", sizes), [[0, 6], [1, 7], [2, 8], [3, 9], [4, 10], [5, 11]])
    assert_array_equal(layout.relayout(kernel, "d h k", "d (k h)", sizes), [[0, 2, 4, 1, 3, 5], [6, 8, 10, 7, 9, 11]])
    sizes = {"d": 4, "h": 2, "k": 2}
    with pytest.raises(ValueError, match=r"^axes 'd h k' must have shape \(4, 2, 2\); got \(4, 4\)$"):
        layout.relayout(np.zeros((4, 4)), "d h k", "(h k) d", sizes)
    with pytest.raises(ValueError, match="'d h k'"):
        layout.relayout(np.zeros((4, 2, 2)), "d h k", "(h e) d", sizes)


Groups = list[list[str]]


@st.composite
def layouts(draw: st.DrawFn) -> tuple[Groups, Groups, dict[str, int]]:
    """Draws two layouts of the same letters, in any order and with any neighbors grouped, and sizes."""
    letters = draw(st.lists(st.sampled_from("dhgkefv"), min_size=1, max_size=4, unique=True))
    found: list[Groups] = [[], []]
    for groups in found:
        order = list(draw(st.permutations(letters)))
        while order:
            groups.append([order.pop(0) for _ in range(draw(st.integers(1, len(order))))])
    return found[0], found[1], {letter: draw(st.integers(1, 4)) for letter in letters}


@seeded
@given(layouts(), st.sampled_from(DTYPES))
def test_relayout_goes_there_and_back(case: tuple[Groups, Groups, dict[str, int]], dtype: Any) -> None:
    *both, sizes = case
    texts = [" ".join(f"({' '.join(one)})" if one[1:] else one[0] for one in groups) for groups in both]
    shapes = [[math.prod(sizes[letter] for letter in group) for group in groups] for groups in both]
    first, second = ([*itertools.chain(*groups)] for groups in both)
    unfolded = np.arange(math.prod(sizes.values())).reshape([sizes[letter] for letter in first]).astype(dtype)
    array = unfolded.reshape(shapes[0])
    there = layout.relayout(array, *texts, sizes)
    assert there.flags["C_CONTIGUOUS"]
    assert there.dtype == dtype
    moved = unfolded.transpose([first.index(letter) for letter in second])
    assert_array_equal(there, moved.reshape(shapes[1]))
    assert_array_equal(layout.relayout(there, *reversed(texts), sizes), array)


def test_native_layouts_are_strict() -> None:
    table = (
        ("hidden.kernel", "hidden.wk", "f d"),
        ("hidden.bias", "hidden.wb", "f"),
        ("output.kernel", "output.wk", "d f"),
        ("output.bias", "output.wb", "d"),
    )
    flat, given = draw_parameters(CONFIG, 2, "feed_forward"), (CONFIG, "feed_forward")
    with pytest.raises(ValueError, match=r"hidden.kernel.*\(10, 7\)$"):
        layout.to_native({name: flat[name] for name in flat if name != "hidden.kernel"}, table, *given)
    native = layout.to_native(flat, table, *given)
    native["hidden.wk"] = native["hidden.wk"].T
    with pytest.raises(ValueError, match=r"hidden.wk.*\(10, 7\).*\(7, 10\)$"):
        layout.from_native(native, table, *given)
    with pytest.raises(ValueError, match=r"hidden.kernel.*'d"):
        layout.to_native(flat, table[1:], *given)
