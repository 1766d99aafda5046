"""No false alarm about whole models: the library's own models of random configurations conform, and diagnosis has nothing to say."""

from pathlib import Path
from typing import Any

import decoder_folders
import hugging_face_folders
import numpy as np
import pytest
from kinds import conformance
from whole_models import in_this_process, judged

import rosettaformer
from rosettaformer.checkpoints.hugging_face import FAMILIES, new
from rosettaformer.conformance.cases.like import like_cases

TEMPLATE = Path(rosettaformer.__file__).parent / "templates" / "like_port.py"
DTYPES = ("float32", "bfloat16")
LONG, EVERY = ("long", "far"), 10  # beginnings of the names of cases that take long: every tenth model has them


def settings(family: str, seed: int) -> dict[str, Any]:
    """Random entries of config.json of the family, whose models read texts of 20 to 700 tokens at least.

    Widths are those of a model: a norm over few features, or after a feed-forward of few, makes much of one rounding.
    """
    drawn = (decoder_folders if family in decoder_folders.KINDS else hugging_face_folders).drawn(family, seed).settings
    longest = int(np.random.default_rng(seed).integers(20, 700))
    kept = {name: value for name, value in drawn.items() if value is not None and name != "num_labels"}
    names = FAMILIES[family].entry_names()
    learned = "max_positions" in names
    kept.pop("word_embed_proj_dim", None)
    if learned:
        kept[names["model_width"]] *= 8
    hidden = names["feed_forward_width"]
    kept[hidden] = 20 + kept.get(hidden, 20)
    return kept | {names.get("max_positions", "max_position_embeddings"): longest if learned else 64}


@pytest.mark.parametrize("many", [False, pytest.param(True, marks=pytest.mark.evidence)])
@pytest.mark.parametrize("family", [conformance(family) for family in FAMILIES])
def test_random_models_conform(
    family: str, many: bool, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    in_this_process(monkeypatch)
    wrong = {}
    for seed in range(request.config.getoption("--soak") // 8 if many else 1):
        folder = tmp_path / str(seed)
        folder.mkdir()
        dtypes = DTYPES if many else DTYPES[:1]
        for dtype in dtypes:
            new.write(family, folder / dtype, seed=seed, dtype=dtype, settings=settings(family, seed))
        for dtype in dtypes:
            cases = [case for case in like_cases(folder) if dtype in case.dtypes and not (seed % EVERY and case.name.startswith(LONG))]
            for result in judged(TEMPLATE, cases, dtype).values():
                if result.status != "pass":
                    wrong[seed, dtype, result.case] = f"{result.status} {result.excess:.3g} {result.message}"
    assert wrong == {}
