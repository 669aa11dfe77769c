// Charts of curves. All of them show the same adapters over the same axis.

const state = { axis: 'step', log: false, raw: true, shown: new Set(), own: null, charts: [], printing: false };

const redraw = () => state.charts.forEach((chart) => chart.draw());

// A page is printed in another width than that of the window: about this in A4 and Letter.
const widthOf = (holder) => (state.printing ? (holder.closest('.charts > :not(:only-child)') ? 340 : 700)
  : Math.max(280, holder.clientWidth || 600));

// The line of an adapter, or of another curve.
const colour = (index) => `var(--series-${index % data.palette[0]})`;
const stroke = (index) => {
  const dash = Math.floor(index / data.palette[0]) % data.palette[1];
  return `stroke:${colour(index)};stroke-dasharray:var(--dash-${dash})`;
};
const swatch = (index) => draw('svg', { class: 'swatch', viewBox: '0 0 20 8', 'aria-hidden': 'true' },
  draw('path', { d: 'M0 4H20', style: stroke(index) }));

// Adapters whose curves stand out: one that is pointed at.
function single(adapter) {
  state.own = adapter;
  for (const chart of state.charts) chart.single();
}

const nearest = (values, wanted) => {
  let low = 0;
  let high = values.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle; else high = middle;
  }
  return Math.abs(values[low] - wanted) <= Math.abs(values[high] - wanted) ? low : high;
};

// A chart of curves {name, index, adapter?, x: {step, tokens, seconds}, y, raw?, dots?}. `adapter` is the
// adapter that it is of, and `raw` what a smoothed curve is the mean of.
class Chart {
  constructor(title, curves, { text = show.number, mark = show.mark, marking = marks, note = '', zero = false, top = null, key = false,
    height = 250, canLog = false, what = 'step' } = {}) {
    Object.assign(this, { curves, text, mark, marking, zero, top, height, canLog, what });
    this.holder = el('div', {});
    this.tip = el('div', { class: 'tip', hidden: true });
    const names = key && el('div', { class: 'named' },
      curves.map((curve) => el('span', {}, swatch(curve.index), curve.name)));
    this.figure = el('figure', {},
      el('figcaption', {}, el('h3', {}, title), note && el('span', { class: 'note' }, note)),
      this.holder, this.tip, names);
    this.title = title;
    state.charts.push(this);
  }

  visible() {
    return this.curves.filter((curve) => curve.adapter == null || state.shown.has(curve.adapter));
  }

  // Reads of the page's state, and draws.
  draw() {
    const width = widthOf(this.holder);
    const curves = this.visible();
    const axis = state.axis;
    const log = state.log && this.canLog;
    let [left, right, low, high] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const { x, y, raw } of curves) {
      for (const value of [x[axis][0], x[axis][x[axis].length - 1]]) {
        if (isNumber(value)) [left, right] = [Math.min(left, value), Math.max(right, value)];
      }
      for (const values of [y, state.raw || y === raw ? raw : null]) {
        for (const value of values ?? []) {
          if (isNumber(value) && (!log || value > 0)) [low, high] = [Math.min(low, value), Math.max(high, value)];
        }
      }
    }
    this.empty = !isNumber(low) || !isNumber(left);
    if (this.empty) {
      const why = this.curves.length > curves.length ? 'No adapter with values is shown.' : 'No values yet.';
      this.holder.replaceChildren(el('p', { class: 'empty', style: `min-height:${this.height}px` }, why));
      return;
    }
    if (this.zero && !log) low = Math.min(low, 0);
    if (this.top != null) high = Math.max(high, this.top);
    if (high === low) [low, high] = [low - Math.abs(low || 1) * .1, high + Math.abs(high || 1) * .1];
    else if (log) [low, high] = [low / 1.03, high * 1.03];
    else high += (high - low) * .03;
    if (right === left) [left, right] = [left - Math.max(1, left * .1), right + Math.max(1, right * .1)];

