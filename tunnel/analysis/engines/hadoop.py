"""Folders that Hadoop reaches by a URI, such as hdfs: and s3a:. They need a running Spark, which has Hadoop."""

import secrets
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tunnel.analysis.engines.folders import FileStatus, HeldError, UnusableError, holder, is_hidden

__all__ = ["LEASE_S", "RENEW_S", "HadoopFolder", "spark_name_of"]

LEASE_S = 60.0  # after this time without a renewal, the holder of a lock counts as dead
RENEW_S = 10.0
_LOCK = "lock"
_REASON_LETTERS = 300
_MISSING = ("FileNotFoundException", "NoSuchFileException")
_EXISTS = ("FileAlreadyExistsException", "AlreadyBeingCreatedException")
# A capability of stores such as S3, where a file appears only when it is complete, and can be abandoned until then.
_APPEARS_COMPLETE = "fs.capability.outputstream.abortable"


def _java_of(session: SparkSession) -> Any:
    """Return the object that leads to Java. pyspark has no public way to Hadoop."""
    return session.sparkContext


def spark_name_of(session: SparkSession, uri: str) -> str:
    """Return the name that Spark gives a file in `_metadata.file_path`."""
    path = _java_of(session)._jvm.org.apache.hadoop.fs.Path  # noqa: SLF001
    return str(path(uri).toUri().toString())


