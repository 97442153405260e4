"""The front with clients that do nothing wrong: calls, large and many, gzip, texts and metadata; and handlers that fail."""

import time
import urllib.request

import grpc
import pytest

from pyspark_tidb_binlog.binlog_source.rpc.frames import UNKNOWN, Refusal, message_of
from tests.support.rpc_front import MIB, PATIENCE, UNLIMITED, Raw, Server, streaming, unary

pytestmark = pytest.mark.grpc


def test_unary_calls_one_by_one_and_many_at_once(server, channel):
    call = unary(channel, "Write")
    assert call(b"") == b"" and server.messages.get_nowait() == b""
    bodies = [b"%d" % n * 50 for n in range(2000)]
    for future in [call.future(body) for body in bodies]:
        assert future.result(PATIENCE) == b""
    assert sorted(server.messages.get_nowait() for _ in bodies) == sorted(bodies)


def test_a_hundred_megabytes_up(server, channel):
    body = bytes(range(256)) * (100 * MIB // 256)
    assert unary(channel, "Write")(body, timeout=PATIENCE) == b""
    assert server.messages.get_nowait() == body


def test_many_small_messages_down(server, channel):
    answers = streaming(channel, "Down")(b"20000 30", timeout=PATIENCE)
    assert [int(answer.split()[0]) for answer in answers] == list(range(20_000))
    assert server.ended.get(timeout=PATIENCE) is False


def test_large_messages_down(server, channel):
    (first, second) = streaming(channel, "Down")(b"2 %d" % (20 * MIB), timeout=PATIENCE)
    assert first == b"0 ".ljust(20 * MIB, b".") and second.startswith(b"1 ")


@pytest.mark.parametrize(
    "options",
    [
        [],
        pytest.param([("grpc.http2.bdp_probe", 0)], marks=pytest.mark.slow),
        [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)],
    ],
)
def test_clients_that_widen_their_windows_often(server, options):
    """C-core widens windows by five bytes for each message that it waits for, and with a small lookahead for each message that comes."""
    with grpc.insecure_channel(server.address, options=UNLIMITED + options) as channel:
        for _ in range(20):
            writes = [unary(channel, "Write").future(b"x" * 200) for _ in range(100)]
            refused = [unary(channel, "Refuse").future(b"no") for _ in range(50)]
            assert [write.result(PATIENCE) for write in writes] == [b""] * 100
            assert all(call.exception(PATIENCE).details() == "no" for call in refused)
        for count, size in ((20_000, 40), (5_000, 1000), (100, MIB)):
            assert sum(1 for _ in streaming(channel, "Down")(b"%d %d" % (count, size))) == count


@pytest.mark.parametrize("size", [1, 5 * MIB])
def test_gzip_both_ways(server, size):
    body = b"z" * size
    with grpc.insecure_channel(server.address, options=UNLIMITED, compression=grpc.Compression.Gzip) as channel:
        assert unary(channel, "Write")(body) == b"" and server.messages.get_nowait() == body
        call = streaming(channel, "Down")(b"300 1000", timeout=PATIENCE)
        assert [answer.split(b" ")[0] for answer in call] == [b"%d" % n for n in range(300)]


def test_who_asks_in_gzip_is_answered_in_gzip(server):
    client = Raw(server)
    client.call(1, b"Down", b"1 10000", (b"grpc-encoding", b"gzip"))
    body = client.body(1)
    assert len(body) < 200 and message_of(body, {b"grpc-encoding": b"gzip"}, MIB) == b"0 ".ljust(10_000, b".")
    client.socket.close()


@pytest.mark.parametrize("body", [b"x", b"z" * 10_000])
def test_deflate_is_refused_in_a_real_pumps_words(server, body):
    with grpc.insecure_channel(server.address, compression=grpc.Compression.Deflate) as channel, pytest.raises(grpc.RpcError) as error:
        unary(channel, "Write")(body)
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert error.value.details() == 'grpc: Decompressor is not installed for grpc-encoding "deflate"'


def test_an_unknown_method(channel):
    with pytest.raises(grpc.RpcError) as error:
        unary(channel, "Unheard/of")(b"x")
    assert (error.value.code(), error.value.details()) == (grpc.StatusCode.UNIMPLEMENTED, "unknown method /t/Unheard/of")


