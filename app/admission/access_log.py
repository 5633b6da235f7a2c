"""gunicorn's access log without the table of everything that a line could hold, which it makes for each."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from gunicorn.glogging import Logger

# Address, request, status, bytes, milliseconds, id.
FORMAT: Final = '%(h)s "%(r)s" %(s)s %(b)sB %(M)sms %({x-request-id}o)s'


class AccessLogger(Logger):  # type: ignore[misc]
    """Writes a line in `FORMAT` itself, and leaves any other format to gunicorn."""

    def access(self, resp: Any, req: Any, environ: Mapping[str, Any], request_time: timedelta) -> None:
        if self.cfg.access_log_format != FORMAT:
            super().access(resp, req, environ, request_time)
        elif self.access_log_enabled:
            asked = f"{environ['REQUEST_METHOD']} {environ['RAW_URI']} {environ['SERVER_PROTOCOL']}"
            self.access_log.info(
                '%s "%s" %s %sB %dms %s',
                environ["REMOTE_ADDR"],
                asked.replace('"', '\\"'),
                str(resp.status).partition(" ")[0],
                resp.sent,
                request_time / timedelta(milliseconds=1),
                next((value for name, value in resp.headers if name == "X-Request-ID"), "-"),
            )
