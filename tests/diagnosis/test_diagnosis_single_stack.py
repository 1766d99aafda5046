"""Diagnosis of BERT and GPT-2 from the transformers library, which shares no code with ours: each bug is named, and correct models get no
name."""

import textwrap
from pathlib import Path

import pytest
from in_process import InProcess

from rosettaformer.judge.diagnosis import Diagnosis, diagnose
from rosettaformer.judge.ports import session

PORTS = Path(__file__).parents[1] / "ports"
pytest.importorskip("transformers")

PORT = """
import re, sys
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

def read(axes_of):
    global weights
    def turned(rows):
        return tuple((*row[:2], *map(axes_of, row[2:])) for row in rows)
    weights = {{name: turned(rows) for name, rows in weights.items()}} if isinstance(weights, dict) else turned(weights)

def wrong(model, config):
    {mistake}

{weights}
components = {{name: build(name) for name in correct}}
"""
# name -> the family, the component, the names, one or all of which diagnosis must give, where it
# first shows in the trace of the modules (empty: not traced), and the change of the model or its axes
MISTAKES: dict[str, tuple[str, str, set[str], str, str]] = {
    "segments dropped": ("bert", "pool", {"SEG1"}, "", "given(model, lambda ids, mask, *rest: (mask, None))"),
    "segments exchanged": ("bert", "masked_language_logits", {"SEG2"}, "", """
        model.bert.embeddings.token_type_embeddings.register_forward_pre_hook(
            lambda module, args: (torch.where(args[0] < 2, 1 - args[0], args[0]),))
"""),
    "an offset of positions": ("bert", "pool", {"PE15"}, "", """
        model.bert.embeddings.position_embeddings.register_forward_pre_hook(
            lambda module, args: ((args[0] + 2).clamp(max=len(module.weight) - 1),))
"""),
    "sinusoidal positions": ("bert", "pool", {"PE17"}, "", """
        def sines(module, position, output):
            size = output.shape[-1]
            angle = position[..., None] * 10000.0 ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
            return torch.stack([angle.sin(), angle.cos()], -1).flatten(-2).to(output.dtype)
        replaced(model.bert.embeddings.position_embeddings, sines)
"""),
    "no norm of the embeddings": (
        "bert", "pool", {"NRM12"}, "source_embedding_norm",
        "replaced(model.bert.embeddings.LayerNorm, lambda module, x, output: x)",
    ),
    "the last token is pooled": ("bert", "classify", {"HED1"}, "pooler", """
        pooler = model.bert.pooler.forward
        model.bert.pooler.forward = lambda x: pooler(x[:, -1:])
"""),
    "no tanh": ("bert", "classify", {"HED3"}, "pooler", "model.bert.pooler.activation = torch.nn.Identity()"),
    "the mean of the tokens": ("bert", "pool", {"HED2"}, "", """
        def forward(source, source_mask_bs=None, segment_bs=None):
            mask = torch.ones_like(source) if source_mask_bs is None else source_mask_bs.long()
            x = model.bert(source, attention_mask=mask, token_type_ids=segment_bs).last_hidden_state
            return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        model.forward = forward
"""),
    "the mask's polarity": ("bert", "pool", {"ATT7", "ATT8"}, "", """
        given(model, lambda ids, mask, segment: (ids != ids if mask is None else ~mask, segment))
"""),
    "no mask": ("bert", "pool", {"ATT9", "ATT18"}, "", "given(model, lambda *rest: (None, rest[-1]))"),
    "the head untied": ("bert", "masked_language_logits", {"EMB6"}, "", """
        replaced(model.cls.predictions.decoder, lambda module, x, output: 0 * output + module.bias)
"""),
    "square kernels not transposed": ("bert", "pool", {"MHA5"}, "", """
read(lambda axes: {
    "(h k) d": "d (h k)", "(g k) d": "d (g k)", "(g e) d": "d (g e)", "d (h e)": "(h e) d",
}.get(axes, axes))
"""),
    "c_attn with value and key exchanged": (
        "gpt2", "transformer", {"MHA6"}, "decoder.layers.0.self_attention",
        'read(lambda axes: axes.translate(str.maketrans("12", "21")))',
    ),
    "no causal mask": ("gpt2", "transformer", {"CAU4", "CAU6"}, "", """
        for block in model.transformer.h:
            attend = block.attn.forward
            block.attn.forward = lambda x, *args, attend=attend, attention_mask=None, **options: attend(
                x, attention_mask=attention_mask[:, :, -1:].expand_as(attention_mask), **options)
"""),
    "left padding counted as positions": ("gpt2", "transformer", {"PE11"}, "", """
        model.positions = lambda mask: torch.arange(mask.shape[1]).expand(mask.shape)
"""),
    "no final norm": (
        "gpt2", "transformer", {"NRM10"}, "decoder.final_norm",
        "replaced(model.transformer.ln_f, lambda module, x, output: x)",
    ),
    "erf for tanh": ("gpt2", "transformer", {"FFN1"}, "decoder.layers.0.feed_forward", """
        for block in model.transformer.h if config.activation == "gelu_tanh" else ():
            block.mlp.act = torch.nn.GELU()
"""),
}  # fmt: skip


def _diagnosis(folder: Path, family: str, component: str, mistake: str) -> Diagnosis:
    file, mistake = folder / f"a_{family}.py", textwrap.dedent(mistake).strip()
    of_axes = mistake if mistake.startswith("read(") else ""
    mistake = "pass" if of_axes else textwrap.indent(mistake, "    ").strip()
    file.write_text(PORT.format(folder=str(PORTS), family=family, mistake=mistake, weights=of_axes))
    return diagnose(str(file), [component], pairs=False, gradients=False)


@pytest.mark.conformance
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_a_model_of_transformers_gets_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(session, "open_worker", InProcess)
    family, component, names, place, mistake = MISTAKES[name]
    diagnosis = _diagnosis(tmp_path, family, component, mistake)
    whole = diagnosis.findings[-1]
    assert (whole.component, whole.verdict) == (component, "explained" if len(names) == 1 else "indistinguishable"), whole.text
    assert {id_ for ids in whole.explanations for id_ in ids} == names
    if place:
        assert diagnosis.divergences
        assert diagnosis.divergences[0].sentence.startswith(f"{place}: "), diagnosis.divergences[0].sentence


@pytest.mark.conformance
@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_the_same_model_without_a_mistake_gets_no_name_and_its_gradients_are_right(family: str) -> None:
    diagnosis = diagnose(str(PORTS / f"transformers_{family}.py"), pairs=False)
    assert diagnosis.findings == []
    assert diagnosis.gradients[0].first is None
