#!/usr/bin/env bash
# Breaks the source one line at a time and expects a test to fail. Prints a table; ends with 1 if a
# mutation survives. Arguments choose mutations by name. Needs a clean checkout: every file is restored
# by git.
#
#     tests/mutations.sh [NAME...]
set -euo pipefail
cd "$(dirname "$0")/.."

if ! git diff --quiet; then
    printf 'commit or stash your changes first\n' >&2
    exit 2
fi
trap 'git checkout -q -- .' EXIT

wanted=("$@")
survived=0
log=$(mktemp)

# NAME FILE FROM TO FILTER...: replaces FROM, which must stand in FILE exactly once, and runs the tests
# that match a filter.
mutation() {
    local name=$1 file=$2 from=$3 to=$4
    shift 4
    if ((${#wanted[@]} > 0)) && [[ ! " ${wanted[*]} " == *" $name "* ]]; then
        return
    fi
    python3 - "$file" "$from" "$to" <<'PYTHON'
import sys

path, old, new = sys.argv[1:]
text = open(path).read()
if text.count(old) != 1:
    sys.exit(f"{path}: found {text.count(old)} times: {old}")
open(path, "w").write(text.replace(old, new))
PYTHON
    local verdict=caught by=
    if ! cargo test --release --workspace --tests --no-run >"$log" 2>&1; then
        verdict='does not compile'
        survived=$((survived + 1))
        tail -n 20 "$log" >&2
    elif timeout 900 cargo test --release --workspace --tests --no-fail-fast -- "$@" >"$log" 2>&1; then
        verdict=SURVIVED
        survived=$((survived + 1))
    fi
    by=$(sed -nE 's/^test (.*) \.\.\. FAILED$/\1/p' "$log" | sort -u | head -n 3 | paste -sd ' ')
    # A test may end its whole program.
    [[ -n $by ]] || by=$(grep -om 1 'signal: [0-9]*, SIG[A-Z]*' "$log" || true)
    if [[ $verdict == caught && -z $by ]]; then
        verdict='no test ran'
        survived=$((survived + 1))
    fi
    printf '| %s | %s | %s |\n' "$name" "$verdict" "$by"
    git checkout -q -- "$file"
}

trainer=crates/trainer/src
scheduler=crates/scheduler/src

printf '| mutation | verdict | first tests that fail |\n|---|---|---|\n'
mutation dropout-off $trainer/iteration/plan.rs \
    'assemble(&parts, Some(draws.clone()))?' 'assemble(&parts, Some(draws.clone()).filter(|_| false))?' parity::
mutation same-mask-every-step $trainer/iteration/plan.rs 'step: task.submitted.steps() as u32,' 'step: 0,' parity::
mutation seed-ignored $trainer/adapter.rs \
    'init(spec, shape, config.seed, module, device)?' 'init(spec, shape, 0, module, device)?' liveness::
mutation beta1-ignored $trainer/iteration/plan.rs 'beta1: train.adam_beta1,' 'beta1: 0.9,' parity::
mutation beta2-ignored $trainer/iteration/plan.rs 'beta2: train.adam_beta2,' 'beta2: 0.999,' parity::
mutation epsilon-ignored $trainer/iteration/plan.rs 'epsilon: train.adam_epsilon,' 'epsilon: 1e-8,' parity::
mutation validation-per-row $trainer/batch/evaluate.rs 'self.targets += losses.len();' 'self.targets += 1;' evaluation::
mutation liveness-off $trainer/tasks/diagnosis.rs 'if factors.is_empty() {' 'if true {' liveness::
mutation rope-by-row $trainer/batch/assemble.rs 'rope_lengths.push(task.longest);' 'rope_lengths.push(length);' parity::
mutation branches-unscaled crates/model/src/layer.rs \
    '                self.residual_multiplier,' '                None,' \
    parity::granite
mutation logits-unscaled crates/model/src/head.rs \
    'scaled(joined(gradients, 0), self.multiplier)' 'joined(gradients, 0)' parity::granite
mutation every-layer-rotates crates/model/src/batch.rs 'LayerRotation::None => None,' \
    'LayerRotation::None => Some(&self.global),' parity::smollm3
mutation windows-rotate-alike crates/model/src/batch.rs 'self.local.as_ref().unwrap_or(&self.global)' \
    '&self.global' parity::gemma3
mutation short-factors-only crates/model/src/rope.rs '                long_factor
' '                short_factor
' \
    parity::phi3
inference=crates/inference/src
mutation kept-by-tokens-alone $inference/sequence.rs 'self.parent = pool.keep(' 'let _ = pool.keep(' engine::
mutation generations-share-blocks $inference/sequence.rs \
    'let generation = self.request.generation.0;' 'let generation = 0;' engine::
mutation sums-cut-anywhere crates/model/src/ops/flex/attention.rs \
    'keys.end.min((start / DEPTH + 1) * DEPTH)' 'keys.end.min(start + DEPTH)' paged::
mutation text-of-the-moment $inference/sequence.rs 'self.text - self.computed' 'left' engine::rotations
mutation one-row-as-gemm-likes crates/kernels/src/matrix/mod.rs 'm == 1 || n == 1 || along_vectors' \
    'n == 1 || along_vectors' does_not_depend engine::log_prob
mutation longer-sums-of-few-rows crates/kernels/src/matrix/few_rows.rs '(0..k).step_by(DEPTH)' \
    '(0..k).step_by(2 * DEPTH)' does_not_depend
mutation log-probs-after-temperature crates/model/src/ops/sampling.rs '.map(|&id| log_probs.of(logits[id as usize])));' \
    '.map(|&id| log_probs.of(logits[id as usize]) * 0.999));' engine::log_prob
mutation draws-forgotten crates/model/src/ops/sampling.rs 'self.draw * kept' '0.0 * kept' decoder::sampling
mutation ties-by-chance crates/model/src/ops/sampling.rs 'total_cmp(&value(*a)).then(a.cmp(b));' \
    'total_cmp(&value(*a)).then(b.cmp(a));' decoder::sampling
mutation changed-files-are-served $inference/store.rs 'Ok(files) if files.digest == held.digest =>' \
    'Ok(files) =>' service::files
mutation names-of-runs-load crates/server/src/http/adapters.rs 'if is_of_run(&load.lora_name) {' 'if false {' cannot_be_loaded
mutation tasks-named-as-the-base crates/server/src/http/tasks.rs 'if base.as_ref() == Some(&adapter.name) {' 'if false {' \
    submitted_once
mutation threads-read-adapters $inference/service_core.rs 'self.reader.spawn(move || {' \
    'let _ = thread::spawn(move || {' reading::adapters_are
mutation adapters-are-mapped crates/model/src/peft/load.rs 'Ok((config, Shard::read(&path)?))' 'Ok((config, Shard::open(&path)?))' \
    peft::a_file_may
mutation pipes-are-read $inference/reading.rs 'if found.is_file() {' 'if true {' reading::a_pipe
mutation copies-read-ahead $inference/service_core.rs 'let _ = is_registered.recv();' 'drop(is_registered);' reading::one_adapter
mutation threads-await-weights $inference/service_core.rs 'find(&name, Box::new(take));' \
    'let _ = thread::spawn(move || find(&name, Box::new(take)));' reading::awaited_weights
mutation panics-of-a-job-end-the-process $inference/reading.rs '.panic_handler(|_| {})' '' reading::tests::a_thread
mutation panics-lose-the-reply $inference/reading.rs 'catch_unwind(AssertUnwindSafe(|| read(directory)))' \
    'Ok::<_, ()>(read(directory))' reading::adapters_are
mutation files-change-unnoticed $inference/reading.rs 'if digest(directory)? != before {' 'if false {' reading::adapters_are
mutation saves-read-by-the-core $trainer/generate/live.rs 'reader.spawn(move || take(saved.after_step(&adapter, step)));' \
    'take(saved.after_step(&adapter, step));' saves_are_read
mutation saves-read-by-training $trainer/generate/live.rs 'Ok(None) => reader.spawn(move || take(saved.last(&adapter))),' \
    'Ok(None) => take(saved.last(&adapter)),' saves_are_read
mutation copies-for-each $trainer/generate/live.rs 'let copied = copies.entry(adapter);' \
    'copies.clear(); let copied = copies.entry(adapter);' requests_for_one
mutation live-errors-are-saves $trainer/generate/live.rs 'Err(error) => take(Err(error)),' 'Err(_) => take(Ok(None)),' requests_for_one
mutation simulate-without-limit crates/cli/src/commands/simulate.rs 'simulation.rate_limit = limit;' 'let _ = limit;' options_of_a_policy
mutation cores-outlive-services $inference/service_core.rs 'to_itself: service.weak(),' 'to_itself: { std::mem::forget(service.clone()); service.weak() },' \
    reading::awaited_weights
mutation lost-names $inference/service_core.rs 'None => self.store.begin(&ask.model),' \
    'None => Err(ServiceError::UnknownModel { name: ask.model.clone(), known: Vec::new() }),' reading::awaited_weights
mutation not-numbers-are-answers $inference/service_core.rs 'if !token.log_prob.is_finite() {' 'if false {' no_number
mutation evicts-in-use $inference/store.rs '.filter(|(_, slot)| !in_use.contains(slot));' ';' service::limits::adapters_in_use

mutation keys-for-values crates/model/src/layer.rs 'let widths = [self.num_heads * self.head_dim, key, key];
                parts(&project(Projection::Qkv, linear, normal)?, widths)' \
    'let widths = [self.num_heads * self.head_dim, key, key];
                let [q, k, _] = parts(&project(Projection::Qkv, linear, normal)?, widths);
                [q, k.clone(), k]' parity::phi3
mutation scores-slope-one crates/model/src/ops/flex/attention.rs '*ds *= 1.0 - tangent * tangent;' \
    'let _ = (ds, tangent);' parity::gemma2
mutation logits-slope-one crates/model/src/head.rs 'Some(slope) => gradient * slope,' \
    'Some(_) => gradient,' parity::gemma2
mutation heads-normed-alone crates/model/src/config/family.rs \
    'qk_norm: QkNorm::AllHeads,' 'qk_norm: QkNorm::PerHead,' parity::olmo2
mutation dropout-by-micro-batch $trainer/batch/assemble.rs \
    '(task.first_sample + index) * task.max_seq_len' 'index * task.max_seq_len' parity:: late_reading::
mutation weight-by-micro-batch $trainer/iteration/plan.rs 'step_targets: rows.step.step_target_tokens,' \
    'step_targets: samples.iter().map(|s| s.num_targets()).sum(),' parity::
mutation share-not-counted $scheduler/grouping/group.rs \
    'seconds * self.steepest / pass.tasks as f64' 'seconds * self.steepest' grouping::
mutation no-lift $scheduler/policy/fair.rs 'counter.max(self.ledger.level)' 'counter.max(0.0)' \
    is_lifted a_tenant_that_returns
mutation machine-for-container crates/pipeline/src/memory/host.rs \
    'limits.chain(kibibytes.checked_mul(1024)).min()' 'limits.chain(kibibytes.checked_mul(1024)).last()' host_memory

mutation hangup-handled crates/cli/src/interrupt.rs 'if !is_ignored(SIGHUP)' 'if SIGHUP > 0' under_nohup
mutation save-not-heard $trainer/run/signals.rs \
    'self.save.load(Ordering::Relaxed) && self.save' 'false && self.save' when_it_is_asked
mutation halvings-forgotten $trainer/tasks/task.rs 'self.halvings = record.halvings;' '' half_the_rows
mutation memory-not-observed $scheduler/grouping/grouped_room.rs \
    'memory.observe(iteration.load, *measured);' 'let _ = (memory, measured);' what_iterations_take
mutation step-times-unused $scheduler/grouping/grouped_room.rs \
    'fit.mean_error <= USABLE_ERROR' 'fit.mean_error < 0.0' what_iterations_take
mutation step-times-forgotten $scheduler/grouping/grouped_room.rs \
    '= learnt.step_time_model {' '= learnt.step_time_model.filter(|_| false) {' what_iterations_take
mutation devices-forgotten $trainer/run/run.rs 'scheduler.room_mut().remember(learnt);' 'let _ = learnt;' what_iterations_take
mutation no-margin $scheduler/memory/model.rs 'RESIDUALS: f64 = 2.5' 'RESIDUALS: f64 = 0.0' memory::
mutation fit-beyond-reach $scheduler/memory/model.rs 'REACH: f64 = 1.5' 'REACH: f64 = 1e9' memory::
mutation one-length-tells-all $scheduler/memory/model.rs '.len() == 3;' '.len() > 0;' memory::
mutation ran-out-and-again $scheduler/memory/model.rs 'self.ran_out.push(new);' 'let _ = new;' memory::
mutation pools-of-their-own $scheduler/memory/model.rs 'self.held.push((load, exact_bytes));' '' memory::
mutation least-loaded-is-first crates/simulator/src/rooms.rs 'if self.rule == Filling::LeastLoaded {' \
    'if false && self.rule == Filling::LeastLoaded {' rooms::
mutation padding-is-free crates/simulator/src/rooms.rs 'if padding == Padding::None {' 'if padding == padding {' rooms::
mutation steps-untold crates/simulator/src/engine.rs 'self.scheduler.progress(member.task, steps, tokens)?;' '' \
    a_tenant_that_returns

mutation lead-a-thousand-times $scheduler/policy/options.rs \
    $'lead: 65_536,\n        lift: true' $'lead: 65_536_000,\n        lift: true' tenants_take_turns
mutation read-in-a-step $trainer/iteration/plan.rs 'let draws: Vec<DropoutDraw>' \
    'let _ = || burn::tensor::Tensor::<1>::zeros([1], &burn::tensor::Device::flex()).into_scalar::<f32>();
    let draws: Vec<DropoutDraw>' tensors_are_read_back
mutation sync-in-a-step $trainer/iteration/plan.rs 'let draws: Vec<DropoutDraw>' \
    'let _ = burn::tensor::Device::flex().sync();
    let draws: Vec<DropoutDraw>' tensors_are_read_back
mutation no-step-ahead crates/pipeline/src/executor/run.rs \
    'lookahead: if shape.stages > 1 { 3 } else { 2 },' 'lookahead: 1,' late_reading::
mutation base-trained crates/pipeline/src/stage/passes.rs \
    'let norms = GradientNorms::from_sums(squares).finish();' \
    'struct Decay;
        impl burn::module::ModuleMapper for Decay {
            fn map_float<const D: usize>(
                &mut self,
                weight: burn::module::Param<burn::tensor::Tensor<D>>,
            ) -> burn::module::Param<burn::tensor::Tensor<D>> {
                weight.map(|weight| weight * 0.9999)
            }
        }
        self.backbone = burn::module::Module::map(self.backbone.clone(), &mut Decay);
        let norms = GradientNorms::from_sums(squares).finish();' frozen::
mutation trials-forgotten $trainer/save/moment.rs 'trial: self.trials.results(id),' 'trial: Vec::new(),' a_sweep_that_is
mutation trials-not-entered-again $trainer/run/session.rs 'session.enter_trials(&prepared)?;' \
    'if saved.is_none() { session.enter_trials(&prepared)?; }' a_sweep_that_is
mutation ended-trials-forgotten $trainer/tasks/prepare.rs 'prepared.trials.insert(id, task.record.trial.clone());
                prepared.ended' 'prepared.ended' a_sweep_that_is
mutation last-not-taken-back $trainer/save/saver.rs 'PreviousVersion::Last(step) => task.saved_steps = *step' 'PreviousVersion::Last(_) => {}' a_checkpoint_knows
mutation last-said-to-be-saved $trainer/save/writer.rs \
    'PreviousVersion::Last(step) => task.saved_steps = step' 'PreviousVersion::Last(_) => {}' a_checkpoint_knows
mutation best-not-taken-back $trainer/save/saver.rs 'PreviousVersion::Best(best) => task.best = *best' 'PreviousVersion::Best(_) => {}' the_best_is
mutation save-waits-for-the-window $trainer/run/signals.rs '[self.stop, self.news, self.save]' \
    '[self.stop, self.news]' every_signal
mutation shape-forgotten $trainer/tasks/task.rs 'shape.map(PeftLoraConfig::to_json).transpose()?,' \
    'shape.map(PeftLoraConfig::to_json).transpose()?.filter(|_| false),' keeps_the_shape
mutation failures-never-forgotten $trainer/save/saver.rs 'self.saver.failures = 0;' '' saves_fail_for_a_while
mutation copies-beside-the-limit $trainer/save/saver.rs \
    'limit.saturating_sub(expected.unwrap_or(0))' 'limit + expected.unwrap_or(0)' copies_have_what
mutation undone-checkpoints-kept $trainer/checkpoint/staged.rs \
    'generation.number > number)' 'generation.number > number + 1000)' the_newest_are_kept
mutation damaged-twice $trainer/checkpoint/saved_run.rs \
    'on(&generation.path, remove(aside.as_ref()))?;' '' a_damaged_checkpoint
mutation others-files-lost $trainer/checkpoint/tidy.rs 'keep_others(&path, &place)?;' '' leftovers_go
mutation save-in-the-way $trainer/save/writer.rs \
    'self.queue.sender = None;' 'self.queue.sender = None; while !self.thread.is_finished() {}' training_goes_on_while_a_slow
mutation file-not-synced crates/model/src/durable.rs '    file.sync_all()' '    Ok(())' what_appears_in_a_run
mutation new-directory-not-synced crates/model/src/durable.rs \
    'path.parent().map_or(Ok(()), sync_directory)' 'Ok(())' what_appears_in_a_run
mutation checkpoints-not-synced $trainer/checkpoint/staged.rs \
    'on(&self.parent, sync_directory(&self.parent))?;' '' what_appears_in_a_run
mutation adapter-not-synced crates/model/src/replace.rs \
    'on(&staged, sync_directory(&staged))?;' '' what_appears_in_a_run
mutation adapters-not-synced crates/model/src/replace.rs \
    'on(parent, sync_directory(parent))' 'Ok(())' what_appears_in_a_run
mutation directory-of-checkpoint-not-synced $trainer/checkpoint/staged.rs \
    'on(&self.path, sync_directory(&self.path))?;' '' what_appears_in_a_run
mutation tensors-of-checkpoint-not-synced $trainer/checkpoint/staged.rs \
    'on(&path, sync_directory(&path))?;' '' what_appears_in_a_run
mutation configuration-not-synced $trainer/run_directory/directory.rs \
    '        file.sync_all()' '        Ok(())' what_appears_in_a_run
mutation task-not-synced crates/server/src/queue/file.rs \
    '"synchronous", "FULL"' '"synchronous", "NORMAL"' what_a_server_accepts

mutation keys-of-any-set crates/server/src/queue/submit.rs '!before.is_empty() && before != names' 'false' \
    a_key_is_of_one_set
mutation keys-without-names crates/server/src/client.rs 'format!("{key}/{}", adapter.name)' 'key.to_owned()' \
    a_key_of_one_adapter
mutation one-token-is-enough crates/trainer/src/adapter.rs '|&longest| longest < 2' '|&longest| longest < 1' \
    an_adapter_that_cannot_learn
mutation server-keeps-one $trainer/run/serving.rs \
    'saver.keep = saver.keep.max(task.config.save.keep);' 'let _ = saver;' a_server_keeps_as_many
mutation judged-one-by-one $trainer/run/follow_up.rs 'stepped.insert(id, early.or(diverged));' \
    'let one = self.trials.judge().pop().map(|(_, reason)| reason);
        stepped.insert(id, early.or(diverged).or(one));' the_best_third_goes_on
mutation rungs-unevaluated $trainer/run/follow_up.rs 'task.evaluates_after(step) || compared {' \
    'task.evaluates_after(step) {' sweep::
mutation ranked-by-another-metric $trainer/report/run_report.rs \
    'SweepReport::rank(&sweep.name, metric,' 'SweepReport::rank(&sweep.name, metric.filter(|_| false),' the_best_third_goes_on
mutation paths-as-typed crates/config/src/load.rs 'paths::absolute(path)' 'Ok::<_, std::io::Error>(path.clone())' \
    every_command_on_a_run
mutation folder-of-nobody crates/config/src/paths/mod.rs 'Location::At(..) if !self.is_mlora => self.folder,' \
    'Location::At(..) if !self.is_mlora && false => self.folder,' a_configuration_means_the_same
mutation any-model-generates crates/trainer/src/checkpoint/saved_run.rs 'if digest == expected {' \
    'if digest != " " {' another_model_in_the_place
mutation pause-of-absent-lost $trainer/run/serving.rs 'unread.held = held;' '' \
    paused_while_its_data_is_away
mutation whole-rows-again $trainer/run/rewind.rs 'if kept.id == id {' 'if false {' goes_on_with_half_the_rows
mutation arrivals-whole-again $trainer/run/rewind.rs 'kept.chain(self.rewind.arrivals.values_mut())' 'kept' \
    when_a_task_begins
mutation ended-steps-again $trainer/run/rewind.rs 'if snapshot.tasks().any(goes_on) {' \
    'if snapshot.tasks().any(|_| true) { let _ = goes_on;' when_a_task_begins
mutation steps-counted-twice $trainer/run/rewind.rs 'if snapshot.tasks().any(goes_on) {' \
    'if snapshot.tasks().any(goes_on) && false {' memory_that_runs_out_parks
mutation record-waits $trainer/save/writer.rs 'while bytes > 0 && !fits' 'while !fits' without_bytes_never_waits
mutation wgpu-runs-out-unheard crates/model/src/error.rs '"outofmemory",' '' \
    words_for_a_lack_of_memory
mutation more-stages-than-layers crates/pipeline/src/partition/balance.rs '    can_be_spread(layers, stages)?;
    if counts' '    if counts' what_cannot_be_is_refused
mutation absent-data-fails $trainer/run/serving.rs 'if error.is_of_an_absent_file() {' 'if false {' waits_for_data_that_is_away
mutation failed-not-kept $trainer/save/moment.rs 'for id in tasks.carried.keys() {' \
    'for id in tasks.carried.keys().take(0) {' goes_on_once_its_data
mutation failed-not-kept-by-the-next-server crates/server/src/queue_bridge.rs 'if task.state == TaskState::Failed {' \
    'if false {' goes_on_once_its_data
mutation drained-with-success crates/cli/src/commands/serve.rs \
    'report.interrupted || arguments.drain' 'report.interrupted' waits_for_data_that_is_away
mutation quiet-failure crates/cli/src/commands/serve.rs 'failure::report_adapters(printer, &report, &told);' '' \
    waits_for_data_that_is_away
mutation absence-is-a-change crates/server/src/files.rs 'stamp.is_none() || stamp == seen.stamp' \
    'stamp == seen.stamp' only_other_content
mutation gone-directory-not-noticed $trainer/run_directory/directory.rs 'self.identity.is_at(&self.path)' 'true' \
    whose_directory
mutation gone-directory-made-again crates/model/src/replace.rs 'on(parent, create_directory(parent))?;' \
    'on(parent, crate::durable::create_directories(parent))?;' that_is_gone_is_not_made_again
mutation gone-checkpoints-made-again $trainer/checkpoint/staged.rs 'on(directory, create_directory(directory))?;' \
    'on(directory, fs::create_dir_all(directory))?;' that_is_gone_is_not_made_again
mutation gone-queue-not-noticed crates/server/src/queue_bridge.rs '!own.is_at(path)' 'own.is_at(path) && false' \
    lock_is_taken_away
mutation least-work-split crates/scheduler/src/grouping/group.rs \
    'profile.tokens <= self.tokens || profile.alone <= self.alone' 'profile.tokens < 0.0' whatever_comes_and_goes
mutation too-large-is-made crates/pipeline/src/stage/local.rs '&& bytes > there' \
    '&& bytes > there && there == 0' the_device_cannot_hold
mutation defaults-without-effect crates/config/src/load.rs \
    'overrides::refuse_without_effect(&tree, source)?;' '' overrides_of_defaults_that_do_nothing
mutation second-signal-ignored crates/cli/src/interrupt.rs \
    'if asked.swap(true, Ordering::SeqCst) {' \
    'if asked.swap(true, Ordering::SeqCst) && false {' a_second_signal_ends
mutation validation-with-rope-of-the-batch $trainer/batch/evaluate.rs \
    'batch.rope_lengths = lengths.repeat(slots.len());' '' goes_by_each_row
mutation all-answers-likeliest $trainer/batch/evaluate.rs '.filter(|&&correct| correct)' '.filter(|_| true)' \
    those_of_transformers_whatever
mutation losses-of-others $trainer/batch/evaluate.rs 'slots.chunks(at_once).zip(scores.chunks_mut(at_once))' \
    'slots.chunks(at_once).zip(scores.chunks_mut(at_once).rev())' those_of_transformers_whatever
mutation answers-of-others $trainer/generate/generator.rs 'who.iter().map(|&who| request(prompt, who))' \
    'who.iter().rev().map(|&who| request(prompt, who))' \
    those_of_transformers_whatever
mutation unmatched-references-count crates/cli/src/commands/eval/answers.rs \
    'let Some(expected) = self.exact_match.extract(&reference) else {' \
    'let Some(expected) = self.exact_match.extract(&reference).or(Some(String::new())) else {' rows_that_do_not_count
mutation copies-by-their-tokens crates/data/src/dataset.rs 'let text = self.renderer.render(&row);' \
    'let text = Ok::<_, crate::RowError>(row.columns.clone());' copies_of_them
mutation copies-not-counted crates/data/src/survey.rs 'train.binary_search(row).is_ok()' 'false && train.contains(row)' \
    copies_of_them
mutation changed-files-read crates/data/src/reader/rows.rs 'self.is_unchanged().then_some(())' 'Some(())' \
    changes_between_passes
mutation other-rows-of-the-file crates/data/src/samples.rs 'read_at(file, &mut bytes, in_file.start)?;' \
    'read_at(file, &mut bytes, 0)?;' what_is_read_is_what
mutation all-samples-in-memory crates/data/src/samples.rs 'self.in_memory.len() + bytes.len() > self.most_in_memory' 'false' \
    memory_holds_eight_bytes
mutation all-rows-at-once crates/data/src/reader/rows.rs 'while batch.len() < MOST_ROWS' 'while true' \
    rows_are_read_in_parts
mutation first-values-forgotten $trainer/save/moment.rs 'let initial = task.initial.clone();' \
    'let initial = task.initial.clone().filter(|_| false);' reaches_fails_after_a_restart
mutation users-trained crates/data/src/message.rs \
    'self.train.unwrap_or_else(|| self.is_assistant())' 'self.train.unwrap_or(true)' parity::llama_gqa
mutation end-of-turn-not-trained crates/data/src/turns.rs \
    '.map(|end| start..end))' '.map(|end| start..end - 4))' parity::llama_gqa
mutation begin-twice crates/data/src/encode.rs \
    'let written = self.tokenizer.leading_bos(&ids);' 'let written = 0;' parity::llama_gqa
mutation files-unsorted crates/config/src/paths/pattern.rs 'files.sort();' 'files.reverse();' patterns::
mutation local-models-last crates/config/src/paths/hub.rs 'Path::new(path).exists())' 'Path::new(path).is_file())' hub::
mutation token-for-all crates/hub/src/download.rs \
    '&& address.is_same_host(&self.address(&self.endpoint)?)' '' download::
mutation parts-anew crates/hub/src/download.rs 'if bytes > remote.size {' 'if bytes > 0 {' download::
mutation first-member-only crates/data/src/reader/compressed.rs 'bufread::MultiGzDecoder' 'bufread::GzDecoder' members_and_frames
mutation checksum-not-compared crates/data/src/reader/zstandard.rs '!= Some(written)' '== None' damaged_files_are_named
mutation template-without-end crates/data/src/jinja.rs 'environment.set_fuel(Some(MAX_STEPS));' '' steps_and_text
mutation text-without-end crates/data/src/jinja.rs 'self.bytes.len() + bytes.len() > MAX_TEXT' \
    'bytes.len() > MAX_TEXT' steps_and_text
mutation chains-not-bounded crates/data/src/jinja.rs 'longest > MAX_TAG' 'longest > usize::MAX' chains_are_as_long
mutation quotes-take-rows crates/data/src/reader/csv.rs 'if state != Scan::Quoted {' 'if true {' \
    quotes_take_no_rows quotes_that_seem
mutation format-by-values-alone crates/data/src/format.rs '.all(|(_, column)| row.get(column).is_some())' \
    '.all(|_| false)' the_row_that_breaks
mutation roles-unknown crates/data/src/row_warnings.rs '!ROLES.contains(&message.role())' 'false' chats_without_an_assistant
mutation nulls-printed crates/data/src/jinja.rs 'if value.is_none() {' 'if false {' nulls_in_templates
mutation keys-twice crates/data/src/reader/value.rs 'value.len() != Some(fields.len())' 'false' keys_that_are_there
mutation check-alone-warns crates/trainer/src/tasks/prepare.rs 'data.warnings.iter().chain(&of_settings)' \
    'data.warnings.iter()' check_plan_and_train_warn
mutation pauses-counted crates/trainer/src/report/pace.rs 'self.at = None;' '' time_between_steps
mutation ghost-bars crates/cli/src/frame.rs 'let room = (size.lines / 2)' 'let room = (size.lines * 2)' furthest_behind
mutation base-asked-by-all crates/trainer/src/generate/answers.rs 'slot: None, ..ask' '..ask' what_was_said_before
mutation all-adapters-answer crates/trainer/src/run/run.rs 'adapters: Self::ANSWERING' 'adapters: 256' adapters_answer_as
mutation texts-run-together crates/trainer/src/generate/answers.rs 'texts.join("\n")' 'texts.join("")' what_was_said_before
mutation cursor-at-the-end crates/cli/src/screen.rs 'self.0.write_str("\r")?;' '' terminal::bars
mutation parked-have-time-left crates/server/src/status.rs '.filter(|_| trains)' '' owners_pause_resume
mutation entries-not-replaced crates/config/src/overrides.rs 'Some(index) => items[index] = value,' \
    'Some(_) => items.push(value),' entries_are_replaced
mutation parser-jargon crates/config/src/tree/words.rs 'problem.contains(part)' 'problem.is_empty()' malformed_files
mutation run-in-the-model crates/config/src/paths/mod.rs 'path.ancestors().any(is_folder)' 'is_folder(&path)' \
    values_out_of_range
mutation long-rows-whole crates/data/src/tokenizer.rs 'text.len() <= 2 * bytes' 'bytes > 0' a_long_row_takes
mutation epsilon-not-blamed $trainer/tasks/diagnosis.rs 'if epsilon > LARGE_EPSILON {' 'if false {' settings_that_keep
mutation decay-not-blamed $trainer/tasks/diagnosis.rs 'if decay * learning_rate >= 1.0 {' 'if false {' settings_that_keep
mutation memory-for-whole-rows $trainer/tasks/described.rs '.longest.min(train.max_seq_len)' '.longest' \
    rows_that_are_cut
mutation unread-check-passes crates/cli/src/failure.rs 'Err(error) if is_broken_pipe(&error) => Ok(false),' '' \
    a_check_that_fails_fails_unread
mutation no-way-back crates/cli/src/commands/train.rs 'printer.set_way_back(way_back.clone());' '' \
    an_interrupted_run_says_how_to_go_on
mutation saved-steps-again crates/server/src/server.rs 'self.nothing_is_lost()?;' '' checkpoints_are_away
mutation unlisted-is-empty $trainer/checkpoint/generation.rs \
    'Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),' 'Err(_) => Vec::new(),' checkpoints_are_away
mutation held-is-left crates/server/src/queue_bridge.rs '!task.state.is_final() && task.state != TaskState::Paused' \
    '!task.state.is_final()' exit_codes_tell
mutation stopped-with-failure crates/cli/src/commands/serve.rs \
    'report.interrupted || arguments.drain' 'true' exit_codes_tell
mutation copy-is-a-change crates/server/src/files.rs \
    'std::mem::replace(&mut seen.looked_at, stamp) != stamp' 'false' only_other_content
mutation paused-twice-is-an-error $trainer/run/serving.rs 'state.can_become(TaskState::Paused)' '!state.is_final()' \
    a_task_may_be_paused_twice
mutation copy-is-back $trainer/run/serving.rs ' && now == self.seen' '' waits_for_data_that_is_away
mutation full-is-usage crates/cli/src/failure.rs \
    'TrainerError::Write { source, .. } if is_full(source)' 'TrainerError::Write { source, .. } if !is_full(source)' \
    could_not_begin
mutation nothing-begun-is-a-run $trainer/run_directory/directory.rs \
    'entries.map_or_else(is_there, |mut entries| entries.next().is_some())' \
    'entries.map_or_else(is_there, |_| true)' could_not_begin
mutation stop-waits crates/cli/src/interrupt.rs 'Duration::from_secs(5)' 'Duration::from_secs(60)' a_signal_inside
mutation standby-is-empty $trainer/save/standby.rs 'self.state().pending = Some(pending);' 'drop(pending);' a_stop_inside_a_step
mutation training-goes-on $trainer/save/standby.rs 'mem::forget(state);' 'drop(state);' a_stop_inside_a_step
mutation standby-of-now $trainer/save/moment.rs '=> (snapshot.iteration, snapshot.tokens)' \
    '=> (self.iteration + 1, snapshot.tokens)' a_stop_inside_a_step
mutation old-copy-serves $trainer/tasks/snapshot.rs 'Instant::now() < renew' 'Instant::now() > renew || true' old_copies
mutation own-file-unexplained crates/cli/src/commands/train.rs \
    'named.config.is_dir() && named.overrides.is_empty()' 'false' a_run_whose_own_configuration
mutation stdout-full-is-a-bug crates/cli/src/failure.rs 'cause.downcast_ref().and_then(full)' 'None' stdout_on
mutation lock-is-all crates/server/src/server.rs 'refuse_in_use(directory)?;' '' lock_is_removed
mutation lock-unwatched crates/server/src/queue_bridge.rs 'path.with_file_name(LOCK_NAME)' 'path.to_owned()' \
    lock_is_taken_away
mutation old-explanation crates/server/src/queue/write.rs " explanation = '', " ' ' a_watcher_hears
mutation lost-adapters-are-fine crates/cli/src/commands/train.rs 'if lost.is_empty()' 'if true' \
    an_adapter_that_is_gone
mutation events-go-nowhere $trainer/run_directory/directory.rs \
    'self.list.is_at(&path) || !self.is_there()' 'true' events_that_are_removed
mutation old-copy-beats-checkpoint $trainer/save/standby.rs '(state.pending, state.writing) = (None, writing);' \
    'state.writing = writing;' a_stop_inside_a_step_saves
mutation write-cut-off $trainer/save/standby.rs 'let _ = writing.recv();' 'drop(writing);' that_is_being_written_is
mutation taken-while-saving $trainer/save/standby.rs 'self.state().computes = false;' 'drop(self.state());' nobody_takes_over
mutation serve-waits crates/cli/src/commands/serve.rs 'standby: Some(&stop.standby),' 'standby: None,' a_signal_inside
mutation on-its-way-is-lost $trainer/save/moment.rs 'tasks.live().collect(),' \
    'tasks.running().chain(tasks.waiting()).collect(),' lost_while_tasks_move
mutation lost-is-new $trainer/save/moment.rs 'as_before(queue, before, task.record_without_steps())?' \
    'task.record_without_steps()' an_error_keeps
mutation parked-is-lost $trainer/save/saver.rs '.any(|task| task.steps > 0)' \
    '.any(|task| task.steps > usize::MAX - 1)' an_error_keeps
mutation paused-is-lost $trainer/save/saver.rs $'self.saver.ask();\n        self.start_writing(Running::There)?;' \
    'self.start_writing(Running::There)?;' saves_paused_tasks
mutation last-save-is-fine $trainer/save/saver.rs 'Some(problem) => Err(TrainerError::SavesFailed { times, problem }),' \
    'Some(_) => Ok(()),' whose_last_save_fails
mutation cut-short-is-fine crates/cli/src/interrupt.rs 'return failure::report(printer, &error.into());' \
    'printer.warning(&failure::message(&error));' a_copy_that_could_not
mutation copy-unsaved-is-fine $trainer/save/standby.rs 'checkpoint.transpose().map(drop)' 'drop(checkpoint); Ok(())' \
    says_when_it_cannot_save
mutation two-of-a-name $trainer/run/serving.rs 'id == task.id || *name != task.adapter.name' \
    'id == task.id || !name.is_empty()' with_the_name_of_one_that_failed
mutation unread-run-passes crates/cli/src/commands/train.rs \
    'failure::unless_unread(print_all(report, arguments, some, printer))?;' \
    'let _ = failure::unless_unread(Ok(())); print_all(report, arguments, some, printer)?;' a_run_that_fails_fails
mutation watch-goes-on crates/cli/src/commands/status.rs 'if !arguments.watch || ended {' \
    'if !arguments.watch || false && ended {' a_watched_status
mutation unserved-is-served crates/server/src/client.rs 'if queue.server()? == Presence::Absent' \
    'if queue.server()? != Presence::Absent' saves_paused_tasks
mutation idle-rows-learn crates/model/src/head.rs 'gradient.mask_fill(idle.expand([rows, d_model]), 0.0),' \
    'gradient,' is_no_number_leaves
mutation small-head-chunks crates/model/src/head.rs 'const DEVICE_LOGITS: usize = 512 << 20;' \
    'const DEVICE_LOGITS: usize = 32 << 20;' chunks_are_even
mutation head-chunk-twice crates/model/src/head.rs 'rows: normal.clone().slice([start..end, 0..d_model]),' \
    'rows: normal.clone().slice([0..end - start, 0..d_model]),' over_more_than_one_chunk
mutation graph-stays crates/pipeline/src/stage/local.rs 'free_dropped_graphs(&self.device);' \
    'let _ = free_dropped_graphs as fn(&Device);' more_adapters_than_fit
mutation peak-stays crates/pipeline/src/pipeline.rs '(memory.take_peak)();' 'let _ = (memory.peak)();' \
    more_adapters_than_fit
mutation layer-forgets-its-bias crates/batchlora/src/layer.rs 'h = h + bias.val().unsqueeze();' \
    'let _ = bias;' slow_reference_with_a_bias
mutation snapshot-drops crates/batchlora/src/layer.rs 'self.bank.requires_grad().then_some' 'true.then_some' \
    a_snapshot_has_neither
mutation norm-of-one-layer crates/batchlora/src/optimizer/batch_adamw.rs \
    'norms = norms.add(layer.bank(), &gradient);' \
    'norms = GradientNorms::new(updates.len(), &device).add(layer.bank(), &gradient);' burns_adamw
mutation waiting-slot-counts crates/batchlora/src/optimizer/batch_adamw.rs 'if updates[slot].is_some() {' \
    'if updates[slot].is_some() || true {' burns_adamw
mutation loss-scale-stays crates/batchlora/src/routing.rs 'Side::Input => 1.0 / self.loss_scale,' \
    'Side::Input => 1.0,' divided_by_the_loss_scale
mutation targets-weigh-little crates/trainer/src/batch/assemble.rs \
    'task.step_targets.next_power_of_two() as f64' '1.0' targets_weigh_between
mutation masks-take-nothing crates/trainer/src/plan/compose.rs 'dropout_masks: keeps_masks(config),' \
    'dropout_masks: keeps_masks(config) && false,' gpus_keep_dropout
mutation plan-admits-all crates/cli/src/commands/plan.rs 'plan.refused.first()?' 'plan.refused.get(9)?' \
    ends_as_the_run_would
mutation failed-not-for-memory $trainer/run/rewind.rs 'Outcome::does_not_fit(alone)' 'Outcome::failed(alone)' \
    row_by_row may_not_fit
mutation parked-counts $trainer/run/window.rs 'let aside = self.placed.tasks.waiting_bytes();' 'let aside = 0;' \
    no_memory_of_those_that_train
mutation parked-as-made $trainer/tasks/task.rs 'self.initial = None;' '' waits_without_memory
mutation not-fitting-for-good $trainer/run/follow_up.rs 'if does_not_fit && !self.numbered {' 'if false {' tried_again_on_resume
mutation copies-not-planned $trainer/scheduling/budget.rs '(share + copies, bytes as f64)' '(share, bytes as f64)' \
    of_high_rank_takes
mutation small-steps-are-death $trainer/tasks/diagnosis.rs 'if task.warms_up() && ' 'if false && ' long_warm_up
mutation loss-of-another-step crates/server/src/queue/locked.rs 'iif(step = ?2, last_loss, NULL)' 'last_loss' \
    for_all_tasks_or_none
mutation failed-is-ranked crates/report/src/leaderboard.rs '.filter(|_| entry.state != FAILED)' '' failed_come_last
mutation rows-that-are-not-there crates/data/src/order.rs 'rows_per_step: rows_per_step.min(num_samples),' \
    'rows_per_step,' no_step_has_more_rows planned_with_the_rows
mutation nothing-read-is-planned $trainer/plan/admission.rs 'weights.sum::<usize>() as u64 + read_bytes' \
    'weights.sum::<usize>() as u64 + read_bytes.min(0)' refuse_the_same_adapter
mutation kept-places-whole $scheduler/grouping/grouped_room.rs 'self.layout.kept(&profile, group, memory, rules)' \
    'self.layout.kept(&profile, group, memory, &Rules::new(&self.options, rules.pipeline, None))' \
    keep_their_places
mutation accumulated-is-one-pass $scheduler/grouping/profile.rs 'passes: task.passes_per_step.max(1),' 'passes: 1,' \
    accumulated_batches_are_passes
mutation above-the-device crates/trainer/src/scheduling/budget.rs 'if asked > has' 'if asked > has && false' \
    a_limit_that_does_not_bind
mutation merged-without-weight crates/model/src/merge/mod.rs '(self.weight * weights.scale) as f32' \
    'weights.scale as f32' adapters_are_added_with
mutation merged-without-scale crates/model/src/merge/mod.rs '(self.weight * weights.scale) as f32' \
    'self.weight as f32' merged_weights_are
mutation rows-not-reordered crates/model/src/gguf.rs '.filter(|_| is_permuted)' '.filter(|_| is_permuted && false)' \
    gguf_files_are
mutation factors-not-noted $trainer/saved_adapter.rs 'if note.factors == expected.factors' 'if true' \
    faults_of_an_adapter_are_named
mutation changed-adapters-load $trainer/saved_adapter.rs 'if !changes.is_empty() {' 'if false {' \
    what_is_wrong_with_an_adapter
mutation base-not-noted $trainer/verify/adapter.rs '*digest != base.digest' '*digest != *digest' \
    faults_of_an_adapter_are_named
mutation run-not-compared $trainer/verify/shape.rs 'if problems.is_empty() {' 'if problems.len() < 99 {' \
    an_adapter_in_a_run
mutation merged-not-compared $trainer/verify/merged.rs 'if *expected != *tensor.bytes {' \
    'if expected.len() != tensor.bytes.len() {' merged_models_are
mutation peaks-thinned-away crates/report/src/thin.rs 'kept.extend(extremes(rows.clone(), column));' \
    'kept.extend(extremes(rows.clone(), column).take(1));' peaks_and_ends
mutation done-again-counts crates/report/src/adapter.rs 'drop_last(&mut self.rows, |row| row.iteration > iteration);' \
    'drop_last(&mut self.rows, |row| row.iteration > iteration + 1);' done_again_counts_once
mutation names-become-elements crates/report/src/page/mod.rs "Ok(json.replace('<', \"\\\\u003c\"))" 'Ok(json)' \
    names_cannot_become
mutation activations-cost-nothing $trainer/tasks/described.rs \
    'certain_bytes: self.certain_bytes(run, adapter_bytes),' 'certain_bytes: 0,' a_task_asks_for_what
mutation upper-layers-cost-all $trainer/tasks/described.rs \
    'if !keeps {' 'if false {' a_task_asks_for_what
mutation longest-always-met $trainer/tasks/described.rs 'taken = taken.saturating_sub(rows);' 'let _ = rows;' \
    a_task_asks_for_what
mutation told-one-pass $trainer/tasks/described.rs 'passes_per_step: microbatches,' 'passes_per_step: 1,' \
    a_task_asks_for_what
mutation grouped-by-max-seq-len $trainer/tasks/described.rs \
    'tokens_per_step: report.tokens.div_ceil(self.steps_per_epoch()),' \
    'tokens_per_step: self.order.rows_per_step() * train.max_seq_len,' a_task_asks_for_what
mutation certain-on-every-device $scheduler/memory/device.rs 'self.share_of(load.certain_bytes)' \
    'load.certain_bytes' certain_bytes_are_shared
mutation seed-without-effect crates/config/src/overrides.rs \
    $'Some(Value::Float(fraction)) => *fraction > 0.0,\n        _ => false,' \
    $'Some(Value::Float(fraction)) => *fraction > 0.0,\n        _ => true,' overrides_of_defaults_that_do
mutation rows-a-line-too-early crates/data/src/reader/csv.rs \
    'let line = record.position().map_or(0, |at| line_of(at, &lines));' \
    'let line = record.position().map_or(0, ::csv::Position::line);' errors_name_file_line
mutation a-hundred-times-the-devices crates/simulator/src/workload.rs 'const MOST_DEVICES: usize = 1024;' \
    'const MOST_DEVICES: usize = 99_999;' what_cannot_be_replayed
mutation columns-unlisted crates/data/src/render.rs \
    'jinja::render(&template, context).map_err(|error| unknown_column(error, row))' \
    'jinja::render(&template, context)' templates_render_the_prompt
mutation last-events-lost crates/cli/src/event_pipe.rs 'if is_last {' 'if is_last || true {' events_go_to
mutation evaluates-whole-batches $trainer/run/follow_up.rs \
    'task.microbatch_rows(self.config.pipeline.microbatches)' 'task.microbatch_rows(1)' evaluation_takes_no_more
mutation served-too-large-merely-failed $trainer/run/serving.rs \
    'Outcome::does_not_fit(error.to_string())' 'Outcome::failed(error.to_string())' a_server_with_too_little
mutation submitted-as-written crates/server/src/client.rs \
    $'            gradient_checkpointing: self.config.gradient_checkpointing,\n' '' judged_as_the_server
mutation references-cut crates/cli/src/commands/eval/rows.rs 'const UNCUT: usize = 1 << 40;' \
    'const UNCUT: usize = 30;' rows_that_do_not_count
mutation served-rows-unknown crates/cli/src/run_directory.rs \
    'configs.extend(tasks.rev().map(|(_, config)| config));' 'drop(tasks);' what_is_submitted_is_trained
mutation other-base-unsaid crates/trainer/src/generate/generator.rs \
    'base.is_some_and(|base| *base != digest)' 'base.is_some_and(|_| false)' a_merged_model_answers
mutation other-template-unsaid crates/cli/src/commands/eval/rows.rs \
    'dataset.is_some_and(|dataset| dataset.template != file.template)' \
    'dataset.is_some_and(|_| false)' a_dataset_that_a_run_has_not
mutation broken-tokenizer-passes crates/trainer/src/verify/merged.rs \
    'results.fails_with("tokenizer", &error.into());' 'drop(error);' a_merged_model_outlives
mutation shared-rows-unsaid crates/data/src/dataset.rs '(2 * shared > all)' '(2 * shared > 9 * all)' \
    settings_that_were_hardly
mutation a-few-shared-rows-said crates/data/src/dataset.rs '(2 * shared > all)' '(3 * shared > all - 1)' \
    settings_that_were_hardly
mutation completion-in-template-unsaid crates/data/src/render.rs \
    'Source::Template(template) => template.reads(completion),' 'Source::Template(_) => false,' \
    settings_that_were_hardly
mutation system-is-counted crates/data/src/message.rs 'index + usize::from(!self.has_system_before)' 'index + 1' \
    what_stays_ambiguous
mutation pause-unsaved $trainer/run/serving.rs \
    $'                    self.session.saver.ask();\n                }\n                Ok(())\n            }\n            TaskCommand::Resume' \
    $'                }\n                Ok(())\n            }\n            TaskCommand::Resume' \
    a_server_saves_running_and_parked
mutation finished-tasks-undone crates/report/src/absorb.rs \
    'adapter.is_settled() && !begin.adapters.contains(&adapter.name)' 'false' what_a_server_has_finished
mutation divergence-by-windows $trainer/run/window.rs 'checked || compared || watched ||' 'checked || compared ||' \
    who_diverges
mutation divergence-ignored $trainer/run/follow_up.rs 'early.or(diverged)' 'early.or(diverged.filter(|_| false))' \
    who_diverges
mutation strict-fifo-ignored $trainer/scheduling/scheduler.rs 'PolicyChoice::StrictFifo => Policy::StrictFifo' \
    'PolicyChoice::StrictFifo => Policy::BestEffortFifo' settings_reach
mutation aging-ignored $trainer/scheduling/scheduler.rs 'aging_seconds: config.aging,' 'aging_seconds: None,' \
    settings_reach
mutation bound-ignored $trainer/scheduling/scheduler.rs 'max_slowdown: config.max_slowdown,' 'max_slowdown: 1.2,' \
    settings_reach
mutation patience-forgotten $trainer/tasks/task.rs \
    'self.evaluations_without_best = record.evaluations_without_best;' '' a_task_is_restored
mutation truncation-kept crates/data/src/tokenizer.rs 'inner.with_truncation(None).map_err(malformed)?;' '' \
    a_tokenizers_own_lengths
mutation reused-name crates/server/src/client.rs 'task.key.is_some() && task.key == submission.key' \
    'task.key == submission.key' what_is_submitted_is_trained
mutation init-from-swept crates/config/src/sweep/expand.rs 'Some(axis) if begins => {' \
    'Some(axis) if begins && false => {' sweeps_that_cannot_be
mutation validation-not-watched crates/server/src/spec.rs 'files.push(path.clone());' '' a_dataset_that_changes
mutation validation-vocabulary $trainer/tasks/rows.rs 'let parts = [Some(&rows.train), rows.validation.as_ref()];' \
    'let parts = [Some(&rows.train), None];' a_tokenizer_of_another_model
mutation failed-not-checkpointed $trainer/run/follow_up.rs $'        self.saver.ask();\n' '' \
    an_adapter_that_failed_does_not
mutation larger-adapters-let-in $scheduler/task.rs \
    $'            && load.squared_tokens <= self.squared_tokens\n            && load.adapter_bytes <= self.adapter_bytes' \
    '            && load.squared_tokens <= self.squared_tokens' what_runs_lets_nothing
mutation priority-not-submitted crates/server/src/queue/submit.rs 'hasher.update(&self.priority.to_le_bytes());' '' \
    a_digest_is_of_all
mutation tenant-not-named crates/server/src/queue/submit.rs '("tenant", self.tenant != other.tenant),' '' \
    a_key_is_accepted_once
mutation begun-read-late $trainer/run/serving.rs 'TaskCommand::Train(task) if self.has_begun(&task) => {' \
    'TaskCommand::Train(task) if self.has_begun(&task) && false => {' a_task_whose_rows_are_read_slowly
mutation copies-never-renewed $trainer/run/window.rs 'renew: self.rewind.renew(),' 'renew: None,' \
    an_old_copy_ends
mutation half-a-line-kept $trainer/run_directory/directory.rs \
    'on(&events_path, events.set_len(length))?;' '' half_a_line_is_cut_off
mutation old-checkpoint-in-the-way $trainer/checkpoint/staged.rs \
    $'on(&old, remove(&old))?;\n            on(&path, fs::rename' 'on(&path, fs::rename' one_of_the_same_number
mutation no-number-is-best $trainer/run/follow_up.rs 'let best = loss.is_finite() && ' 'let best = ' \
    no_number_is_not_the_best
mutation last-step-is-stopped $trainer/run/follow_up.rs 'early.filter(|_| !last)' 'early.filter(|_| !last || last)' \
    patience_ends_a_task
mutation step-times-of-other-stages $scheduler/grouping/grouped_room.rs \
    'let mut same = learnt.stages == self.layout.groups.len();' 'let mut same = true;' of_other_stages
mutation step-times-of-other-devices $scheduler/grouping/grouped_room.rs \
    'same &= known.is_some_and(' 'same |= known.is_some_and(' of_other_stages
mutation first-loss-forgotten $trainer/tasks/trials.rs 'if let Some(loss) = trial.first_loss {' \
    'if let Some(loss) = trial.first_loss.filter(|_| false) {' from_the_first_loss
mutation first-loss-not-entered $trainer/tasks/prepare.rs '(task.total_steps, task.first_loss)' \
    '(task.total_steps, task.first_loss.filter(|_| false))' a_task_is_restored
mutation dry-runs-submit crates/cli/src/commands/submit.rs 'client.rehearse(&loaded.config, key)' \
    'client.submit(&loaded.config, key)' submits_none
mutation begin-of-one-side crates/data/src/encode.rs 'sides.iter().map(begun).min()' 'sides.iter().map(begun).next()' \
    preferences::
mutation rejected-first crates/data/src/preference.rs 'vec![true, false]' 'vec![false, true]' preferences::
mutation equal-sides-trained crates/data/src/preference.rs '[one, other]) if one == other =>' \
    '[one, other]) if one == other && false =>' preferences::
mutation equal-when-cut-trained crates/data/src/encode.rs 'chosen.ids == rejected.ids' 'false' preferences::
mutation cut-off-unsaid crates/data/src/encode.rs 'samples.iter().any(|sample| sample.num_targets() == 0)' 'false' \
    preferences::
mutation numbers-are-labels crates/data/src/preference.rs 'ValueKind::Bool => Some' \
    'ValueKind::Bool | ValueKind::Number => Some' preferences::
mutation classes-are-labels crates/data/src/format.rs 'column == KTO_TAG || rows.iter().any(is_boolean)' 'true' \
    preferences::
mutation sides-apart crates/data/src/dataset.rs '1 + usize::from(are_two)' '1' preferences::
mutation whole-chats-as-answers crates/data/src/preference.rs 'prompt.is_none() || sides.iter().all(asks)' \
    'prompt.is_none()' preferences::
mutation blocks-leave-lines crates/config/src/mlora/rows.rs 'Ok(whitespace::trimmed(&prompt.template))' \
    'Ok(prompt.template)' its_prompts
mutation same-text-on-both-sides crates/data/src/render.rs '(switch.name(), is_on)' '(switch.name(), true)' \
    its_demos switch
mutation prompts-of-preferences-trained crates/data/src/encode.rs 'Renderer::Preference(_) if train_on_prompt =>' \
    'Renderer::Preference(_) if train_on_prompt && false =>' preferences::
mutation marks-are-not-read crates/data/src/render.rs \
    'Self::Both(template, _) if template.marks => {' 'Self::Both(template, _) if template.marks && false => {' \
    marks_what_is_trained switch
mutation ends-without-marks crates/data/src/encode.rs 'marks.is_none() || tokens.is_target.contains(&true)' 'true' \
    marks_what_is_trained
mutation answers-are-prompted crates/data/src/prompts.rs 'messages.truncate(asked.map_or(0, |last| last + 1));' \
    'messages.truncate(asked.map_or(0, |_| messages.len()));' every_prompt_of_a_file
mutation datasets-by-name $trainer/tasks/rows.rs '"{name} {seed} {dataset:?}"' '"{name} {seed}"' \
    datasets_of_one_name
mutation changed-dataset-kept $trainer/tasks/rows.rs '.filter(Dataset::is_unchanged)' '' \
    that_changed_is_read_anew
mutation rows-not-read-anew $trainer/tasks/reader.rs 'rows.clear();' '' what_was_read_is_news
mutation rows-without-news $trainer/tasks/reader.rs 'news.store(true, Ordering::Relaxed);' '' \
    what_was_read_is_news
mutation full-disk-ends-the-server crates/server/src/queue_bridge.rs 'QueueError::DiskFull { .. } | ' '' \
    a_queue_does_not_take
mutation any-model-serves $trainer/checkpoint/saved_run.rs 'if digest == self.record.model {' \
    'if digest != " " {' another_model_in_the_place
mutation places-not-kept $trainer/scheduling/scheduler.rs 'keep_places: true,' 'keep_places: false,' \
    settings_reach
mutation validation-not-waited-for $trainer/run/serving.rs 'task.dataset.path.iter().chain(validation)' \
    'task.dataset.path.iter().chain(validation.filter(|_| false))' waits_for_each_of_its_files
mutation embedding-unscaled crates/batchlora/src/embedding.rs 'let factor = segment.scale / segment.loss_scale;' \
    'let factor = segment.scale;' rows_and_gradients_are_those_of_loops
mutation embedding-not-multiplied crates/model/src/backbone.rs \
    'adapters.embedded_gradient(&self.multiplied(gradient), &ids)' 'adapters.embedded_gradient(&gradient, &ids)' \
    parity::granite parity::gemma2
mutation chunks-cut-segments crates/model/src/head.rs 'chunks_by_segment(&targets.rows, adapters.segments, most)' \
    'even_chunks(0..count, most)' has_the_same_bits_whatever_its_neighbours
mutation logits-without-adapters crates/pipeline/src/pipeline.rs 'rows: within(segment.rows.start)..within(segment.rows.end),' \
    'rows: within(segment.rows.start)..within(segment.rows.start),' ends_of_a_model
mutation scores-without-adapters crates/pipeline/src/stage/local.rs \
    'Ok(head.target_scores(hidden, &microbatch.targets, adapters)?)' \
    'Ok(head.target_scores(hidden, &microbatch.targets, adapters.filter(|_| false))?)' ends_of_a_model
mutation number-of-the-head crates/model/src/projection.rs 'return ((layer + 1) * 7) as u32' \
    'return (layer * 7) as u32' parity::llama_gqa
mutation tied-weights-merged crates/model/src/merge/mod.rs 'part.adapter.refuse_tied(config);' 'Ok(());' \
    what_cannot_be_merged
mutation tied-weights-exported crates/model/src/gguf.rs 'adapter.refuse_tied(base)?;' '' what_cannot_be_merged
mutation ends-cost-nothing crates/model/src/cost/adapter.rs 'let modules = model.modules(layer).into_iter();
            let of = modules' 'let modules = model.linears().into_iter();
            let of = modules' an_adapter_has_two_factors an_adapter_takes_what
mutation embedding-as-linear $trainer/adapter.rs '(Projection::EmbedTokens, _) => AdapterState::init_embedding,' \
    '(Projection::EmbedTokens, _) => AdapterState::init,' an_adapter_takes_what
mutation one-target-like-two crates/config/src/target_module.rs 'TargetModule::every().filter(named)' \
    'TargetModule::ALL.into_iter().filter(named)' sweep
mutation small-segments-cut crates/model/src/head.rs 'if end - begin > most && begin < last {' \
    'if false && end - begin > most && begin < last {' has_the_same_bits_whatever_its_neighbours
mutation head-scale-forgotten crates/model/src/head.rs '.with_loss_scales(self.segments.loss_scales().to_vec())?' \
    '.with_loss_scales(vec![1.0; self.segments.loss_scales().len()])?' has_the_same_bits_whatever_its_neighbours
mutation gradient-kept-by-stages crates/pipeline/src/stage/passes.rs \
    $'.part(Projection::EmbedTokens)\n                && let' $'.part(Projection::Q)\n                && let' pipeline::
mutation half-gradients-vanish crates/batchlora/src/embedding.rs \
    'gradient.cast(DType::F32).mul_scalar(factor)' 'gradient.mul_scalar(factor).cast(DType::F32)' \
    half_precision_rows_of_an_embedding
mutation half-embedding-mixed crates/batchlora/src/embedding.rs \
    'product.mul_scalar(segment.scale).cast(embedded.dtype());' 'product.mul_scalar(segment.scale);' \
    half_precision_rows_of_an_embedding
mutation copies-unseen-by-generate $trainer/generate/generator.rs \
    'PeftAdapter::check_copies(directory, model)?;' '' neither_answers_nor_is_a_beginning
mutation copies-unseen-by-train $trainer/tasks/prepare.rs \
    'copies.map_err(|error| failed(error.into()))?;' 'drop(copies);' neither_answers_nor_is_a_beginning
mutation copies-unseen-by-verify $trainer/verify/adapter.rs \
    'let fits = fits.and_then(|()| PeftAdapter::check_copies(path, &base.path));' '' \
    of_another_model_beside_an_adapter
mutation copies-unseen-by-merge crates/cli/src/commands/merge.rs \
    'PeftAdapter::check_copies(&directory, model)?;' 'let _ = model;' of_another_model_are_not_merged
mutation tied-copies-refused crates/model/src/peft/load.rs \
    '.or_else(|_| checkpoint.tensor("model.embed_tokens.weight"))?;' '?;' saved_rounded_or_under_the_other_name
mutation rounded-copies-refused crates/model/src/peft/load.rs \
    'TensorDtype::Bfloat16 => bf16::from_f32(value).to_f32(),' 'TensorDtype::Bfloat16 => value,' \
    saved_rounded_or_under_the_other_name
mutation validation-file-kept crates/data/src/dataset.rs \
    'let mut files = self.files.iter().chain(&self.validation);' 'let mut files = self.files.iter();' \
    another_time_and_another_validation_file
mutation same-length-unchanged crates/data/src/reader/rows.rs \
    '(now.bytes, now.modified) == (self.bytes, self.modified)' 'now.bytes == self.bytes' \
    another_time_and_another_validation_file
mutation end-of-pass-unchecked crates/data/src/reader/rows.rs \
    $'                file.check()?;\n' '' changes_while_it_is_read
mutation errors-of-others-rows crates/data/src/dataset.rs \
    '(is_held_out == is_validation || row.is_err())' '(is_held_out == is_validation)' \
    no_split_of_a_file_that_changed
mutation vocabulary-one-too-large $trainer/tasks/rows.rs \
    '(token as usize) < vocabulary' '(token as usize) <= vocabulary' first_token_beyond_the_vocabulary
mutation roles-of-the-last-row crates/data/src/row_counts.rs \
    'self.roles.extend(roles.iter().cloned());' 'self.roles = roles.iter().cloned().collect();' \
    with_the_roles_of_all
mutation changed-is-failed $trainer/error/mod.rs \
    'Self::Data(DataError::Io { .. } | DataError::Changed(_))' 'Self::Data(DataError::Io { .. })' \
    for_a_file_that_changes_under_it
mutation cut-is-untrained crates/data/src/row_counts.rs \
    'self.masked == rows' 'self.masked > 0' refused_for_the_cut
mutation empty-behind-others crates/data/src/reader/rows.rs \
    $'            self.is_empty = true;\n' '' refused_behind_others_too
mutation first-row-of-a-changed-file crates/data/src/reader/rows.rs \
    $'        self.check()?;\n' '' no_split_of_a_file_that_changed
mutation optional-in-the-last-row crates/data/src/row_warnings.rs \
    'self.has_optional || optional.is_some_and(' 'optional.is_some_and(' the_last_row_lacks
mutation constant-by-the-last-row crates/data/src/row_warnings.rs \
    'self.varies |= first != text;' 'self.varies = first != text;' between_two_alike
mutation table-rows-weigh-their-columns crates/data/src/reader/csv.rs \
    'bytes: record.as_slice().len(),' 'bytes: record.len(),' rows_say_how_large
mutation lines-weigh-nothing crates/data/src/reader/json.rs 'bytes: text.len(),' 'bytes: 0,' rows_say_how_large
mutation validation-fits-any-model $trainer/tasks/warnings.rs \
    'rows.train.samples.longest().max(validated)' 'rows.train.samples.longest().max(validated.min(0))' \
    told_of_either_split
mutation begin-twice-in-dropped-rows crates/data/src/dataset.rs \
    'usize::from(repeats && row.targets > 0)' 'usize::from(repeats)' counts_for_no_sample
mutation number-of-the-embedding crates/model/src/projection.rs \
    'Self::EmbedTokens => return u32::MAX,' 'Self::EmbedTokens => return 0,' numbers_are_distinct
mutation least-rate-ignored crates/config/src/schedule.rs \
    '(kwargs.cosine(progress) * (1.0 - least) + least).max(0.0)' 'kwargs.cosine(progress).max(0.0)' schedule::
mutation decay-at-once crates/config/src/schedule.rs 'step as f64 - warmup as f64 - stable;' \
    'step as f64 - warmup as f64;' schedule::
mutation keywords-of-any-schedule crates/config/src/validate.rs '!has.contains(&keyword.as_str())' 'keyword.is_empty()' \
    schedule::
mutation one-rate-for-b crates/batchlora/src/optimizer/adamw.rs 'another(|rates| rates.b)' 'another(|rates| rates.a)' \
    parity::llama_gqa thirty_steps
mutation embedding-rate-of-b crates/pipeline/src/stage/passes.rs 'step.apply_to_embedding(bank, gradient)' \
    'step.apply(bank, gradient)' parity::llama_gqa
mutation embedding-rate-constant $trainer/tasks/task.rs 'train.loraplus_lr_embedding() * factor' \
    'train.loraplus_lr_embedding()' parity::llama_gqa
mutation deviation-of-one crates/batchlora/src/adapter.rs '(value * deviation) as f32' 'value as f32' gaussian_start
mutation rows-of-one-half crates/batchlora/src/adapter.rs 'factor(1, half..all, d_out)' 'factor(0, half..all, d_out)' \
    orthogonal_start
mutation start-values-unnamed $trainer/adapter.rs \
    'init_lora_weights: init.and_then(InitLoraWeights::name),' \
    '' start_values_are_named
mutation eva-all-tokens $trainer/tasks/start_values.rs '!task.config.lora.eva_config().use_label_mask' 'true' start_values::
mutation eva-of-others $trainer/tasks/start_values.rs 'task.preference.is_none() || sample' 'true || sample' its_own_rows
mutation eva-not-white $trainer/start/eva.rs 'if self.config.whiten' 'if false' start_values::
mutation eva-scale-kept $trainer/tasks/start_values.rs 'if keeps_scale {' 'if !keeps_scale {' start_values::
mutation eva-mean-forgotten $trainer/start/incremental_pca.rs 'self.deviations += share *' 'self.deviations += 0.0 *' \
    incremental_pca start_values::
mutation eva-again $trainer/tasks/task.rs '&& !is_computed' '' waits_without_memory
mutation frozen-ranks-decay crates/batchlora/src/rank_tables.rs 'repeat_n(idle, frozen)' 'repeat_n(slot as i32, frozen)' \
    frozen_ranks_keep start_values::
mutation frozen-ranks-in-norm crates/batchlora/src/attached.rs 'a: gradient.a * rows.clone(),' \
    'a: gradient.a,' start_values::
mutation frozen-ranks-thaw $trainer/checkpoint/tensors.rs 'frozen_ranks: state.spec.frozen_ranks,' 'frozen_ranks: 0,' \
    comes_back_with_its_bits
mutation scale-of-all-ranks $trainer/adapter.rs 'lora.lora_alpha * more' 'lora.lora_alpha' start_values::
mutation subtracted-with-dropout crates/config/src/validate.rs 'adapter.dropout() > 0.0' 'false' what_cannot_begin
mutation eva-too-wide $trainer/tasks/prepare.rs 'check_start(adapter, self.model)?;' '' ranks_wider
mutation slora-density-ignored $trainer/start/slora.rs '(density * elements as f64).round() as usize' \
    '(0.5 * elements as f64).round() as usize' slora::
mutation slora-mask-not-applied $trainer/tasks/slora.rs 'places: mask(shape[0] * shape[1], settings.density, seed),' \
    'places: (0..shape[0] * shape[1] + 0 * seed as usize).collect(),' slora::
mutation slora-not-averaged $trainer/tasks/slora.rs '*change = mean(values);' '*change = mean(values.take(1));' slora::
mutation slora-trained-again $trainer/tasks/placement.rs 'task.state = State::Parked(kept_on_host(adapter.clone())?);' '' \
    slora::
mutation dora-norms-kept crates/batchlora/src/bank.rs 'packed.map(update));
        self.norms = Arc::new(self.norms.of_other_adapters());' 'packed.map(update));' dora::norms_are
mutation dora-norms-of-base crates/batchlora/src/ops/reference.rs 'B::float_add(squares.clone(), sum)' 'squares.clone()' dora::a_layer
mutation dora-drops-all crates/batchlora/src/ops/dora.rs 'h = weight.multiply_add(h, part::<B>(&rest, rows), first);' '' \
    dora::a_layer
mutation dora-loss-scale crates/batchlora/src/ops/flex.rs '1.0 / f64::from(segment.loss_scale)' '1.0' dora::a_layer
mutation dora-rate-halved crates/batchlora/src/optimizer/adamw.rs 'updated([m0, m1, m2], gradient, table_b, slots, norms)' \
    'updated([m0, m1, m2], gradient, table_b * 0.5, slots, norms)' parity::llama_gqa
mutation dora-not-in-norm crates/batchlora/src/optimizer/gradient_norms.rs 'sums = add(sums, [magnitude, none], slots, starts);' \
    'sums = add(sums, [magnitude * 0.0, none], slots, starts);' parity::llama_gqa
mutation nf4-halves-swapped crates/batchlora/src/ops/flex.rs '[4, 0, 12, 8, 20, 16, 28, 24]' '[0, 4, 8, 12, 16, 20, 24, 28]' \
    nf4::devices_make
mutation nf4-bounds-raised crates/batchlora/src/nf4.rs 'u8::from(normal > bound)' 'u8::from(normal > bound + 1e-3)' nf4::quantising
mutation nf4-skips-nothing crates/model/src/config/quantization.rs '&& !self.skip.iter().any(|name| is_named(module, name))' \
    '&& (true || self.skip.iter().any(|name| is_named(module, name)))' \
    nf4::a_float_checkpoint
mutation nf4-any-block crates/model/src/checkpoint/nf4.rs 'expect("blocksize", state.blocksize.to_string(), &blocks)?;' \
    'let _ = (state.blocksize, &blocks);' nf4::a_state
mutation dora-merged-plain crates/model/src/merge/mod.rs 'part.give_magnitude(row, &mut sum);' '' merge::
mutation frozen-a-steps crates/batchlora/src/optimizer/adamw.rs 'Some(trains_a) => table_a.clone() * trains_a.clone(),' \
    'Some(_) => table_a.clone(),' a_frozen_a_keeps
mutation frozen-a-in-norm crates/batchlora/src/bank.rs 'freeze_a: spec.freeze_a,' 'freeze_a: false,' parity::llama_gqa
mutation frozen-a-not-alive $trainer/tasks/diagnosis.rs 'a_changed || frozen' 'a_changed' parity::llama_gqa
mutation frozen-a-of-embedding $trainer/adapter.rs 'lora.lora_fa && projection != Projection::EmbedTokens' 'lora.lora_fa' \
    parity::llama_gqa
mutation frozen-a-thaws $trainer/checkpoint/tensors.rs 'freeze_a: state.spec.freeze_a,' 'freeze_a: false,' \
    comes_back_with_its_bits
mutation factors-not-applied crates/model/src/head.rs 'gradient = gradient * factors;' '' those_of_trl
mutation factors-applied-twice crates/model/src/head.rs 'Some(all.mask_fill(before, 1.0))' 'Some(all)' those_of_trl
mutation reference-forgotten crates/objective/src/log_probs.rs 'self.sums() - self.reference.clone()' 'self.sums()' \
    those_of_trl
mutation sides-swapped crates/objective/src/log_probs.rs '[0, 1].map(|side|' '[1, 0].map(|side|' those_of_trl
mutation prompt-not-trained $trainer/batch/assemble.rs 'matches!(loss, PreferenceLoss::Orpo(_)) &&' 'false &&' those_of_trl
mutation smoothing-of-losses-alone crates/model/src/smoothing.rs 'gradient = gradient.slice_assign(place, part);' \
    'let _ = (place, part);' smoothed_losses
mutation smoothing-of-other-rows crates/model/src/smoothing.rs 'start - chunk.start..end.min(start + ROWS) - chunk.start' \
    'start - chunk.start..end - chunk.start' rows_of_a_chunk
mutation evaluation-not-smoothed $trainer/run/follow_up.rs 'at_once, smoothing, &mut' 'at_once, 0.0 * smoothing, &mut' \
    evaluation_is_smoothed
mutation rejected-evaluated $trainer/batch/evaluate.rs 'sample.preferred != Some(false)' 'true' preferences_are_judged
mutation rewards-without-base crates/cli/src/commands/eval/preferences.rs 'own - base' 'own - 0.0 * base' \
    preferences_are_judged
mutation lone-rows-compared $trainer/tasks/warnings.rs 'count % batch == 1' 'count % batch == 2' batches_of_one_row
mutation known-rows-read $trainer/tasks/rows.rs 'self.known.remove(&known)' 'None::<Encoded>' known_rows
mutation magnitudes-uncounted crates/model/src/peft/adapter.rs 'map_or(0, Vec::len)' 'map_or(0, |_| 0)' magnitudes_are
mutation validation-refers-to-training $trainer/tasks/step_rows.rs 'self.batches_of((0..count).collect(), rows, true)' \
    'self.batches_of((0..count).collect(), rows, false)' preferences_are_judged
mutation mean-of-a-batch $trainer/iteration/plan.rs 'step_rows: rows.step.step_rows,' \
    'step_rows: rows.step.step_rows.min(task.config.train.batch_size),' accumulated_batches
mutation lora-fa-of-saved-alone $trainer/adapter.rs 'spec.with_freeze_a(freezes_a(lora, projection));' \
    'spec.with_freeze_a(freezes_a(lora, projection) && config.init_from.is_some());' fresh_adapters_have
mutation fresh-preferences-drop $trainer/adapter.rs '.with_lora_dropout(config.dropout());' \
    '.with_lora_dropout(config.lora.lora_dropout);' fresh_adapters_have
mutation kto-of-one-row crates/config/src/validate.rs 'if train.batch_size < 2 {' 'if train.batch_size < 1 {' cannot_have
mutation losses-without-weights crates/config/src/objective.rs 'if weights.len() != types.len() {' \
    'if weights.len() > types.len() {' cannot_have
mutation smoothing-without-effect crates/config/src/objective.rs 'ObjectiveType::Dpo => types.contains(&LossType::Robust),' \
    'ObjectiveType::Dpo => !types.is_empty(),' cannot_have
mutation reference-checked-once $trainer/tasks/prepare.rs '(task.reference, task.reference_digest) = reference.unzip();
            }' 'task.reference = reference.map(|(adapter, _)| adapter);
            }' a_changed_reference
