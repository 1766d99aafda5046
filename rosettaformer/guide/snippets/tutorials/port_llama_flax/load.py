# region config
import json
from pathlib import Path
from types import SimpleNamespace

from flax import nnx
from safetensors import safe_open


def config(folder):
    said = json.loads((Path(folder) / "config.json").read_text())
    rope = said.get("rope_parameters") or said.get("rope_scaling") or {}
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if kind not in ("default", "llama3"):
        raise ValueError(f"rope_type must be default or llama3; got {kind}")
    size = said.get("head_dim") or said["hidden_size"] // said["num_attention_heads"]
    return SimpleNamespace(
        model_width=said["hidden_size"],
        feed_forward_width=said["intermediate_size"],
        decoder_layers=said["num_hidden_layers"],
        heads=said["num_attention_heads"],
        key_value_heads=said.get("num_key_value_heads") or said["num_attention_heads"],
        key_size=size,
        value_size=size,
        target_vocabulary=said["vocab_size"],
        epsilon=said["rms_norm_eps"],
        rotary_base=rope.get("rope_theta") or said.get("rope_theta") or 10000.0,
        rotary_scaling=SimpleNamespace(
            kind="none" if kind == "default" else kind,
            factor=rope.get("factor"),
            original_length=rope.get("original_max_position_embeddings"),
            low_frequency_factor=rope.get("low_freq_factor"),
            high_frequency_factor=rope.get("high_freq_factor"),
        ),
    )


# region tensors
def tensors(folder):
    for shard in sorted(Path(folder).glob("model*.safetensors")):  # one file, or several
        with safe_open(shard, "flax") as file:
            for name in file.keys():
                if not name.endswith("rotary_emb.inv_freq"):  # in old files; not a parameter
                    yield name, file.get_tensor(name)


def path(name):
    name = name.replace("model.layers", "stack.layers").replace("model.norm", "stack.norm")
    *parts, _ = name.removeprefix("model.").split(".")
    own = "scale" if "norm" in parts[-1] else "kernel"
    own = "embedding" if parts[-1] == "embed_tokens" else own
    return (*(int(part) if part.isdigit() else part for part in parts), own)


def filled(build, folder):
    graph, abstract = nnx.split(nnx.eval_shape(build))  # shapes only, no memory
    state = dict(nnx.to_flat_state(abstract))
    missing = {*state}

    def fill(place, tensor):
        variable = state[place]
        assert tensor.shape == variable.shape, place
        state[place] = variable.replace(tensor.astype(variable.dtype))  # in the model's dtype
        missing.discard(place)

    for name, tensor in tensors(folder):
        place = path(name)
        if place[-1] == "kernel":
            tensor = tensor.T.reshape(state[place].shape)  # (h k) d -> d (h k) -> d h k
        fill(place, tensor)
    head, table = ("lm_head", "kernel"), ("embed_tokens", "embedding")
    if missing == {head}:  # tie_word_embeddings: the files have only the table
        fill(head, state[table][...].T)
    assert not missing, missing
    return nnx.merge(graph, nnx.from_flat_state(state))
