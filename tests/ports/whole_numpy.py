"""A port of a whole model: the reference itself, with every optional attribute of a port."""

from reference_numpy import encoder_only, states, transformer
from reference_numpy.cache import decode_step, start_cache
from reference_numpy.parameters import flatten, nest
from reference_numpy.values import Text
from rosettaformer.files.checkpoints import load as read
from rosettaformer.files.checkpoints import tables
from rosettaformer.files.checkpoints.hugging_face import FAMILIES


def load(folder, **changes):
    """Returns the function of the folder's model, with other fields of its config."""
    checkpoint = read(folder, "hugging-face")
    config, values = checkpoint.config.replace(**changes), nest(checkpoint.parameters)
    encoder, family = bool(config.encoder_layers), FAMILIES[checkpoint.foreign["config.json"]["model_type"]]

    def text(token_bt, mask_bt, segment_bt):
        return Text(token_bt, mask_bt, segment_bt if config.segments else None)

    def logits(token_bt, mask_bt, segment_bt=None):
        if encoder:
            head = encoder_only.classify if config.classes else encoder_only.masked_language_logits
            return head(values, config, text(token_bt, mask_bt, segment_bt))
        return transformer.transformer(values, config, None, Text(token_bt, mask_bt))

    def step(token_bt, mask_bt, cache):
        cache = start_cache(values, config, None, batch=len(token_bt)) if cache is None else cache
        return decode_step(values, config, token_bt, cache, mask_bt[:, -token_bt.shape[1] :])

    def hidden(token_bt, mask_bt, segment_bt=None):
        given = {"source": text(token_bt, mask_bt, segment_bt)} if encoder else {"target": Text(token_bt, mask_bt)}
        return next(value for name, value in flatten(states.states(values, config, **given)).items() if name.endswith("hidden_lbtd"))

    def gradients(token_bt, mask_bt, segment_bt, cotangent_btv):
        if encoder:
            head = encoder_only.classify_vjp if config.classes else encoder_only.masked_language_logits_vjp
            found = head(values, config, text(token_bt, mask_bt, segment_bt), cotangent=cotangent_btv)
        else:
            found = transformer.transformer_vjp(values, config, None, Text(token_bt, mask_bt), cotangent=cotangent_btv)
        own = flatten(found["parameters"])
        natives = (native for native in tables.natives(family.rows(config), config) if native.parts[0][0].name in own)
        return {family.stored(native.name, True): tables.merged(native, own) for native in natives}

    logits.hidden, logits.gradients = hidden, gradients
    if not encoder:
        logits.step = step
    return logits