mutation margins-not-resumed $trainer/checkpoint/record.rs 'record.margins.map(|margins| margins.0),' \
    'record.margins.map(|margins| margins.0).filter(|_| false),' kept_whole
mutation accuracies-are-margins $trainer/tasks/trials.rs 'accuracies.unwrap_or(f64::NAN),' \
    'margins.or(accuracies).unwrap_or(f64::NAN),' metric_of_the_sweep
mutation ties-are-accurate crates/objective/src/sums.rs 'pair[0] > pair[1]' 'pair[0] >= pair[1]' equal_rewards
mutation chosen-shown-twice crates/cli/src/commands/eval/preferences.rs 'number(self.rejected),' 'number(self.chosen),' \
    preferences_are_judged
mutation null-keeps-loraplus crates/config/src/merge.rs '"loraplus_lr_ratio",' '"loraplus_ratio",' null_in_an_adapter
mutation reference-may-go $trainer/tasks/prepare.rs '(before != now).then(' \
    '(before != now && now.is_some()).then(' a_changed_reference
mutation contrast-unbounded crates/objective/src/contrast.rs 'ratio.clamp_max(self.contrast.lambda)' 'ratio' \
    finite_differences
mutation contrast-of-other-tokens crates/objective/src/contrast.rs 'next - 1' 'next - 2' contrast::
mutation contrast-not-reported $trainer/iteration/submitted.rs 'factor * f64::from(loss)' '0.0 * factor * f64::from(loss)' \
    contrast::
