# region start
import bert

from rosettaformer.ports import CLASSIC

framework = "torch"
dtypes = ("float64", "float32")

# BERT's choices.
choices = CLASSIC | {
    "decoder_layers": 0, "norm_placement": "post", "final_norm": False, "activation": "gelu_erf",
    "positions": "learned", "position_offset": 0, "position_start": "row", "embedding_norm": True,
    "scale_embedding": False, "tie_logits": True, "output_bias": True, "attention_bias": True,
    "padding_id": None,
}
config = choices | {"max_positions": 11}  # the size used by the cases

components, weights, call = {}, {}, {}

components["layer_norm"] = lambda c, dtype: bert.norm(c)
weights["layer_norm"] = [("scale", "weight", "d"), ("offset", "bias", "d")]
call["layer_norm"] = {"input": "x_btd"}

components["feed_forward"] = lambda c, dtype: bert.FeedForward(c)
weights["feed_forward"] = [
    ("hidden.kernel", "hidden.weight", "f d"),
    ("hidden.bias", "hidden.bias", "f"),
    ("output.kernel", "output.weight", "d f"),
    ("output.bias", "output.bias", "d"),
]
call["feed_forward"] = {"x": "x_btd"}

# region attention
components["self_attention"] = lambda c, dtype: bert.Attention(c)
weights["multi_head_attention"] = [
    ("query.kernel", "query.weight", "(h k) d"),
    ("query.bias", "query.bias", "(h k)"),
    ("key.kernel", "key.weight", "(g k) d"),
    ("key.bias", "key.bias", "(g k)"),
    ("value.kernel", "value.weight", "(g e) d"),
    ("value.bias", "value.bias", "(g e)"),
    ("output.kernel", "output.weight", "d (h e)"),
    ("output.bias", "output.bias", "d"),
]
call["self_attention"] = {"x": "x_btd", "mask": "mask_bhts"}

# region layer
components["encoder_layer"] = lambda c, dtype: bert.Layer(c)
weights["encoder_layer"] = [
    ("self_attention", "attention"),
    ("self_attention_norm", "attention_norm"),
]
call["encoder_layer"] = {"x": "x_btd", "mask": "mask_bhts"}

# region encoder
asked = {"ids": "source", "real": "source_mask_bs", "segments": "segment_bs"}

components["pooler"] = lambda c, dtype: bert.Pooler(c)
weights["pooler"] = [("kernel", "dense.weight", "r d"), ("bias", "dense.bias", "r")]
call["pooler"] = {"x": "x_bsd"}

components["pool"] = lambda c, dtype: bert.Pooled(c)
weights["transformer"] = [
    ("source_embedding.table", "encoder.embeddings.words.weight", "v d"),
    ("source_position_embedding.table", "encoder.embeddings.places.weight", "p d"),
    ("source_segment_embedding.table", "encoder.embeddings.segments.weight", "a d"),
    ("source_embedding_norm", "encoder.embeddings.norm"),
    ("encoder.layers", "encoder.layers"),
    ("masked_language_head", "head"),
]
call["pool"] = asked

# region head
components["masked_language_head"] = lambda c, dtype: bert.Head(c)
weights["masked_language_head"] = [
    ("hidden.kernel", "dense.weight", "r d"),
    ("hidden.bias", "dense.bias", "r"),
    ("logits.kernel", "decoder.weight", "v d"),
    ("logits.bias", "decoder.bias", "v"),
]
call["masked_language_head"] = {"x": "x_bsd"}

components["masked_language_logits"] = lambda c, dtype: bert.MaskedLanguageModel(c)
call["masked_language_logits"] = asked
