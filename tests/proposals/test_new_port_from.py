"""`new-port --from`: proposals for models of many styles and divisions, open choices, and rejected classes."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from invoke import invoke, refused
from kinds import conformance, every
from messages import mentions
from proposed_ports import MODELS, changed, config, judged, proposed, proposed_text
from whole_models import in_this_process

from rosettaformer.judge.proposals import propose
from rosettaformer.judge.proposals.tensors import layouts

WILD, NANO, HUB = "../ports/wild", "../ports/wild/second/nanogpt_torch.py", "transformers.models"
SIZES = {"d": 12, "h": 3, "g": 3, "k": 4, "e": 4, "f": 20}
PADDED = {
    "left_padding",
    "shrinking_padding",
    "padded_columns",
}  # cases with rows without a key, for which these models average all values
EMPTY = {"empty_row", *PADDED}
QUERIES = {"ragged", "same_length", "square", "long"}  # its padding hides queries, not keys
# the class, the component found, the cases in which it differs, one that passes, and text in its file
STYLES = [
    (f"{NANO}:CausalSelfAttention", "self_attention", set(), "causal_square", ['"x": "x_btd" … "causal"']),
    ("torch_layouts.py:MultiheadAttention", "self_attention", EMPTY, "ragged", ['"(h 0/3 k) d"', '"return_attention": "return_weights"']),
    ("torch_sublayers.py:MultiHeadAttention", "cross_attention_sublayer", EMPTY, "ragged", ['"return" … output[0]']),
    ("torch_sublayers.py:PositionwiseFeedForward", "feed_forward_sublayer", set(), "post", ['("feed_forward_norm", "layer_norm")']),
    ("torch_layouts.py:CountedAttention", "multi_head_attention", set(), "ragged", ['"valid_lens": "length_b",']),
    ("torch_layouts.py:CountedBlock", "encoder_layer", set(), "post_ragged", ['"valid_lens": "length_b",']),
    ("torch_layouts.py:CountedEncoder", "token_encoder", set(), "post", ['"valid_lens": "source_length_b",']),
    ("torch_layouts.py:RequiredCounts", "multi_head_attention", set(), "cross", ["lengths(inputs[", "torch.full("]),
    ("torch_files.py:Encoder", "token_encoder", EMPTY, "post", ['"src_mask": lambda inputs: attend_source(inputs),']),
    ("torch_files.py:Decoder", "token_decoder", EMPTY, "post", ['"enc_src": "memory_bsd",', "attend_target(inputs)"]),
    ("torch_files.py:DecoderLayer", "decoder_layer", EMPTY, "post", []),
    ("torch_layouts.py:SharedAttention", "multi_head_attention", EMPTY, "square", ['"k i"', "module.fc_out.bias = None"]),
    ("torch_layouts.py:SharedBlock", "encoder_layer", EMPTY, "post", ['"value": "x_btd",', '"key": "x_btd",', '"k i"']),
    ("torch_layouts.py:RowAttention", "self_attention", EMPTY, "causal_ragged", ['"for": "b",', "earlier(inputs)[None] if"]),
    ("torch_layouts.py:FlatLogits", "logits", set(), "bias", ['reshape(output, (*inputs["x_btd"].shape[:2], -1))']),
    *(
        conformance(*row)
        for row in (
            (f"{WILD}/keras_translation.py:FeedForward", "feed_forward_sublayer", set(), "post", ["layer_norm"]),
            ("torch_stock.py:Layer", "encoder_layer", set(), "post", []),
            (f"{NANO}:GPT", "transformer", set(), "gpt2", []),
            (f"{NANO}:Block", "decoder_layer", set(), "", []),
            ("nnx_encoder.py:Encoder", "encoder", PADDED, "", []),
            (f"{HUB}.gpt2.modeling_gpt2:GPT2LMHeadModel", "transformer", set(), "", []),
            (f"{WILD}/annotated_transformer.py:make_model", "transformer", PADDED | {"masks_beside_padding"}, "", []),
            ("torch_stock.py:Seq2Seq", "transformer", set(), "", []),
            ("torch.nn:TransformerDecoderLayer", "decoder_layer", set(), "", []),
            (f"{HUB}.bert.modeling_bert:BertLayer", "encoder_layer", PADDED, "", []),
            ("raw_parameters.py:Attn", "multi_head_attention", PADDED, "", []),
            ("keras_tutorial.py:MultiHeadAttention", "multi_head_attention", PADDED, "", []),
            ("keras_tutorial.py:DecoderLayer", "decoder_layer", PADDED, "", []),
            ("linen_block.py:EncoderBlock", "encoder_layer", PADDED, "", []),
            ("torch_files.py:Transformer", "transformer", PADDED | QUERIES | {"padding_id_0"}, "", []),
            ("torch_sublayers.py:EncoderLayer", "encoder_layer", PADDED, "", []),
            ("torch_sublayers.py:DecoderLayer", "decoder_layer", PADDED, "", []),
            (f"{WILD}/keras_translation.py:EncoderLayer", "encoder_layer", PADDED, "", []),
            (f"{WILD}/keras_translation.py:DecoderLayer", "decoder_layer", PADDED, "", []),
            ("keras_examples.py:TransformerEncoder", "encoder_layer", PADDED, "", []),
            ("keras_examples.py:TransformerDecoder", "decoder_layer", PADDED, "", []),
        )
    ),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("source", "component", "differing", "passing", "words"), every(7, STYLES))
def test_a_model_of_any_style_is_proposed_whole(
    source: str, component: str, differing: set[str], passing: str, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No open choices; every case passes in every proposed dtype, except where the model itself differs."""
    in_this_process(monkeypatch)
    proposal = proposed(source)
    assert (proposal.component, proposal.left) == (component, ()), proposal.text
    assert [text for text in words if not mentions(proposal.text, text)] == []
    found = judged(proposal)
    assert {"pass"} in ([found[passing]] if passing else found.values())
    assert {name for name, statuses in found.items() if statuses != {"pass"}} <= differing, found