mutation contrast-cut $trainer/tasks/task.rs 'contrasts || estimates_divergence' 'contrasts && estimates_divergence' \
    contrast::
mutation divergence-negative crates/objective/src/kto.rs 'unrelated.mean().clamp_min(0.0)' 'unrelated.mean()' those_of_trl
mutation divergence-learned crates/objective/src/kto.rs 'completions.ratios().without_autodiff()' 'completions.ratios()' \
    those_of_trl
mutation reference-always-base $trainer/tasks/prepare.rs 'objective.reference != Some(Reference::Base)' 'false' those_of_trl
mutation dropout-kept crates/config/src/objective.rs 'if self.objective.disables_dropout() {' 'if false {' those_of_trl
mutation references-not-shared $trainer/tasks/task.rs 'references: data.references.clone(),' \
    'references: Arc::default(),' share_the_passes
mutation other-rows-trained $trainer/tasks/task.rs 'if found == needed {' 'if true {' \
    rows_of_another_objective
mutation reading-goes-on crates/data/src/reader/rows.rs 'if stop.load(Ordering::Relaxed) {' \
    'if stop.load(Ordering::Relaxed) && bytes == usize::MAX {' a_stop_ends_a_pass
mutation reader-takes-the-pool $trainer/tasks/reader.rs 'Ok(pool) => pool.install(read),' 'Ok(_) => read(),' \
    the_pool_that_trains_is_free
