"""Matches whole models: stacks, token and position tables, outer norms, and the output head."""

from collections.abc import Callable, Mapping, Sequence

from ...common.modules.words import EMBEDS, IN_PROJECTION
from ..expectation.components import model_of
from .layers import SUBLAYERS, layer, layers_in, norms_in, stack
from .matching import Matching, Part, attention, embedding, feed_forward, logits, norm
from .tensors import Leaf
from .vocabulary import POSITIONS, SEGMENTS, SOURCE, TARGET, role_of, tokens


def matched(component: str, leaves: Sequence[Leaf], sizes: Mapping[str, int]) -> Matching:
    """Returns the match of a component's parameters. sizes: of every letter."""
    work = Matching(model_of(component), leaves, sizes)
    if match := _MATCHED.get(work.root.component):
        match(work, work.root)
    return work


def is_encoder_only(work: Matching) -> bool:
    """Whether unmatched parameters are a segment table or a head's dense layer."""
    segments = [leaf for leaf in work.left if _rows(work, leaf) and _is_of_segments(leaf)]
    dense = [leaf for leaf in work.left if leaf.shape == (work.sizes["d"],) * 2]
    projecting = any(role_of(leaf.path) in IN_PROJECTION for leaf in dense)  # attentions outside layers
    return bool(segments or dense) and not projecting and not work.root.crosses


def _model(work: Matching, part: Part) -> None:
    """Matches an encoder, a decoder, or both, with everything around the layers."""
    layers = layers_in(work, "")
    crossing = [native for native in layers if sum(map(work.projections, work.inside(native))) >= 8]
    decoding = [] if part.component == "token_encoder" else crossing or layers
    stacks = {"encoder": [native for native in layers if native not in decoding], "decoder": decoding}
    for name, natives in stacks.items():
        work.shown[f"{name}_layers"] = len(natives)
        if natives:
            stack(work, part.add(name, name, ""), natives)
    sides = [side for side, natives in zip(("source", "target"), stacks.values(), strict=True) if natives]
    norms = norms_in(work, "")
    head = _tables(work, part, sides)
    _positions(work, part, sides, head)
    _norms(work, part, sides, norms)
    if decoding:
        _head(work, part, head)


def _norms(work: Matching, part: Part, sides: list[str], norms: list[str]) -> None:
    """Matches the norms before each side's first layer and after the last."""
    of_embeddings = [module for module in norms if _is_embedding_norm(work, module)]
    finals = [module for module in norms if module not in of_embeddings]
    stacks = [child for child in part.parts if child.component in ("encoder", "decoder")]
    work.shown["embedding_norm"] = len(of_embeddings) == len(sides)
    work.shown["final_norm"] = len(finals) == len(stacks)
    if work.shown["embedding_norm"]:
        for side, native in zip(sides, _in_order(of_embeddings), strict=True):
            norm(work, part.add("layer_norm", f"{side}_embedding_norm", native))
    if work.shown["final_norm"]:
        for child, native in zip(stacks, _in_order(finals), strict=True):
            norm(work, child.add("layer_norm", "final_norm", native))


def _is_embedding_norm(work: Matching, module: str) -> bool:
    """Whether a norm belongs to the embeddings: by name, or declared before the layers."""
    if EMBEDS & set(tokens(module)):
        return True
    around = module.rpartition(".")[0]
    beside = [leaf for leaf in work.leaves if not around or leaf.path.startswith(f"{around}.")]
    first = next(leaf.path.startswith(f"{module}.") for leaf in beside if leaf.path.startswith(f"{module}.") or work.feeds(leaf))
    return first and any(map(work.feeds, beside))


def _in_order(natives: list[str]) -> list[str]:
    """Returns the two sides, source first."""
    of_target = [native for native in natives if set(tokens(native)) & TARGET]
    return sorted(natives, key=lambda native: native in of_target) if len(of_target) == 1 else natives


