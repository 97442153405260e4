"""Why a gRPC call failed, as text."""

import grpc


def reason(error: grpc.RpcError) -> str:
    """The code and text of a failed call."""
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error)