mutation reader-goes-on $trainer/run/run.rs 'ended.store(true, Ordering::Relaxed);' \
    'ended.store(false, Ordering::Relaxed);' reads_a_dataset_stops
mutation stopped-reading-loses $trainer/run/serving.rs 'carried.insert(task.id, task.adapter.name);' \
    'carried.remove(&task.id);' goes_on_where_it_was
mutation unknown-nulls-pass crates/config/src/tree/de.rs '!keys.contains(&key.name.as_str())' 'key.name.is_empty()' \
    unknown_keys_without
mutation line-ends-trimmed crates/data/src/reader/json.rs \
    'text.truncate(end.strip_suffix('"'\\r'"').unwrap_or(end).len());' 'text.truncate(end.trim_end().len());' \
    prompts_beside_one
mutation nanoseconds-are-numbers crates/data/src/reader/parquet.rs \
    'LogicalType::Timestamp(time) if time.unit == TimeUnit::NANOS' \
    'LogicalType::Timestamp(time) if time.unit == TimeUnit::MICROS' times_in_nanoseconds
mutation names-of-clones-parsed crates/server/src/client.rs 'json!(name)' 'name' once_its_data_is_restored
mutation ends-without-width $trainer/tasks/warnings.rs 'model.linear(end)' 'model.linear(end).filter(|_| false)' \
    ranks_above_the_width

