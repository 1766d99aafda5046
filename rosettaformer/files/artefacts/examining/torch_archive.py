"""The zip archives of torch (.pt2): their members, before a byte of them is interpreted."""

import io
import re
import zipfile
from pathlib import Path

import torch
from torch.export.pt2_archive import PT2ArchiveReader

VERSION = "0"  # of the archive, of which torch knows one
COMPILED = "data/aotinductor/"
PROGRAMS = "models/"


def listing(path: Path) -> dict[str, int]:
    """Returns the members of an archive and their sizes, without the folder that holds them all.

    Raises ValueError if it is no archive of torch.export: damaged, of another kind, larger than its file, or other
    for torch than it is here.
    """
    size = path.stat().st_size
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            said = sum(member.file_size for member in members)
            broken = archive.testzip() if said <= size else None
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, OSError) as error:
        raise ValueError(f"{path} must be a zip archive of torch.export, and is damaged or none: {error}") from None
    if not members or min(member.header_offset for member in members):  # then it is one of the archives inside this one that ends here
        raise ValueError(f"{path} must be a zip archive of torch.export, and is damaged or none: its table of contents is cut off")
    if broken:
        raise ValueError(f"{path} must be a zip archive of torch.export, and is damaged: the checksum of {broken} is of other bytes")
    names = [member.filename for member in members]
    _known(path, names)
    leads_out = re.compile(r"/|.*[\\:]|(.*/)?\.\.(/|$)", re.DOTALL)
    if wrong := next(filter(leads_out.match, names), None):
        raise ValueError(f"the members of {path} must lie in its own folder; got {wrong!r}")
    if wrong := next((name for name in names if names.count(name) > 1), None) if len({*names}) < len(names) else None:
        raise ValueError(f"the members of {path} must have names of their own; {wrong!r} is there twice")
    if len(roots := {name.partition("/")[0] for name in names}) > 1:
        raise ValueError(f"the members of {path} must lie in one folder, as torch writes them; got {', '.join(sorted(roots)[:3])}")
    if said > size:
        raise ValueError(f"the members of {path} must be stored as they are; they say {said} bytes, the file has {size}")
    found = {member.filename.partition("/")[2]: member.file_size for member in members}
    _same(path, found)
    return found


def _known(path: Path, names: list[str]) -> None:
    """Raises ValueError if the archive is another of torch's."""
    if "serialized_exported_program.json" in names:
        raise ValueError(f"{path} must be as torch.export.save of torch 2.8 and later writes it; it is of an older torch: export it again")
    ends = {name.partition("/")[2] for name in names}
    if "archive_format" in ends:
        return
    if "constants.pkl" in ends:
        raise ValueError(f"{path} must be a program of torch.export; it is TorchScript, of torch.jit.save")
    if "data.pkl" in ends:
        raise ValueError(f"{path} must be a program of torch.export; it is pickled, by torch.save: weights, or a module with its code")
    raise ValueError(f"{path} must be a program of torch.export; it is a zip archive without archive_format")


def _same(path: Path, found: dict[str, int]) -> None:
    """Raises ValueError unless torch's own reader sees the members that were examined."""
    try:
        reader = PT2ArchiveReader(str(path))
        seen, version = {*reader.get_file_names()}, reader.read_string("archive_version")
    except (RuntimeError, AssertionError, ValueError) as error:
        raise ValueError(f"{path} must be an archive of torch.export, which torch reads; got: {first_line(error)}") from None
    if seen != {*found}:
        raise ValueError(f"{path} must be one archive; torch and Python read different members: {', '.join(sorted(seen ^ {*found})[:3])}")
    if version != VERSION:
        raise ValueError(f"the archive version of {path} must be {VERSION}, which torch {torch.__version__} reads; got {version[:20]!r}")


def only_tensors(path: Path, member: str, content: bytes) -> None:
    """Raises ValueError if the pickle of a member holds what torch's unpickler of weights does not read, or more than its bytes."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            said = sum(one.file_size for one in archive.infolist())
        if said > len(content):
            raise ValueError(f"{member} in {path} must be stored as it is; its members say {said} bytes, it has {len(content)}")
    except zipfile.BadZipFile:
        raise ValueError(f"{member} in {path} must be tensors, of torch.save; it is no zip archive") from None
    try:
        torch.load(io.BytesIO(content), weights_only=True)
    except Exception:  # whatever a damaged pickle makes of the unpickler; its message advises to run the code
        raise ValueError(f"{member} in {path} must hold nothing but tensors; {_asked(content)}") from None


def _asked(content: bytes) -> str:
    """Returns what a pickle that the unpickler of weights refuses asks for."""
    try:
        names = torch.serialization.get_unsafe_globals_in_checkpoint(io.BytesIO(content))
    except Exception:  # as above
        names = []
    return f"its pickle asks for {', '.join(names[:3])}, which could run code" if names else "its pickle is damaged, or not of tensors"


def first_line(error: BaseException) -> str:
    """Returns the first line of a message, or the name of the exception if it says nothing."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