def _tables(work: Matching, part: Part, sides: list[str]) -> list[Leaf]:
    """Matches token tables. Returns the output head's kernel, if there is one."""
    source, target, width = work.sizes["v"], work.sizes["w"], work.sizes["d"]
    rows = [leaf for leaf in work.left if leaf.shape in ((source, width), (target, width))]
    turned = [leaf for leaf in work.left if leaf.shape == (width, target) and leaf not in rows]
    heads = turned or [leaf for leaf in rows if leaf.first] or rows[len(sides) :][:1]
    if not turned and source != target:
        heads = [leaf for leaf in heads if target in leaf.shape]
    tables = [leaf for leaf in rows if leaf not in heads[-1:]]
    shared = len(sides) == 2 and len(tables) == 1 and source == target
    for side in sides[:1] if shared else sides:
        size, words = (source, SOURCE) if side == "source" else (target, TARGET)
        found = [leaf for leaf in tables if leaf.shape[0] == size and leaf in work.left]
        hinted = [leaf for leaf in found if set(tokens(leaf.path)) & words]
        for leaf in (hinted or found)[:1]:
            work.take(part.add("embedding", f"{side}_embedding", leaf.parent), "table", leaf, "v d", v=size)
    work.shown["share_embeddings"] = shared
    return heads[-1:]


def _positions(work: Matching, part: Part, sides: list[str], head: list[Leaf]) -> None:
    """Matches position tables by name, otherwise by size."""
    found = [leaf for leaf in work.left if leaf not in head and _rows(work, leaf) and not leaf.first and not _is_of_segments(leaf)]
    named = [leaf for leaf in found if set(tokens(leaf.path)) & POSITIONS or _rows(work, leaf) >= work.sizes["p"]]
    tables = named or found
    if len(sides) == len(tables) == 2 and set(tokens(tables[0].path)) & TARGET:
        tables = tables[::-1]
    lengths = {_rows(work, leaf) for leaf in tables}
    work.shown["positions"] = "learned" if tables else "sinusoidal"
    work.shown["rows"] = lengths.pop() if len(lengths) == 1 else 0
    if len(tables) == len(sides) and work.shown["rows"]:
        for side, leaf in zip(sides, tables, strict=True):
            child = part.add("position_embedding", f"{side}_position_embedding", leaf.parent)
            work.take(child, "table", leaf, "p d", p=work.shown["rows"])


def _rows(work: Matching, leaf: Leaf) -> int:
    """Returns the number of rows of a table as wide as the model; 0 for other tensors."""
    sizes = [size for size in leaf.shape if size != 1]
    return sizes[0] if len(sizes) == 2 and sizes[1] == work.sizes["d"] else 0


def _is_of_segments(leaf: Leaf) -> bool:
    """Whether the last word in the name that refers to segments or positions refers to segments."""
    found = [word for word in tokens(leaf.path) if word in SEGMENTS | POSITIONS]
    return bool(found) and found[-1] in SEGMENTS


def _head(work: Matching, part: Part, head: list[Leaf]) -> None:
    """Matches the output head; only its bias if the kernel is tied."""
    work.shown["tie_logits"] = not head
    if head:
        logits(work, part.add("logits", "logits", head[0].parent), head[0])
        return
    biases = [leaf for leaf in work.left if work.is_vector(leaf, "w")]
    work.shown["output_bias"] = bool(biases)
    for bias in biases[:1]:
        work.take(part.add("logits", "logits", bias.parent), "bias", bias, "v", v=work.sizes["w"])


_MATCHED: dict[str, Callable[[Matching, Part], None]] = {
    "layer_norm": norm,
    "rms_norm": norm,
    "feed_forward": feed_forward,
    "multi_head_attention": attention,
    "logits": logits,
    "embedding": embedding,
    **dict.fromkeys(SUBLAYERS, layer),
    **dict.fromkeys(("encoder", "decoder"), stack),
    **dict.fromkeys(("token_encoder", "token_decoder", "transformer"), _model),
}
