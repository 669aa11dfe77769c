// Drawings over time: when adapters trained, when stages worked; and the settings of a sweep.

const WORDS = {
  run_start: 'run begins', resume: 'run resumes', admit: 'begins', park: 'parked', out_of_memory: 'out of memory',
  regroup: 'regrouped', adapter_done: 'done', adapter_failed: 'failed', adapter_cancelled: 'cancelled', run_end: 'run ends',
};
const happened = ({ event, step }) => (event === 'admit' && step > 0 ? `resumes at step ${show.count(step)}` : WORDS[event]);
const nameOf = (index) => data.adapters[index]?.name ?? '';
// A list of happenings need not name all adapters of a group.
const groupsOf = (groups) => groups.map((group) => group.slice(0, 6).map(nameOf).join(', ')
  + (group.length > 6 ? ` and ${group.length - 6} more` : '')).join(' | ');
const cut = (text, letters) => (text.length > letters ? `${text.slice(0, letters - 1)}…` : text);

// A drawing that is made anew for another width, with a box for what is pointed at.
class Drawing {
  constructor(title, note, paint, labels = '') {
    this.holder = el('div', {});
    this.tip = el('div', { class: 'tip', hidden: true });
    this.paint = paint;
    this.figure = el('figure', {},
      el('figcaption', {}, el('h3', {}, title), note && el('span', { class: 'note' }, note)), this.holder, this.tip, labels);
    state.charts.push(this);
  }

  draw() {
    this.width = widthOf(this.holder);
    this.holder.replaceChildren(this.paint(this));
  }

  single() {}

  tell(event, svg, content) {
    if (!content) {
      this.tip.hidden = true;
      return;
    }
    const frame = svg.getBoundingClientRect();
    this.tip.replaceChildren(...content);
    const top = event.clientY - this.holder.getBoundingClientRect().top + 12;
    placeTip(this.tip, this.figure, this.holder, (event.clientX - frame.left) / frame.width, top);
  }
}

function timeAxis(low, high, box, across, names) {
  const most = Math.max(3, Math.floor((box.right - box.left) / 84));
  return timeMarks(low, high, most).map(([mark, text]) => [
    draw('line', { class: 'grid', x1: across(mark), x2: across(mark), y1: box.top, y2: box.bottom }),
    names && draw('text', { x: across(mark), y: box.bottom + 17, 'text-anchor': 'middle' }, text),
  ]);
}

// A row for each adapter: when it trained, and how it ended.
function course() {
  const end = data.run.clock || 1;
  const row = data.adapters.length > 40 ? 12 : 20;
  const paint = (drawing) => {
    const { width } = drawing;
    const letters = Math.min(24, Math.floor(width * .28 / 6.8), Math.max(...data.adapters.map(({ name }) => name.length)));
    const box = { left: letters * 6.8 + 14, right: width - 16, top: 4, bottom: 8 + row * data.adapters.length };
    const across = (seconds) => box.left + seconds / end * (box.right - box.left);
    const middle = (index) => box.top + row * index + row / 2;
    const bar = Math.min(9, row - 4);
    const all = data.happenings.shown;
    const lines = all.filter(({ event }) => ['resume', 'out_of_memory', 'regroup'].includes(event));
    const marksAt = all.filter(({ event }) => event.startsWith('adapter_'));
    const point = (event) => {
      const frame = svg.getBoundingClientRect();
      const x = (event.clientX - frame.left) * width / frame.width;
      const index = Math.floor(((event.clientY - frame.top) * width / frame.width - box.top) / row);
      const adapter = data.adapters[index];
      const near = all.filter((one) => Math.abs(across(one.seconds) - x) < 7 && (one.adapter == null || one.adapter === index));
      const own = near.filter((one) => one.adapter === index);
      const told = [...own, ...near.filter((one) => one.adapter == null)].slice(0, 4);
      const seconds = Math.min(end, Math.max(0, (x - box.left) / (box.right - box.left) * end));
      drawing.tell(event, svg, (adapter || told.length) && [
        el('div', {}, adapter && el('b', {}, adapter.name), ' ', el('span', { class: 'muted' }, `at ${show.seconds(seconds)}`)),
        ...told.map((one) => el('p', {}, happened(one), one.reason && el('span', { class: 'muted' }, ` – ${cut(one.reason, 160)}`))),
      ]);
    };
    const svg = draw('svg', { class: 'plot', viewBox: `0 0 ${width} ${box.bottom + 24}`, role: 'img', 'aria-label': 'When adapters trained',
      onpointermove: point, onpointerleave: () => { drawing.tip.hidden = true; } },
    timeAxis(0, end, box, across, true),
    lines.map(({ seconds, event }) => draw('line', { x1: across(seconds), x2: across(seconds), y1: box.top, y2: box.bottom,
      style: `stroke:var(--${event === 'out_of_memory' ? 'bad' : 'muted'});stroke-width:1;stroke-dasharray:${event === 'regroup' ? '1 3' : '4 2'}` })),
    data.checkpoints.shown.map(([seconds]) => draw('line', { x1: across(seconds), x2: across(seconds), y1: box.bottom, y2: box.bottom + 4,
      style: 'stroke:var(--muted)' })),
    data.adapters.map(({ name, spans }, index) => [
      row >= 12 && draw('text', { class: 'ink', x: box.left - 10, y: middle(index) + 4, 'text-anchor': 'end',
        style: row < 16 ? 'font-size:9.5px' : null }, abridged(name, letters)),
      spans.length > 1 && draw('line', { x1: across(spans[0][0]), x2: across(spans[spans.length - 1][1]), y1: middle(index),
        y2: middle(index), style: `stroke:${colour(index)};opacity:.35` }),
      spans.map(([from, to]) => draw('rect', { x: across(from), y: middle(index) - bar / 2, width: Math.max(1, across(to) - across(from)),
        height: bar, rx: 2, style: `fill:${colour(index)};opacity:.8` })),
    ]),
    marksAt.map(({ adapter, seconds, event }) => draw('circle', { cx: across(seconds), cy: middle(adapter), r: 4, class: 'dot',
      style: `fill:var(--${event === 'adapter_failed' ? 'bad' : event === 'adapter_done' ? 'good' : 'muted'})` })));
    return svg;
  };
  const key = el('p', { class: 'named' }, 'Bars: in training. Dots: green done, red failed, grey cancelled. Lines: dotted regrouped, '
    + 'dashed resumed or out of memory. Ticks below: checkpoints.');
  const drawing = new Drawing('Adapters over training time', '', paint, key);
  if (data.adapters.length > 40) drawing.holder.className = 'wide tall';
  return drawing;
}

// When each stage worked on the passes of a few iterations that follow each other.
function passes() {
  const all = data.passes;
  const begin = Math.min(...all.map((pass) => pass[4]));
  const end = Math.max(...all.map((pass) => pass[5])) - begin;
  const stages = Math.max(...all.map((pass) => pass[0])) + 1;
  const groups = Math.max(...all.map((pass) => pass[1])) + 1;
  const iterations = [...new Set(all.map((pass) => pass[6]))];
  const paint = (drawing) => {
    const { width } = drawing;
    const row = 30;
    const box = { left: 62, right: width - 16, top: 4, bottom: 8 + row * stages };
    const across = (seconds) => box.left + seconds / end * (box.right - box.left);
    const pass = ([stage, group, batch, backward, from, to, iteration]) => {
      const [x, wide] = [across(from - begin), across(to - begin) - across(from - begin)];
      const label = `${group}.${batch}`;
      const tell = (event) => drawing.tell(event, svg, [
        el('div', {}, el('b', {}, `${backward ? 'backward' : 'forward'}, group ${group}, micro-batch ${batch}`)),
        el('div', { class: 'muted' }, `iteration ${iteration}, stage ${stage}, ${show.seconds(to - from)}`),
      ]);
      return draw('g', { onpointermove: tell },
        draw('rect', { x, y: box.top + stage * row, width: Math.max(.6, wide - .6), height: 24, rx: 1.5,
          style: `fill:${colour(group)};fill-opacity:${backward ? 1 : .4}` }),
        wide > label.length * 6.4 && draw('text', { x: x + wide / 2, y: box.top + stage * row + 16, 'text-anchor': 'middle',
          style: `font-size:10px;fill:var(--${backward ? 'page' : 'ink'})` }, label));
    };
    const svg = draw('svg', { class: 'plot', viewBox: `0 0 ${width} ${box.bottom + 24}`, role: 'img', 'aria-label': 'Passes of the stages',
      onpointerleave: () => { drawing.tip.hidden = true; } },
    timeAxis(0, end, box, across, true),
    [...Array(stages).keys()].map((stage) => draw('text', { class: 'ink', x: 0, y: box.top + stage * row + 16 }, `stage ${stage}`)),
    all.map(pass));
    return svg;
  };
  const names = [...Array(groups).keys()].map((group) => el('span', {}, swatch(group), `group ${group}`));
  const note = `measured, iterations ${iterations[0]} to ${iterations[iterations.length - 1]}`;
  const key = el('p', { class: 'named' }, names, 'pale: forward, full: backward; 1.0 is group 1, micro-batch 0');
  return new Drawing('Stages at work', note, paint, key);
}

