#!/bin/bash
# The logic of train.sbatch, without Slurm: srun, scontrol and loraloom are stubs that note what they
# were asked. What only Slurm itself can show (placement, its signals, requeueing) is not tested here.

set -euo pipefail

script=$(cd -- "$(dirname -- "$0")" && pwd)/train.sbatch
root=$(mktemp -d)
trap 'rm -rf -- "$root"' EXIT
passed=0
failed=0

stub() {
    cat >"$root/bin/$1"
    chmod +x "$root/bin/$1"
}

mkdir "$root/bin"
stub ip <<'STUB'
#!/bin/bash
echo "$4 dev eth0 src 10.0.0.$((SLURM_PROCID + 2)) uid 0"
STUB
stub getent <<'STUB'
#!/bin/bash
echo "10.0.0.1 STREAM $2"
STUB
stub scontrol <<'STUB'
#!/bin/bash
echo "$*" >>"$CASE/scontrol"
exit "${STUB_SCONTROL:-0}"
STUB
stub srun <<'STUB'
#!/bin/bash
echo "$*" >>"$CASE/srun"
for argument; do [[ $argument == --ntasks=* ]] && tasks=${argument#*=}; done
for ((rank = 0; rank < tasks; rank++)); do
    SLURM_PROCID=$rank "${@: -3}" &
    pids+=("$!")
done
trap 'kill "${pids[@]}" 2>/dev/null; echo srun-stopped >>"$CASE/order"; exit 143' TERM
for pid in "${pids[@]}"; do wait "$pid" || { status=$?; kill "${pids[@]}" 2>/dev/null; exit "$status"; }; done
STUB
stub loraloom <<'STUB'
#!/bin/bash
command=$1
printf '%s\n' "$*" >>"$CASE/$command"
while (($#)); do
    case $1 in
    --listen) address=${2%:0}:4433 ;;
    --token-file) stat -c %a "$2" >>"$CASE/mode" ;;
    esac
    shift
done
if [[ $command == worker ]]; then
    case ${STUB_WORKER:-} in
    fails) exit 3 ;;
    silent) ;;
    *) sleep "0.$SLURM_PROCID"; echo "remote:$SLURM_PROCID@$address" ;;
    esac
    exec sleep 60
fi
terms=0
trap 'terms=$((terms + 1)); echo "term $terms" >>"$CASE/order"' TERM
for _ in $(seq "${STUB_STEPS:-1}"); do
    sleep 0.1
    if ((terms > 0)); then
        sleep 0.5
        echo saved >>"$CASE/order"
        exit "${STUB_STOPPED:-130}"
    fi
done
exit "${STUB_TRAIN:-0}"
STUB

# Runs a case: its name, the number of nodes, settings of the stubs.
start() {
    name=$1
    export CASE=$root/$name
    mkdir "$CASE"
    cd "$CASE"
    [[ -z ${STUB_SAVED:-} ]] || mkdir -p "$STUB_SAVED"
    env PATH="$root/bin:$PATH" SLURM_JOB_NAME=job SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES="$2" \
        SLURMD_NODENAME=node1 SLURM_CPUS_PER_TASK=2 LORALOOM_START_TIMEOUT=3 "${@:3}" \
        bash "$script" config.yaml model --set seed=1 >"$CASE/log" 2>&1 &
    job=$!
}

ends_with() {
    local status=0
    wait "$job" || status=$?
    expect "ends with $1" "$status" "$1"
    expect "leaves no job directory" "$(ls loraloom-jobs)" ""
}

expect() {
    if [[ $2 == "$3" ]]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        printf 'FAILED %s: %s: got %q, expected %q\n' "$name" "$1" "$2" "$3"
        sed 's/^/    /' "$CASE/log"
    fi
}

noted() {
    cat "$CASE/$1" 2>/dev/null || true
}

start three-nodes 3
ends_with 0
expect "stages" "$(noted train | grep -o 'pipeline.stages=.*]')" \
    'pipeline.stages=[cuda:0, "remote:0@10.0.0.2:4433", "remote:1@10.0.0.3:4433"]'
expect "the model" "$(noted train | grep -o -- '--base-model [^ ]*')" "--base-model model"
expect "further options" "$(noted train | grep -o 'seed=1$')" "seed=1"
expect "the token is the user's alone" "$(noted mode | sort -u)" 600
expect "workers are stopped" "$(noted order)" srun-stopped
expect "nothing is queued again" "$(noted scontrol)" ""

start one-node 1
ends_with 0
expect "no srun" "$(noted srun)" ""
expect "stages" "$(noted train | grep -o 'pipeline.stages=.*]')" "pipeline.stages=[cuda:0]"

start lost 2 STUB_TRAIN=75
ends_with 0
expect "queued again" "$(noted scontrol)" "requeue 7"

STUB_SAVED=runs/job-7/checkpoints/12 start lost-again 2 STUB_TRAIN=75 SLURM_RESTART_COUNT=2
ends_with 0
expect "goes on in the same directory" "$(noted train | grep -c -- '--output-dir runs/job-7 .*--resume ')" 1
expect "queued again" "$(noted scontrol)" "requeue 7"

STUB_SAVED=runs/job-7/checkpoints/.0.tmp-5 start lost-before-a-save 2 SLURM_RESTART_COUNT=1
ends_with 0
expect "begins anew" "$(noted train | grep -c -- '--resume')" 0
expect "keeps what was there" "$(ls runs)" job-7.unsaved-1

start lost-too-often 2 STUB_TRAIN=75 SLURM_RESTART_COUNT=3
ends_with 75
expect "not queued again" "$(noted scontrol)" ""

start cannot-requeue 2 STUB_TRAIN=75 STUB_SCONTROL=1
ends_with 75

start wrong-config 2 STUB_TRAIN=2
ends_with 2
expect "not queued again" "$(noted scontrol)" ""

start worker-fails 3 STUB_WORKER=fails
ends_with 3
expect "not trained" "$(noted train)" ""

start worker-silent 2 STUB_WORKER=silent
ends_with 0
expect "queued again" "$(noted scontrol)" "requeue 7"
expect "not trained" "$(noted train)" ""

start time-is-up 2 STUB_STEPS=100
until [[ -s train ]]; do sleep 0.1; done
kill -USR1 "$job"
until [[ -s order ]]; do sleep 0.1; done
kill -USR1 "$job"
ends_with 130
expect "told once, saved before workers go" "$(noted order)" "$(printf 'term 1\nsaved\nsrun-stopped')"
expect "not queued again" "$(noted scontrol)" ""

start lost-while-it-stops 2 STUB_STEPS=100 STUB_STOPPED=75
until [[ -s train ]]; do sleep 0.1; done
kill -USR1 "$job"
ends_with 75
expect "not queued again" "$(noted scontrol)" ""

start stopped-while-it-waits 2 STUB_WORKER=silent
until [[ -s worker ]]; do sleep 0.1; done
kill -USR1 "$job"
ends_with 130
expect "not trained" "$(noted train)" ""

echo "$passed passed, $failed failed"
((failed == 0))