@pytest.mark.parametrize("method", ["Refuse", "RefuseAtOnce", "RefuseLate"])
@pytest.mark.parametrize("text", ["cluster ID are mismatch, 8 vs 7", "100% für 漢字 😀\nsecond line", "%41 \x00 end "])
def test_texts_arrive_as_they_were_said(channel, method, text):
    answers = streaming(channel, method)(text.encode(), timeout=PATIENCE)
    got = []
    with pytest.raises(grpc.RpcError) as error:
        got.extend(answers)
    assert (error.value.code(), error.value.details()) == (grpc.StatusCode.UNKNOWN, text)
    assert got == ([b"one", b"two"] if method == "RefuseLate" else [])


def test_a_long_text_does_not_break_the_connection(server, channel):
    with pytest.raises(grpc.RpcError) as error:
        unary(channel, "Refuse")(("漢" * 100_000).encode())
    assert error.value.details().startswith("漢漢漢")
    assert unary(channel, "Write")(b"next") == b""


def test_metadata_both_ways(server, channel):
    call = streaming(channel, "Down")(b"1 1", metadata=(("x-say", "hello"), ("x-raw-bin", b"\x00\xff")), timeout=PATIENCE)
    assert dict(call.initial_metadata())["x-echo"] == "hello"
    headers = server.calls.get(timeout=PATIENCE).headers
    assert headers[b":path"] == b"/t/Down" and headers[b"x-raw-bin"] and headers[b"grpc-timeout"]
    assert len(list(call)) == 1


def test_a_request_above_the_limit():
    server = Server(max_request=1000)
    try:
        with grpc.insecure_channel(server.address, options=UNLIMITED) as channel:
            for body in (b"x" * 1001, b"x" * 10 * MIB):
                with pytest.raises(grpc.RpcError) as error:
                    unary(channel, "Write")(body)
                assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
                assert error.value.details() == f"grpc: received message larger than max ({len(body)} vs. 1000)"
            assert unary(channel, "Write")(b"x" * 1000) == b""
            with pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED"):
                unary(channel, "Write")(b"x" * 10 * MIB, compression=grpc.Compression.Gzip)
    finally:
        server.front.stop(0)


# Handlers that fail.


@pytest.mark.parametrize("method", ["Fail", "FailLate"])
def test_a_defect_in_a_handler_fails_its_own_call_only(server, channel, caplog, method):
    held = unary(channel, "Hold").future(b"x")
    with pytest.raises(grpc.RpcError) as error:
        next(streaming(channel, method)(b"x"))
    assert (error.value.code(), error.value.details()) == (grpc.StatusCode.INTERNAL, "ValueError: a defect")
    server.answer_one()
    assert held.result(PATIENCE) == b""
    # In the records: PySpark gives the handlers of a process a format of its own.
    assert any(record.getMessage() == "a call failed" and record.exc_info for record in caplog.records)


def test_a_refusal_that_is_raised_for_ever_gathers_nothing(server, channel):
    kept = Refusal(UNKNOWN, "no")

    def refuse(data, call):
        raise kept

    server.front.methods.unary[b"/t/Kept"] = refuse
    for _ in range(3):
        with pytest.raises(grpc.RpcError, match="no"):
            unary(channel, "Kept")(b"x")
    assert kept.__traceback__ is None


# Holding.


def test_while_it_holds_no_call_is_read_and_nothing_is_lost(server, channel):
    call = unary(channel, "Write")
    call(b"before")
    with grpc.insecure_channel(server.address, options=UNLIMITED) as reader:
        stream = streaming(reader, "Down")(b"3000 10000", timeout=PATIENCE)
        next(stream)
        server.front.call(server.front.hold, True)
        assert len(list(stream)) == 2999, "its windows are read"
    with urllib.request.urlopen(f"http://{server.address}/status", timeout=PATIENCE) as page:
        assert page.read() == b"GET /status "
    futures = [call.future(b"%d" % n) for n in range(100)]
    with grpc.insecure_channel(server.address, options=UNLIMITED) as later:
        futures.append(unary(later, "Write").future(b"from a client that comes meanwhile", wait_for_ready=True))
        time.sleep(0.2)
        assert server.messages.qsize() == 1 and not any(future.done() for future in futures)
        server.front.call(server.front.hold, False)
        assert [future.result(PATIENCE) for future in futures] == [b""] * 101
    assert server.messages.qsize() == 102
