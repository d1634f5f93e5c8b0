#!/usr/bin/env python3
"""Hook of the Greeting controller: one ConfigMap for each language.

Each HTTP request contains a Greeting and its children; the answer contains the desired children and
status. The answer depends only on the request: the hook keeps no state and sends no requests, so
any number of replicas may run. Needs only Python 3.8 or newer. Listens on $PORT, 8080 by default.
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HELLO = {"de": "Hallo", "en": "Hello", "fr": "Bonjour", "ja": "こんにちは"}


def sync(request):
    greeting = request["parent"]
    name = greeting["metadata"]["name"]
    languages = greeting["spec"].get("languages", [])
    known = [language for language in languages if language in HELLO]

    # All desired children: an existing child that is missing here is deleted.
    children = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{name}-{language}"},
            "data": {"text": f"{HELLO[language]}, {greeting['spec']['who']}!"},
        }
        for language in known
    ]

    # Existing children, by type and then by name.
    observed = request["children"]["ConfigMap.v1"]
    return {
        "status": {"ready": len(observed), "wanted": len(known)},
        "children": children,
    }


class Handler(BaseHTTPRequestHandler):
    # HTTP/1.1 keeps connections open between calls.
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/sync":
            self.answer(404, {"error": f"no hook at {self.path}"})
            return
        try:
            self.answer(200, sync(json.loads(body)))
        except Exception as error:  # The first 256 bytes appear in an Event on the parent.
            self.answer(500, {"error": repr(error)})

    def answer(self, code, response):
        body = json.dumps(response).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    address = ("", int(os.environ.get("PORT", "8080")))
    with ThreadingHTTPServer(address, Handler) as server:
        print(f"listening on port {server.server_port}", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass
