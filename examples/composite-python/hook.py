#!/usr/bin/env python3
"""The hook of the Greeting controller: one ConfigMap for each language.

It is asked over HTTP which children and which status a Greeting should have, and answers from
the request alone: it keeps nothing, calls nobody and may run in any number.
Needs Python 3.8 or newer and nothing else. Listens on $PORT, 8080 if that is not set.
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

    # All children that should be: what is left out is deleted.
    children = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{name}-{language}"},
            "data": {"text": f"{HELLO[language]}, {greeting['spec']['who']}!"},
        }
        for language in known
    ]

    # What there is already, by type and then by name.
    observed = request["children"]["ConfigMap.v1"]
    return {
        "status": {"ready": len(observed), "wanted": len(known)},
        "children": children,
    }


class Handler(BaseHTTPRequestHandler):
    # Connections are kept between calls.
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/sync":
            self.answer(404, {"error": f"no hook at {self.path}"})
            return
        try:
            self.answer(200, sync(json.loads(body)))
        except Exception as error:  # The first 256 bytes are shown in an Event on the parent.
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
