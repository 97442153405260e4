"""A Pump's settings on a free port of loopback, and calls of its PullBinlogs by bare gRPC, message by message."""

import grpc

from pyspark_tidb_binlog.conf.model import PumpConfig
from pyspark_tidb_binlog.schemas.proto import pump_pb2

CLUSTER = 7710381286325113206
RAW, TIP, BATCH = (("tidb-binlog-delivery", "raw"),), (("tidb-binlog-delivery", "tip"),), (("tidb-binlog-batch", "1"),)
"""Metadata of a pull."""


def config(path, **more):
    """A Pump that writes no fake binlogs of its own, and takes writes however full the disk is."""
    given = {"node_id": "pump-1", "addr": "127.0.0.1:0", "data_dir": str(path), "cluster_id": CLUSTER, "fake_binlog_interval": 0}
    return PumpConfig(**(given | {"stop_write_at_available_space": ""} | more))


PATIENCE = 120.0
"""Seconds after which a pull ends with DEADLINE_EXCEEDED: what a test waits for did not come."""


class Pull:
    """One PullBinlogs call, entity by entity."""

    def __init__(self, address, metadata=(), suffix=0, offset=0, cluster=CLUSTER):
        self.channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
        method = self.channel.unary_stream("/binlog.Pump/PullBinlogs", request_serializer=pump_pb2.PullBinlogReq.SerializeToString)
        request = pump_pb2.PullBinlogReq(clusterID=cluster, startFrom=pump_pb2.Pos(suffix=suffix, offset=offset))
        self.call = method(request, timeout=PATIENCE, metadata=metadata)
        self.messages = []

    def __iter__(self):
        for message in self.call:
            self.messages.append(message)
            yield from pump_pb2.PullBinlogBatch.FromString(message).entity

    def take(self, count):
        entities = []
        for entity in self:
            entities.append(entity)
            if len(entities) == count:
                return entities
        return entities

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.call.cancel()
        self.channel.close()


def iter_until(pull, wanted):
    """Entities up to the first one that is ``wanted``."""
    for entity in pull:
        yield entity
        if wanted(entity):
            return
