"""A stand-in for Google Cloud Storage: as much of its JSON API as TensorStore's driver uses,
objects in memory.
"""

import contextlib
import http.server
import itertools
import json
import re
import threading
import urllib.parse


class FakeGcs(http.server.ThreadingHTTPServer):
    """`objects`: name -> content, of any bucket. `uploads`: their names in order. `writes`: uploads
    and deletions let through yet, then 403.

    `busy`: whether the request of a number gets a 503; `lossy`: the same, once it has been done.
    The bucket `nowhere` does not exist.
    """

    daemon_threads = True
    page = 3  # objects a page of a listing

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects, self.generations, self.uploads, self.writes, self.forbidden = (
            {},
            {},
            [],
            float("inf"),
            False,
        )
        self.count, self.lock = itertools.count(1), threading.Lock()
        self.requests, self.busy, self.lossy = 0, lambda number: False, lambda number: False

    def handle_error(self, *_):
        """A client that is killed breaks its connections: no matter."""

    def put(self, name: str, content: bytes | None) -> None:  # None: deletes it
        self.objects.pop(name, None), self.generations.pop(name, None)
        if content is not None:
            self.objects[name], self.generations[name] = content, next(self.count)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        if self.split():
            return
        if self.server.forbidden:
            return self.reply(403, {"error": {"code": 403, "message": "no access"}})
        if not self.name:  # a listing
            first, last = (
                self.query.get("pageToken", self.query.get("startOffset", "")),
                self.query.get("endOffset"),
            )
            names = sorted(
                n
                for n in self.server.objects
                if n >= first
                and (not last or n < last)
                and n.startswith(self.query.get("prefix", ""))
            )
            names, more = names[: self.server.page], names[self.server.page :]
            items = [
                {
                    "name": n,
                    "generation": str(self.server.generations[n]),
                    "size": str(len(self.server.objects[n])),
                }
                for n in names
            ]
            return self.reply(200, {"items": items, **({"nextPageToken": more[0]} if more else {})})
        if self.name not in self.server.objects:
            return self.reply(404)
        if self.query.get("ifGenerationNotMatch") == str(self.server.generations[self.name]):
            return self.reply(304)
        content = self.server.objects[self.name]
        if self.query.get("alt") != "media":
            return self.reply(
                200,
                {
                    "name": self.name,
                    "generation": str(self.server.generations[self.name]),
                    "size": str(len(content)),
                },
            )
        ranged = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not ranged:
            return self.reply(200, content)
        start, stop = ranged.groups()
        start, stop = (
            (int(start), int(stop or len(content) - 1) + 1)
            if start
            else (max(len(content) - int(stop), 0), len(content))
        )
        if start >= len(content):
            return self.reply(416)
        part = content[start:stop]
        self.reply(
            206, part, {"Content-Range": f"bytes {start}-{start + len(part) - 1}/{len(content)}"}
        )

    def do_POST(self):
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self.split():
            self.change(self.query["name"], content)

    def do_DELETE(self):
        if not self.split():
            self.change(self.name, None)

    def change(self, name, content):
        with self.server.lock:
            self.server.writes -= 1
            there = self.server.generations.get(name, 0)
            if self.server.forbidden or self.server.writes < 0:
                return self.reply(403, {"error": {"code": 403, "message": "no access"}})
            if int(self.query.get("ifGenerationMatch", there)) != there:
                return self.reply(412)
            self.server.put(name, content)
            if content is None:
                return self.reply(204 if there else 404)
            self.server.uploads.append(name)
            self.reply(
                200,
                {
                    "name": name,
                    "generation": str(self.server.generations[name]),
                    "size": str(len(content)),
                },
            )

    def split(self):
        """Whether the request has been answered already, with an error."""
        url = urllib.parse.urlsplit(self.path)
        bucket, name = re.fullmatch(r"(?:/upload)?/storage/v1/b/([^/]+)/o/?(.*)", url.path).groups()
        self.name, self.query = urllib.parse.unquote(name), dict(urllib.parse.parse_qsl(url.query))
        self.server.requests += 1
        self.number = self.server.requests
        if bucket == "nowhere":
            self.reply(
                404, {"error": {"code": 404, "message": "The specified bucket does not exist."}}
            )
        elif self.server.busy(self.number):
            self.reply(503)
        else:
            return False
        return True

    def reply(self, status, content=b"", headers=None):
        if status == 200 and self.server.lossy(self.number):
            status, content = 503, b""
        body = content if isinstance(content, bytes) else json.dumps(content).encode()
        headers = {
            "Content-Length": str(len(body)),
            "x-goog-generation": str(self.server.generations.get(self.name, 0)),
            **(headers or {}),
        }
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def serving():
    """A running FakeGcs; `environment` is what TensorStore needs to use it, set before its first
    request to a bucket.
    """
    server = FakeGcs()
    server.environment = {
        "TENSORSTORE_GCS_HTTP_URL": f"http://127.0.0.1:{server.server_port}",
        "GOOGLE_AUTH_TOKEN_FOR_TESTING": "any",
    }
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
