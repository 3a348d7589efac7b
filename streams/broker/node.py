"""What the one node of a local broker is told: its two ports, its Java options and its server.properties.

Reads and writes no files and starts nothing; `broker.local` does.
"""

import os
import secrets
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import msgspec

from streams.broker.jars import BrokerError

HOST = "127.0.0.1"
# Below the range from which Linux and macOS take ports for outgoing connections. Inside it, some client's
# connection could take the broker's port while it is down; a client that keeps dialling the dead broker could
# even be connected to itself.
PORTS = range(20_000, 32_000)
PORT_TRIES = 100
ANSWER_SECONDS = 3.0

# Nothing of our own: JAVA_TOOL_OPTIONS or CLASSPATH, meant for some other program, would change this one.
# Java takes the encoding of file names from the locale.
ENVIRONMENT = {"LC_ALL": "C.UTF-8", "PATH": os.defpath}

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://{host}:{client},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{client}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
inter.broker.listener.name=PLAINTEXT
log.dirs={data}
# One node cannot hold more than one copy.
default.replication.factor=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
# 50 partitions each by default: seconds of a start, and of the recovery after a kill.
offsets.topic.num.partitions=8
transaction.state.log.num.partitions=8
share.coordinator.state.topic.num.partitions=8
num.partitions=1
auto.create.topics.enable=false
# A group of one has nobody to wait for.
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=3000
# A killed broker is refused until its old session has ended. The heartbeat is far below that, so that a busy
# machine does not fence a healthy broker.
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
# A single event may have 8 MiB.
message.max.bytes=9437184
replica.fetch.max.bytes=9437184
# State is rebuilt from the topics: nothing goes by age unless a topic says so. Offsets stay for ten years.
log.retention.ms=-1
offsets.retention.minutes=5256000
# The cleaner takes its buffer (128 MiB by default) at the start, out of a heap of 512.
log.cleaner.dedupe.buffer.size=33554432
"""


class Address(msgspec.Struct, frozen=True):
    """The ports of a folder, chosen once so that a restarted broker is where it was."""

    client: int
    controller: int


def java_options(temporary: Path) -> list[str]:
    """For one quiet node on a developer's machine: little memory, a quick start, a log with times."""
    return [
        "-Xmx512m",
        "-XX:+UseSerialGC",
        "-XX:TieredStopAtLevel=1",
        # Native libraries (zstd, snappy) are unpacked there; after a kill nobody would remove them from /tmp.
        f"-Djava.io.tmpdir={temporary}",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-Dorg.slf4j.simpleLogger.dateTimeFormat=yyyy-MM-dd'T'HH:mm:ss.SSSZ",
        # every setting, some 400 lines a start
        "-Dorg.slf4j.simpleLogger.log.org.apache.kafka.common.config.AbstractConfig=warn",
    ]


def properties(address: Address, data: Path) -> str:
    """The text of server.properties for a node at `address` with its data in the folder `data`."""
    return _PROPERTIES.format(host=HOST, client=address.client, controller=address.controller, data=_escaped(str(data)))


def _escaped(value: str) -> str:
    """A value for a Java properties file, which is Latin-1 with backslash escapes."""
    value = value.replace("\\", "\\\\")
    return "".join(c if c.isascii() else f"\\u{unit:04x}" for c in value for unit in _utf16(c))


def _utf16(character: str) -> Iterator[int]:
    encoded = character.encode("utf-16-be", "surrogatepass")
    yield from struct.unpack(f">{len(encoded) // 2}H", encoded)


def free_address() -> Address:
    """Two ports of loopback that nobody listens on."""
    found: list[int] = []
    for _ in range(PORT_TRIES):
        port = secrets.choice(PORTS)
        if port not in found and is_free(port):
            found.append(port)
        if len(found) == 2:
            return Address(client=found[0], controller=found[1])
    raise BrokerError(
        f"No free port on {HOST} from {PORTS.start} to {PORTS.stop - 1} in {PORT_TRIES} tries. "
        "Next: see what listens there (ss -ltnp)."
    )


def is_free(port: int) -> bool:
    """Whether Kafka could listen on this port of loopback now."""
    with socket.socket() as probe:
        # As Kafka does; else connections of the last broker that are not quite gone would count as taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def answers(port: int) -> bool:
    """Whether a Kafka is there: ApiVersions v0, which every broker answers to every client."""
    correlation = secrets.randbits(31)
    request = struct.pack(">hhih", 18, 0, correlation, -1)
    try:
        with socket.create_connection((HOST, port), timeout=ANSWER_SECONDS) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            head = connection.recv(8, socket.MSG_WAITALL)
    except OSError:
        return False
    return len(head) == 8 and struct.unpack(">i", head[4:])[0] == correlation
