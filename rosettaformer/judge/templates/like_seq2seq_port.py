"""A port of an encoder-decoder: `load(folder)` returns a checkpoint's function from ids to logits.

    rosettaformer check my_port.py --like FAMILY       runs prompts of all kinds, and decoding
    rosettaformer diagnose my_port.py --like FAMILY    names the bug and says where the error begins

`--like FAMILY` generates a checkpoint with random weights, stored in the dtype of its config.json;
`--like DIR` uses your own. Replace the transformers model below with your own. Leave out the
functions that your port lacks: their cases are reported as "not covered", never as passes.
"""

import torch
import transformers

# The dtypes of your model.
dtypes = ("float32", "bfloat16")

# positions = "last"  # your model returns only the last position's logits, b v
# rows = 1            # your model takes one row per call
# masks = False       # your model does not support padding


def load(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    kind = getattr(transformers, config.architectures[0])
    model = kind.from_pretrained(folder, dtype="auto", attn_implementation="eager").eval()
    trained = dict(model.named_parameters())
    if hasattr(model, "final_logits_bias"):  # a buffer
        trained["final_logits_bias"] = model.final_logits_bias.requires_grad_()

    def run(source_bs, target_bt, source_mask_bs, target_mask_bt, **options):  # NumPy arrays; masks: True = a real token
        given = {"input_ids": source_bs, "attention_mask": source_mask_bs, "decoder_input_ids": target_bt}
        given |= {"decoder_attention_mask": target_mask_bt}
        return model(**{name: torch.from_numpy(array).long() for name, array in given.items()}, **options)

    @torch.no_grad()
    def logits(source_bs, target_bt, source_mask_bs, target_mask_bt):
        return run(source_bs, target_bt, source_mask_bs, target_mask_bt, use_cache=False).logits

    @torch.no_grad()
    def step(source_bs, target_bt, source_mask_bs, target_mask_bt, cache):  # the next tokens; the mask of all tokens so far
        found = run(source_bs, target_bt, source_mask_bs, target_mask_bt, past_key_values=cache, use_cache=True)
        return found.logits, found.past_key_values

    @torch.no_grad()
    def hidden(source_bs, target_bt, source_mask_bs, target_mask_bt):  # as for a decoder; of the encoder, then of the decoder
        found = run(source_bs, target_bt, source_mask_bs, target_mask_bt, use_cache=False, output_hidden_states=True)
        return torch.stack(found.encoder_hidden_states), torch.stack(found.decoder_hidden_states)

    def gradients(source_bs, target_bt, source_mask_bs, target_mask_bt, cotangent_btv):  # of sum(cotangent * logits)
        found = run(source_bs, target_bt, source_mask_bs, target_mask_bt, use_cache=False)
        total = (found.logits * torch.from_numpy(cotangent_btv)).sum()
        found = torch.autograd.grad(total, list(trained.values()), allow_unused=True)  # positions may be constants
        return {name: gradient for name, gradient in zip(trained, found, strict=True) if gradient is not None}

    logits.step, logits.hidden, logits.gradients = step, hidden, gradients
    return logits
