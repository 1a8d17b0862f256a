"""The start of `tunnel.pyz`: unpacks what the file carries into the user's cache, once, and runs the command `tunnel`.

It is the `__main__.py` of the file, and uses only the standard library. The parts are checked against their digests
before they are unpacked, and appear in the cache in one step, so that a start that is cut short leaves nothing behind
that a later one would use. Even Python 3.8 can run this text, as far as the message that the file is for another
Python.
"""

import atexit
import hashlib
import io
import json
import os
import shutil
import stat
import sys
import tarfile
import tempfile
import zipfile

_NAME = os.path.basename(sys.argv[0]) or "tunnel.pyz"
_PARTS = ("vendor", "tunnel")  # the libraries, and our own packages, which change more often
_USAGE = 2


def _fail(text):
    print(f"{_NAME}: {text}", file=sys.stderr)
    sys.exit(_USAGE)


def _check_python(info):
    """End unless this is the Python that the libraries were built for."""
    here = f"{sys.implementation.name}-{sys.version_info[0]}.{sys.version_info[1]} {sys.platform} {os.uname().machine}"
    if here != info["python"]:
        advice = "start it with that one, or build it here with `make pyz`"
        _fail(f"this file is for {info['python']}, but this Python is {here}: {advice}")


def _cache():
    """Return the directory for what is unpacked. Raise OSError if it cannot be used."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):
        home = os.path.expanduser("~")
        if not home.startswith("/"):
            raise OSError("there is no home directory")
        base = os.path.join(home, ".cache")
    path = os.path.join(base, "tunnel", "pyz")
    before = os.umask(0o077)  # nobody else may place a module there
    try:
        os.makedirs(path, exist_ok=True)
    finally:
        os.umask(before)
    found = os.lstat(path)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise OSError(f"{path} is not a directory of yours")
    if found.st_mode & 0o022:
        raise OSError(f"other users can write to {path}: remove it")
    for place in {path, os.path.realpath(path)}:
        _check_parents(place)
    return path


def _check_parents(path):
    """Raise OSError if another user can put something else in the place of this directory."""
    while path != "/":
        found = os.lstat(path)  # not stat: the owner of a symbolic link can replace it
        if found.st_uid not in (0, os.geteuid()):
            raise OSError(f"{path} belongs to another user, who can replace what is in it: choose another directory")
        path = os.path.dirname(path)
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode) and mode & 0o022 and not mode & stat.S_ISVTX:
            raise OSError(f"other users can write to {path}, and replace what is in it: chmod go-w {path}")


def _folder(archive, info, cache):
    """Return the directory with the unpacked part, unpacking it if it is not there."""
    folder = os.path.join(cache, info["digest"][:32])
    if os.path.isfile(os.path.join(folder, ".whole")):
        return folder
    packed = archive.read(info["file"])
    if hashlib.sha256(packed).hexdigest() != info["digest"]:
        _fail("the file is damaged: fetch it again, and compare it with its checksum (sha256sum -c)")
    new = tempfile.mkdtemp(prefix=".new-", dir=cache)
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:xz") as tar:
            safe = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            tar.extractall(new, **safe)  # our own archive, whose digest was checked
        with open(os.path.join(new, ".whole"), "w"):
            pass
        try:
            os.rename(new, folder)
        except OSError:
            if not os.path.isfile(os.path.join(folder, ".whole")):
                raise
            # another start was faster
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder


def _unpack(archive, info):
    """Return the directories of all parts: in the cache, or in a temporary directory that is removed at the end."""
    try:
        cache = _cache()
        return [_folder(archive, info["parts"][name], cache) for name in _PARTS]
    except OSError as error:
        reason = error.strerror or str(error)
        where = f" {error.filename}" if error.filename else ""
        print(
            f"{_NAME}: the cache cannot be used ({reason}{where}): unpacking into a temporary directory for this run; "
            "set XDG_CACHE_HOME to a directory that can be written, and later starts are faster",
            file=sys.stderr,
        )
    try:
        cache = tempfile.mkdtemp(prefix="tunnel-pyz-")
        owner = os.getpid()
        atexit.register(lambda: os.getpid() == owner and shutil.rmtree(cache, ignore_errors=True))
        return [_folder(archive, info["parts"][name], cache) for name in _PARTS]
    except OSError as error:
        _fail(f"nothing can be unpacked ({error}): set XDG_CACHE_HOME or TMPDIR to a directory with 100 MB of room")


def main():
    """Unpack what is missing, and run the command."""
    with zipfile.ZipFile(sys.path[0] if zipfile.is_zipfile(sys.path[0]) else sys.argv[0]) as archive:
        info = json.loads(archive.read("info.json").decode())
        _check_python(info)
        try:
            import lzma  # noqa: F401
        except ImportError:
            _fail("this Python was built without lzma, which unpacks the file: use one that has it")
        folders = _unpack(archive, info)
    sys.path[:0] = reversed(folders)
    from tunnel_client.__main__ import main as command

    return command()


if __name__ == "__main__":
    sys.exit(main())
