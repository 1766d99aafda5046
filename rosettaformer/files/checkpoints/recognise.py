"""Identifies files, folders and tensors that are not canonical checkpoints; runs nothing in them.

Files are recognized by first bytes, zip members and names; architectures by tensor names.
"""

import itertools
import re
import zipfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...common.reading import read_object
from . import CheckpointError, unsupported

CONFIG = "config.json"  # of Hugging Face folders
HEAD, FOOTER = 4096, 8  # bytes read at the start and the end of a file
MOST = 10_000  # tensor names inspected
LEVEL_DB = b"\x57\xfb\x80\x8b\x24\x75\x47\xdb"  # last bytes of a LevelDB table


class Kind(NamedTuple):
    """A description of a file or folder, and advice for its owner.

    lacks_config: whether the family is supported but the config.json is missing or wrong. unread:
    whether the model is known but not supported.
    """

    what: str
    advice: str
    lacks_config: bool = False
    unread: bool = False


class ForeignError(CheckpointError):
    """Raised for another program's checkpoint; the message is one line."""

    def __init__(self, name: str | Path, kind: Kind) -> None:
        self.problems = [f"is {kind.what}; {kind.advice}"]
        ValueError.__init__(self, f"{name} {self.problems[0]}")


CONVERT = "convert it with rosettaformer convert FILE NEW.safetensors --from torch-transformer --to canonical"
_LOAD = "load it in its own framework and write its arrays with rosettaformer.files.checkpoints.save"
_STATE = "load it in PyTorch and save its weights with torch.save(model.state_dict(), FILE)"
_ORIGINAL = "use the model that it was converted from"
_AGAIN = "download or save it again"
_UNPACK = "unpack it and pass the file inside"
_NAME = "save it together with its embeddings, as a submodule named encoder or decoder"
_FOLDER = "convert it with rosettaformer convert FOLDER NEW.safetensors, with its config.json in the folder"
_PORT = "its tensor names are not supported; to check the model's code, start a port with `rosettaformer new-port`"

SAFETENSORS = Kind("a safetensors file", "rename it to .safetensors")
TORCH = Kind("a torch.save file", CONVERT)
_TENSORFLOW = Kind("a TensorFlow checkpoint", _LOAD)
_SAVED_MODEL = Kind("a TensorFlow SavedModel", _LOAD)
_MSGPACK = Kind("a msgpack file, as Flax writes them", _LOAD)
_ONNX = Kind("an ONNX model", _ORIGINAL)
_CTRANSLATE2 = Kind("a CTranslate2 model", _ORIGINAL)

