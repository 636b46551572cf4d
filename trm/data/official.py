"""Download the published data sets from the Hugging Face Hub: pinned, checksummed and cached in $TRM_CACHE.

HF_ENDPOINT sets another hub (a mirror, or a test server); HF_HUB_OFFLINE=1 forbids requests.
"""

import os
from pathlib import Path

from trm.errors import UserError
from trm.io import exclusive, sha256_file
from trm.storage.cache import default_folder
from trm.study.tasks import OfficialFiles, spec_of


def official_files(task: str) -> list[tuple[str, Path]]:
    """Name and local path of train.csv and test.csv of a task, downloaded unless the cache has them.

    Raises:
        UserError: no network, an HTTP error, a wrong checksum, or a full disk.
    """
    source = spec_of(task).official
    assert source is not None
    folder = default_folder() / "official" / source.repository.replace("/", "--") / source.revision
    return [(f"{source.repository}/{name}", _cached(source, name, folder)) for name in source.sha256]


def _cached(source: OfficialFiles, name: str, folder: Path) -> Path:
    path, wanted = folder / name, source.sha256[name]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with exclusive(folder / f"{name}.lock"):
            if not path.is_file() or sha256_file(path) != wanted:
                _download(source, name, folder)
    except OSError as error:
        raise UserError(
            f"{error.filename or folder}: {error.strerror or error}; free space, or set TRM_CACHE to a writable folder"
        ) from error
    return path


def _download(source: OfficialFiles, name: str, folder: Path) -> None:
    from huggingface_hub import hf_hub_download

    path, wanted = folder / name, source.sha256[name]
    place = f"{name} of {source.repository}, revision {source.revision[:8]},"
    path.unlink(missing_ok=True)  # it is damaged
    try:
        hf_hub_download(
            source.repository,
            name,
            repo_type="dataset",
            revision=source.revision,
            local_dir=folder,
            endpoint=os.environ.get("HF_ENDPOINT"),
        )
    except Exception as error:  # the hub's client raises those of its HTTP library too
        if isinstance(error, OSError) and error.errno:
            raise
        reason = str(error.__cause__ or error).splitlines()[0]
        raise UserError(
            f"{place} cannot be downloaded ({reason}): connect to the network and start again, or use "
            "data.source=generate, which needs no network, or data.source=csv with your own copies of the files"
        ) from error
    digest = sha256_file(path)
    if digest != wanted:
        path.unlink()
        raise UserError(
            f"{place} was downloaded with the SHA-256 {digest}, not {wanted}: the file is damaged or the hub serves "
            "another one; try again, or give your own copy with data.source=csv"
        )
