"""`new-port --from` of models that are divided otherwise than the suite divides them: each is proposed whole, and its port passes."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from expectations import suite
from kinds import conformance, every
from messages import mentions
from whole_models import in_this_process

from rosettaformer.judge import runner
from rosettaformer.judge.case import DTYPES
from rosettaformer.judge.proposals import propose

MODELS = Path(__file__).parents[1] / "proposed"
NANO = "../ports/wild/second/nanogpt_torch.py"
# rows without a key, to which these models give the mean of all values
EMPTY = {"empty_row", "left_padding", "shrinking_padding", "padded_columns"}


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    in_this_process(monkeypatch)
    yield
    for name in ("nanogpt_torch", "norm_first", *(path.stem for path in MODELS.glob("*.py"))):
        sys.modules.pop(name, None)  # which the next test reads again


# what is named, what it is found to be, what its file says, a case that passes, and those that may differ
DIVISIONS = [
    (f"{NANO}:CausalSelfAttention", "self_attention", ['"x": "x_btd" … "causal"'], "causal_square", set()),
    ("torch_layouts.py:MultiheadAttention", "self_attention", ['"(h 0/3 k) d"', '"return_attention": "return_weights"'], "ragged", EMPTY),
    ("torch_sublayers.py:MultiHeadAttention", "cross_attention_sublayer", ['"return" … output[0]'], "ragged", EMPTY),
    ("torch_sublayers.py:PositionwiseFeedForward", "feed_forward_sublayer", ['("feed_forward_norm", "layer_norm")'], "post", set()),
    ("torch_layouts.py:CountedAttention", "multi_head_attention", ['"valid_lens": "length_b",'], "ragged", set()),
    ("torch_layouts.py:CountedBlock", "encoder_layer", ['"valid_lens": "length_b",'], "post_ragged", set()),
    ("torch_layouts.py:CountedEncoder", "token_encoder", ['"valid_lens": "source_length_b",'], "post", set()),
    ("torch_layouts.py:RequiredCounts", "multi_head_attention", ["lengths(inputs[", "return torch.full("], "cross", set()),
    ("torch_files.py:Encoder", "token_encoder", ['"src_mask": lambda inputs: attend_source(inputs),'], "post", EMPTY),
    ("torch_files.py:Decoder", "token_decoder", ['"enc_src": "memory_bsd",', "attend_target(inputs)"], "post", EMPTY),
    ("torch_layouts.py:SharedAttention", "multi_head_attention", ['"k i"', "module.fc_out.bias = None  # left out"], "square", EMPTY),
    ("torch_layouts.py:SharedBlock", "encoder_layer", ['"value": "x_btd",', '"key": "x_btd",', '"k i"'], "post", EMPTY),
    ("torch_layouts.py:RowAttention", "self_attention", ['"for": "b",', "earlier(inputs)[None] if"], "causal_ragged", EMPTY),
    ("torch_layouts.py:FlatLogits", "logits", ['output.unflatten(0, inputs["x_btd"].shape[:2])'], "bias", set()),
    conformance("../ports/wild/keras_translation.py:FeedForward", "feed_forward_sublayer", ["layer_norm"], "post", set()),
]


@pytest.mark.parametrize(("source", "component", "words", "name", "differing"), every(7, DIVISIONS))
def test_another_division_is_proposed_whole(
    source: str, component: str, words: list[str], name: str, differing: set[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what its class shows when it is run, and nothing is left to decide; every case passes but those in which the model is another."""
    pytest.importorskip("keras" if "keras" in source else "torch")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(MODELS)
    proposal = propose(str(MODELS / source), "my_port.py")
    assert (proposal.component, proposal.left) == (component, ()), proposal.text
    assert [text for text in words if not mentions(proposal.text, text)] == []
    port = tmp_path / f"port_of_{source.partition(':')[2]}.py"
    port.write_text(proposal.text)
    results = runner.run([case for case in suite() if case.component == component], [str(port)], DTYPES)
    found = {(one.case.partition("/")[2], one.status) for one in results if one.status != "not covered"}
    assert (name, "pass") in found and {case for case, one in found if one != "pass"} <= differing, found


@pytest.mark.conformance
def test_keras_sublayers_need_the_arguments_that_they_hand_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a constructor takes as `**kwargs` is given by name."""
    pytest.importorskip("keras")
    monkeypatch.chdir(tmp_path)
    given = {"num_heads": "config.heads", "key_dim": "config.key_size"}
    for name, component in (("Cross", "cross_attention"), ("GlobalSelf", "self_attention"), ("CausalSelf", "self_attention")):
        proposal = propose(f"{MODELS}/../ports/wild/keras_translation.py:{name}Attention", "my_port.py", given=given)
        assert (proposal.component, proposal.left) == (f"{component}_sublayer", ()), proposal.text
        assert ('"if": "causal"' in proposal.text) == (name == "CausalSelf")


@pytest.mark.conformance
def test_what_is_left_out_or_differs_is_said() -> None:
    pytest.importorskip("torch")
    proposal = propose(f"{MODELS}/torch_layouts.py:SharedAttention", "my_port.py")
    assert len(proposal.notes) == 1 and proposal.notes[0].startswith("fc_out.bias")
    proposal = propose(f"{MODELS}/torch_sublayers.py:Transformer", "my_port.py")
    assert proposal.left == ()
    assert "1 / sqrt(model_width)" in proposal.notes[-1]
    for words in (  # the norms stand before the layers, though they are declared after them
        '("source_embedding_norm", "encoder.layer_norm")', '"final_norm": False,\n', '"embedding_norm": True,\n',
        '"scale_embedding": False,\n', '"share_embeddings": True,\n', '"tie_logits": True,\n', '"epsilon": 1e-06,\n',
        "output.unflatten(0, ", "reference's … 1 / sqrt(model_width)",
    ):  # fmt: skip
        assert mentions(proposal.text, words), words


@pytest.mark.conformance
def test_norms_that_are_declared_before_the_layers_may_stand_after_them(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    text = (MODELS / NANO).read_text()
    norm, blocks = (next(line for line in text.splitlines() if f" {name}=" in line) for name in ("ln_f", "h"))
    (tmp_path / "norm_first.py").write_text(text.replace(f"{norm}\n", "").replace(blocks, f"{norm}\n{blocks}"))
    proposal = propose(f"{tmp_path}/norm_first.py:GPT", "my_port.py")
    assert proposal.left == () and '"final_norm": True,\n' in proposal.text
    assert '("decoder.final_norm", "transformer.ln_f")' in proposal.text
