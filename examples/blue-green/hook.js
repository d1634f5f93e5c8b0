#!/usr/bin/env node
// Hook of the BlueGreenDeployment controller: two ReplicaSets, and a Service that selects one of them.
//
// A changed template goes to the inactive ReplicaSet. The Service selects it as soon as all its pods are
// available; then the other one is scaled to 0. Needs only Node.js 18 or newer. Listens on $PORT, 8080
// by default.
'use strict';

const { createHash } = require('node:crypto');
const http = require('node:http');

// Annotation of a ReplicaSet: hash of the template in the parent. The API server adds defaults to the
// template in the ReplicaSet, so that those two cannot be compared.
const TEMPLATE = 'examples.pilotlight.dev/template';

function sync({ parent, children }) {
  const { name } = parent.metadata;
  const { replicas, template } = parent.spec;
  const hash = createHash('sha256').update(JSON.stringify(template)).digest('hex').slice(0, 16);

  // Existing children, by type and then by name.
  const service = children['Service.v1'][name];
  const active = service?.spec.selector.color ?? 'blue';
  const inactive = active === 'blue' ? 'green' : 'blue';
  const sets = children['ReplicaSet.apps/v1'];
  const [current, next] = [sets[`${name}-${active}`], sets[`${name}-${inactive}`]];

  const isCurrent = !current || hashOf(current) === hash;
  const isReady = !isCurrent && next && hashOf(next) === hash && isAvailable(next, replicas);
  const color = isReady ? inactive : active;

  const desired = {};
  if (isCurrent) {
    desired[active] = replicaSet(parent, active, hash, template, replicas);
    desired[inactive] = next && kept(parent, inactive, next, 0);
  } else {
    // Until the Service has changed, the active ReplicaSet stays as it is.
    desired[active] = kept(parent, active, current, current.spec.replicas);
    // A ReplicaSet does not replace its pods: pods of another template are removed first.
    const isEmpty = !next || hashOf(next) === hash || isAvailable(next, 0);
    desired[inactive] = isEmpty
      ? replicaSet(parent, inactive, hash, template, replicas)
      : kept(parent, inactive, next, 0);
  }

  return {
    status: {
      active: color,
      readyReplicas: sets[`${name}-${color}`]?.status?.readyReplicas ?? 0,
      switching: !isCurrent,
    },
    children: [serviceOf(parent, color), desired.blue, desired.green].filter(Boolean),
  };
}

function hashOf(set) {
  return set.metadata.annotations?.[TEMPLATE];
}

// Whether the ReplicaSet has exactly this number of pods, and all are available.
function isAvailable(set, replicas) {
  const status = set.status ?? {};
  return (
    set.spec.replicas === replicas &&
    status.observedGeneration === set.metadata.generation &&
    (status.replicas ?? 0) === replicas &&
    (status.availableReplicas ?? 0) === replicas
  );
}

function serviceOf(parent, color) {
  const { matchLabels } = parent.spec.selector;
  return {
    apiVersion: 'v1',
    kind: 'Service',
    metadata: { name: parent.metadata.name, labels: matchLabels },
    spec: { selector: { ...matchLabels, color }, ports: [{ port: parent.spec.port }] },
  };
}

function replicaSet(parent, color, hash, template, replicas) {
  const labels = { ...parent.spec.selector.matchLabels, color };
  return {
    apiVersion: 'apps/v1',
    kind: 'ReplicaSet',
    metadata: {
      name: `${parent.metadata.name}-${color}`,
      labels,
      annotations: { [TEMPLATE]: hash },
    },
    spec: {
      replicas,
      selector: { matchLabels: labels },
      template: {
        ...template,
        metadata: { ...template.metadata, labels: { ...template.metadata?.labels, color } },
      },
    },
  };
}

// An existing ReplicaSet with its own template.
function kept(parent, color, set, replicas) {
  return replicaSet(parent, color, hashOf(set), set.spec.template, replicas);
}

const server = http.createServer((request, response) => {
  const chunks = [];
  request.on('data', (chunk) => chunks.push(chunk));
  request.on('end', () => {
    const answer = (code, body) => {
      response.writeHead(code, { 'Content-Type': 'application/json' });
      response.end(JSON.stringify(body));
    };
    if (request.url !== '/sync') {
      answer(404, { error: `no hook at ${request.url}` });
      return;
    }
    try {
      answer(200, sync(JSON.parse(Buffer.concat(chunks))));
    } catch (error) {
      answer(500, { error: String(error) });
    }
  });
});

server.listen(Number(process.env.PORT ?? 8080), () => {
  console.log(`listening on port ${server.address().port}`);
});
process.on('SIGTERM', () => process.exit(0));
