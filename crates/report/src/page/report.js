// The page: sections of what the data has.

const data = JSON.parse(document.getElementById('data').textContent);
const { run } = data;
const main = document.getElementById('main');
const plural = (count, word) => `${show.count(count)} ${word}${count === 1 ? '' : 's'}`;
const maximum = (values) => (values ?? []).reduce((most, value) => (isNumber(value) && (most == null || value > most) ? value : most), null);

function section(title, note, ...children) {
  const kept = children.flat().filter(Boolean);
  if (kept.length) main.append(el('section', {}, el('h2', {}, title), note && el('p', { class: 'note' }, note), kept));
}

function table(heading, rows, { tall = false } = {}) {
  const cell = (tag) => ([text, kind = '']) => el(tag, { class: kind || null }, text);
  return el('div', { class: tall ? 'wide tall' : 'wide', tabindex: tall ? 0 : null }, el('table', {},
    el('thead', {}, el('tr', {}, heading.map(cell('th')))),
    el('tbody', {}, rows.map(({ cells, kind, own }) => el('tr', { class: kind || null,
      onpointerenter: () => own != null && single(own), onpointerleave: () => own != null && single(null) }, cells.map(cell('td')))))));
}

const nameCell = (name, mark) => [[mark, name], name.length > 32 ? 'key long' : 'key'];

const STANDING = { done: 'done', failed: 'failed' };
const standing = (word) => el('span', { class: `state ${STANDING[word] ?? 'plain'}` }, word);

function head() {
  const word = { finished: 'finished', interrupted: 'interrupted', open: 'not ended' }[run.state];
  const words = ['done', 'stopped', 'failed', 'cancelled', 'interrupted', 'running', 'parked', 'waiting'];
  const counts = words.map((standing) => [data.adapters.filter((adapter) => adapter.standing === standing).length, standing]);
  const peak = maximum(data.iterations.bytes_reserved);
  const figures = [
    ['Adapters', show.count(data.adapters.length), counts.filter(([count]) => count > 0).map(([count, standing]) => `${show.count(count)} ${standing}`).join(', ')],
    ['Time', show.seconds(run.seconds), plural(data.iterations.count, 'iteration')],
    ['Tokens', show.short(run.tokens), `${show.count(run.tokens)} in total`],
    ['Throughput', run.seconds > 0 ? `${show.short(run.tokens / run.seconds)} tok/s` : '–', 'over the whole time'],
    peak != null && ['Memory', show.bytes(peak), run.memory_predictions > 0 && isNumber(run.memory_error_percent)
      ? `peak; predictions ${run.memory_error_percent.toFixed(1)} % off` : 'peak'],
    run.stages.length > 0 && [run.stages.length > 1 ? 'Stages' : 'Device', run.stages.length > 1 ? show.count(run.stages.length) : cut(run.stages[0], 18),
      run.stages.length > 1 ? cut(run.stages.join(', '), 44) : null],
  ].filter(Boolean);
  const sub = [run.started && `began ${show.time(run.started)}`, run.ended && `ended ${show.time(run.ended)}`,
    run.resumes > 0 && `resumed ${run.resumes === 1 ? 'once' : `${run.resumes} times`}`,
    data.warnings.all > 0 && plural(data.warnings.all, 'warning')].filter(Boolean);
  document.getElementById('head').append(
    el('div', { class: 'line' }, el('h1', {}, run.name), el('span', { class: `state ${run.state}` }, word)),
    el('p', { class: 'sub' }, sub.flatMap((part, at) => [at > 0 && ' · ', el('span', {}, part)])),
    el('dl', { class: 'figures' }, figures.map(([name, value, more]) => el('div', {}, el('dt', {}, name),
      el('dd', {}, value, more && el('small', {}, more))))));
}

// Which curves are shown, and over what.
function controls() {
  const bar = document.getElementById('controls');
  const buttons = [];
  const press = () => buttons.forEach(([button, pressed]) => button.setAttribute('aria-pressed', pressed()));
  const button = (label, pressed, click, attributes = {}) => {
    const node = el('button', { type: 'button', onclick: () => { click(); press(); redraw(); }, ...attributes }, label);
    if (pressed) buttons.push([node, pressed]);
    return node;
  };
  const all = () => data.adapters.map((_, index) => index);
  const only = (shown) => { state.shown = new Set(shown); };
  const key = ({ name }, index) => button([swatch(index), el('span', {}, abridged(name, 32))], () => state.shown.has(index),
    () => { if (!state.shown.delete(index)) state.shown.add(index); },
    { title: `${name}: click to hide or show, double-click to show alone`, ondblclick: () => { only([index]); press(); redraw(); },
      onpointerenter: () => single(index), onpointerleave: () => single(null) });
  bar.append(
    el('div', { class: 'choice', role: 'group', 'aria-label': 'x axis' }, Object.entries(AXES).map(([axis, { word }]) =>
      button(word, () => state.axis === axis, () => { state.axis = axis; }))),
    el('div', { class: 'choice', role: 'group', 'aria-label': 'curves' },
      button('Log', () => state.log, () => { state.log = !state.log; }, { title: 'logarithmic axis of losses and norms' }),
      data.thinned.smoothed_over != null && button('Raw', () => state.raw, () => { state.raw = !state.raw; }, { title: 'also show single steps' })),
    data.adapters.length > 1 && el('div', { class: data.adapters.length > 8 ? 'keys' : 'keys few', role: 'group', 'aria-label': 'adapters' },
      button('all', null, () => only(all()), { class: 'all' }), button('none', null, () => only([]), { class: 'all' }),
      data.adapters.map(key)));
  press();
  bar.hidden = false;
}

const curvesOf = (column, make = (curve) => ({ y: curve[column] })) => data.adapters.flatMap(({ name, curve }, index) => (
  curve[column] && curve[column].length ? [{ name, index, adapter: index, x: curve, ...make(curve) }] : []));

// Charts that have values; the names of the others.
const absent = [];
const chart = (title, curves, options) => {
  if (!curves.length) {
    absent.push(options?.absent ?? title.toLowerCase());
    return null;
  }
  return new Chart(title, curves, options).figure;
};

function losses() {
  const smooth = data.thinned.smoothed_over;
  const train = curvesOf('loss', ({ loss, smooth_loss: mean }) => (mean ? { y: mean, raw: loss } : { y: loss }));
  const evals = data.adapters.flatMap(({ name, evals: found }, index) => (found.loss.length
    ? [{ name, index, adapter: index, x: found, y: found.loss, dots: true }] : []));
  const figures = [
    chart('Training loss', train, { canLog: true, height: 300, note: smooth ? 'mean over 4 % of the steps' : 'of each step' }),
    chart('Validation loss', evals, { canLog: true, height: 300, absent: 'validation loss (no adapter was evaluated)' }),
  ];
  const kept = figures.filter(Boolean);
  section('Loss', null, kept.length ? el('div', { class: 'charts' }, kept)
    : el('p', { class: 'empty' }, 'No step has been taken yet.'));
}

function adapters() {
  // What makes an adapter is said first, and no more than a table can hold.
  const order = ['dataset', 'lora', 'train', 'objective'];
  const place = ([key]) => (order.indexOf(key.split('.')[0]) + 1) || 9;
  const settings = [...data.settings].sort((one, other) => place(one) - place(other)).slice(0, 5);
  const heading = [['adapter'], ['outcome'], ['steps', 'right'], ['first loss', 'right'], ['last loss', 'right'], ['best validation', 'right'],
    ['tokens', 'right'], ...settings.map(([key]) => [key.replace(/^(lora|train)\./, '')])];
  const rows = data.adapters.map((adapter, index) => ({ own: index, cells: [
    nameCell(adapter.name, swatch(index)), [standing(adapter.standing)],
    [`${show.count(adapter.steps)}${adapter.total_steps ? ` / ${show.count(adapter.total_steps)}` : ''}`, 'right'],
    [show.number(adapter.first_loss), 'right'], [show.number(adapter.last_loss), 'right'],
    [adapter.best ? `${show.number(adapter.best.loss)} at ${show.count(adapter.best.step)}` : '–', 'right'], [show.short(adapter.tokens), 'right'],
    ...settings.map(([, values]) => [cut(String(values[index] ?? '–'), 28)]),
  ] }));
  // Many adapters of a sweep stop for one reason.
  const reasons = new Map();
  for (const { name, reason, standing: word } of data.adapters) {
    if (reason && ['failed', 'stopped'].includes(word)) reasons.set(reason, [...(reasons.get(reason) ?? []), name]);
  }
  section('Adapters', null, rows.length ? table(heading, rows, { tall: rows.length > 24 }) : el('p', { class: 'empty' }, 'The run has no adapters yet.'),
    reasons.size > 0 && table([['stopped or failed'], ['why']], [...reasons].map(([reason, names]) => (
      { cells: [[names.join(', '), 'names'], [reason, 'why']] })), { tall: reasons.size > 12 }));
}

