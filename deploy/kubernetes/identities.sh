#!/bin/bash
# Prints the secrets and addresses that connect a JobSet's controller and workers: a token, a key for
# each worker, and `pipeline.stages` with the ids derived from the keys.
#
#   deploy/kubernetes/identities.sh WORKERS [JOBSET [DEVICE]] | kubectl apply -f -
#
# A recreated pod keeps its DNS name and its key, so addresses never change. Needs OpenSSL 3. Writes
# nothing to disk.

set -euo pipefail

if (($# < 1 || $# > 3)) || ! [[ $1 =~ ^[1-9][0-9]*$ ]]; then
    echo "usage: identities.sh WORKERS [JOBSET [DEVICE OF THE CONTROLLER'S STAGE]]" >&2
    exit 2
fi
workers=$1
jobset=${2:-loraloom}
stages=${3:-cuda:0}
port=4433

# The last 32 bytes of either form are the key itself; what is before them says that it is Ed25519.
key() {
    tail -c 32 | od -An -v -tx1 | tr -d ' \n'
}

bytes() {
    local hex=$1
    while [[ -n $hex ]]; do
        # shellcheck disable=SC2059
        printf "\\x${hex:0:2}"
        hex=${hex:2}
    done
}

identities=
for ((index = 0; index < workers; index++)); do
    pem=$(openssl genpkey -algorithm ed25519)
    secret=$(openssl pkey -outform DER <<<"$pem" | key)
    id=$(openssl pkey -pubout -outform DER <<<"$pem" | key)
    [[ ${#secret} == 64 && ${#id} == 64 ]] || { echo "openssl gave no Ed25519 key" >&2; exit 1; }
    identities+="  worker-$index: $(bytes "$secret" | base64 -w 0)"$'\n'
    stages+=", \"remote:$id@$jobset-worker-0-$index.$jobset:$port\""
done

cat <<YAML
apiVersion: v1
kind: Secret
metadata:
  name: $jobset-token
stringData:
  token: $(openssl rand -hex 32 | sed 's/.*/"&"/')
---
apiVersion: v1
kind: Secret
metadata:
  name: $jobset-identities
data:
${identities%$'\n'}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: $jobset-stages
data:
  stages: '[$stages]'
YAML
