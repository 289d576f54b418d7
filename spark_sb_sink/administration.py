"""What azure-servicebus 7.15's administration client says wrongly on the wire, put right on its way out.

Uses public parts of the SDK only: a transport of one's own is an option of every Azure client. Knows no queue.
"""

from typing import Any

from azure.core.pipeline.transport import AioHttpTransport

from spark_sb_sink.backlog_queues import FOREVER_ON_THE_WIRE

_ALMOST_FOREVER = b">P10675199DT2H48M5.47758S<"
"""What the SDK makes of the longest timedelta that the service takes."""
_FOREVER = f">{FOREVER_ON_THE_WIRE}<".encode()
_WRONG_SCHEME = "Bearer SharedAccessSignature "


class AdministrationTransport(AioHttpTransport):  # type: ignore[misc]  # azure-core loads it late, without its type
    """Sends TimeSpan.MaxValue and shared access signatures in the form that the service takes.

    The SDK makes a timedelta even of a text, and of TimeSpan.MaxValue one that is longer than the service allows. And
    it calls a signature from a connection string a bearer token, which it is not.
    """

    async def send(self, request: Any, **config: Any) -> Any:
        body = request.data
        if isinstance(body, bytes) and _ALMOST_FOREVER in body:
            request.data = body.replace(_ALMOST_FOREVER, _FOREVER)
            request.headers["Content-Length"] = str(len(request.data))
        authorization = request.headers.get("Authorization") or ""
        if authorization.startswith(_WRONG_SCHEME):
            request.headers["Authorization"] = authorization.removeprefix("Bearer ")
        return await super().send(request, **config)