function sweeps() {
  for (const sweep of data.sweeps.filter(({ standings }) => standings.length)) {
    const own = new Map(data.adapters.map(({ name }, index) => [name, index]));
    const heading = [['rank', 'right'], ['adapter'], [sweep.metric.replace('_', ' '), 'right'], ['steps', 'right'], ['state'],
      ...sweep.axes.slice(0, 5).map(({ key }) => [key.replace(/^(lora|train)\./, '')])];
    const rows = sweep.standings.map((line, at) => ({ own: own.get(line.name), kind: line.rank === 1 ? 'best' : '', cells: [
      [line.rank ?? '–', 'right'], nameCell(line.name), [show.number(line.metric), 'right'], [show.count(line.steps), 'right'], [standing(line.state)],
      ...sweep.axes.slice(0, 5).map(({ values }) => [cut(String(values[at] ?? '–'), 28)]),
    ] }));
    section(`Sweep ${sweep.name}`, `${plural(rows.length, 'adapter')}, ranked by ${sweep.metric.replace('_', ' ')}, the lowest first`,
      sweep.axes.length > 0 && el('div', { class: 'charts' }, coordinates(sweep).figure), table(heading, rows, { tall: rows.length > 16 }));
  }
}

function training() {
  const further = data.metrics.map((name, at) => chart(name, data.adapters.flatMap(({ name: own, curve }, index) => {
    const y = curve.metrics?.[at];
    return y?.some(isNumber) ? [{ name: own, index, adapter: index, x: curve, y }] : [];
  })));
  const figures = [
    ...further,
    chart('Learning rate', curvesOf('learning_rate'), { text: show.rate, mark: show.mark, zero: true, height: 220 }),
    chart('Gradient norm', curvesOf('grad_norm', ({ grad_norm: norm, smooth_grad_norm: mean }) => (mean ? { y: mean, raw: norm } : { y: norm })),
      { canLog: true, height: 220, note: 'before clipping' }),
  ].filter(Boolean);
  section('Training', null, figures.length > 0 && el('div', { class: 'charts' }, figures));
}

function speed() {
  const { iterations } = data;
  const curve = (name, index, column) => (iterations[column]?.some(isNumber) ? [{ name, index, x: iterations, y: iterations[column] }] : []);
  const ofIterations = { what: 'iteration', height: 220, zero: true };
  const share = { ...ofIterations, text: show.percent, mark: (part) => `${trim((part * 100).toFixed(1))} %` };
  const memory = [...curve('measured', 0, 'bytes_reserved'), ...curve('predicted peak', 1, 'bytes_predicted')];
  const figures = [
    chart('Throughput', curve('tokens/s', 0, 'tokens_per_second'), { ...ofIterations, text: (n) => `${show.short(n)} tok/s`, mark: show.short, note: 'tokens/s' }),
    chart('Memory', memory, { ...ofIterations, text: show.bytes, marking: byteMarks, key: true, absent: 'memory (no device reports it)' }),
    run.stages.length > 1 && chart('Idle time of the stages', curve('idle', 0, 'bubble_ratio'), { ...share, top: .1, absent: 'idle time (the devices work on their own)' }),
    run.stages.length > 1 && iterations.transfer_seconds
      && chart('Transfers between machines', curve('transfers', 0, 'transfer_seconds'), { ...ofIterations, text: show.seconds, mark: show.seconds }),
    run.stages.length > 1 && iterations.transfer_overlap
      && chart('Transfers hidden behind work', curve('hidden', 0, 'transfer_overlap'), { ...share, top: 1 }),
  ].filter(Boolean);
  section('Speed and memory', 'by iteration of the run; evaluation and saving are left out', figures.length > 0 && el('div', { class: 'charts' }, figures));
}

function schedule() {
  const { shown, all } = data.happenings;
  const rows = shown.map((one) => ({ cells: [[show.seconds(one.seconds), 'right'], [show.count(one.iteration), 'right'], [happened(one)],
    nameCell(nameOf(one.adapter)), [[one.reason, one.groups && el('div', { class: 'muted' }, groupsOf(one.groups))], 'why']] }));
  const left = all - shown.length;
  const parts = [run.clock > 0 && el('div', { class: 'charts' }, course().figure)];
  if (data.passes.length) parts.push(el('div', { class: 'charts' }, passes().figure));
  if (rows.length) {
    parts.push(el('details', { open: rows.length <= 16 }, el('summary', {}, `Decisions and their reasons (${show.count(all)})`),
      left > 0 && el('p', { class: 'note' }, `The last ${show.count(shown.length)}; events.jsonl has all of them.`),
      table([['time', 'right'], ['iteration', 'right'], ['what'], ['adapter'], ['why']], rows, { tall: rows.length > 12 })));
  }
  section('Schedule', null, parts);
}

