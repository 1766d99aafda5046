"""The tutorials that write a component from an empty file."""

LLAMA = {"Llama 3 in PyTorch": "port-llama", "Llama 3 in Flax": "port-llama-flax"}
BERT = {"BERT in PyTorch": "port-bert"}
# (title -> tutorial, component -> section that writes it)
SECTIONS: tuple[tuple[dict[str, str], dict[str, str]], ...] = (
    (
        LLAMA,
        {
            "rms_norm": "parts", "feed_forward": "parts", "activation": "parts", "rotary_embedding": "rotation",
            "scaled_dot_product_attention": "attention", "multi_head_attention": "attention", "decoder_layer": "layers",
            "decoder": "layers", "transformer": "model",
            "token_positions": "model", "decode_in_steps": "cache", "greedy_search": "generation",
            "sample": "generation",
        },
    ),
    (
        BERT,
        {
            "layer_norm": "parts", "feed_forward": "parts", "activation": "parts", "multi_head_attention": "attention",
            "encoder_layer": "layers", "encoder": "layers", "padding_mask": "padding", "segment_embedding": "padding",
            "position_embedding": "padding", "pooler": "padding", "pool": "padding", "masked_language_head": "head",
        },
    ),
)  # fmt: skip


def written(component: str) -> list[tuple[str, str]]:
    """Returns the tutorials that write the component: (title, page and section)."""
    return [
        (title, f"tutorials/{file}.html#{sections[component]}")
        for tutorials, sections in SECTIONS
        if component in sections
        for title, file in tutorials.items()
    ]