# first bytes -> kind of file; the first match wins
_HEADS: tuple[tuple[bytes, Kind], ...] = (
    (rb"\Z", Kind("empty", _AGAIN)),
    (rb".{6}\0\0\s*\{", SAFETENSORS),
    (rb"version https://git-lfs\.github\.com/spec", Kind("a Git LFS pointer, not the file", "fetch it with git lfs pull")),
    (rb"(?i)(\xef\xbb\xbf)?\s*<(!doctype html|html|head|body|\?xml)", Kind("a web page", "download the file instead of its web page")),
    (rb"\x80.\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19\.", TORCH),  # the magic number of PyTorch before 1.6
    (rb"\x80[\2-\5]", Kind("a Python pickle that torch.save did not write", _LOAD)),
    (rb"\x89HDF\r\n\x1a\n", Kind("an HDF5 file, as Keras writes them", _LOAD)),
    (rb"\x93NUMPY", Kind("a single NumPy array", _LOAD)),
    (rb"GGUF", Kind("a GGUF file for llama.cpp", _ORIGINAL)),
    (rb".{4}TFL3", Kind("a TensorFlow Lite model", _ORIGINAL)),
    (rb".\0\0\0..\w+Spec\0", _CTRANSLATE2),
    (rb"\x08[\1-\x20](\x12.(pytorch|tf2onnx|[\w.-]*onnx)|\x3a.{1,9}\n)", _ONNX),
    (rb"model_checkpoint_path:", _TENSORFLOW),
    (rb"([\x81-\x8f]|\xde..|\xdf....)([\xa1-\xbf]|\xd9.)\w{2}", _MSGPACK),
    (rb"\x1f\x8b|BZh|\xfd7zXZ|\x28\xb5\x2f\xfd|7z\xbc\xaf|Rar!|.{257}ustar", Kind("an archive", _UNPACK)),
)
# zip members -> kind of archive
_MEMBERS: tuple[tuple[str, Kind], ...] = (
    (r"(.*/)?constants\.pkl", Kind("a TorchScript archive (torch.jit.save)", _STATE)),
    (r"(.*/)?data\.pkl", TORCH),
    (r"(.*/)?archive_format", Kind("a torch.export program", _STATE)),
    (r"model\.weights\.h5", Kind("a Keras model (.keras)", _LOAD)),
    (r".*\.npy", Kind("a NumPy archive (.npz)", "write its arrays with rosettaformer.files.checkpoints.save")),
    (r".*", Kind("a zip archive", _UNPACK)),
)
# file name -> kind, for files without telling first bytes
_NAMES: tuple[tuple[str, Kind], ...] = (
    (r".*\.data-\d{5}-of-\d{5}", _TENSORFLOW),
    (r"saved_model\.pb(txt)?", _SAVED_MODEL),
    (r".*\.onnx", _ONNX),
    (r".*\.msgpack", _MSGPACK),
)
# file in a folder -> kind of folder
_FOLDERS: tuple[tuple[str, Kind], ...] = (
    (r"saved_model\.pb(txt)?", _SAVED_MODEL),
    (r"_CHECKPOINT_METADATA|_METADATA|manifest\.ocdbt", Kind("an Orbax checkpoint", _LOAD)),
    (r"checkpoint|.*\.data-\d{5}-of-\d{5}", _TENSORFLOW),
    (r".*\.distcp", Kind("a distributed PyTorch checkpoint", "merge it with torch.distributed.checkpoint.format_utils")),
    (r"model\.bin", _CTRANSLATE2),
    (r"adapter_config\.json", Kind("a PEFT adapter, not a model", "merge it into its base model and save the result")),
)
_TORCH_FILE = r".*\.(pt|pth|ckpt)|pytorch_model.*\.bin"

NATIVE = r"(.*\.)?(en|de)coder\.layers\.\d+\.(self_attn|multihead_attn)\.in_proj_weight"  # of torch.nn.Transformer
_BART_LAYER = r"(.*\.)?decoder\.layers\.\d+\.encoder_attn\.k_proj\.weight"
_EMBEDDING_NORM = r"(.*\.)?encoder\.layernorm_embedding\.weight"
_LAST_NORM = r"(.*\.)?encoder\.layer_norm\.weight"