@pytest.mark.conformance
@pytest.mark.parametrize("name", ["Cross", "GlobalSelf", "CausalSelf"])
def test_keras_sublayers_need_the_arguments_that_they_hand_on(name: str) -> None:
    """Constructor parameters taken as `**kwargs` are named."""
    pytest.importorskip("keras")
    proposal = proposed(f"{WILD}/keras_translation.py:{name}Attention", num_heads="config.heads", key_dim="config.key_size")
    component = f"{'cross' if name == 'Cross' else 'self'}_attention_sublayer"
    assert (proposal.component, proposal.left) == (component, ()), proposal.text
    assert ('"if": "causal"' in proposal.text) == (name == "CausalSelf")


@pytest.mark.conformance
def test_what_is_left_out_or_differs_is_a_decision() -> None:
    proposal = proposed("torch_layouts.py:SharedAttention")
    assert [one.value for one in proposal.decisions if (one.kind, one.name) == ("weight", "fc_out.bias")] == ["None"]
    proposal = proposed("torch_sublayers.py:Transformer")
    assert proposal.left == ()
    assert [mentions(one.why, "1 / sqrt(model_width)") for one in proposal.decisions if one.kind == "output"] == [True]
    assert mentions(proposal.text, "reference's … 1 / sqrt(model_width)")
    # the norms precede the layers, although they are declared after them
    assert ("weight", "transformer.source_embedding_norm", "encoder.layer_norm") in {
        (one.kind, one.name, one.value) for one in proposal.decisions
    }
    assert config(proposal).items() >= {
        ("final_norm", "False"), ("embedding_norm", "True"), ("scale_embedding", "False"), ("share_embeddings", "True"),
        ("tie_logits", "True"), ("epsilon", "1e-06"),
    }  # fmt: skip


