"""transformers' encoder-decoders with a bug of published ports, which the environment variable SEQ2SEQ_BUG names."""

import os

import torch
import transformers
from transformers.models.bart import modeling_bart

dtypes = ("float32",)
BUG = os.environ.get("SEQ2SEQ_BUG", "")


def load(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    model = getattr(transformers, config.architectures[0]).from_pretrained(folder, dtype="auto", attn_implementation="eager").eval()
    if BUG == "no reserved rows":
        for stack in (model.model.encoder, model.model.decoder):
            stack.embed_positions.offset = 0
    if BUG == "post-norm":
        for layers, kind in ((model.model.encoder.layers, "BartEncoderLayer"), (model.model.decoder.layers, "BartDecoderLayer")):
            for layer in layers:
                layer.forward = getattr(modeling_bart, kind).forward.__get__(layer)

    @torch.no_grad()
    def logits(source_bs, target_bt, source_mask_bs, target_mask_bt):
        names = "input_ids", "decoder_input_ids", "attention_mask", "decoder_attention_mask"
        arrays = source_bs, target_bt, source_mask_bs, target_mask_bt
        given = {name: torch.from_numpy(array).long() for name, array in zip(names, arrays, strict=True)}
        if BUG == "cross-attention sees padding":
            found = model.get_encoder()(given.pop("input_ids"), attention_mask=given.pop("attention_mask"))
            given["encoder_outputs"] = found
        return model(**given, use_cache=False).logits

    return logits