# descriptions in _FAMILIES of supported models
_READ = r"Hugging Face (BERT|GPT-2|GPT-Neo|Llama|RoBERTa|DistilBERT|OPT|m?BART|Pegasus|Marian)\b(?!X)"
# description, patterns that must each match some tensor name; the first match wins
_FAMILIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("a Hugging Face RoBERTa", (r"(.*\.)?roberta\.encoder\.layer\.\d+\.attention\.self\.query\.weight",)),
    ("a Hugging Face DistilBERT", (r"(.*\.)?transformer\.layer\.\d+\.attention\.q_lin\.weight",)),
    ("a Hugging Face ALBERT", (r"(.*\.)?albert_layer_groups\..*",)),
    ("a Hugging Face BERT", (r"(.*\.)?bert\.encoder\.layer\.\d+\.attention\.self\.query\.weight",)),
    ("a Hugging Face GPT-Neo", (r"(.*\.)?h\.\d+\.attn\.attention\.k_proj\.weight",)),
    ("a Hugging Face BERT or similar", (r"(.*\.)?encoder\.layer\.\d+\.attention\.self\.query\.weight",)),
    ("a Hugging Face GPT-2 or similar", (r"(.*\.)?h\.\d+\.attn\.c_attn\.weight",)),
    ("a Hugging Face GPT-NeoX", (r"(.*\.)?layers\.\d+\.attention\.query_key_value\.weight",)),
    ("a Hugging Face T5", (r"(.*\.)?block\.\d+\.layer\.\d+\.SelfAttention\.q\.weight",)),
    ("a Hugging Face Whisper", (r"(.*\.)?encoder\.conv1\.weight", _BART_LAYER)),
    ("a Hugging Face mBART", (_EMBEDDING_NORM, _LAST_NORM, _BART_LAYER)),
    ("a Hugging Face BART", (r"(.*\.)?shared\.weight", _EMBEDDING_NORM, _BART_LAYER)),
    ("a fairseq Transformer", (r"decoder\.(output_projection\.weight|version)", _BART_LAYER)),
    ("a Hugging Face Pegasus or similar", (_LAST_NORM, _BART_LAYER)),
    ("a Hugging Face Marian or similar", (_BART_LAYER,)),
    ("a Hugging Face OPT", (r"(.*\.)?decoder\.layers\.\d+\.self_attn\.k_proj\.weight", r"(.*\.)?decoder\.embed_positions\.weight")),
    ("a Hugging Face Llama or similar", (r"(.*\.)?layers\.\d+\.mlp\.(gate|gate_up)_proj\.weight",)),
    ("a Llama in Meta's format", (r"layers\.\d+\.attention\.wq\.weight",)),
    ("an OpenNMT Transformer", (r"(.*\.)?transformer(_layers)?\.\d+\.self_attn\.linear_keys\.weight",)),
    ("an Annotated Transformer", (r"(.*\.)?encoder\.layers\.\d+\.self_attn\.linears\.\d+\.weight",)),
)
# pattern that must match some tensor name -> kind
_OTHER: tuple[tuple[str, Kind], ...] = (
    (NATIVE, Kind("a state dict of torch.nn.Transformer", CONVERT)),
    (r"layers\.\d+\.self_attn\.in_proj_weight", Kind("a state dict of only torch.nn.TransformerEncoder or TransformerDecoder", _NAME)),
)


def kind_of(path: Path) -> Kind | None:
    """Identifies a file; None if it is unknown. Raises OSError if it cannot be read."""
    with path.open("rb") as file:
        head = file.read(HEAD)
        file.seek(max(0, file.seek(0, 2) - FOOTER))
        footer = file.read(FOOTER)
    if head.startswith((b"PK\3\4", b"PK\5\6")):
        return _archive(path)
    found = next((kind for pattern, kind in _HEADS if re.match(pattern, head, re.DOTALL)), None)
    return found or (_TENSORFLOW if footer == LEVEL_DB else _first(_NAMES, [path.name]))


def refuse(path: Path) -> None:
    """Raises ForeignError if the file is known and not safetensors."""
    kind = kind_of(path)
    if kind is not None and kind is not SAFETENSORS:
        raise ForeignError(path, kind)


def refuse_folder(folder: Path) -> None:
    """Raises ForeignError if a folder without safetensors is another program's checkpoint."""
    names = sorted(entry.name for entry in folder.iterdir())
    if (found := model_type(folder)) and supported(hugging_face_config(folder)):
        what = f"a Hugging Face folder of a {found!r} model without safetensors"
        raise ForeignError(folder, Kind(what, "load it with transformers, then write them with model.save_pretrained(DIR)"))
    if torch := [name for name in names if re.fullmatch(_TORCH_FILE, name)]:
        if found:
            raise ForeignError(folder, unread(found, folder))
        count = "a torch.save file" if len(torch) == 1 else f"{len(torch)} torch.save files"
        raise ForeignError(folder, Kind(f"a folder with {count}", f"pass the file itself: {', '.join(torch[:5])}"))
    kind = _first(_FOLDERS, names)
    if kind is None and found:
        what = f"a Hugging Face folder of a {found!r} model without safetensors"
        kind = Kind(what, unsupported.reason(found, hugging_face_config(folder), folder))
    if kind:
        raise ForeignError(folder, kind)