mutation dora-magnitudes-made-again crates/batchlora/src/adapter.rs \
    'if self.spec.use_dora && self.weights.magnitude.is_none() {' 'if self.spec.use_dora {' trained_magnitudes
mutation dora-neighbour-not-dropped crates/batchlora/src/routing.rs \
    'Some(before) if before.end == segment.rows.start => before.end = segment.rows.end,' \
    'Some(before) if before.end == segment.rows.start => {}' dora::
mutation dora-norms-of-the-first-columns crates/batchlora/src/dora.rs \
    'of(weight.clone().slice_dim(1, part).cast(DType::F32))' \
    'of(weight.clone().slice_dim(1, 0..part.len()).cast(DType::F32))' columns_in_parts
mutation dora-norms-before-the-record crates/batchlora/src/bank.rs \
    $'// A record replaces the layer\'s weight, too.\n            norms: Arc::default(),' 'norms: self.norms.clone(),' norms_follow
mutation preference-sums-over-micro-batches crates/objective/src/completions.rs \
    'loss.sum().div_scalar(self.step_rows as f64)' 'loss.sum().div_scalar(self.rows() as f64)' preferences::
mutation preferences-in-half crates/model/src/head.rs \
    'factors.unsqueeze_dim::<2>(1).cast(gradient.dtype());' 'factors.unsqueeze_dim::<2>(1);' half_precision::
