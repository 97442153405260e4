"""Our side of HTTP/2 with the ``h2`` library's as the client: requests of any size go up within the windows that are granted, answers come down."""

import struct

import h2.config
import h2.connection
import h2.events
from hypothesis import given
from hypothesis import strategies as st

from pyspark_tidb_binlog.binlog_source.rpc.http2 import Call, Connection
from pyspark_tidb_binlog.binlog_source.rpc.memory import BoundedMemory
from tests.support.examples import examples

FIELDS = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", b"/t/Write"), (b":authority", b"p"), (b"te", b"trailers")]
SIZES = st.one_of(st.integers(0, 200), st.sampled_from([65_529, 65_530, 65_531, 70_000, 300_000, 1_500_000]))
CAPACITY = 1 << 20


class Upload:
    """A client with requests to send, as its windows allow."""

    def __init__(self, sizes, server):
        self.client = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding=None))
        self.client.initiate_connection()
        self.server = server
        self.unsent = {2 * n + 1: struct.pack(">BI", 0, size) + bytes((n,)) * size for n, size in enumerate(sizes)}
        self.answered = {}
        for stream_id in self.unsent:
            self.client.send_headers(stream_id, FIELDS)

    def step(self, chunk):
        """Send what the windows admit, ``chunk`` bytes of each stream at most; take what comes back. Whether anything moved."""
        for stream_id, data in list(self.unsent.items()):
            room = min(self.client.local_flow_control_window(stream_id), self.client.max_outbound_frame_size, chunk)
            if room > 0:
                self.client.send_data(stream_id, data[:room], end_stream=room >= len(data))
                self.unsent[stream_id] = data[room:]
                if room >= len(data):
                    del self.unsent[stream_id]
        said = self.client.data_to_send()
        calls = [event for event in self.server.receive(said) if isinstance(event, Call)] if said else []
        for call in calls:
            self.server.answer(call.stream_id, struct.pack(">I", len(call.body)) + call.body[-1:])
        heard = b"".join(self.server.output())
        for event in self.client.receive_data(heard):
            if isinstance(event, h2.events.DataReceived):
                self.answered[event.stream_id] = event.data[5:]
            assert not isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated), event
        return bool(said or heard)


@examples(40)
@given(st.lists(SIZES, min_size=1, max_size=8), st.lists(SIZES, min_size=1, max_size=4), st.integers(1_000, 70_000))
def test_every_request_arrives_whole_within_the_memory(first, second, chunk):
    memory = BoundedMemory(CAPACITY)
    uploads = [Upload(sizes, Connection(1 << 62, memory)) for sizes in (first, second)]
    while any([upload.step(chunk) for upload in uploads]):
        assert memory.held <= max(CAPACITY, 1_500_005)
    for upload, sizes in zip(uploads, (first, second), strict=True):
        assert not upload.unsent
        assert upload.answered == {
            2 * n + 1: struct.pack(">I", size + 5) + (bytes((n,)) if size else b"\0") for n, size in enumerate(sizes)
        }
    assert memory.held == 0 and not memory._waiting
