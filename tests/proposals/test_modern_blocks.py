"""`new-port --from` of decoders since Llama: the proposal conforms on the plain causal cases, and a bug in the block is found."""

from pathlib import Path

import pytest
from invoke import invoke
from kinds import conformance
from proposed_ports import MODELS, changed, forget, judged, proposed, proposed_text
from whole_models import in_this_process

pytest.importorskip("torch")
LLAMA = "transformers.models.llama.modeling_llama"
BLOCKS = [
    ("meta_llama.py:TransformerBlock", "decoder_layer", "llama"),
    ("meta_llama.py:FeedForward", "feed_forward", ""),
    ("meta_llama.py:RMSNorm", "rms_norm", ""),
    ("meta_llama.py:Attention", "self_attention", ""),
    ("meta_llama.py:Transformer", "transformer", "llama"),
    (f"{LLAMA}:LlamaAttention", "self_attention", ""),
    (f"{LLAMA}:LlamaForCausalLM", "transformer", "llama"),
    ("transformers.models.qwen3.modeling_qwen3:Qwen3DecoderLayer", "decoder_layer", "qwen3"),
    ("transformers.models.olmo2.modeling_olmo2:Olmo2DecoderLayer", "decoder_layer", "olmo2"),
    ("modern.py:FusedLayer", "decoder_layer", "llama"),
    ("modern.py:SandwichLayer", "decoder_layer", "glm4"),
    ("nnx_llama.py:DecoderLayer", "decoder_layer", "qwen3"),
    ("keras_llama.py:DecoderLayer", "decoder_layer", "llama"),
]
IN_FLOAT32 = ("transformers", "modern")  # models that compute in float32
PLAIN = ("plain_causal", "plain_causal_long", "plain_causal_one_position")
# a line of the block, and its replacement
MISTAKES = {
    "gate on the other projection": ("F.silu(self.w1(x)) * self.w3(x)", "F.silu(self.w3(x)) * self.w1(x)"),
    "no rotation of keys": ("torch.view_as_real(xk_ * freqs_cis)", "torch.view_as_real(xk_ * torch.ones_like(freqs_cis))"),
    "key heads tiled": ("x.repeat_interleave(n_rep, dim=2)", "x.repeat(1, 1, n_rep, 1)"),
    "the norm's input in the residual": (
        "h + self.feed_forward(self.ffn_norm(h))",
        "self.ffn_norm(h) + self.feed_forward(self.ffn_norm(h))",
    ),
}


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    in_this_process(monkeypatch)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("source", "component", "family"), [*BLOCKS[:2], *map(conformance, BLOCKS[2:])])
def test_a_proposed_block_leaves_nothing_open_and_conforms(source: str, component: str, family: str) -> None:
    """On all plain causal cases; a norm and a feed-forward network on every case."""
    proposal = proposed(source)
    assert (proposal.component, proposal.left, proposal.family) == (component, (), family), proposal.text
    plain = PLAIN if family or "attention" in component else ()
    found = judged(proposal, ["float32" if source.startswith(IN_FLOAT32) else "float64"], plain)
    assert found and set().union(*found.values()) == {"pass"}, found
    assert found.keys() == {*plain} or not plain


@pytest.mark.conformance
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_the_block_is_found_by_the_port_of_the_right_one(mistake: str) -> None:
    """The proposal for the correct block also fits the buggy one: names and arguments are the same."""
    text = (MODELS / "meta_llama.py").read_text()
    proposal = proposed_text(text, "TransformerBlock", "meta_llama.py")
    forget()
    Path("meta_llama.py").write_text(changed(text, MISTAKES[mistake]))
    found = judged(proposal, ["float64"], PLAIN)
    assert {name for name, statuses in found.items() if statuses == {"differs"}} >= {"plain_causal", "plain_causal_long"}


def test_two_classes_of_a_file_have_two_ports() -> None:
    Path("my_blocks.py").write_text((MODELS / "meta_llama.py").read_text())
    for name, port in (("RMSNorm", "rms_norm_port.py"), ("FeedForward", "feed_forward_port.py")):
        found = invoke("new-port", "--from", f"my_blocks.py:{name}", "--no-check")
        assert (found.code, Path(port).is_file()) == (0, True), found
        forget()