mutation smoothing-in-half crates/model/src/smoothing.rs 'let shares = shares.cast(gradient.dtype());' '' half_precision::
mutation contrast-in-half crates/model/src/head.rs 'let part = part.cast(gradient.dtype());' '' half_precision::
mutation accuracies-of-the-last-batch crates/objective/src/sums.rs \
    'self.accurate += other.accurate;' 'self.accurate = other.accurate;' preferences::
mutation divergence-of-the-last-batch crates/objective/src/sums.rs \
    '(Some(one), Some(other)) => Some(one + other),' '(Some(_), Some(other)) => Some(other),' preferences::
mutation log-probs-of-the-last-batch crates/objective/src/sums.rs \
    'self.log_probs[side] += other.log_probs[side];' 'self.log_probs[side] = other.log_probs[side];' preferences::
mutation eva-components-cut $trainer/start/eva.rs \
    '(lora.r as f64 * lora.eva_config().rho).round_ties_even() as usize' '(lora.r as f64 * lora.eva_config().rho) as usize' \
    components_are_rounded
mutation few-tokens-unchecked crates/trainer/src/adapter.rs 'if most >= needed {' 'if true {' eva_needs_a_token
mutation defaults-not-shown crates/config/src/resolve.rs 'adapter.fill_defaults();' '' the_resolved_form
mutation loss-of-another-type crates/config/src/merge.rs 'key.name != "loss_type" && ' '' another_type_takes
mutation earlier-runs-not-filled $trainer/checkpoint/compare.rs 'by_name(&filled(saved))' 'by_name(saved)' \
    defaults_may_be_written