    const lines = log ? logMarks(low, high, 5, this.mark) : this.marking(low, high, 5, this.mark);
    const longest = Math.max(...lines.map(([, text]) => text.length));
    const box = { left: Math.max(34, longest * 6.9 + 10), right: width - 14, top: 8, bottom: this.height - 26 };
    const across = (value) => box.left + (value - left) / (right - left) * (box.right - box.left);
    const part = log ? (value) => Math.log(value / low) / Math.log(high / low) : (value) => (value - low) / (high - low);
    const up = (value) => box.bottom - part(value) * (box.bottom - box.top);
    const most = Math.max(3, Math.floor((box.right - box.left) / 84));
    const below = axis === 'seconds' ? timeMarks(left, right, most) : marks(left, right, most, AXES[axis].mark);
    const whole = below.filter(([mark]) => axis === 'seconds' || Number.isInteger(mark));

    // Dots of many evaluations would hide their lines.
    this.dots = curves.reduce((sum, { y }) => sum + y.length, 0) <= 240;
    this.group = draw('g', { class: curves.length > 16 ? 'many' : null }, curves.flatMap((curve) => this.paths(curve, across, up, log)));
    this.over = draw('g', {});
    this.svg = draw('svg', {
      class: 'plot', viewBox: `0 0 ${width} ${this.height}`, role: 'img', tabindex: 0, 'aria-label': `${this.title}, a chart`,
      onpointermove: (event) => this.point(event), onpointerleave: () => this.leave(), onblur: () => this.leave(),
      onkeydown: (event) => this.walk(event),
    },
    lines.map(([mark, text]) => [
      draw('line', { class: 'grid', x1: box.left, x2: box.right, y1: up(mark), y2: up(mark) }),
      draw('text', { x: box.left - 8, y: up(mark) + 4, 'text-anchor': 'end' }, text),
    ]),
    whole.map(([mark, text]) => draw('text', { x: across(mark), y: this.height - 7, 'text-anchor': 'middle' }, text)),
    this.group, this.over);
    Object.assign(this, { box, width, across, up, left, right });
    this.holder.replaceChildren(this.svg);
    this.single();
  }

  paths(curve, across, up, log) {
    const xs = curve.x[state.axis];
    const path = (values, kind) => {
      let d = '';
      let pen = 'M';
      values.forEach((value, row) => {
        if (!isNumber(value) || !isNumber(xs[row]) || (log && value <= 0)) pen = 'M';
        else {
          d += `${pen}${across(xs[row]).toFixed(1)} ${up(value).toFixed(1)}`;
          pen = 'L';
        }
      });
      return draw('path', { class: kind, d, style: stroke(curve.index), 'data-of': curve.adapter ?? -1 });
    };
    const found = [path(curve.y, 'curve')];
    if (curve.raw && state.raw) found.unshift(path(curve.raw, 'curve raw'));
    if ((curve.dots && this.dots) || curve.y.length === 1) {
      curve.y.forEach((value, row) => isNumber(value) && found.push(draw('circle', { class: 'dot', cx: across(xs[row]),
        cy: up(value), r: 3, style: `fill:${colour(curve.index)}`, 'data-of': curve.adapter ?? -1 })));
    }
    return found;
  }

  // The adapter that is pointed at stands out.
  single() {
    if (!this.group) return;
    const own = state.own != null && this.curves.some((curve) => curve.adapter === state.own);
    this.group.classList.toggle('dim', own);
    for (const node of this.group.children) node.classList.toggle('own', own && +node.dataset.of === state.own);
  }

  point(event) {
    const frame = this.svg.getBoundingClientRect();
    const scale = this.width / frame.width;
    const place = { x: (event.clientX - frame.left) * scale, y: (event.clientY - frame.top) * scale };
    const { box } = this;
    this.at = this.left + (Math.min(box.right, Math.max(box.left, place.x)) - box.left) / (box.right - box.left)
      * (this.right - this.left);
    this.tell(place.y);
  }

  // Arrow keys move along the axis.
  walk(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 }[event.key];
    if (event.key === 'Escape') this.leave();
    if (!by) return;
    event.preventDefault();
    const ends = (xs) => xs[xs.length - 1];
    const xs = this.visible().map(({ x }) => x[state.axis]).reduce((most, one) => (ends(one) > ends(most) ? one : most));
    const row = this.at == null ? 0 : nearest(xs, this.at) + by;
    this.at = xs[Math.min(xs.length - 1, Math.max(0, row))];
    this.tell(null);
  }

  leave() {
    this.at = null;
    this.tip.hidden = true;
    this.over?.replaceChildren();
  }

  // Shows the values at a place of the axis; of many the nearest to the pointer.
  tell(height) {
    const axis = state.axis;
    const found = [];
    for (const curve of this.visible()) {
      const xs = curve.x[axis];
      const row = nearest(xs, this.at);
      // A curve that has ended has no value there.
      const room = Math.max(6 / (this.box.right - this.box.left) * (this.right - this.left), curve.dots ? Infinity : 0);
      const [first, last] = [xs[0], xs[xs.length - 1]];
      if (!isNumber(curve.y[row]) || this.at < first - room || this.at > last + room) continue;
      found.push({ curve, row, x: xs[row], y: curve.y[row] });
    }
    if (!found.length) return this.leave();
    const pointer = height ?? 0;
    const far = (entry) => Math.abs(this.up(entry.y) - pointer);
    const ranked = [...found].sort((one, other) => far(one) - far(other));
    const few = ranked.slice(0, 12).sort((one, other) => other.y - one.y);
    const close = few.reduce((one, other) => (Math.abs(other.x - this.at) < Math.abs(one.x - this.at) ? other : one));
    const cross = this.across(close.x);
    this.over.replaceChildren(
      draw('line', { class: 'cross', x1: cross, x2: cross, y1: this.box.top, y2: this.box.bottom }),
      ...few.map(({ curve, x, y }) => draw('circle', { class: 'dot', cx: this.across(x), cy: this.up(y), r: 3.6,
        style: `fill:${colour(curve.index)}` })));
    const name = axis === 'step' ? this.what : AXES[axis].name;
    const row = ({ curve, row: at, x, y }) => {
      const raw = curve.raw && curve.raw !== curve.y && isNumber(curve.raw[at]) ? `raw ${this.text(curve.raw[at])}` : '';
      // Thinned curves have their rows at slightly different places.
      const where = Math.abs(x - close.x) > (this.right - this.left) / 100 ? AXES[axis].text(x) : '';
      return el('tr', {}, el('td', {}, swatch(curve.index)), el('td', { class: 'name' }, abridged(curve.name, 26)),
        el('td', { class: 'value' }, el('b', {}, this.text(y))),
        el('td', { class: 'muted value' }, [raw, where && `at ${where}`].filter(Boolean).join(', ')));
    };
    const more = found.length - few.length;
    this.tip.replaceChildren(el('div', { class: 'muted' }, `${name} ${AXES[axis].text(close.x)}`),
      el('table', {}, few.map(row)), more > 0 && el('div', { class: 'muted' }, `and ${more} more`) || '');
    placeTip(this.tip, this.figure, this.holder, cross / this.width, this.box.top);
  }
}

// Puts what is told beside a place of a drawing, on the side with more room.
function placeTip(tip, figure, holder, part, top) {
  tip.hidden = false;
  const x = holder.offsetLeft + part * holder.clientWidth;
  const left = x + 14 + tip.offsetWidth <= figure.clientWidth ? x + 14 : Math.max(0, x - 14 - tip.offsetWidth);
  tip.style.left = `${left}px`;
  tip.style.top = `${holder.offsetTop + top}px`;
}
