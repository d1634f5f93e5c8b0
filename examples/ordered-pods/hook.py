#!/usr/bin/env python3
"""Hooks of the OrderedPods controller: pods with names and volumes that last, as of a StatefulSet.

A pod is created when those before it are ready. A changed template replaces the pods one at a time,
the highest ordinal first, which Pilotlight does by the controller's update strategy. Fewer replicas and
a deletion remove the pods one by one, the highest ordinal first. Needs only Python 3.8 or newer.
Listens on $PORT, 8080 by default.
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def sync(request):
    parent = request["parent"]
    replicas = parent["spec"]["replicas"]
    pods = by_ordinal(request, "Pod.v1")

    wanted = {ordinal for ordinal in pods if ordinal < replicas}
    missing = next((ordinal for ordinal in range(replicas) if ordinal not in pods), None)
    if missing is not None and all(is_ready(pods[ordinal]) for ordinal in range(missing)):
        wanted.add(missing)
    # Pods beyond the number leave one at a time.
    wanted.update(without_highest(pods, [ordinal for ordinal in pods if ordinal >= replicas]))

    return {"status": status(pods), "children": children(request, wanted)}


def finalize(request):
    pods = by_ordinal(request, "Pod.v1")
    return {
        "status": status(pods),
        "children": children(request, without_highest(pods, pods)),
        "finalized": not pods,
    }


def without_highest(pods, ordinals):
    """Returns the ordinals without the highest, or all that stay while a pod is in deletion."""
    leaving = {ordinal for ordinal in pods if "deletionTimestamp" in pods[ordinal]["metadata"]}
    staying = sorted(set(ordinals) - leaving)
    return staying if leaving else staying[:-1]


def status(pods):
    return {"replicas": len(pods), "readyReplicas": sum(map(is_ready, pods.values()))}


def is_ready(pod):
    conditions = pod.get("status", {}).get("conditions", [])
    ready = any(it["type"] == "Ready" and it["status"] == "True" for it in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def children(request, ordinals):
    parent = request["parent"]
    # A claim stays when its pod goes: a pod of the same ordinal finds its data again.
    claims = set(by_ordinal(request, "PersistentVolumeClaim.v1")) | set(ordinals)
    # A rolling update follows the order of the response.
    descending = sorted(ordinals, reverse=True)
    return [
        claim(parent, ordinal, template)
        for ordinal in sorted(claims)
        for template in claim_templates(parent)
    ] + [pod(parent, ordinal) for ordinal in descending]


def by_ordinal(request, kind):
    children = request["children"][kind].values()
    return {int(child["metadata"]["labels"]["ordinal"]): child for child in children}


def claim_templates(parent):
    return parent["spec"].get("volumeClaimTemplates", [])


def claim_name(parent, ordinal, template):
    return f"{template['metadata']['name']}-{parent['metadata']['name']}-{ordinal}"


def claim(parent, ordinal, template):
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {
            "name": claim_name(parent, ordinal, template),
            "labels": labels(parent["spec"]["selector"]["matchLabels"], ordinal),
        },
        "spec": template["spec"],
    }


def pod(parent, ordinal):
    name = f"{parent['metadata']['name']}-{ordinal}"
    template = parent["spec"]["template"]
    metadata = template.get("metadata", {})
    volumes = [
        {
            "name": claim_template["metadata"]["name"],
            "persistentVolumeClaim": {"claimName": claim_name(parent, ordinal, claim_template)},
        }
        for claim_template in claim_templates(parent)
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": labels(metadata.get("labels", {}), ordinal),
            "annotations": metadata.get("annotations", {}),
        },
        "spec": dict(
            template["spec"],
            hostname=name,
            volumes=template["spec"].get("volumes", []) + volumes,
        ),
    }


def labels(labels, ordinal):
    return dict(labels, ordinal=str(ordinal))


HOOKS = {"/sync": sync, "/finalize": finalize}


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
