#!/usr/bin/env python3
"""Hook of the crd-roles decorator: roles to view and to edit the objects of a CRD.

The roles are part of the roles `view`, `edit` and `admin` of the cluster. A decorator answers with labels
and annotations of the object, and with objects to attach. Needs only Python 3.8 or newer. Listens on
$PORT, 8080 by default.
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

READ = ["get", "list", "watch"]
WRITE = ["create", "update", "patch", "delete"]


def sync(request):
    crd = request["object"]
    roles = [
        role(crd, "view", READ, ["view", "edit", "admin"]),
        role(crd, "edit", WRITE, ["edit", "admin"]),
    ]
    names = [role["metadata"]["name"] for role in roles]
    return {
        # Keys that are not named here stay as they are.
        "annotations": {"examples.pilotlight.dev/role-names": ",".join(names)},
        "attachments": roles,
    }


def role(crd, name, verbs, parts_of):
    to = "rbac.authorization.k8s.io/aggregate-to-"
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {
            "name": f"{crd['metadata']['name']}-{name}",
            "labels": {to + part_of: "true" for part_of in parts_of},
        },
        "rules": [
            {
                "apiGroups": [crd["spec"]["group"]],
                "resources": [crd["spec"]["names"]["plural"]],
                "verbs": verbs,
            }
        ],
    }


HOOKS = {"/sync": sync}


class Handler(BaseHTTPRequestHandler):
    # HTTP/1.1 keeps connections open between calls.
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path not in HOOKS:
            self.answer(404, {"error": f"no hook at {self.path}"})
            return
        try:
            self.answer(200, HOOKS[self.path](json.loads(body)))
        except Exception as error:
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
