"""The words that people's code uses for parts of a Transformer."""

import re

from ...common.modules.words import IN_PROJECTION, PROJECTED

# an attention's projections: canonical axes, and the output axes
ATTENTION = {"query": ("d h k", "h k"), "key": ("d g k", "g k"), "value": ("d g e", "g e"), "output": ("h e d", "d")}
FUSED = {3: IN_PROJECTION, 2: IN_PROJECTION[1:]}  # number of projections in one tensor -> the projections
_ROLES = {
    **PROJECTED,
    "output": {"o", "out", "output", "wo", "bo", "proj", "fc", "dense", "final", "combine", "projection", "unify", "unifyheads", "concat"},
}
CROSS = {"cross", "src", "enc", "encoder", "encdec", "memory", "mem", "inter", "context", "multihead", "crossattn", "crossattention"}
OF_MEMORY = CROSS - {"multihead"} | {"e", "encoding", "kv", "hidden"}  # words in names of arguments for the encoder's output or its mask
SELF = {"self", "selfattn", "selfattention", "masked"}
FEEDS = {"ff", "ffn", "mlp", "feed", "feedforward", "fc", "pff", "pwff"}
GATES, DOWNS = {"gate", "w1", "wi_0"}, {"down", "w2", "wo", "out", "output"}
ROTARY = {"freqs", "cis", "cos", "sin", "rope", "rotary", "rotation"}  # words in names of arguments for rotations
PLACES = {"position", "positions", "pos", "start", "offset"}  # the same for positions, or the first position
POSITIONS = {"pos", "position", "positions", "positional", "wpe", "pe", "posemb", "posembed", "posembedding"}
SEGMENTS = {"segment", "segments", "seg", "type", "types", "tokentype"}
OFFSETS = {"bias", "beta", "b", "offset", "shift"}
SOURCE, TARGET = {"src", "source", "enc", "encoder", "inp", "input"}, {"tgt", "trg", "target", "tar", "dec", "decoder", "out", "output"}


def tokens(path: str) -> list[str]:
    """Returns a path's words and numbers in lower case: `self_attn.W_q` is self, attn, w, q."""
    words = re.sub(r"([a-z])([A-Z])", r"\1 \2", path)
    return [word.lower() for word in re.findall(r"[A-Za-z]+|\d+", words)]


def role_of(path: str) -> str:
    """Returns the projection named by a path's last word that names one; "" if none does."""
    for word in reversed(tokens(path)):
        for role in IN_PROJECTION:
            if word in _ROLES[role]:
                return role
    return "output" if set(tokens(path)) & _ROLES["output"] else ""


def within(path: str, native: str) -> str:
    """Returns a path relative to a submodule; "" for the submodule itself."""
    return "" if path == native else path.removeprefix(f"{native}.") if native else path