function answers() {
  const { shown, all } = data.answers;
  const by = new Map();
  for (const [name, answer] of shown) by.set(name, [...(by.get(name) ?? []), answer]);
  const part = (name, text, same) => el('div', { class: same ? 'same' : null }, el('dt', {}, name), el('dd', {}, text.trim() || el('span', { class: 'muted' }, 'nothing')));
  const place = new Map(data.adapters.map(({ name }, index) => [name, index]));
  const cards = [...by].sort(([one], [other]) => place.get(one) - place.get(other)).map(([name, list]) => el('div', {}, el('h3', {}, name), list.map((answer) => el('dl', { class: 'answer' },
    part('prompt', answer.prompt), part('expected', answer.reference), part('before training', answer.before),
    part('after training', answer.after, answer.after.trim() === answer.reference.trim())))));
  const left = all - shown.length;
  section('Answers', `to rows of the adapters' datasets, before and after training; green matches the expected answer${left > 0 ? `. ${plural(left, 'answer')} left out` : ''}`,
    cards.length > 0 && el('div', { class: 'answers' }, cards));
}

function rest() {
  const { shown, all } = data.warnings;
  section('Warnings', all > shown.length ? `the last ${show.count(shown.length)} of ${show.count(all)}` : null,
    shown.length > 0 && el('ul', { class: 'warnings' }, shown.map((message) => el('li', {}, message))));
  const layers = run.layers.map(([first, last]) => (last - first === 1 ? `${first}` : `${first}–${last - 1}`));
  const about = [
    ...run.stages.map((stage, index) => [run.stages.length > 1 ? `stage ${index}` : 'device',
      [stage, layers[index] && `layers ${layers[index]}`, run.products[index] && `products by ${run.products[index]}`].filter(Boolean).join(', ')]),
    ...Object.entries(run.versions),
    ['events', show.count(run.events)],
  ];
  section('Configuration', null, el('dl', { class: 'about' }, about.map(([name, value]) => [el('dt', {}, name), el('dd', {}, value)])),
    data.config && el('details', {}, el('summary', {}, 'config.resolved.yaml'),
      !data.config_is_whole && el('p', { class: 'note' }, 'Only its beginning: the run directory has all of it.'), el('pre', {}, data.config)));
}

function foot() {
  const { rows, smoothed_over: over } = data.thinned;
  const lines = [
    rows && `Curves are thinned to at most ${show.count(rows)} steps: each interval of an adapter's steps keeps those with the lowest and highest loss and gradient norm. Totals, first, last and best values are of all steps.`,
    over && `Smoothed losses are means over 4 % of an adapter's steps, ${show.count(over)} for the longest.`,
    'Time covers the iterations, including those repeated after an interruption, but not evaluation and saving.',
    absent.length > 0 && `Not shown: ${absent.join(', ')}.`,
    run.unread > 0 && `${plural(run.unread, 'line')} of events.jsonl could not be read.`,
  ];
  document.getElementById('foot').append(...lines.filter(Boolean).map((line) => el('p', {}, line)));
}

// Losses that fall to a hundredth of what they were are told apart on a logarithmic axis only.
const drawnLosses = data.adapters.flatMap(({ curve }) => curve.smooth_loss ?? curve.loss);
const lowest = drawnLosses.reduce((least, loss) => (isNumber(loss) && loss < least ? loss : least), Infinity);
state.log = lowest > 0 && maximum(drawnLosses) > 100 * lowest;
// Single steps of many adapters hide their means.
state.raw = data.adapters.length <= 6;
state.shown = new Set(data.adapters.slice(0, 40).map((_, index) => index));
head();
controls();
losses();
adapters();
sweeps();
training();
speed();
schedule();
answers();
rest();
foot();
redraw();
let drawn = innerWidth;
addEventListener('resize', () => {
  if (innerWidth === drawn) return;
  drawn = innerWidth;
  requestAnimationFrame(redraw);
});
const print = (printing) => { state.printing = printing; redraw(); };
addEventListener('beforeprint', () => {
  // What is folded away on a screen is printed.
  document.querySelectorAll('details').forEach((part) => { part.open = true; });
  print(true);
});
addEventListener('afterprint', () => print(false));
