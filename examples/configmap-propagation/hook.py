#!/usr/bin/env python3
"""Hooks of the ConfigMapPropagation controller: one copy of a ConfigMap in each selected namespace.

The customize hook names the objects that the sync hook needs besides the parent and its children: the
source and the namespaces. A change of any of them causes a sync. Needs only Python 3.8 or newer.
Listens on $PORT, 8080 by default.
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def customize(request):
    spec = request["parent"]["spec"]
    return {
        "relatedResources": [
            {
                "apiVersion": "v1",
                "resource": "configmaps",
                "namespace": spec["source"]["namespace"],
                "names": [spec["source"]["name"]],
            },
            {
                "apiVersion": "v1",
                "resource": "namespaces",
                "labelSelector": spec["namespaceSelector"],
            },
        ]
    }


def sync(request):
    parent = request["parent"]
    name = parent["metadata"]["name"]
    source = parent["spec"]["source"]
    related = request["related"]

    # Related objects, by type and then by namespace and name.
    original = related["ConfigMap.v1"].get(f"{source['namespace']}/{source['name']}")
    namespaces = [
        namespace
        for namespace, found in related["Namespace.v1"].items()
        if "deletionTimestamp" not in found["metadata"] and namespace != source["namespace"]
    ]
    if original is None:
        # Existing copies stay until the source returns.
        copies = [desired(copy, name, copy["metadata"]["namespace"]) for copy in observed(request)]
    else:
        copies = [desired(original, name, namespace) for namespace in namespaces]

    return {
        "status": {
            "source": "Found" if original is not None else "Missing",
            "wanted": len(copies),
            "copies": len(observed(request)),
        },
        "children": copies,
    }


def observed(request):
    return request["children"]["ConfigMap.v1"].values()


def desired(source, name, namespace):
    copy = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
    }
    for field in ("data", "binaryData"):
        if field in source:
            copy[field] = source[field]
    return copy


HOOKS = {"/customize": customize, "/sync": sync}


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
