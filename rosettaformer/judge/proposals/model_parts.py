"""Matches parameters to canonical ones, by names, by shapes and by structure; of whole models their stacks,
the tables of tokens, positions and segments, and the norms around the layers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...common.modules.words import EMBEDS
from ..expectation.components import model_of
from .heads import HeadMatching
from .layer_parts import natural
from .parameter_leaves import Leaf
from .parts import Part
from .vocabulary import POSITIONS, SEGMENTS, SOURCE, TARGET, tokens


@dataclass
class Match:
    """A model's parts; what has no counterpart; what its tensors show: fields of the config, and `model`, its
    component; and output biases of attentions whose other projections have none.
    """

    root: Part
    rest: list[Leaf]
    shown: dict[str, Any]
    unpaired: list[Leaf]


def matched(component: str, leaves: Sequence[Leaf], sizes: Mapping[str, int]) -> Match:
    """Returns the meaning of each parameter of a component's module. sizes: of every letter but v, and `v`
    and `w` of the source's and the target's vocabulary.
    """
    work = ModelMatching(list(leaves), sizes)
    root = Part(model_of(component), "", "")
    getattr(work, f"_{root.component}", lambda part: None)(root)
    return Match(root, work.left, work.shown, work.unpaired)


class ModelMatching(HeadMatching):
    """Matches whole models, too."""

    def _transformer(self, part: Part) -> None:
        layers = self._layers("")
        crossing = [native for native in layers if sum(map(self._units, self._inside(native))) >= 8]
        if not crossing:
            self._single(part, layers)
            return
        for side, natives in (("encoder", [native for native in layers if native not in crossing]), ("decoder", crossing)):
            self._side(part, side, natives)
        sides = ["source", "target"] if len(part.parts) == 2 else ["target"]
        self._around(part, sides, self._norm_modules(""))
        self._decoder_head(part)
        self.shown["model"] = "transformer"

    def _token_encoder(self, part: Part) -> None:
        self._side(part, "encoder", self._layers(""))
        self._around(part, ["source"], self._norm_modules(""))
        self.shown["model"] = "token_encoder"

    def _token_decoder(self, part: Part) -> None:
        self._side(part, "decoder", self._layers(""))
        self._around(part, ["target"], self._norm_modules(""))
        self._decoder_head(part)
        self.shown |= {"encoder_layers": 0, "model": "token_decoder"}

    def _single(self, part: Part, layers: list[str]) -> None:
        """Matches an encoder-only model, if a part of its heads follows the layers, or a decoder-only model."""
        inner = [leaf for native in layers for leaf in self._inside(native)]
        square = [leaf for leaf in self.left if leaf not in inner and leaf.shape == (self.sizes["d"],) * 2]
        segmented = any(self._rows(leaf) and self._is_named(leaf, SEGMENTS, POSITIONS) for leaf in self.left)
        side, embedded = ("encoder", "source") if square or segmented else ("decoder", "target")
        self._side(part, side, layers)
        self.shown.setdefault("encoder_layers", 0)
        self.shown.setdefault("decoder_layers", 0)
        norms = self._norm_modules("")
        of_head = {leaf: norm for leaf in square if (norm := self._norm_of_head(leaf, norms))}
        self._around(part, [embedded], [module for module in norms if module not in of_head.values()])
        if side == "decoder":
            self._decoder_head(part)
            self.shown["model"] = "transformer"
        else:
            self._encoder_heads(part, [leaf for leaf in square if leaf not in of_head], of_head)

    def _side(self, part: Part, side: str, natives: list[str]) -> None:
        """Matches a stack, if it has layers."""
        if natives:
            child = Part(side, side, "")
            self._stack(child, sorted(natives, key=natural), f"{side}_layer", norms=False)
            part.parts.append(child)

    def _around(self, part: Part, sides: list[str], norms: list[str]) -> None:
        """Matches what comes before the first layer on each side, and the norms after the last."""
        self._tables(part, sides)
        self._further_tables(part, sides)
        embedding = [module for module in norms if self._is_embedding_norm(module)]
        finals = [module for module in norms if module not in embedding]
        self.shown["embedding_norm"] = len(embedding) == len(sides)
        if self.shown["embedding_norm"]:
            for side, native in zip(sides, self._in_order(embedding), strict=True):
                self._norm(part, f"{side}_embedding_norm", native)
        stacks = [child for child in part.parts if child.component in ("encoder", "decoder")]
        self.shown["final_norm"] = len(finals) == len(stacks)
        if self.shown["final_norm"]:
            for stack, native in zip(stacks, self._in_order(finals), strict=True):
                self._norm(stack, "final_norm", native)

    def _is_embedding_norm(self, module: str) -> bool:
        """Whether a norm belongs to the embeddings: by its name, or because it is declared before the layers of the same module."""
        if EMBEDS & set(tokens(module)):
            return True
        around = module.rpartition(".")[0]
        paths = [leaf.path for leaf in self.leaves if not around or leaf.path.startswith(f"{around}.")]
        feeding = [leaf.path for leaf in self.leaves if self._feeds(leaf) and leaf.path in paths]
        own = next(path for path in paths if path.startswith(f"{module}."))
        return bool(feeding) and paths.index(own) < paths.index(feeding[0])

    def _in_order(self, natives: list[str]) -> list[str]:
        """Returns the sides, source before target."""
        of_target = [native for native in natives if set(tokens(native)) & TARGET]
        return [native for native in natives if native not in of_target] + of_target if len(of_target) == 1 else natives

    # tables

    def _tables(self, part: Part, sides: list[str]) -> None:
        """Matches tables of tokens; any further tensor of their shapes is an output head."""
        two = len(sides) == 2
        source, target = self.sizes["v"], self.sizes["w"]
        rows = [leaf for leaf in self.left if leaf.shape in ((source, self.sizes["d"]), (target, self.sizes["d"]))]
        turned = [leaf for leaf in self.left if leaf.shape == (self.sizes["d"], target) and leaf not in rows]
        heads = turned or [leaf for leaf in rows if leaf.first] or rows[2 if two else 1 :][:1]
        if not turned and source != target:
            heads = [leaf for leaf in heads if target in leaf.shape]
        tables = [leaf for leaf in rows if leaf not in heads[-1:]]
        self.heads = heads[-1:]
        self.shown["share_embeddings"] = two and len(tables) == 1 and source == target
        for side in sides:
            found = [leaf for leaf in tables if leaf.shape[0] == (source if side == "source" else target) and leaf in self.left]
            hinted = [leaf for leaf in found if set(tokens(leaf.path)) & (SOURCE if side == "source" else TARGET)]
            if found and not (self.shown["share_embeddings"] and side == "target"):
                self._table(part, "embedding", f"{side}_embedding", (hinted or found)[0], "v d")

    def _further_tables(self, part: Part, sides: list[str]) -> None:
        """Matches tables of positions and segments: by their names and, if these do not tell, by their sizes."""
        found = [leaf for leaf in self.left if leaf not in self.heads and self._rows(leaf) and not leaf.first]
        of_segments = [leaf for leaf in found if self._is_named(leaf, SEGMENTS, POSITIONS) or self._rows(leaf) == self.sizes["a"]]
        positions = [leaf for leaf in found if leaf not in of_segments]
        named = [leaf for leaf in positions if self._is_named(leaf, POSITIONS, SEGMENTS) or self._rows(leaf) >= self.sizes["p"]]
        positions = self._by_side(named or positions, sides)
        lengths = {self._rows(leaf) for leaf in positions}
        self.shown["positions"] = "learned" if positions else "sinusoidal"
        self.shown["rows"] = lengths.pop() if len(lengths) == 1 else 0
        if len(positions) == len(sides) and self.shown["rows"]:
            for side, leaf in zip(sides, positions, strict=True):
                self._table(part, "position_embedding", f"{side}_position_embedding", leaf, "p d")
        self.shown["segments"] = 0
        if len(of_segments) == 1 and "source" in sides:
            self.shown["segments"] = self._rows(of_segments[0])
            self._table(part, "segment_embedding", "source_segment_embedding", of_segments[0], "a d")

    def _rows(self, leaf: Leaf) -> int:
        """Returns the number of rows of a table of vectors of the model width, which may have axes of size 1; 0 if it is not one."""
        sizes = [size for size in leaf.shape if size != 1]
        return sizes[0] if len(leaf.shape) > 1 and len(sizes) == 2 and sizes[1] == self.sizes["d"] else 0

    def _is_named(self, leaf: Leaf, words: set[str], others: set[str]) -> bool:
        found = [word for word in tokens(leaf.path) if word in words | others]
        return bool(found) and found[-1] in words

    def _by_side(self, tables: list[Leaf], sides: list[str]) -> list[Leaf]:
        turned = len(sides) == len(tables) == 2 and set(tokens(tables[0].path)) & TARGET
        return tables[::-1] if turned else tables

    def _table(self, part: Part, component: str, path: str, leaf: Leaf, axes: str) -> None:
        sizes = self.sizes
        vocabulary = sizes["v" if path.startswith("source") else "w"]
        self.sizes = {**sizes, "v": vocabulary, axes[0]: self._rows(leaf)}
        child = Part(component, path, leaf.parent)
        self._take(child, "table", leaf, axes, axes)
        part.parts.append(child)
        self.sizes = sizes
