#!/usr/bin/env python3
"""Hook of the Tenant controller: a quota and a default-deny policy in each namespace of a tenant.

A cluster-scoped parent may have children in all namespaces. Each child names its own.
Needs only Python 3.8 or newer. Listens on $PORT, 8080 by default.
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def sync(request):
    tenant = request["parent"]
    name = tenant["metadata"]["name"]
    spec = tenant["spec"]

    children = []
    for namespace in spec["namespaces"]:
        metadata = {"name": f"tenant-{name}", "namespace": namespace}
        children.append(
            {
                "apiVersion": "v1",
                "kind": "ResourceQuota",
                "metadata": metadata,
                "spec": {"hard": {"pods": str(spec["pods"])}},
            }
        )
        children.append(
            {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata": metadata,
                "spec": {"podSelector": {}, "policyTypes": ["Ingress"]},
            }
        )

    # Existing children of a type, by namespace and name.
    quotas = request["children"]["ResourceQuota.v1"].values()
    limited = sorted(quota["metadata"]["namespace"] for quota in quotas)
    return {"status": {"limited": limited}, "children": children}


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
