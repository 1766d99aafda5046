"""`new-port --from`: what is proposed for models of many styles, what it leaves open, and what it refuses."""

import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from expectations import suite
from invoke import invoke, refused
from kinds import every
from messages import mentions

from rosettaformer.judge import runner
from rosettaformer.judge.case import DTYPES
from rosettaformer.judge.proposals import propose
from rosettaformer.judge.proposals.shapes import layouts

MODELS = Path(__file__).parents[1] / "proposed"
SIZES = {"d": 12, "h": 3, "g": 3, "k": 4, "e": 4, "f": 20}
EMPTY = {"left_padding", "shrinking_padding", "padded_columns"}  # rows without a key, to which these models give the mean of all values
QUERIES = {"ragged", "same_length", "square", "long"}  # its padding hides queries, not keys
SLOW = pytest.mark.conformance
# what is named, what it is found to be, and the cases in which it differs
STYLES = [
    ("torch_files.py:DecoderLayer", "decoder_layer", EMPTY),
    ("../ports/wild/second/nanogpt_torch.py:GPT", "transformer", set()),
    ("torch_stock.py:Layer", "encoder_layer", set()),
    ("transformers.models.bert.modeling_bert:BertForSequenceClassification", "classify", set()),
    ("nnx_encoder.py:Encoder", "encoder", EMPTY),
    pytest.param("transformers.models.bert.modeling_bert:BertForMaskedLM", "masked_language_logits", set(), marks=SLOW),
    pytest.param("transformers.models.gpt2.modeling_gpt2:GPT2LMHeadModel", "transformer", set(), marks=SLOW),
    pytest.param("../ports/wild/second/nanogpt_torch.py:Block", "decoder_layer", set(), marks=SLOW),
    pytest.param("../ports/wild/annotated_transformer.py:make_model", "transformer", EMPTY | {"masks_beside_padding"}, marks=SLOW),
    pytest.param("torch_stock.py:Seq2Seq", "transformer", set(), marks=SLOW),
    pytest.param("torch.nn:TransformerDecoderLayer", "decoder_layer", set(), marks=SLOW),
    pytest.param("transformers.models.bert.modeling_bert:BertLayer", "encoder_layer", EMPTY, marks=SLOW),
    pytest.param("raw_parameters.py:Attn", "multi_head_attention", EMPTY, marks=SLOW),
    pytest.param("keras_tutorial.py:MultiHeadAttention", "multi_head_attention", EMPTY, marks=SLOW),
    pytest.param("keras_tutorial.py:DecoderLayer", "decoder_layer", EMPTY, marks=SLOW),
    pytest.param("linen_block.py:EncoderBlock", "encoder_layer", EMPTY, marks=SLOW),
    pytest.param("torch_files.py:Transformer", "transformer", EMPTY | QUERIES | {"padding_id_0"}, marks=SLOW),
    pytest.param("torch_sublayers.py:EncoderLayer", "encoder_layer", EMPTY, marks=SLOW),
    pytest.param("torch_sublayers.py:DecoderLayer", "decoder_layer", EMPTY, marks=SLOW),
    pytest.param("../ports/wild/keras_translation.py:EncoderLayer", "encoder_layer", EMPTY, marks=SLOW),
    pytest.param("../ports/wild/keras_translation.py:DecoderLayer", "decoder_layer", EMPTY, marks=SLOW),
    pytest.param("keras_examples.py:TransformerEncoder", "encoder_layer", EMPTY, marks=SLOW),
    pytest.param("keras_examples.py:TransformerDecoder", "decoder_layer", EMPTY, marks=SLOW),
]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("source", "component", "differing"), every(6, STYLES))
@pytest.mark.conformance
def test_a_model_of_any_style_is_proposed_whole(source: str, component: str, differing: set[str]) -> None:
    """Every case passes in every dtype that is proposed, but those in which the model itself is another."""
    pytest.importorskip({"keras": "keras", "nnx": "flax", "linen": "flax"}.get(Path(source).name.partition("_")[0], "torch"))
    named = str(MODELS / source) if ".py:" in source else source
    proposal = propose(named, "my_port.py")
    assert (proposal.component, proposal.left) == (component, ()), proposal.text
    Path("my_port.py").write_text(proposal.text)
    cases = [case for case in suite() if case.component == component]
    results = runner.run(cases, ["my_port.py"], DTYPES)
    found = {result.case.partition("/")[2]: result for result in results if result.status not in ("pass", "not covered")}
    assert found.keys() <= differing, {name: result.message for name, result in found.items()}
    assert "pass" in {result.status for result in results}


def test_what_has_no_counterpart_is_listed_and_marked(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "gated_layer.py").write_text(
        (MODELS / "torch_stock.py").read_text() + "\n\nclass Gated(Layer):\n"
        "    def __init__(self, embed_dim, num_heads, ff_dim):\n"
        "        super().__init__(embed_dim, num_heads, ff_dim)\n"
        "        self.gate = nn.Linear(embed_dim, 7)\n\n"
        "    def forward(self, x, speaker):\n"
        "        return super().forward(x)\n"
    )
    found = invoke("new-port", "--from", "gated_layer.py:Gated", "--component", "encoder_layer", folder=tmp_path)
    assert found.code == 0, found
    assert "gate.weight of shape (7, 12) has no counterpart" in found.out
    assert "the argument speaker has no counterpart" in found.out
    assert "compared" not in found.out and "rosettaformer check gated_port.py" in found.out
    text = (tmp_path / "gated_port.py").read_text()
    compile(text, "gated_port.py", "exec")
    assert "# TODO: decide: which parameter is gate.weight of shape (7, 12)?" in text
    assert '"speaker": lambda inputs: None,  # TODO: decide:' in text


