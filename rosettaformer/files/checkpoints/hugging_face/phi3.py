"""Phi-3 and Phi-4 (Abdin et al. 2024): Phi3Model, Phi3ForCausalLM and others.

qkv_proj stacks query, key and value; gate_up_proj stacks the gate and the hidden layer.
"""

from ..tables import Part, Row, Table
from . import decoder, rotary, windows
from .family import ONLY, head_sizes

_QUERY_KEY_VALUE = (
    Part("self_attention.query.kernel", "(h k) d"),
    Part("self_attention.key.kernel", "(g k) d"),
    Part("self_attention.value.kernel", "(g e) d"),
)
_LAYER: Table = (
    *decoder.NORMS,
    Row("self_attn.qkv_proj.weight", _QUERY_KEY_VALUE),
    Row("self_attn.o_proj.weight", (Part("self_attention.output.kernel", "d (h e)"),)),
    *decoder.GATE_AND_HIDDEN,
)

FAMILY = decoder.family(
    "Phi-3", "phi3", "Phi3",
    entries=decoder.entries(
        vocab_size=32064, hidden_size=3072, num_hidden_layers=32, num_attention_heads=32, intermediate_size=8192, rms_norm_eps=1e-5,
    ),
    joints=(
        head_sizes("hidden_size", "num_attention_heads", {"head_dim": None}, divides=False),
        rotary.flat(
            10000.0, 4096, partial=1.0, original=4096, types=("default", "longrope"), older=dict.fromkeys(("su", "yarn"), "longrope")
        ),
        windows.everywhere(None),
    ),
    # resid_pdrop applies to the outputs of sub-layers, but not to the embedded tokens
    only={name: value for name, value in ONLY.items() if name != "auto_map"} | {"resid_pdrop": 0.0, "attention_bias": False},
    ignored={
        "embd_pdrop": "the class does not drop embedded tokens",
        "auto_map": "published folders name custom code for the same model",
    },
    without=("ForQuestionAnswering",),
    table=decoder.table(*_LAYER),
)  # fmt: skip