mutation keywords-not-filled $trainer/checkpoint/compare.rs 'train.lr_scheduler_kwargs = train.lr_scheduler_kwargs.filled(train.lr_scheduler_type);' \
    '' keywords_of_a_schedule
mutation olora-of-dependent-inputs $trainer/start/weights.rs 'if b.height() < r {' 'if b.height() > r {' low_rank
mutation pissa-of-fewer-components $trainer/start/weights.rs 'rows.resize(r * of.columns, 0.0);' '' low_rank
mutation other-reference-passes $trainer/tasks/prepare.rs '(before != now).then(|| {' 'false.then(|| {' changed_reference
mutation rewards-rank-the-worst crates/config/src/sweep/settings.rs \
    'Self::EvalMargins | Self::EvalAccuracies => -value,' 'Self::EvalMargins | Self::EvalAccuracies => value,' by_their_rewards
mutation unlabelled-rows-change-the-format crates/data/src/format.rs \
    'Some(_) => rows.iter().any(|row| fits(format, row)),' 'Some(_) => rows.iter().all(|row| fits(format, row)),' say_nothing
mutation rounded-embeddings crates/batchlora/src/embedding.rs \
    'let b = frozen_linear(self.columns(segment, ids), gradient.clone());' \
    'let b = self.columns(segment, ids).matmul(gradient.clone());' architecture::