def test_a_mistake_in_the_logits_leaves_nothing_open_that_can_be_tried_apart(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    source = (MODELS / "torch_files.py").read_text()
    _changed(tmp_path, "right_scale.py", source)
    _changed(tmp_path, "wrong_scale.py", source, ("/ math.sqrt(q.shape[-1])", "/ math.sqrt(q.shape[-1] * self.n_head)"))
    right, wrong = (propose(f"{name}_scale.py:DecoderLayer", "my_port.py") for name in ("right", "wrong"))
    assert wrong.left == right.left == ()
    assert wrong.text.replace("wrong_scale", "right_scale") == right.text


GPT = (MODELS / "../ports/wild/second/nanogpt_torch.py").read_text()


def _changed(folder: Path, name: str, source: str, *changes: tuple[str, str]) -> None:
    for old, new in changes:
        assert source.count(old) == 1, old
        source = source.replace(old, new)
    (folder / name).write_text(source)


@SLOW
def test_a_keras_layer_that_casts_is_proposed_in_float32(tmp_path: Path) -> None:
    pytest.importorskip("keras")
    text = (MODELS / "keras_tutorial.py").read_text()
    casts = (("[-1], q.dtype", "[-1], tf.float32"), ("mask, q.dtype", "mask, tf.float32"))
    _changed(tmp_path, "casting.py", text, *casts)
    proposal = propose("casting.py:MultiHeadAttention", "my_port.py")
    assert proposal.left == () and mentions(proposal.text, 'dtypes = ("float32",)')


@pytest.mark.conformance
def test_rows_that_the_model_fixes_and_does_not_use_are_read_from_its_table(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    table, later = "nn.Embedding(config.block_size, ", ("torch.arange(0, t,", "torch.arange(2, t + 2,")
    _changed(tmp_path, "fixed_rows.py", GPT, (table, "nn.Embedding(66, "), later)
    _changed(tmp_path, "more_rows.py", GPT, (table, "nn.Embedding(config.block_size + 2, "), later)
    _changed(tmp_path, "own_rows.py", GPT, later)
    for name, length, passed in (("fixed", 64, "256"), ("more", 256, "config.max_positions"), ("own", 256, "config.max_positions + 2")):
        proposal = propose(f"{name}_rows.py:GPT", "my_port.py")
        assert proposal.left == (), proposal.text
        assert f'"max_positions": {length},' in proposal.text
        assert '"position_offset": 2,' in proposal.text
        assert f"block_size={passed}, " in proposal.text


def test_one_table_of_positions_for_source_and_target_is_marked(tmp_path: Path) -> None:
    """The reference has two: nothing else is left open."""
    pytest.importorskip("torch")
    source = (MODELS / "torch_stock.py").read_text()
    sinusoids = source.partition("    def pos(self, x):\n")[2].partition("\n\n")[0]
    learned = (sinusoids, "        return self.position(torch.arange(x.size(1)))")
    size = "self.emb_size = emb_size\n"
    table = (size, f"{size}        self.position = nn.Embedding(256, emb_size)\n")
    _changed(tmp_path, "one_table.py", source, learned, table)
    proposal = propose("one_table.py:Seq2Seq", "my_port.py")
    *left, spare = proposal.left
    missing = [text for text in left if "has no" in text]
    assert [re.search(r"(\w+)_position_embedding.table", one)[1] for one in missing] == ["source", "target"]
    assert spare == "position.weight of shape (256, 12) has no counterpart"
    for name in ("norm_placement", "activation", "scale_embedding", "final_norm"):  # no default stands undoubted
        assert re.search(rf'"{name}": .*# TODO: decide:', proposal.text), proposal.text


REFUSALS = [
    (("missing.py:Model",), "missing.py"),
    (("my_file.py:Modle",), "nearest: Model"),
    (("my_file.py",), "my_file.py … my_file.py:Model … Model"),
    (("my_file.py:Model",), "Model … give --with flavour=VALUE"),
    (("my_file.py:Model", "--with", "flavour=open('x')"), "--with … Python … config.model_width"),
    (("my_file.py:Model", "--with", "flavour"), "--with must be NAME=VALUE; got 'flavour'"),
    (("my_file.py:Model", "--with", "flavour=1", "--with", "colour=1"), "--with … Model"),
    (("my_file.py:Model", "--with", "flavour=1"), "Model … Keras or Flax; got Model"),
    (("my_file.py:Model", "--component", "encoder_leyer"), "nearest: encoder_layer"),
    (("broken_file.py:Model",), "broken_file.py cannot be run: Warning: half written"),
    (("my_file.py:Model", "my_file"), "my_file.py"),
    (("my_file.py:Model", "torch", "my_port"), "--from … my_port"),
]


@pytest.mark.parametrize(("arguments", "message"), REFUSALS)
def test_what_cannot_be_built_is_one_message_and_writes_nothing(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    (tmp_path / "my_file.py").write_text("class Model:\n    def __init__(self, d_model, flavour):\n        pass\n")
    (tmp_path / "broken_file.py").write_text("raise Warning('half written')\n")
    path, modules = list(sys.path), set(sys.modules)
    assert mentions(refused("new-port", "--from", *arguments, folder=tmp_path), message)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["broken_file.py", "my_file.py"]
    assert sys.path == path and not {"my_file", "broken_file"} & (set(sys.modules) - modules)


def test_a_class_without_source_is_proposed(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
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