def test_what_has_no_counterpart_is_listed_and_marked(tmp_path: Path) -> None:
    (tmp_path / "gated_layer.py").write_text(
        (MODELS / "torch_stock.py").read_text() + "\n\nclass Gated(Layer):\n"
        "    def __init__(self, embed_dim, num_heads, ff_dim):\n"
        "        super().__init__(embed_dim, num_heads, ff_dim)\n"
        "        self.gate = nn.Linear(embed_dim, 7)\n\n"
        "    def forward(self, x, speaker):\n"
        "        return super().forward(x)\n"
    )
    found = invoke("new-port", "--from", "gated_layer.py:Gated", "--component", "encoder_layer", folder=tmp_path)
    assert found.code == 0 and mentions(found.out, "speaker … gate.weight … (7, 12) … rosettaformer check gated_port.py"), found
    assert "compared" not in found.out
    text = (tmp_path / "gated_port.py").read_text()
    compile(text, "gated_port.py", "exec")
    assert mentions(text, "TODO … gate.weight … (7, 12)") and mentions(text, '"speaker": lambda inputs: None,  # TODO')
    left = {(one.kind, one.name) for one in propose("gated_layer.py:Gated", "", "encoder_layer").left}
    assert left >= {("call", "speaker"), ("weight", "gate.weight"), ("weight", "gate.bias")}


def test_each_decision_is_one_line(tmp_path: Path) -> None:
    found = invoke("new-port", "--from", f"{MODELS}/torch_layouts.py:CountedBlock", "my_port", "--no-check", folder=tmp_path)
    lines = found.out.splitlines()
    for kind, name, value in (
        ("constructor", "num_heads", "config.heads"), ("call", "valid_lens", "length_b"), ("weight", "query.kernel", "W_q.weight"),
        ("config", "epsilon", "1e-05"),
    ):  # fmt: skip
        assert [line.startswith(kind) for line in lines if mentions(line, f"{name} … {value}")] == [True], (name, found.out)


def test_a_mistake_in_the_logits_leaves_nothing_open_that_can_be_tried_apart() -> None:
    source = (MODELS / "torch_files.py").read_text()
    mistake = ("/ math.sqrt(q.shape[-1])", "/ math.sqrt(q.shape[-1] * self.n_head)")
    right = proposed_text(source, "DecoderLayer", "right_scale.py")
    wrong = proposed_text(changed(source, mistake), "DecoderLayer", "wrong_scale.py")
    assert wrong.left == right.left == ()
    assert wrong.text.replace("wrong_scale", "right_scale") == right.text


@pytest.mark.conformance
def test_a_keras_layer_that_casts_is_proposed_in_float32() -> None:
    pytest.importorskip("keras")
    casts = (("[-1], q.dtype", "[-1], tf.float32"), ("mask, q.dtype", "mask, tf.float32"))
    proposal = proposed_text(changed((MODELS / "keras_tutorial.py").read_text(), *casts), "MultiHeadAttention", "casting.py")
    assert proposal.left == () and mentions(proposal.text, 'dtypes = ("float32",)')


def test_one_table_of_positions_for_source_and_target_is_marked() -> None:
    """The reference has two: nothing else is left open."""
    source = (MODELS / "torch_stock.py").read_text()
    sinusoids = source.partition("    def pos(self, x):\n")[2].partition("\n\n")[0]
    size = "self.emb_size = emb_size\n"
    changes = (
        (sinusoids, "        return self.position(torch.arange(x.size(1)))"),
        (size, f"{size}        self.position = nn.Embedding(256, emb_size)\n"),
    )
    proposal = proposed_text(changed(source, *changes), "Seq2Seq", "one_table.py")
    weights = [one.name.partition(" ")[0] for one in proposal.left if one.kind == "weight" and " of " not in one.name]
    assert weights == [*(f"{side}_position_embedding.table" for side in ("source", "target")), "position.weight"]
    assert {one.name for one in proposal.left} >= {"norm_placement", "activation", "scale_embedding", "final_norm"}