def describe(names: Iterable[str], path: str | Path) -> Kind | None:
    """Identifies the model from its tensor names; None if it is unknown.

    path: the file or folder of the tensors; a Hugging Face config.json there takes precedence.
    """
    names = list(itertools.islice(names, MOST))
    for pattern, kind in _OTHER:
        if example := _fitting(pattern, names):
            return Kind(f"{kind.what} ({example}, ...)", kind.advice)
    typed = model_type(Path(path))
    if typed and not supported(hugging_face_config(Path(path))):
        return unread(typed, Path(path), names)
    for what, patterns in _FAMILIES:
        examples = [_fitting(pattern, names) for pattern in patterns]
        if all(examples):
            named = f"a Hugging Face model of type {typed!r}" if typed else what
            whole = f"{named} ({examples[-1]}, ...)"
            if typed or re.search(_READ, what):
                why = flaw(Path(path))
                return Kind(whole, f"{why}; {_FOLDER}" if why else _FOLDER, bool(why))
            family = re.search(r"Hugging Face ([\w-]+)", what)
            advice = unsupported.reason(family[1].lower().replace("-", "_"), {}) if family else _PORT
            return Kind(whole, advice, unread=True)
    return Kind(f"a Hugging Face model of type {typed!r} ({', '.join(names[:1])}, ...)", _FOLDER) if typed else None


def unread(model_type: str, place: Path, names: Sequence[str] = ()) -> Kind:
    """Describes a folder of an unsupported family, with the name of one of its tensors."""
    example = f" ({names[0]}, ...)" if names else ""
    what = f"a Hugging Face model of type {model_type!r}{example}"
    return Kind(what, unsupported.reason(model_type, hugging_face_config(place), place), unread=True)


def converted() -> Collection[str]:
    """Returns the model_type values that can be read."""
    from .hugging_face.composite import FAMILIES, TEXTS  # whose package imports this module

    return (*FAMILIES, *TEXTS)


def supported(entries: Mapping[str, Any]) -> bool:
    """Whether the model_type of a config.json, or of its text model, is supported."""
    from .hugging_face.composite import FAMILIES, family_of

    return entries.get("model_type") in FAMILIES or family_of(entries) is not None


def refuse_tensors(names: Iterable[str], path: str | Path) -> None:
    """Raises ForeignError if the tensor names belong to a known model."""
    if kind := describe(names, path):
        raise ForeignError(path, kind)


def model_type(place: Path) -> str | None:
    """Returns the model_type in the config.json of a folder or of a file's folder, or None."""
    try:
        found = hugging_face_config(place).get("model_type")
    except (OSError, ValueError):
        return None
    return found if isinstance(found, str) and re.fullmatch(r"[\w.-]{1,40}", found) else None


def hugging_face_config(place: Path) -> dict[str, Any]:
    """Reads the config.json of a folder or of a file's folder. May raise ValueError."""
    return read_object((place if place.is_dir() else place.parent) / CONFIG)


def flaw(place: Path) -> str:
    """Returns why config.json does not describe a supported model; empty if it does."""
    try:
        found = hugging_face_config(place).get("model_type")
    except (OSError, ValueError) as error:
        return str(error)
    path = (place if place.is_dir() else place.parent) / CONFIG
    wanted = ", ".join(converted())
    return "" if found in converted() else f"{path} must have a supported model_type, one of {wanted}; got {found!r:.100}"


def _archive(path: Path) -> Kind:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError):
        return Kind("a damaged zip archive, as torch.save and NumPy write them", _AGAIN)
    return _first(_MEMBERS, names) or Kind("an empty zip archive", _AGAIN)


def _first(table: Iterable[tuple[str, Kind]], names: Sequence[str]) -> Kind | None:
    """Returns the kind of the first row that matches a name."""
    return next((kind for pattern, kind in table if _fitting(pattern, names) is not None), None)


def _fitting(pattern: str, names: Iterable[str]) -> str | None:
    """Returns the first matching name."""
    return next((name for name in names if re.fullmatch(pattern, name)), None)
