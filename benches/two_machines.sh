#!/usr/bin/env bash
# Measures hops between two workers in network namespaces with a link between them, and a pipeline over both:
#
#     benches/two_machines.sh [RATE [MS]]
#
# RATE is the link's, as `tc` writes it, or `none`; default 1gbit. The first measurement has passes of 0 ms:
# with one group in flight a hop goes one way at a time, with six both ways are busy. In the second, passes
# take MS milliseconds each, by default half of the time of a hop both ways at once, so that a stage works on
# a micro-batch for as long as a link does. Needs root and iproute2. See link.rs for the output.
set -euo pipefail
cd "$(dirname "$0")/.."
rate=${1:-1gbit}

bench=$(cargo bench --workspace --features remote --bench link --no-run --message-format=json-render-diagnostics |
    sed -n 's/.*"executable":"\([^"]*\/link-[^"]*\)".*/\1/p')
work=$(mktemp -d)
spaces=("loraloom-$$-0" "loraloom-$$-1" "loraloom-$$-2")
workers=()
finish() {
    for pid in "${workers[@]}"; do kill "$pid" 2>/dev/null || true; done
    for space in "${spaces[@]}"; do ip netns delete "$space" 2>/dev/null || true; done
    rm -rf "$work"
}
trap finish EXIT

address() { printf '10.77.0.%d' "$(($1 + 1))"; }
for at in 0 1 2; do
    ip netns add "${spaces[at]}"
    ip -n "${spaces[at]}" link set lo up
    ip -n "${spaces[at]}" address add "$(address "$at")/32" dev lo
done
for pair in "0 1" "0 2" "1 2"; do
    read -r one other <<<"$pair"
    ip link add "to$other" netns "${spaces[one]}" type veth peer name "to$one" netns "${spaces[other]}"
    for way in "$one $other" "$other $one"; do
        read -r from to <<<"$way"
        ip -n "${spaces[from]}" link set "to$to" up
        ip -n "${spaces[from]}" route add "$(address "$to")/32" dev "to$to" src "$(address "$from")"
        [[ $rate == none ]] || tc -n "${spaces[from]}" qdisc add dev "to$to" root \
            tbf rate "$rate" burst 512kb latency 60ms
    done
done

"$bench" model "$work/model"

# run MS STEPS CASES
run() {
    local at lines=() args=()
    for at in 1 2; do
        mkfifo "$work/stdin$at" "$work/stdout$at"
        ip netns exec "${spaces[at]}" "$bench" worker "$(address "$at"):0" "$work/identity$at" \
            "$work/model" "$1" <"$work/stdin$at" >"$work/stdout$at" &
        workers+=("$!")
        exec {hold}>"$work/stdin$at"
        lines+=("$hold")
        read -r line <"$work/stdout$at"
        args+=("$line" "$!")
    done
    ip netns exec "${spaces[0]}" "$bench" run "$work/model" "$2" "${LENGTH:-512}" "$3" "${args[@]}"
    for hold in "${lines[@]}"; do exec {hold}>&-; done
    wait "${workers[@]}" || true
    workers=()
    rm -f "$work"/std*
}

printf '# passes of 0 ms\n'
run 0 24 1:0,6:4 | tee "$work/alone"
if [[ -n ${2:-} ]]; then
    pass=$2
else
    pass=$(sed -n '2s/.*"seconds_per_group":\([0-9.]*\).*/\1/p' "$work/alone" | awk '{ print $1 * 500 }')
fi
printf '# passes of %s ms\n' "$pass"
run "$pass" 24 2:0,3:1,4:2,5:3,6:4
