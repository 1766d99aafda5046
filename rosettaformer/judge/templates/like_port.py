"""A port of a whole model: `load(folder)` returns a checkpoint's function from ids to logits.

    rosettaformer check my_port.py --like FAMILY       runs prompts of all kinds, and decoding
    rosettaformer diagnose my_port.py --like FAMILY    names the bug and says where the error begins

`--like FAMILY` generates a checkpoint with random weights, stored in the dtype of its config.json;
`--like DIR` uses your own. Replace the transformers model below with your own. Leave out the
functions that your port lacks: their cases are reported as "not covered", never as passes.
"""

import torch
import transformers

# The dtypes of your model. (transformers computes norms, RoPE angles and softmax in float32.)
dtypes = ("float32", "bfloat16")

# positions = "last"  # your model returns only the last position's logits, b v
# rows = 1            # your model takes one row per call
# masks = False       # your model does not support padding


def load(folder):
    config = transformers.AutoConfig.from_pretrained(folder)
    encoder, segments = not config.architectures[0].endswith(("CausalLM", "LMHeadModel")), hasattr(config, "type_vocab_size")
    kind = getattr(transformers, config.architectures[0])
    model = kind.from_pretrained(folder, dtype="auto", attn_implementation="eager").eval()

    def run(token_bt, mask_bt, segment_bt=None, **options):  # NumPy arrays; mask: True = a real token
        mask_bt = torch.from_numpy(mask_bt)
        position_bt = (mask_bt.cumsum(1) - 1).clamp(min=0)  # counted from the first real token
        own = {} if encoder else {"position_ids": position_bt[:, -token_bt.shape[1] :]}
        own |= {"token_type_ids": torch.from_numpy(segment_bt)} if segments else {}
        return model(torch.from_numpy(token_bt), attention_mask=mask_bt.long(), **own, **options)

    @torch.no_grad()
    def logits(token_bt, mask_bt, segment_bt):
        return run(token_bt, mask_bt, segment_bt).logits

    @torch.no_grad()
    def step(token_bt, mask_bt, cache):  # the next tokens; the mask of all tokens so far
        found = run(token_bt, mask_bt, past_key_values=cache, use_cache=True)
        return found.logits, found.past_key_values

    @torch.no_grad()
    def hidden(token_bt, mask_bt, segment_bt):  # before the first layer and after each layer; the last one after the final norm
        return torch.stack(run(token_bt, mask_bt, segment_bt, output_hidden_states=True).hidden_states)

    def gradients(token_bt, mask_bt, segment_bt, cotangent_btv):  # of sum(cotangent * logits), by the checkpoint's tensor names
        model.zero_grad()
        (run(token_bt, mask_bt, segment_bt).logits * torch.from_numpy(cotangent_btv)).sum().backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}

    routers = [module for module in model.modules() if type(module).__name__.endswith("Router")]

    @torch.no_grad()
    def routed_experts(token_bt, mask_bt, segment_bt):  # ids b t l k of the chosen experts
        found = []
        hooks = [router.register_forward_hook(lambda module, given, result: found.append(result[2])) for router in routers]
        run(token_bt, mask_bt, segment_bt)
        for hook in hooks:
            hook.remove()
        return torch.stack(found, dim=1).reshape(*token_bt.shape, len(routers), -1).numpy()

    logits.hidden, logits.gradients = hidden, gradients
    if routers:
        logits.routed_experts = routed_experts
    if not encoder:
        logits.step = step
    return logits