@pytest.mark.parametrize("name", [conformance("BertForSequenceClassification"), conformance("BertForMaskedLM"), "CountedEncoder"])
def test_an_encoder_only_model_is_referred_to_the_family(name: str) -> None:
    """Its output is judged as a whole: `check --like bert`."""
    embedding = "nn.Embedding(vocab_size, num_hiddens)\n"
    segmented = (embedding, f"{embedding}        self.token_type = nn.Embedding(2, num_hiddens)\n")
    Path("own_bert.py").write_text(changed((MODELS / "torch_layouts.py").read_text(), segmented))
    with pytest.raises(ValueError, match="new-port like bert"):
        proposed(f"{Path.cwd()}/own_bert.py:{name}" if name == "CountedEncoder" else f"{HUB}.bert.modeling_bert:{name}")


REFUSALS = [
    (("missing.py:Model",), "missing.py"),
    (("my_file.py:Modle",), "nearest: Model"),
    (("my_file.py",), "my_file.py … my_file.py:Model … Model"),
    (("my_file.py:Model",), "Model … give --with flavor=VALUE"),
    (("my_file.py:Model", "--with", "flavor=open('x')"), "--with … Python … config.model_width"),
    (("my_file.py:Model", "--with", "flavor"), "--with must be NAME=VALUE; got 'flavor'"),
    (("my_file.py:Model", "--with", "flavor=1", "--with", "color=1"), "--with … Model"),
    (("my_file.py:Model", "--with", "flavor=1"), "Model … Keras or Flax; got Model"),
    (("my_file.py:Model", "--component", "encoder_leyer"), "nearest: encoder_layer"),
    (("broken_file.py:Model",), "broken_file.py cannot be run: Warning: half written"),
    (("my_file.py:Model", "my_file"), "my_file.py"),
    (("my_file.py:Model", "torch", "my_port"), "--from … my_port"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSALS)
def test_what_cannot_be_built_is_one_message_and_writes_nothing(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    (tmp_path / "my_file.py").write_text("class Model:\n    def __init__(self, d_model, flavor):\n        pass\n")
    (tmp_path / "broken_file.py").write_text("raise Warning('half written')\n")
    path, modules = list(sys.path), set(sys.modules)
    assert mentions(refused("new-port", "--from", *arguments, folder=tmp_path), message)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["broken_file.py", "my_file.py"]
    assert sys.path == path and not {"my_file", "broken_file"} & (set(sys.modules) - modules)


def test_a_class_without_source_is_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("sourceless_model")
    exec((MODELS / "torch_stock.py").read_text(), module.__dict__)
    monkeypatch.setitem(sys.modules, "sourceless_model", module)
    proposal = propose("sourceless_model:Layer", "my_port.py")
    assert (proposal.component, proposal.left) == ("encoder_layer", ())
    assert "from sourceless_model import Layer" in proposal.text


def test_axes_are_those_that_give_the_shape() -> None:
    assert layouts("d h k", "h k", (12, 12), SIZES) == ["(h k) d", "d (h k)"]
    assert layouts("d h k", "h k", (12, 12), SIZES, "out") == ["(h k) d"]
    assert layouts("d h k", "h k", (12, 3, 4), SIZES) == ["d h k"]
    assert layouts("d h k", "h k", (3, 12, 4), SIZES) == ["h d k"]
    assert layouts("f d", "d", (12, 20, 1), SIZES) == ["d f 1"]
    assert layouts("d h k", "h k", (36, 12), SIZES, "out", (1, 3)) == ["(1/3 h k) d", "(h 1/3 k) d"]
    assert layouts("d h k", "h k", (12, 3, 3, 4), SIZES, "in", (2, 3)) == ["d (2/3) h k", "d h (2/3) k"]
    assert layouts("d h k", "h k", (5, 12), SIZES) == []
