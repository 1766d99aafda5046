"""A port of a whole model: `load(folder)` returns a function from tokens to logits.

    rosettaformer check my_port.py --like FAMILY       runs prompts through it: short and long, padded, in batches, in steps
    rosettaformer diagnose my_port.py --like FAMILY    says what is wrong with it, and where the error begins

The folder is as Hugging Face writes it, with random weights in the dtype that its config.json says; `--like DIR` takes one of your own.
Put your own model in place of transformers' here. What your port does not give, leave out: it is "not covered", never passed.
"""

import torch
import transformers

# The dtypes in which your model computes. transformers computes norms, angles and the softmax in float32, whatever the dtype is.
dtypes = ("float32", "bfloat16")

# positions = "last"  # logits of the last position alone, b v
# rows = 1            # one row at a time
# masks = False       # no padding


def load(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    encoder, segments = not config.architectures[0].endswith(("CausalLM", "LMHeadModel")), hasattr(config, "type_vocab_size")
    kind = getattr(transformers, config.architectures[0])
    model = kind.from_pretrained(folder, dtype="auto", attn_implementation="eager").eval()

    def run(token_bt, mask_bt, segment_bt=None, **options):  # NumPy arrays; True = a real token
        mask_bt = torch.from_numpy(mask_bt)
        position_bt = (mask_bt.cumsum(1) - 1).clamp(min=0)  # positions are counted from the first real token
        own = {} if encoder else {"position_ids": position_bt[:, -token_bt.shape[1] :]}
        own |= {"token_type_ids": torch.from_numpy(segment_bt)} if segments else {}
        return model(torch.from_numpy(token_bt), attention_mask=mask_bt.long(), **own, **options)

    @torch.no_grad()
    def logits(token_bt, mask_bt, segment_bt):
        return run(token_bt, mask_bt, segment_bt).logits

    @torch.no_grad()
    def step(token_bt, mask_bt, cache):  # the next tokens; the mask of everything so far
        found = run(token_bt, mask_bt, past_key_values=cache, use_cache=True)
        return found.logits, found.past_key_values

    @torch.no_grad()
    def hidden(token_bt, mask_bt, segment_bt):  # before the first layer and after every one, the last after the final norm
        return torch.stack(run(token_bt, mask_bt, segment_bt, output_hidden_states=True).hidden_states)

    def gradients(token_bt, mask_bt, segment_bt, cotangent_btv):  # of sum(cotangent * logits), by the folder's names
        model.zero_grad()
        (run(token_bt, mask_bt, segment_bt).logits * torch.from_numpy(cotangent_btv)).sum().backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}

    logits.hidden, logits.gradients = hidden, gradients
    if not encoder:
        logits.step = step
    return logits
