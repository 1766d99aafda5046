"""Diagnosis of BERT and GPT-2 made of the library transformers, which shares nothing with ours: each mistake gets its name, and none gets
none."""

from pathlib import Path

import pytest
from in_process import InProcess

from rosettaformer.conformance.diagnosis import Diagnosis, diagnose, examined_port

PORTS = Path(__file__).parents[1] / "ports"
pytest.importorskip("transformers")

PORT = """
import sys
sys.path.insert(0, {folder!r})
import torch
from torch.nn import functional as F
from transformers_{family} import *
from transformers_{family} import components as correct

def build(component):
    def built(config, dtype):
        model = correct[component](config, dtype)
        wrong(model, config)
        return model
    return built

def replaced(module, change):
    module.register_forward_hook(lambda module, args, output: change(module, *args, output))

def given(model, change):
    forward = model.forward
    def changed(source, source_mask_bs=None, segment_bs=None):
        return forward(source, *change(source, source_mask_bs, segment_bs))
    model.forward = changed

def wrong(model, config):
    pass

{mistake}
components = {{name: build(name) for name in correct}}
"""
# name -> the family, the component, the names of which diagnosis must say one alone or all of these, where the mistake first shows in the
# trace of the modules (empty: it is not asked), and the mistake
MISTAKES: dict[str, tuple[str, str, set[str], str, str]] = {
    "segments dropped": ("bert", "pool", {"SEG1"}, "", """
def wrong(model, config):
    given(model, lambda source, mask, segment: (mask, None))
"""),
    "segments exchanged": ("bert", "masked_language_logits", {"SEG2"}, "", """
def wrong(model, config):
    table = model.bert.embeddings.token_type_embeddings
    table.register_forward_pre_hook(lambda module, args: (torch.where(args[0] < 2, 1 - args[0], args[0]),))
"""),
    "an offset of positions": ("bert", "pool", {"PE15"}, "", """
def wrong(model, config):
    table = model.bert.embeddings.position_embeddings
    table.register_forward_pre_hook(lambda module, args: ((args[0] + 2).clamp(max=len(module.weight) - 1),))
"""),
    "sinusoidal positions": ("bert", "pool", {"PE17"}, "", """
def wrong(model, config):
    def sines(module, position, output):
        angle = position[..., None] * 10000.0 ** (-torch.arange(0, output.shape[-1], 2, dtype=torch.float64) / output.shape[-1])
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2).to(output.dtype)
    replaced(model.bert.embeddings.position_embeddings, sines)
"""),
    "the tanh form of GELU": ("bert", "masked_language_logits", {"FFN1"}, "", """
def wrong(model, config):
    for module in model.modules():
        for name in ("intermediate_act_fn", "transform_act_fn"):
            if hasattr(module, name):
                setattr(module, name, torch.nn.GELU("tanh"))
"""),
    "the epsilon of the layer": ("bert", "classify", {"NRM15"}, "", """
def wrong(model, config):
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-5
"""),
    "no norm of the embeddings": ("bert", "pool", {"NRM12"}, "source_embedding_norm", """
def wrong(model, config):
    replaced(model.bert.embeddings.LayerNorm, lambda module, x, output: x)
"""),
    "the norm of the tokens alone": ("bert", "pool", {"NRM13"}, "", """
def wrong(model, config):
    e = model.bert.embeddings
    def forward(input_ids=None, token_type_ids=None, position_ids=None, **others):
        position = torch.arange(input_ids.shape[1])[None]
        segment = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        return e.LayerNorm(e.word_embeddings(input_ids)) + e.position_embeddings(position) + e.token_type_embeddings(segment)
    e.forward = forward
"""),
    "the last token is pooled": ("bert", "classify", {"HED1"}, "pooler", """
def wrong(model, config):
    pooler = model.bert.pooler.forward
    model.bert.pooler.forward = lambda x: pooler(x[:, -1:])
"""),
    "no tanh": ("bert", "classify", {"HED3"}, "pooler", """
def wrong(model, config):
    model.bert.pooler.activation = torch.nn.Identity()
"""),
    "the mean of the tokens": ("bert", "pool", {"HED2"}, "", """
def wrong(model, config):
    def forward(source, source_mask_bs=None, segment_bs=None):
        mask = torch.ones_like(source) if source_mask_bs is None else source_mask_bs.long()
        x = model.bert(source, attention_mask=mask, token_type_ids=segment_bs).last_hidden_state
        return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    model.forward = forward
"""),
    "the mask's polarity": ("bert", "pool", {"ATT7", "ATT8"}, "", """
def wrong(model, config):
    given(model, lambda source, mask, segment: (torch.zeros_like(source) == 1 if mask is None else ~mask, segment))
"""),
    "no mask": ("bert", "pool", {"ATT9", "ATT18"}, "", """
def wrong(model, config):
    given(model, lambda source, mask, segment: (None, segment))
"""),
    "the head's bias lost": ("bert", "masked_language_logits", {"EMB8"}, "masked_language_head.logits", """
def wrong(model, config):
    replaced(model.cls.predictions.decoder, lambda module, x, output: F.linear(x, module.weight))
"""),
    "the head's bias twice": ("bert", "masked_language_logits", {"EMB9"}, "masked_language_head.logits", """
def wrong(model, config):
    replaced(model.cls.predictions.decoder, lambda module, x, output: output + module.bias)
"""),
    "the head untied": ("bert", "masked_language_logits", {"EMB6"}, "", """
def wrong(model, config):
    replaced(model.cls.predictions.decoder, lambda module, x, output: F.linear(x, torch.zeros_like(module.weight), module.bias))
"""),
    "the head without its transform": ("bert", "masked_language_logits", {"HED5"}, "", """
def wrong(model, config):
    replaced(model.cls.predictions.transform, lambda module, x, output: x)
"""),
    "square kernels not transposed": ("bert", "pool", {"MHA5"}, "", """
weights = [(theirs, ours, {"(h k) d": "d (h k)", "(g k) d": "d (g k)", "(g e) d": "d (g e)", "d (h e)": "(h e) d"}.get(axes, axes))
           for theirs, ours, axes in weights]
"""),
    "c_attn in the order key, query, value": ("gpt2", "transformer", {"projections=key query value"}, "decoder.layers.0.self_attention", """
order = {"d (0/3 h k)": "d (1/3 h k)", "d (1/3 g k)": "d (0/3 g k)", "(0/3 h k)": "(1/3 h k)", "(1/3 g k)": "(0/3 g k)"}
weights = [(theirs, ours, order.get(axes, axes)) for theirs, ours, axes in weights]
"""),
    "c_attn with value and key exchanged": ("gpt2", "transformer", {"MHA6"}, "decoder.layers.0.self_attention", """
order = {"d (2/3 g e)": "d (1/3 g e)", "d (1/3 g k)": "d (2/3 g k)", "(2/3 g e)": "(1/3 g e)", "(1/3 g k)": "(2/3 g k)"}
weights = [(theirs, ours, order.get(axes, axes)) for theirs, ours, axes in weights]
"""),
    "c_attn read head by head": ("gpt2", "transformer", {"MHA3"}, "decoder.layers.0.self_attention", """
import re
weights = [(theirs, ours, re.sub(r"(\\d/3) (\\w)", r"\\2 \\1", axes)) for theirs, ours, axes in weights]
"""),
    "Conv1D transposed": ("gpt2", "transformer", {"output.kernel=transposed"}, "decoder.layers.0.self_attention", """
weights = [(theirs, ours, "d (h e)" if axes == "(h e) d" else axes) for theirs, ours, axes in weights]
"""),
    "no causal mask": ("gpt2", "transformer", {"CAU4", "CAU6"}, "", """
def wrong(model, config):
    for block in model.transformer.h:
        attend = block.attn.forward
        block.attn.forward = lambda x, *args, attend=attend, attention_mask=None, **options: attend(
            x, attention_mask=attention_mask[:, :, -1:].expand_as(attention_mask), **options)
"""),
    "left padding counted as positions": ("gpt2", "transformer", {"PE11"}, "", """
def wrong(model, config):
    model.positions = lambda mask: torch.arange(mask.shape[1]).expand(mask.shape)
"""),
    "no final norm": ("gpt2", "transformer", {"NRM10"}, "decoder.final_norm", """
def wrong(model, config):
    replaced(model.transformer.ln_f, lambda module, x, output: x)
"""),
    "post-norm": ("gpt2", "transformer", {"NRM8"}, "decoder.layers.0", """
def wrong(model, config):
    for block in model.transformer.h:
        def forward(x, *args, block=block, attention_mask=None, **options):
            mask = attention_mask if attention_mask is not None else next(value for value in args if torch.is_tensor(value))
            x = block.ln_1(x + block.attn(x, attention_mask=mask)[0])
            return block.ln_2(x + block.mlp(x))
        block.forward = forward
"""),
    "erf for tanh": ("gpt2", "transformer", {"FFN1"}, "decoder.layers.0.feed_forward", """
def wrong(model, config):
    for block in model.transformer.h:
        block.mlp.act = torch.nn.GELU()
"""),
}  # fmt: skip


