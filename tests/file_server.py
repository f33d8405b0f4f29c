"""Local servers of files: one for all addresses, and one that answers as the hub does."""

import contextlib
import hashlib
import http.client
import http.server
import json
import re
import threading
import urllib.parse
import urllib.request


class FileServer(http.server.ThreadingHTTPServer):
    """A server of the files in `files`, {path: content}.

    cuts: how many bytes each of the next answers with content sends before the connection is cut.
    ranges: whether it can send a part of a file.
    status: the status of every answer, if it is set.
    requests: (method, path, range) of each request.
    """

    daemon_threads = True

    def __init__(self, handler=None):
        super().__init__(("127.0.0.1", 0), handler or _Handler)
        self.files = {}
        self.cuts = []
        self.ranges = True
        self.status = None
        self.requests = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_):
        """Ignores the broken connections of clients that give up."""

    def paths(self, method="GET") -> list[str]:
        return [path for each, path, _ in self.requests if each == method]

    def opener(self) -> urllib.request.OpenerDirector:
        """Returns an opener for urllib that sends the requests to all hosts here."""

        class Everywhere(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
            def http_open(handler, request):
                def connection(host, **options):
                    return http.client.HTTPConnection("127.0.0.1", self.server_port, **options)

                return handler.do_open(connection, request)

            https_open = http_open

        return urllib.request.build_opener(Everywhere)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if self.server.status:
            return self.reply(self.server.status)
        content = self.server.files.get(self.path)
        self.reply(404) if content is None else self.send_file(content)

    do_HEAD = do_GET

    def send_file(self, content: bytes, headers=()):
        found = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if not found or not self.server.ranges:
            return self.reply(200, content, headers)
        start = int(found[1])
        if start >= len(content):
            return self.reply(416)
        where = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self.reply(206, content[start:], [*headers, ("Content-Range", where)])

    def reply(self, status, content=b"", headers=()):
        self.server.requests.append((self.command, self.path, self.headers.get("Range")))
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        if self.server.cuts and content:
            content = content[: self.server.cuts.pop(0)]
            self.close_connection = True
        self.wfile.write(content)

    def log_message(self, *_):
        pass


class FakeHub(FileServer):
    """A server of the part of the Hugging Face Hub's API by which models are downloaded.

    models: {name: {revision: {file: content}}}; each model has the revision "main".
    renamed: {old name: name}, whose requests are redirected.
    gated: names of models for which a token is needed.
    tokens: the tokens of the requests.
    """

    def __init__(self):
        super().__init__(_HubHandler)
        self.models = {}
        self.renamed = {}
        self.gated = set()
        self.tokens = set()


class _HubHandler(_Handler):
    def do_GET(self):
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        api = re.fullmatch(r"/api/models/(.+?)(?:/(revision|tree)/([^/]+))?", path)
        file = re.fullmatch(r"/(.+?)/resolve/([^/]+)/(.+)", path)
        name = (api or file)[1]
        if name in self.server.renamed:
            there = self.path.replace(name, self.server.renamed[name], 1)
            return self.reply(307, headers=[("Location", there)])
        self.server.tokens.add(self.headers.get("Authorization"))
        if name not in self.server.models:
            return self.reply(401, headers=[("X-Error-Code", "RepoNotFound")])
        if name in self.server.gated and not self.headers.get("Authorization"):
            return self.reply(403, headers=[("X-Error-Code", "GatedRepo")])
        revisions = self.server.models[name]
        # A revision may be asked for by its name or by its commit.
        commits = {commit_of(name, revision): revision for revision in revisions}
        asked = (api[3] or "main") if api else file[2]
        revision = commits.get(asked, asked)
        if revision not in revisions:
            return self.reply(404, headers=[("X-Error-Code", "RevisionNotFound")])
        files = revisions[revision]
        commit = commit_of(name, revision)
        if api and api[2] == "tree":
            return self.send_json(
                [
                    {"type": "file", "path": path, "size": len(content), "oid": digest(content)}
                    for path, content in files.items()
                ]
            )
        if api:
            siblings = [{"rfilename": path} for path in files]
            return self.send_json({"id": name, "sha": commit, "siblings": siblings})
        if file[3] not in files:
            return self.reply(404, headers=[("X-Error-Code", "EntryNotFound")])
        content = files[file[3]]
        self.send_file(content, [("ETag", f'"{digest(content)}"'), ("X-Repo-Commit", commit)])

    do_HEAD = do_GET

    def send_json(self, value):
        self.reply(200, json.dumps(value).encode(), [("Content-Type", "application/json")])


def commit_of(name: str, revision: str) -> str:
    return hashlib.sha1(f"{name}@{revision}".encode()).hexdigest()


def digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextlib.contextmanager
def running(server):
    """Runs a server in a thread."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