// Parallel coordinates: a line for each adapter, through its settings to its result.
function coordinates(sweep) {
  const lines = sweep.standings.map((line, index) => ({ ...line, index }));
  const axes = [...sweep.axes.map(({ key, values }) => ({ key, values })),
    { key: sweep.metric.replace('_', ' '), values: lines.map(({ metric }) => metric), result: true }];
  for (const axis of axes) {
    const there = axis.values.filter((value) => value != null);
    axis.numeric = there.length > 0 && there.every(isNumber);
    axis.distinct = [...new Set(there)].sort((one, other) => (axis.numeric ? one - other : String(one).localeCompare(String(other))));
    const [low, high] = [axis.distinct[0], axis.distinct[axis.distinct.length - 1]];
    const place = (value) => {
      if (axis.distinct.length < 2) return .5;
      // A few values stand at equal distances, as a grid has them.
      if (!axis.numeric || (!axis.result && axis.distinct.length <= 8)) return axis.distinct.indexOf(value) / (axis.distinct.length - 1);
      return (value - low) / (high - low);
    };
    axis.place = (value) => (value == null ? null : place(value));
    const named = axis.distinct.length <= 8 && !axis.result ? axis.distinct : [low, high];
    axis.marks = named.filter((value) => value != null).map((value) => [value, isNumber(value) ? show.number(value).replace(/\.?0+$/, '') : cut(String(value), 18)]);
  }
  const own = new Map(data.adapters.map(({ name }, index) => [name, index]));
  const paint = (drawing) => {
    const width = Math.max(drawing.width, axes.length * 118);
    const box = { left: 54, right: width - 64, top: 34, bottom: 250 };
    const across = (at) => (axes.length === 1 ? box.left : box.left + at / (axes.length - 1) * (box.right - box.left));
    const up = (part) => box.bottom - part * (box.bottom - box.top);
    const ranked = lines.filter(({ rank }) => rank != null).length;
    const line = ({ name, rank, metric, index }) => {
      let d = '';
      axes.forEach((axis, at) => {
        const part = axis.place(axis.values[index]);
        if (part != null) d += `${d ? 'L' : 'M'}${across(at).toFixed(1)} ${up(part).toFixed(1)}`;
      });
      const strength = rank == null ? .12 : 1 - .8 * (rank - 1) / Math.max(1, ranked - 1);
      const tell = (event) => {
        single(own.get(name));
        drawing.tell(event, svg, [el('b', {}, name), el('div', {}, rank == null ? 'not ranked' : `rank ${rank}, ${show.number(metric)}`),
          el('table', {}, axes.slice(0, -1).map(({ key, values }) => el('tr', {}, el('td', { class: 'muted' }, key),
            el('td', {}, String(values[index] ?? '–')))))]);
      };
      return draw('g', { onpointermove: tell, onpointerleave: () => { single(null); drawing.tip.hidden = true; } },
        draw('path', { d, style: 'stroke:transparent;stroke-width:12' }),
        draw('path', { d, style: `stroke:var(--series-${rank === 1 ? 1 : 0});stroke-width:${rank === 1 ? 2.6 : 1.5};opacity:${strength}` }));
    };
    const svg = draw('svg', { viewBox: `0 0 ${width} 272`, width, height: 272, role: 'img', 'aria-label': `Settings and results of sweep ${sweep.name}` },
      axes.map((axis, at) => [
        draw('line', { class: 'grid', x1: across(at), x2: across(at), y1: box.top, y2: box.bottom }),
        draw('text', { class: 'ink', x: across(at), y: 16, 'text-anchor': 'middle' }, cut(axis.key.replace(/^(train|lora)\./, ''), 17)),
      ]),
      [...lines].reverse().map(line),
      axes.map((axis, at) => axis.marks.map(([value, text]) => draw('text', { x: across(at) + (at === axes.length - 1 ? 8 : -8),
        y: up(axis.place(value)) + 4, 'text-anchor': at === axes.length - 1 ? 'start' : 'end',
        style: 'paint-order:stroke;stroke:var(--page);stroke-width:4px' }, text))));
    return el('div', { class: 'wide' }, svg);
  };
  return new Drawing('Settings and results', 'orange: the best; paler lines are worse', paint);
}
