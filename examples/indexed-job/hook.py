#!/usr/bin/env python3
"""Hooks of the IndexedJob controller: one pod for each index, some of them at a time.

Each pod finds its index in $JOB_INDEX. The finalize hook deletes the pods of a deleted job one by one,
the highest index first, and the job disappears with the last of them. Needs only Python 3.8 or newer.
Listens on $PORT, 8080 by default.
"""

import json
import os
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


def sync(request):
    job = request["parent"]
    pods = by_index(request)
    phases = {index: pod.get("status", {}).get("phase") for index, pod in pods.items()}
    succeeded = [index for index, phase in phases.items() if phase == "Succeeded"]
    failed = [index for index, phase in phases.items() if phase == "Failed"]
    active = [index for index in phases if index not in succeeded and index not in failed]

    # Missing pods are added in order. A failed pod is not in the answer, which deletes it; a later sync
    # creates it again, before pods of further indexes.
    missing = [index for index in range(job["spec"]["completions"]) if index not in phases]
    free = job["spec"]["parallelism"] - len(active) - len(failed)
    wanted = succeeded + active + missing[: max(free, 0)]

    return {
        "status": {
            "active": len(active),
            "succeeded": len(succeeded),
            "failed": len(failed),
            "complete": len(succeeded) == job["spec"]["completions"],
        },
        "children": [pod(job, index) for index in sorted(wanted)],
    }


def finalize(request):
    job = request["parent"]
    pods = by_index(request)
    # A pod in deletion counts as long as it exists: the next one waits for it.
    leaving = [index for index in pods if "deletionTimestamp" in pods[index]["metadata"]]
    staying = sorted(index for index in pods if index not in leaving)
    if staying and not leaving:
        staying.pop()

    # A status without the counts of sync would replace them.
    status = dict(job.get("status", {}), remaining=len(pods))
    return {
        "status": status,
        "children": [pod(job, index) for index in staying],
        "finalized": not pods,
    }


def by_index(request):
    pods = request["children"]["Pod.v1"].values()
    return {int(pod["metadata"]["labels"]["index"]): pod for pod in pods}


def pod(job, index):
    template = job["spec"]["template"]
    metadata = template.get("metadata", {})
    containers = [
        dict(
            container,
            env=container.get("env", []) + [{"name": "JOB_INDEX", "value": str(index)}],
        )
        for container in template["spec"]["containers"]
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job['metadata']['name']}-{index}",
            "labels": dict(metadata.get("labels", {}), index=str(index)),
            "annotations": metadata.get("annotations", {}),
        },
        "spec": dict(template["spec"], containers=containers),
    }


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
