import json
from pathlib import Path

from flax import nnx
from safetensors import safe_open


def tensors(folder):
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    for name, shard in index["weight_map"].items():
        with safe_open(folder / shard, "flax") as file:
            yield name, file.get_tensor(name)


def path(name):
    name = name.replace("model.layers", "stack.layers").replace("model.norm", "stack.norm")
    *parts, _ = name.removeprefix("model.").split(".")
    own = "scale" if "norm" in parts[-1] else "kernel"
    own = "embedding" if parts[-1] == "embed_tokens" else own
    return (*(int(part) if part.isdigit() else part for part in parts), own)


def filled(build, folder):
    graph, abstract = nnx.split(nnx.eval_shape(build))  # shapes alone, no memory
    state = dict(nnx.to_flat_state(abstract))
    missing = {*state}
    for name, tensor in tensors(Path(folder)):
        variable = state[path(name)]
        if path(name)[-1] == "kernel":
            tensor = tensor.T.reshape(variable.shape)  # (h k) d -> d (h k) -> d h k
        assert tensor.shape == variable.shape, name
        state[path(name)] = variable.replace(tensor)
        missing.remove(path(name))
    assert not missing, missing
    return nnx.merge(graph, nnx.from_flat_state(state))
