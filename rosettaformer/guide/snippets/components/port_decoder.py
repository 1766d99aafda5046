"""The port file of the plain decoder in PyTorch, computed in float64."""

import inspect

import numpy as np
import plain_decoder
import plain_port
import torch

from rosettaformer.ports import NotCovered

torch.set_default_dtype(torch.float64)
dtypes = ("float64",)
MODEL = {"norm": "rms", "norm_offset": False, "gated_feed_forward": True, "encoder_layers": 0,
         "positions": "rotary", "rotary_layout": "halves", "embedding_norm": False,
         "final_norm": True, **{name: plain_port.LAYER[name] for name in (
             "attention_sinks", "experts", "gate_limit", "hidden_offset", "residual_multiplier",
             "query_key_norm_after_rotation", "query_key_value_clip", "norm_scale")}}  # fmt: skip
COVERED = {
    "rms_norm": {"norm_offset": False},
    "rotary_embedding": {"rotary_layout": "halves"},
    "scaled_dot_product_attention": {},
    "multi_head_attention": MODEL,
    "decoder_layer": MODEL,
    "decoder": MODEL,
    "logits": {},
    "transformer": MODEL | {"embedding_multiplier": 1},
}
WITHOUT = ("source", "keep", "keep_bhts", "bias_bhts", "sink_h", "return_weights", "window", "skip_padding",
           "target_mask_bt")  # fmt: skip


class Port(plain_port.Port):
    """Runs cases with a decoder file whose functions have the reference's names and arguments."""

    def functions(self):
        return dict.fromkeys(COVERED, self._answer)

    def _answer(self, case):
        for field, value in COVERED[case.component].items():
            if getattr(case.config, field) != value:
                raise NotCovered(f"the plain decoder has {field}={value!r}")
        if case.config.parallel:
            raise NotCovered("the plain decoder has no parallel block")
        if any(np.size(value) == 0 for value in case.inputs.values()):
            raise NotCovered("there is nothing to compute")
        given = plain_port._given(case)
        given = {name: value for name, value in given.items() if value is not None}
        if found := [name for name in WITHOUT if name in given and np.size(given[name])]:
            raise NotCovered(f"the plain decoder takes no {', '.join(found)}")
        given = self._defaults(given) | given | {"config": case.config}
        taken = inspect.signature(getattr(self.plain, case.component)).parameters
        arguments = {name: self._converted(given[name]) for name in taken if name in given}
        return self.back(getattr(self.plain, case.component)(**arguments))

    def _defaults(self, given):
        """Returns the arguments of the plain decoder."""
        found = [given[name] for name in ("query_btd", "query_bthk", "x_btd") if name in given]
        if not found:
            return {"layer": 0}
        (queries,) = found
        keys = given.get("memory_bsd", given.get("key_bsgk", queries))
        lengths = queries.shape[1], keys.shape[1]
        mask_bhts = np.ones((1, 1, *lengths), bool) & given.pop("mask_bhts", True)
        if given.pop("causal", False):
            mask_bhts = mask_bhts & self.back(self.plain.causal_mask(*lengths))
        masks = {"mask_bhts": mask_bhts, "self_mask_bhts": mask_bhts}
        return masks | {"layer": 0, "position_bt": np.arange(lengths[0])[None]}


globals().update(Port(plain_decoder, torch.from_numpy).functions())