class HadoopFolder:
    """A folder of one of Hadoop's file systems. Methods raise UnusableError if that file system does not work."""

    def __init__(self, session: SparkSession, uri: str, *, lease_s: float = LEASE_S, renew_s: float = RENEW_S) -> None:
        context = _java_of(session)
        self._jvm = context._jvm  # noqa: SLF001
        self._configuration = context._jsc.hadoopConfiguration()  # noqa: SLF001
        self._root = uri.rstrip("/")
        options = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        self._no_options = context._gateway.new_array(options, 0)  # noqa: SLF001
        self._lease_s, self._renew_s = lease_s, renew_s
        with self._errors():
            self._files = self._path().getFileSystem(self._configuration)

    def _path(self, name: str = "") -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(self.uri(name))

    def uri(self, name: str = "") -> str:
        return f"{self._root}/{name}"

    def place(self, name: str = "") -> str:
        return self.uri(name) if name else self._root

    def is_folder(self, name: str = "") -> bool:
        try:
            with self._errors():
                return bool(self._files.getFileStatus(self._path(name)).isDirectory())
        except FileNotFoundError:
            return False

    def status(self, name: str) -> FileStatus:
        with self._errors():
            found = self._files.getFileStatus(self._path(name))
            return FileStatus(name, found.getLen(), found.getModificationTime() * 1_000_000)

    def walk(self) -> list[FileStatus]:
        found: list[FileStatus] = []
        folders = [""]
        while folders:
            folder = folders.pop()
            for status in self._listed(folder):
                name = f"{folder}{status.getPath().getName()}"
                if status.isDirectory():
                    folders += [] if is_hidden(status.getPath().getName()) else [f"{name}/"]
                else:
                    found.append(FileStatus(name, status.getLen(), status.getModificationTime() * 1_000_000))
        return sorted(found, key=lambda file: Path(file.name))

    def _listed(self, name: str) -> list[Any]:
        try:
            with self._errors():
                return list(self._files.listStatus(self._path(name)))
        except FileNotFoundError:
            return []

    def names(self, name: str) -> list[str]:
        return sorted(status.getPath().getName() for status in self._listed(name))

    @contextmanager
    def local_copy(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder, name.rpartition("/")[2])
            with self._errors():
                target = self._jvm.org.apache.hadoop.fs.Path(f"file:{copy}")
                self._files.copyToLocalFile(False, self._path(name), target, True)
            yield copy

    def read(self, name: str) -> bytes:
        with self.local_copy(name) as path:
            return path.read_bytes()

    def make(self, name: str = "") -> None:
        with self._errors():
            self._files.mkdirs(self._path(name))

    def write(self, name: str, content: bytes) -> None:
        self._write(name, content, overwrite=False)

    def _write(self, name: str, content: bytes, *, overwrite: bool) -> None:
        """Write a file from a local one: Java reads that at once, but takes bytes from Python slowly."""
        with self._errors():
            output = self._files.create(self._path(name), overwrite)
            with tempfile.NamedTemporaryFile() as local:
                local.write(content)
                local.flush()
                source = self._jvm.java.io.FileInputStream(local.name)
                self._jvm.org.apache.hadoop.io.IOUtils.copyBytes(source, output, self._configuration, True)

    def put_if_absent(self, name: str, content: bytes) -> None:
        target = self._path(name)
        with self._errors():
            appears_complete = self._files.hasPathCapability(target, _APPEARS_COMPLETE)
        if appears_complete:
            self.write(name, content)
            return
        folder, _, base = name.rpartition("/")
        written = f"{folder}/.{base}-{secrets.token_hex(4)}"
        self.write(written, content)
        try:
            self._move(written, name)
        finally:
            self.remove(written)

    def _move(self, name: str, to: str) -> None:
        """Give a file another name in one step. Raise FileExistsError if that name is taken."""
        with self._errors():
            context = self._jvm.org.apache.hadoop.fs.FileContext
            names = context.getFileContext(self._path().toUri(), self._configuration)
            names.rename(self._path(name), self._path(to), self._no_options)

    def sync(self, name: str) -> None:
        """Do nothing: these file systems guarantee that a closed file survives a crash."""

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError), self._errors():
            self._files.delete(self._path(name), True)

    @contextmanager
    def lock(self) -> Iterator[bool]:
        """Hold a file that is renewed: these file systems have no locks that end with their process.

        The times are those of the file system, so that the clocks of machines do not matter.
        """
        mine = f"{holder()}, {secrets.token_hex(4)}".encode()
        was_held = self._take(mine)
        done = threading.Event()
        renewal = threading.Thread(target=self._renew, args=(mine, done), name="lock", daemon=True)
        renewal.start()
        try:
            yield was_held
        finally:
            done.set()
            renewal.join()
            with suppress(OSError):
                if self.read(_LOCK) == mine:
                    self.remove(_LOCK)

    @contextmanager
    def reading(self) -> Iterator[None]:
        yield

    @contextmanager
    def unread(self) -> Iterator[bool | None]:
        yield None

    def _take(self, mine: bytes) -> bool:
        """Create the lock. Return whether it has replaced the lock of a process that is probably dead."""
        try:
            self.write(_LOCK, mine)
            return False
        except FileExistsError:
            pass
        try:
            theirs = self.read(_LOCK).decode(errors="replace").rpartition(",")[0]
            idle_s = (self._now_ns() - self.status(_LOCK).changed_ns) / 1e9
            if idle_s < self._lease_s:
                left = f"a lock that is not renewed ends in {self._lease_s - idle_s:.0f} s"
                raise HeldError(f"{theirs or 'it has not written its name yet'}; {left}")
            taken = f".{_LOCK}-{secrets.token_hex(4)}"
            self._move(_LOCK, taken)  # of several processes that try, one succeeds
            self.remove(taken)
            self.write(_LOCK, mine)
        except (FileNotFoundError, FileExistsError):
            raise HeldError("it has taken the lock just now") from None
        return True

    def _now_ns(self) -> int:
        """Return the time by the clock of the file system."""
        probe = f".now-{secrets.token_hex(4)}"
        self.write(probe, b"")
        try:
            return self.status(probe).changed_ns
        finally:
            self.remove(probe)

    def _renew(self, mine: bytes, done: threading.Event) -> None:
        while not done.wait(self._renew_s):
            with suppress(OSError):  # without a renewal the lock ends, and then nothing is committed under it
                if self.read(_LOCK) == mine:
                    self._write(_LOCK, mine, overwrite=True)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn Java's exceptions into those of Python."""
        try:
            yield
        except Py4JJavaError as error:
            name = error.java_exception.getClass().getSimpleName()
            if name == "RemoteException":  # it carries an exception of the server that the client does not unwrap
                name = str(error.java_exception.getClassName()).rpartition(".")[2]
            text = str(error.java_exception.getMessage() or "").partition("\n")[0][:_REASON_LETTERS]
            if name in _MISSING:
                raise FileNotFoundError(f"{name}: {text}") from error
            if name in _EXISTS:
                raise FileExistsError(f"{name}: {text}") from error
            raise UnusableError(
                f"{self._root} cannot be used ({name}: {text}): check the URI, that its servers are reachable, that "
                "HADOOP_CONF_DIR names the directory with their configuration, and that Spark has the packages that "
                "they need"
            ) from error
