"""Specifics of the PyTorch port; the judge tests what it shares with the others."""

from typing import Any

import pytest
import torch
from own_modules import adapter, verdict
from torch_models import CONFIG, encoder_config, tokens

from impl_torch.attention import MultiHeadAttention, scaled_dot_product_attention
from impl_torch.transformer import Transformer
from impl_torch.values import Heads, Text
from reference_numpy.scores import Scores
from rosettaformer.judge.suite import all_cases


def test_fused_path_makes_no_needless_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[dict[str, Any]] = []
    kernel = torch.nn.functional.scaled_dot_product_attention

    def spy(*args: Any, **kwargs: Any) -> Any:
        calls.append(kwargs)
        assert all(x.untyped_storage().data_ptr() in given for x in args)
        return kernel(*args, **kwargs)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", spy)
    query, key, value = torch.randn(2, 5, 6, 8), torch.randn(2, 5, 2, 8), torch.randn(2, 5, 2, 8)
    given = {x.untyped_storage().data_ptr() for x in (query, key, value)}
    mask, bias = torch.ones(2, 1, 1, 5, dtype=torch.bool), torch.randn(1, 6, 5, 5)
    causal = Scores(causal=True)
    for extra in ((), (None, causal), (mask,), (bias,)):
        scaled_dot_product_attention(Heads(query, key, value), *extra)
    scaled_dot_product_attention(Heads(query[:, :1], key, value), None, causal)
    assert [call["is_causal"] for call in calls] == [False, True, False, False, False]
    assert [call["attn_mask"] for call in calls[:2] + calls[4:]] == [None, None, None]
    assert calls[2]["attn_mask"] is mask
    assert calls[3]["attn_mask"] is bias


def test_without_a_padding_id_no_mask_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    module = Transformer(CONFIG.replace(padding_id=None)).eval()
    for name, layer in module.named_modules():
        if isinstance(layer, MultiHeadAttention):
            monkeypatch.setattr(layer, "forward", _refuse_mask(layer.forward, name))
    assert module(tokens(3, 5), tokens(3, 4)).shape == (3, 4, 19)


def _refuse_mask(forward: Any, name: str) -> Any:
    def checked(query: Any, memory: Any, mask: Any, *others: Any, **extra: Any) -> Any:
        assert mask is None, name
        return forward(query, memory, mask, *others, **extra)

    return checked


def test_ids_of_a_call_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[int] = []
    tolist = torch.Tensor.tolist

    def spy(tensor: Any) -> Any:
        reads.append(tensor.numel())
        return tolist(tensor)

    monkeypatch.setattr(torch.Tensor, "tolist", spy)
    Transformer(CONFIG).eval()(tokens(3, 5), tokens(3, 4).int())
    assert reads == [4]
    encoder = Transformer(encoder_config(classes=3)).eval()
    encoder.classification_loss(Text(tokens(3, 5), segment=tokens(3, 5) % 2), torch.tensor([2, 0, 1]))
    assert reads == [4, 6]


def test_a_tied_masked_language_head_is_loaded_under_both_names_where_they_are_equal() -> None:
    given, model = (Transformer(encoder_config(classes=3)) for _ in range(2))
    state = given.state_dict()
    assert "masked_language_head.logits.weight" not in state
    table = state["source_embedding.weight"]
    model.load_state_dict(state | {"masked_language_head.logits.weight": table.clone()})
    assert model.masked_language_head.logits.weight is model.source_embedding.weight
    torch.testing.assert_close(model.source_embedding.weight, table, rtol=0, atol=0)
    with pytest.raises(RuntimeError, match=r"masked_language_head\.logits\.weight must equal source_embedding\.weight"):
        model.load_state_dict(state | {"masked_language_head.logits.weight": table + 1})


def test_states_need_a_model_in_evaluation() -> None:
    with pytest.raises(ValueError, match="training mode"):
        Transformer(encoder_config(classes=3)).train().states(tokens(3, 5))


class Attention(torch.nn.Module):
    """Self-attention with one parameter for the three projections, whose parts are views; some are frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.together = torch.nn.Parameter(torch.randn(3 * 12, 12), requires_grad=False)
        self.output = torch.nn.Linear(12, 12, bias=False)

    query, key, value = (property(lambda self, part=part: self.together.chunk(3)[part]) for part in range(3))

    def forward(self, query_btd: Any, memory_bsd: Any, mask_bhts: Any = None) -> Any:
        queries, keys, values = ((x @ kernel.T).unflatten(-1, (3, 4)) for x, kernel in zip(
            (query_btd, memory_bsd, memory_bsd), (self.query, self.key, self.value), strict=True))  # fmt: skip
        return self.output(scaled_dot_product_attention(Heads(queries, keys, values), mask_bhts).flatten(-2))


SIZES = {"model_width": 12, "heads": 3, "key_value_heads": 3, "key_size": 4, "value_size": 4, "attention_bias": False}
WEIGHTS = (
    ("query.kernel", "query", "(h k) d"),
    ("key.kernel", "key", "(g k) d"),
    ("value.kernel", "value", "(g e) d"),
    ("output.kernel", "output.weight", "d (h e)"),
)


def test_gradients_of_views_of_a_frozen_parameter_are_those_of_the_reference() -> None:
    cases = {case.id: case for case in all_cases(SIZES, grad=True)}
    of_views = adapter("torch", components={"multi_head_attention": lambda *_: Attention()}, weights=WEIGHTS)
    assert verdict(cases["multi_head_attention_vjp/left_padding"], of_views.run) == "pass"