def _diagnosis(folder: Path, family: str, component: str, mistake: str) -> Diagnosis:
    file = folder / f"a_{family}.py"
    file.write_text(PORT.format(folder=str(PORTS), family=family, mistake=mistake))
    return diagnose(str(file), [component], pairs=False, gradients=False)


@pytest.mark.conformance
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_model_of_transformers_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(examined_port, "open_worker", InProcess)
    family, component, names, place, mistake = MISTAKES[name]
    diagnosis = _diagnosis(tmp_path, family, component, mistake)
    whole = diagnosis.findings[-1]
    assert (whole.component, whole.verdict) == (component, "explained" if len(names) == 1 else "indistinguishable"), whole.text
    assert {id_ for ids in whole.explanations for id_ in ids} == names
    if place:
        assert diagnosis.divergences
        assert diagnosis.divergences[0].sentence.startswith(f"{place}: "), diagnosis.divergences[0].sentence


@pytest.mark.conformance
@pytest.mark.parametrize("family", ["bert", pytest.param("gpt2", marks=pytest.mark.conformance)])
def test_the_same_model_without_a_mistake_gets_none(family: str) -> None:
    assert diagnose(str(PORTS / f"transformers_{family}.py"), pairs=False, gradients=False).findings == []


@pytest.mark.conformance
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_its_gradients_are_right_and_all_parts_are_walked(family: str) -> None:
    diagnosis = diagnose(str(PORTS / f"transformers_{family}.py"), pairs=False)
    assert diagnosis.findings == []
    assert diagnosis.gradients[0].first is None
