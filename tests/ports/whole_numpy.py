"""A port of a whole model: the reference itself, with every optional attribute of a port."""

from reference_numpy import encoder_only, states, transformer
from reference_numpy.cache import decode_step, start_cache
from reference_numpy.parameters import flatten, nest
from reference_numpy.values import Text
from rosettaformer.files.checkpoints import load as read
from rosettaformer.files.checkpoints import tables
from rosettaformer.files.checkpoints.hugging_face import FAMILIES


def _of_both(values, config, family):
    """Returns the function of an encoder-decoder."""

    def sides(source_bs, target_bt, source_mask_bs, target_mask_bt):
        return Text(source_bs, source_mask_bs), Text(target_bt, target_mask_bt)

    def logits(source_bs, target_bt, source_mask_bs, target_mask_bt):
        return transformer.transformer(values, config, *sides(source_bs, target_bt, source_mask_bs, target_mask_bt))

    def step(source_bs, target_bt, source_mask_bs, target_mask_bt, cache):
        if cache is None:
            memory_bsd = transformer.encode(values, config, Text(source_bs, source_mask_bs))
            cache = start_cache(values, config, memory_bsd, source_mask_bs)
        return decode_step(values, config, target_bt, cache, target_mask_bt[:, -target_bt.shape[1] :])

    def hidden(*given):
        found = states.states(values, config, *sides(*given))
        return found["encoder"]["hidden_lbtd"], found["decoder"]["hidden_lbtd"]

    def gradients(source_bs, target_bt, source_mask_bs, target_mask_bt, cotangent_btv):
        texts = sides(source_bs, target_bt, source_mask_bs, target_mask_bt)
        own = flatten(transformer.transformer_vjp(values, config, *texts, cotangent=cotangent_btv)["parameters"])
        natives = (native for native in tables.natives(family.rows(config), config) if native.parts[0][0].name in own)
        return {family.stored(native.name, True): tables.merged(native, own) for native in natives}

    logits.step, logits.hidden, logits.gradients = step, hidden, gradients
    return logits


def load(folder, **changes):
    """Returns the function of the folder's model, with other fields of its config."""
    checkpoint = read(folder, "hugging-face")
    config, values = checkpoint.config.replace(**changes), nest(checkpoint.parameters)
    encoder, family = bool(config.encoder_layers), FAMILIES[checkpoint.foreign["config.json"]["model_type"]]

    if config.cross_attention:
        return _of_both(values, config, family)

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
