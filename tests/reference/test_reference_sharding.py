"""The declaration of meshes: the axis that splits each parameter, from a written table and by invariants."""

import math
from typing import Any

import numpy as np
import pytest

from reference_numpy import parameters, preset
from reference_numpy.presets import PRESETS
from reference_numpy.sharding import OVER_MODEL, Mesh, check, chunks, parts, splits

LLAMA = preset("llama31_8b")


@pytest.mark.parametrize(
    ("text", "mesh"),
    [
        ("data=2,model=4", Mesh(data=2, model=4)),
        ("model=2", Mesh(model=2)),
        ("replicate, data=8", Mesh(data=8, replicate=True)),
    ],
)
def test_a_mesh_is_read_as_it_is_written(text: str, mesh: Mesh) -> None:
    assert Mesh.parse(text) == mesh == Mesh.parse(str(mesh))
    assert mesh.devices == mesh.data * mesh.model


@pytest.mark.parametrize(
    "text", ["", "data", "data=", "data=2,data=3", "data=-1", "data=2;model=2", "rows=2", "data=2.0", "data=²", "data=" + "9" * 9]
)
def test_another_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"data=N,model=N.*got|at"):
        Mesh.parse(text)


def test_a_size_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match=r"model.*1; got 0"):
        Mesh.parse("model=0")


def test_what_a_layer_of_llama_is_split_over() -> None:
    layer = "decoder.layers.0"
    found = splits(LLAMA, Mesh(data=4, model=8))
    assert {name.removeprefix(f"{layer}."): split for name, split in found.items() if name.startswith(layer)} == {
        "self_attention.query.kernel": ("data", "model", None),
        "self_attention.key.kernel": ("data", "model", None),
        "self_attention.value.kernel": ("data", "model", None),
        "self_attention.output.kernel": ("model", None, "data"),
        "self_attention_norm.scale": ("data",),
        "feed_forward.gate.kernel": ("data", "model"),
        "feed_forward.hidden.kernel": ("data", "model"),
        "feed_forward.output.kernel": ("model", "data"),
        "feed_forward_norm.scale": ("data",),
    }
    assert found["target_embedding.table"] == ("model", "data") and found["logits.kernel"] == ("data", "model")


def test_experts_are_split_and_their_routers_are_whole() -> None:
    config = preset("gpt_oss_20b", selection_bias=True, shared_width=6)
    layer = "decoder.layers.0.feed_forward."
    found = {name.removeprefix(layer): split for name, split in splits(config, Mesh(data=4, model=2)).items()}
    expected: dict[str, Any] = {
        "router.kernel": ("data", None),
        "router.bias": ("data",),
        "router.selection_bias": ("data",),
        "experts.gate.kernel": ("model", "data", None),
        "experts.gate.bias": (("model", "data"), None),
        "experts.output.kernel": ("model", None, "data"),
        "experts.output.bias": ("model", "data"),
        "shared.hidden.kernel": ("data", "model"),
        "shared.output.bias": ("data",),
    }
    assert {name: found[name] for name in expected} == expected


def test_groups_that_model_does_not_divide_stay_whole() -> None:
    found = splits(LLAMA, Mesh(model=16))
    assert found["decoder.layers.0.self_attention.key.kernel"] == (None, None, None)
    assert found["decoder.layers.0.self_attention.query.kernel"] == (None, "model", None)


def test_all_axes_that_do_not_divide_are_named_at_once() -> None:
    with pytest.raises(ValueError, match=r"heads.*h=32, model=3.*feed-forward.*f=14336.*g=8"):
        check(LLAMA, Mesh(model=3))
    few = LLAMA.replace(experts=6, experts_per_token=2, expert_width=3, shared_width=5, feed_forward_width=3)
    with pytest.raises(ValueError, match=r"shared.*w=5, model=4; experts.*x=6, model=4"):
        check(few, Mesh(model=4))


@pytest.mark.parametrize(
    "mesh", [Mesh(), Mesh(data=4), Mesh(model=2), Mesh(data=2, model=2), Mesh(data=3, model=2), Mesh(data=4, model=2, replicate=True)]
)
@pytest.mark.parametrize("name", PRESETS)
def test_every_parameter_of_every_preset_has_a_place_for_each_axis(name: str, mesh: Mesh) -> None:
    config = preset(name)
    try:
        found = splits(config, mesh)
    except ValueError:
        assert any(config.sizes[letter] % mesh.model for letter in "hfgx")
        return
    shapes, axes = parameters.shapes(config), parameters.axes(config)
    assert found.keys() == axes.keys()
    for parameter, split in found.items():
        letters = axes[parameter].split()
        assert len(split) == len(letters)
        used: list[Any] = []
        for letter, place, size in zip(letters, split, shapes[parameter], strict=True):
            own = place if isinstance(place, tuple) else (place,) if place else ()
            used += own
            assert "model" not in own or letter in OVER_MODEL
            assert letter == "v" or size % math.prod(mesh.sizes[axis] for axis in own) == 0
        assert len(used) == len({*used}) and ("data" not in used or not mesh.replicate)
        assert parts(split, mesh) == math.prod(mesh.sizes[axis] for axis in used)


@pytest.mark.parametrize(("size", "count"), [(37, 8), (5, 4), (1, 4), (8, 8), (0, 3), (7, 1)])
def test_chunks_cover_an_axis_in_order(size: int, count: int) -> None:
    found = chunks(size, count)
    assert len(found) == count and np.concatenate([np.arange(size)[part] for part in found]).tolist() == list(range(size))
    assert len({part.stop - part.start for part in found if part.stop < size and part.stop > part.start}) <= 1
