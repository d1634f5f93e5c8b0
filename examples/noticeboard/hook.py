#!/usr/bin/env python3
"""The sync hook of the noticeboard example: a ConfigMap for every notice.

Answers POST /sync with what a Noticeboard should have. It keeps nothing: the same
question always has the same answer. HOOK_PORT sets the port (8080; 0 picks a free one).
"""

import json
import os
import signal
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def sync(request):
    """What this parent should have, given what it has."""
    board = request["parent"]
    notices = board["spec"].get("notices", {})
    children = [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": f"{board['metadata']['name']}-{name}"},
            "data": {"text": text},
        }
        for name, text in sorted(notices.items())
    ]
    observed = request["children"]["ConfigMap.v1"]
    return {"status": {"wanted": len(children), "posted": len(observed)}, "children": children}


class Hook(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # Keeps the connection for the next call.

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/sync":
            self.send_error(404)
            return
        answer = json.dumps(sync(json.loads(body))).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


if __name__ == "__main__":
    server = ThreadingHTTPServer(("", int(os.environ.get("HOOK_PORT", "8080"))), Hook)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    print(f"listening on port {server.server_port}", flush=True)
    server.serve_forever()
