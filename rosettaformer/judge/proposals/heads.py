"""Matches what follows the last layer: logits, the pooled token with its classes, a masked-language head."""

from collections.abc import Mapping, Sequence

from .layer_parts import LayerMatching, common
from .parameter_leaves import Leaf
from .parts import Part


class HeadMatching(LayerMatching):
    """Matches heads, too."""

    def __init__(self, leaves: list[Leaf], sizes: Mapping[str, int]) -> None:
        super().__init__(leaves, sizes)
        self.heads: list[Leaf] = []  # the kernel of the logits, if it is not a table

    def _encoder_heads(self, part: Part, pooling: Sequence[Leaf], predicting: Mapping[Leaf, str]) -> None:
        """Matches the heads of an encoder-only model. pooling, predicting: dense layers that could be a pooler, and ones before a norm."""
        self.shown |= {"pooler": bool(pooling), "masked_language_head": bool(predicting), "classes": 0}
        self.shown["model"] = "pool" if pooling else "masked_language_logits" if predicting else ""
        if pooling:
            self._dense(part, "pooler", pooling[0], "d r", "r")
            self._classifier(part)
        for dense, norm in [*predicting.items()][:1]:
            self._masked_language_head(part, dense, norm)

    def _decoder_head(self, part: Part) -> None:
        self.shown["tie_logits"] = not self.heads
        self._logits_at(part, "logits", self.sizes["w"])

    def _logits_at(self, part: Part, path: str, size: int) -> None:
        """Matches the output head; only its bias if its kernel is a table."""
        sizes, self.sizes = self.sizes, {**self.sizes, "v": size, "w": size}
        biases = [leaf for leaf in self.left if self._is_vector(leaf, "v")]
        if self.heads:
            child = Part("logits", path, self.heads[0].parent)
            self._logits(child, self.heads[0])
            part.parts.append(child)
        else:
            self.shown["output_bias"] = bool(biases)
            for bias in biases[:1]:
                child = Part("logits", path, bias.parent)
                self._take(child, "bias", bias, "v", "v")
                part.parts.append(child)
        self.sizes = sizes

    def _norm_of_head(self, dense: Leaf, norms: list[str]) -> str:
        """Returns the norm that follows a dense layer after the last layer, as in a masked-language head; empty if none does."""
        around = dense.parent.rpartition(".")[0]
        if around and not any(self._feeds(leaf) for leaf in self.leaves if leaf.path.startswith(f"{around}.")):
            return next((module for module in norms if module.rpartition(".")[0] == around), "")
        predicts = [leaf for leaf in self.left if leaf.shape == (self.sizes["v"],) or (leaf.first and self.sizes["v"] in leaf.shape)]
        others = [leaf.path for leaf in self.leaves[self.leaves.index(dense) :] if leaf.parent != dense.parent]
        return next((module for module in norms if predicts and others and others[0].startswith(f"{module}.")), "")

    def _dense(self, part: Part, component: str, kernel: Leaf, axes: str, output: str) -> None:
        child = Part(component, component, kernel.parent)
        self._take(child, "kernel", kernel, axes, output)
        if bias := self._bias(kernel, output, 1, ""):
            self._take(child, "bias", bias, output, output)
        part.parts.append(child)

    def _classifier(self, part: Part) -> None:
        """Matches a dense layer from the model width to anything else."""
        width = self.sizes["d"]
        found = [leaf for leaf in self.left if leaf not in self.heads and len(leaf.shape) == 2 and width in leaf.shape]
        biases = {leaf.parent for leaf in self.left if len(leaf.shape) == 1}
        found = [leaf for leaf in found if leaf.first or leaf.parent in biases]
        if len(found) == 1:
            classes = next((size for size in found[0].shape if size != width), width)
            self.shown["classes"], self.sizes = classes, {**self.sizes, "c": classes}
            self._dense(part, "classifier", found[0], "r c", "c")
            self.shown["model"] = "classify"

    def _masked_language_head(self, part: Part, dense: Leaf, norm: str) -> None:
        outputs = [leaf.path for leaf in self.left if leaf in self.heads or leaf.shape == (self.sizes["v"],)]
        native = common([dense.path, f"{norm}.", *outputs])
        child = Part("masked_language_head", "masked_language_head", native)
        self._take(child, "hidden.kernel", dense, "d r", "r")
        if bias := self._bias(dense, "r", 1, ""):
            self._take(child, "hidden.bias", bias, "r", "r")
        self._norm(child, "norm", norm)
        self.shown["tie_logits"] = not self.heads
        self._logits_at(child, "logits", self.sizes["v"])
        part.parts.append(child)
