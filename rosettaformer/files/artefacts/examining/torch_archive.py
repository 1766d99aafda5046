"""Examines the members of torch's zip archives (.pt2) before their content is interpreted."""

import io
import re
import zipfile
from pathlib import Path

import torch
from torch.export.pt2_archive import PT2ArchiveReader

VERSION = "0"  # the only archive version of torch
COMPILED = "data/aotinductor/"
PROGRAMS = "models/"


def listing(path: Path) -> dict[str, int]:
    """Lists the members of an archive and their sizes, without the root folder.

    Raises ValueError if it is not a torch.export archive, is damaged, compressed or ambiguous.
    """
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            said = sum(member.file_size for member in members)
            broken = archive.testzip() if said <= size else None
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, OSError) as error:
        raise ValueError(f"{path} is not a torch.export archive, or is damaged: {error}") from None
    if not members or min(member.header_offset for member in members):  # an archive inside this one ends here
        raise ValueError(f"{path} is not a torch.export archive, or is damaged: its table of contents is cut off")
    if broken:
        raise ValueError(f"{path} is a torch.export archive, but is damaged: the checksum of {broken} does not match")
    names = [member.filename for member in members]
    _known(path, names)
    leads_out = re.compile(r"/|.*[\\:]|(.*/)?\.\.(/|$)", re.DOTALL)
    if wrong := next(filter(leads_out.match, names), None):
        raise ValueError(f"the members of {path} must stay inside its folder; got {wrong!r}")
    if wrong := next((name for name in names if names.count(name) > 1), None) if len({*names}) < len(names) else None:
        raise ValueError(f"the members of {path} must have different names; {wrong!r} appears twice")
    if len(roots := {name.partition("/")[0] for name in names}) > 1:
        raise ValueError(f"the members of {path} must be in one folder, as torch writes them; got {', '.join(sorted(roots)[:3])}")
    if said > size:
        raise ValueError(f"the members of {path} must be stored uncompressed; they claim {said} bytes, the file has {size}")
    found = {member.filename.partition("/")[2]: member.file_size for member in members}
    _same(path, found)
    return found


def _known(path: Path, names: list[str]) -> None:
    """Raises ValueError if it is another kind of torch archive."""
    if "serialized_exported_program.json" in names:
        raise ValueError(f"{path} was exported by torch before 2.8; export it again with a newer torch")
    ends = {name.partition("/")[2] for name in names}
    if "archive_format" in ends:
        return
    if "constants.pkl" in ends:
        raise ValueError(f"{path} is not a torch.export program but TorchScript, from torch.jit.save; export it with torch.export")
    if "data.pkl" in ends:
        raise ValueError(f"{path} is not a torch.export program but a pickle from torch.save: weights, or a module with its code")
    raise ValueError(f"{path} is not a torch.export program; it is a zip archive without archive_format")


def _same(path: Path, found: dict[str, int]) -> None:
    """Raises ValueError unless torch's own reader sees the examined members."""
    try:
        reader = PT2ArchiveReader(str(path))
        seen, version = {*reader.get_file_names()}, reader.read_string("archive_version")
    except (RuntimeError, AssertionError, ValueError) as error:
        raise ValueError(f"{path} is not a torch.export archive that torch can read: {first_line(error)}") from None
    if seen != {*found}:
        raise ValueError(f"{path} is ambiguous: torch and Python read different members, {', '.join(sorted(seen ^ {*found})[:3])}")
    if version != VERSION:
        raise ValueError(f"the archive version of {path} must be {VERSION} for torch {torch.__version__}; got {version[:20]!r}")


def only_tensors(path: Path, member: str, content: bytes) -> None:
    """Raises ValueError unless a member is a torch.save file that holds only tensors."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            said = sum(one.file_size for one in archive.infolist())
        if said > len(content):
            raise ValueError(f"{member} in {path} must be stored uncompressed; its members claim {said} bytes, it has {len(content)}")
    except zipfile.BadZipFile:
        raise ValueError(f"{member} in {path} must be tensors from torch.save; it is not a zip archive") from None
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except Exception:  # damaged pickles raise many types; torch's message would advise to run the code
        raise ValueError(f"{member} in {path} must hold only tensors; {_asked(content)}") from None


def _asked(content: bytes) -> str:
    """Explains why the weights-only unpickler rejects a pickle."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content))
    except Exception:  # as above
        names = []
    return f"its pickle asks for {', '.join(names[:3])}, which could run code" if names else "its pickle is damaged or holds other objects"


def first_line(error: BaseException) -> str:
    """Returns the first line of a message, or else the exception's name."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
