"""A fake of Google Cloud Storage in memory: the part of its JSON API that TensorStore uses."""

import contextlib
import http.server
import itertools
import json
import re
import threading
import time
import urllib.parse


class FakeGcs(http.server.ThreadingHTTPServer):
    """A server on which all buckets have the same objects, and the bucket `nowhere` does not exist.

    objects: {name: content}.
    generations: {name: number of the write}.
    uploads: the names of uploads, in order.
    writes: uploads and deletions that are still allowed; later ones get a 403.
    forbidden: whether every request gets a 403.
    busy: a function of a request's number; where it is true, the request gets a 503.
    lossy: the same, but the request is carried out before.
    """

    daemon_threads = True
    page = 3  # objects in a page of a listing

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects = {}
        self.generations = {}
        self.uploads = []
        self.requests = 0
        # As in Google's, no number comes twice, not even in later runs of the tests, because users'
        # caches keep digests of objects by their generations.
        self.write_numbers = itertools.count(time.time_ns() // 1000)
        self.lock = threading.Lock()
        self.reset()

    def reset(self):
        """Empties the bucket and removes all faults."""
        self.objects.clear()
        self.generations.clear()
        self.uploads.clear()
        self.writes = float("inf")
        self.forbidden = False
        self.busy = self.lossy = lambda number: False

    def handle_error(self, *_):
        """Ignores the broken connections of clients that are killed."""

    def put(self, name: str, content: bytes | None) -> None:
        """Sets the content of an object; None deletes it."""
        self.objects.pop(name, None)
        self.generations.pop(name, None)
        if content is not None:
            self.objects[name] = content
            self.generations[name] = next(self.write_numbers)

    def description(self, name: str) -> dict[str, str]:
        return {
            "name": name,
            "generation": str(self.generations[name]),
            "size": str(len(self.objects[name])),
        }


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self):
        if self.split():
            return
        if self.server.forbidden:
            return self.reply(403, {"error": {"code": 403, "message": "no access"}})
        if not self.name:
            return self.reply(200, self.listing())
        if self.name not in self.server.objects:
            return self.reply(404)
        if self.query.get("ifGenerationNotMatch") == str(self.server.generations[self.name]):
            return self.reply(304)
        content = self.server.objects[self.name]
        if self.query.get("alt") != "media":
            return self.reply(200, self.server.description(self.name))
        byte_range = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not byte_range:
            return self.reply(200, content)
        first, last = byte_range.groups()
        if first:
            start = int(first)
            stop = int(last or len(content) - 1) + 1
        else:  # the last bytes
            start = max(len(content) - int(last), 0)
            stop = len(content)
        if start >= len(content):
            return self.reply(416)
        part = content[start:stop]
        content_range = f"bytes {start}-{start + len(part) - 1}/{len(content)}"
        self.reply(206, part, {"Content-Range": content_range})

    def listing(self):
        first = self.query.get("pageToken", self.query.get("startOffset", ""))
        end = self.query.get("endOffset")
        prefix = self.query.get("prefix", "")
        names = sorted(
            name
            for name in self.server.objects
            if name >= first and (not end or name < end) and name.startswith(prefix)
        )
        page = {"items": [self.server.description(name) for name in names[: self.server.page]]}
        if len(names) > self.server.page:
            page["nextPageToken"] = names[self.server.page]
        return page

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
            generation = self.server.generations.get(name, 0)
            if self.server.forbidden or self.server.writes < 0:
                return self.reply(403, {"error": {"code": 403, "message": "no access"}})
            if int(self.query.get("ifGenerationMatch", generation)) != generation:
                return self.reply(412)
            self.server.put(name, content)
            if content is None:
                return self.reply(204 if generation else 404)
            self.server.uploads.append(name)
            self.reply(200, self.server.description(name))

    def split(self):
        """Parses the request. Returns whether it has been answered with an error."""
        url = urllib.parse.urlsplit(self.path)
        bucket, name = re.fullmatch(r"(?:/upload)?/storage/v1/b/([^/]+)/o/?(.*)", url.path).groups()
        self.name = urllib.parse.unquote(name)
        self.query = dict(urllib.parse.parse_qsl(url.query))
        self.server.requests += 1
        self.number = self.server.requests
        if bucket == "nowhere":
            message = "The specified bucket does not exist."
            self.reply(404, {"error": {"code": 404, "message": message}})
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
    """Yields a running FakeGcs.

    Its `environment` must be set before TensorStore's first request to a bucket.
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