mutation nf4-spare-capacity crates/batchlora/src/nf4.rs '// Flex keeps the whole capacity.' 'return all;' nf4::tests
mutation nf4-one-copy crates/model/src/head.rs 'const HEAD_PART: usize = 1 << 26;' 'const HEAD_PART: usize = 1 << 40;' quantized::a_large
mutation nf4-parts-ignored crates/batchlora/src/frozen.rs 'weight.layout.part = most;' 'let _ = (weight, most);' frozen::tests
mutation nf4-parts-from-the-first crates/batchlora/src/ops/flex.rs 'let first = rows.start * d_in / nf4::BLOCK;' 'let first = 0 * rows.start;' nf4::products
mutation nf4-parts-rounded-each crates/batchlora/src/ops/frozen.rs 'B::float_zeros(shape, &gradient.device(), FloatDType::F32)' \
    'B::float_zeros(shape, &gradient.device(), dtype)' nf4::parts
mutation nf4-head-dense crates/model/src/backbone.rs 'let weight = loader.weight(config, Projection::LmHead.path(), shape)?;' \
    'let weight = FrozenWeight::Dense(table("lm_head.weight")?.map(|table| table.transpose()));' nf4::an_output
mutation nf4-head-never crates/model/src/config/quantization.rs '|| module == HEAD;' '|| (false && module == HEAD);' quantized:: nf4::an_output
mutation live-stays $trainer/generate/live.rs 'self.news.store(true, Ordering::Relaxed);' '' answering::a_live
mutation live-is-saved $trainer/generate/live.rs 'if which == "live" {' 'if which == "alive" {' answering::live
mutation step-of-another $trainer/generate/live.rs 'if saved_step == step' 'if saved_step >= step' answering::
mutation save-of-any-step $trainer/generate/live.rs '.filter(|(_, saved)| *saved == step)' '.filter(|(_, saved)| *saved > 0)' live::tests::steps
mutation one-save-of-a-step $trainer/generate/live.rs 'of_step.next().unwrap_or(Err(error))' 'Err(error)' live::tests::steps
mutation steps-by-other-names $trainer/generate/live.rs 'step.to_string() == text' 'true' live::tests::steps
mutation saves-untold $trainer/generate/live.rs 'if saved.is_empty()' 'if true' live::tests::steps
mutation parents-untold $inference/reading.rs 'save.join(name).is_file()' 'save.join(name).is_dir()' told_apart
mutation names-of-rust crates/server/src/http/fields.rs '"f64" => "a number"' '"f64" => "f64"' errors_name_the_field
mutation kernels-with-requests crates/cli/src/commands/bench/serving.rs '("--rows", arguments.rows.is_some())' \
    '("--rows", false)' bench::what
mutation paused-untold crates/cli/src/commands/serve.rs 'task.state == TaskState::Paused' 'task.state == TaskState::Done' exit_codes_tell
mutation options-of-no-effect crates/cli/src/arguments/queue.rs '    "drain",' '    "tui",' would_do_nothing
mutation unsaved-unsaid crates/cli/src/commands/serve_inference.rs '!saved.contains(&adapter.name)' 'saved.is_empty() && !saved.contains(&adapter.name)' \
    without_a_save
mutation broken-saves-untold $trainer/generate/live.rs 'take(saved.last(&adapter))' 'take(Ok(saved.last(&adapter).ok().flatten()))' live::tests::steps
mutation huge-pages Cargo.toml ', features = ["no_thp"]' '' the_adapters_of_a_run_answer
mutation saves-not-seen crates/cli/src/commands/serve_beside.rs 'self.service.refresh(spec, path);' 'let _ = (spec, path);' answering::live
mutation tenants-by-arrival crates/inference/src/waiting.rs 'then(a_cost.total_cmp(&b_cost))' 'then(a_cost.total_cmp(&a_cost))' fair_answers::
mutation weights-forgotten crates/inference/src/waiting.rs 'charge(tenant, cost / weight)' 'charge(tenant, cost / weight.powi(0))' fair_answers::a_weight
mutation passed-for-ever crates/inference/src/waiting.rs 'self.sequences[*at].passed += 1;' 'self.sequences[*at].passed += 0;' fair_answers::requests
mutation answers-are-free crates/inference/src/engine.rs 'self.charge(&tenant, Waiting::answer_cost());' 'self.charge(&tenant, 0.0 * Waiting::answer_cost());' service::accounts::training
mutation prompts-charged-again crates/inference/src/waiting.rs 'if sequence.has_begun {' 'if sequence.has_begun && sequence.passed > 999 {' service::accounts::a_prompt
mutation training-is-free crates/inference/src/engine.rs 'one.take_trained()' 'one.take_answered()' service::accounts::training
mutation training-uncharged $trainer/run/serving.rs 'neighbour.trained(&tenant, tokens as f64 * TRAINED_TOKEN);' 'let _ = (&tenant, tokens);' task_commands::trained
mutation elsewhere-is-free crates/scheduler/src/policy/lifecycle.rs 'counters.charge(tenant, tokens);' 'counters.charge(tenant, 0.0 * tokens);' fair::service
mutation training-unnoticed $trainer/run/serving.rs 'live.neighbour().trains(!idle);' 'live.neighbour().trains(false);' answering::answers_leave
mutation nothing-left $trainer/run/run.rs 'room.fixed_bytes += self.left_bytes;' 'room.fixed_bytes += 0;' answering::answers_have
mutation share-of-all crates/inference/src/neighbour.rs '(1.0 - share) / share' '(1.0 - share) * 0.0' neighbour::
mutation resume-any-quantization crates/trainer/src/checkpoint/compare.rs 'saved.keys().chain(new)' 'saved.keys().chain(new.take(0))' \
    checkpoint::compare
mutation skip-any-name crates/model/src/config/quantization.rs '.any(|module| is_named(module, name))' '.any(|_| true)' \
    quantization::check_says
mutation eval-over-float crates/cli/src/commands/source.rs 'run_directory::config(run)?.quantization,' \
    'run_directory::config(run)?.quantization.filter(|_| false),' quantization::an_adapter
mutation awq-in-order crates/model/src/checkpoint/dequantize/formats.rs 'Some(AWQ_ORDER)' 'Some([0, 1, 2, 3, 4, 5, 6, 7])' quantized::weights_have
mutation gptq-zeros-as-stored crates/model/src/checkpoint/dequantize/formats.rs 'word.wrapping_add(ones)' 'word.wrapping_add(0 * ones)' \
    quantized::weights_have
mutation fp8-other-blocks crates/model/src/checkpoint/dequantize/formats.rs '(rows, found[1], columns)' '(2 * rows, found[1], columns)' \
    quantized::weights_have
mutation groups-in-order crates/model/src/checkpoint/dequantize/values.rs 'from_le_bytes(groups[column])' 'from_le_bytes(groups[groups.len() - 1 - column])' \
    quantized::weights_have
mutation int8-by-128 crates/model/src/checkpoint/dequantize/formats.rs '1.0 / 127.0' '1.0 / 128.0' quantized::weights_have
mutation queue-closed-twice crates/server/src/queue/beginning.rs 'let file = if open' \
    'drop(File::open(path)?); let file = if open' opens_a_queue_twice
mutation weights-of-keys crates/server/src/http/generate.rs 'weight: caller.weight,' 'weight: caller.weight.powi(0),' key_gives_its_tenant
mutation prompts-without-limit crates/server/src/http/generate.rs 'caller.count_tokens(usage.prompt);' \
    'caller.count_tokens(0 * usage.prompt);' limits_a_minute
mutation answers-unpenalised $inference/sequence.rs 'sampling.row(&self.tokens,' 'sampling.row(&self.request.prompt,' answer_before_it
mutation one-draw $inference/sequence.rs 'sampling.row(&self.tokens, self.answer(),' 'sampling.row(&self.tokens, 0,' answer_before_it
mutation newest-makes-way $inference/store.rs 'idle.min_by_key(' 'idle.max_by_key(' longest_ago
mutation saves-without-name crates/cli/src/commands/serve_beside.rs '            adapter.clone(),' \
    '            format!("{adapter}@last"),' answering::live
mutation traces-without-adapters benches/src/serving/bench.rs 'request.adapter.unwrap_or(index) % adapters' 'index % adapters' \
    those_of_the_trace
mutation paths-are-names crates/trainer/src/generate/live.rs '.filter(|(name, _)| is_name(name))' '' nothing_outside
mutation any-host-is-own crates/server/src/http/admin.rs '&& host.is_some_and(is_own);' '&& host.is_some();' changes_come_from names_that_others
mutation first-directory-only $inference/store.rs 'held.directories.push(directory.clone());' '' either_directory
mutation anybody-changes crates/server/src/http/admin.rs 'if !caller.is_admin {' 'if false {' changed_by_admins need_a_key
mutation neighbours-change crates/server/src/http/admin.rs 'peer.0.ip().to_canonical().is_loopback()' \
    '!peer.0.ip().is_unspecified()' without_keys_changes
mutation sites-cancel crates/server/src/http/tasks.rs 'read::nothing(request, &state.limits).await?;' 'drop(request);' owners_pause
mutation http-keys-ignored crates/server/src/http/tasks.rs 'let key = key.as_deref();' 'let key = key.as_deref().filter(|_| false);' \
    submitted_once
mutation http-dry-runs-submit crates/server/src/http/tasks.rs 'Some("true") => true,' 'Some("true") => false,' submitted_once
mutation relative-paths-of-requests crates/server/src/http/submission.rs 'path.is_relative()' 'path.is_relative() && false' \
    mistakes_of_a_configuration
mutation http-submits-yaml crates/server/src/http/submission.rs 'RunConfig::load_json(' 'RunConfig::load_yaml(' \
    mistakes_of_a_configuration
mutation curves-of-namesakes crates/server/src/client.rs '(!is_followed).then_some(task)' 'Some(task).filter(|_| is_followed || true)' \
    losses_come
mutation curves-read-again crates/server/src/http/curves.rs 'SeekFrom::Start(self.read)' 'SeekFrom::Start(0 * self.read)' whole_new_lines
mutation steps-twice crates/server/src/http/curves.rs 'curves.steps.cut(point.step);' '' taken_again
mutation deaf-clients-stay crates/server/src/http/connections.rs 'stream.set_write_timeout(Some(limits.write));' \
    'let _ = limits.write;' reads_nothing
mutation bursts-wait crates/server/src/http/generate.rs 'permit.map_err(|_| ServiceError::Busy { waiting })?;' \
    'permit.map_err(|_| ServiceError::Busy { waiting });' told_to_come_later
mutation bench-by-arrival benches/src/serving/load.rs 'if self.policy == ServingPolicy::Vtc {' 'if false {' policies_differ
mutation bench-without-limit benches/src/serving/policy.rs 'accepted.len() >= self.rate_limit' 'accepted.len() > self.rate_limit' above_the_limit
mutation bench-lcf-at-once benches/src/serving/policy.rs 'if self.sent >= self.max_sequences => return None' \
    'if self.sent > self.max_sequences => return None' not_lifted
mutation late-attains benches/src/serving/figures.rs 'seconds <= first_token' 'seconds <= 2.0 * first_token' attains_both
mutation traces-from-1970 crates/simulator/src/requests.rs 'request.arrival -= begun;' '' burst_gpt_are_read
mutation one-nonce crates/server/src/http/page.rs 'let nonce = format!("{:016x}{:016x}", random(), random());' \
    'let _ = random; let nonce = "0".repeat(32);' its_own_script

rm -f "$log"
exit $((survived > 0))
