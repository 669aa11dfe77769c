'use strict';
// Elements, numbers as text, and marks of axes.

// Text is only ever set as text: no name of a run can become an element.
const make = (space) => (tag, attributes = {}, ...children) => {
  const node = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else if (value !== false && value != null) node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.flat(3).filter((child) => child != null && child !== false));
  return node;
};
const el = make(null);
const draw = make('http://www.w3.org/2000/svg');

const isNumber = (value) => typeof value === 'number' && Number.isFinite(value);
// Names of a sweep differ at their ends.
const abridged = (name, letters) => (name.length > letters
  ? `${name.slice(0, Math.ceil(letters / 2) - 1)}…${name.slice(-Math.floor(letters / 2))}` : name);
const trim = (text) => (text.includes('.') ? text.replace(/\.?0+$/, '') : text);

// Of bytes, as in the run's own messages.
const UNITS = [[2 ** 40, 'TiB'], [2 ** 30, 'GiB'], [2 ** 20, 'MiB'], [2 ** 10, 'KiB']];

const show = {
  count: (n) => (isNumber(n) ? Math.round(n).toLocaleString('en-US') : '–'),
  // Three digits and a unit: 1.23 M.
  short(n) {
    if (!isNumber(n)) return '–';
    const unit = [[1e12, ' T'], [1e9, ' G'], [1e6, ' M'], [1e4, ' k', 1e3]].find(([from]) => Math.abs(n) >= from);
    if (!unit) return trim(n.toFixed(Math.abs(n) < 10 ? 2 : Math.abs(n) < 100 ? 1 : 0));
    return trim((n / (unit[2] ?? unit[0])).toPrecision(3)) + unit[1];
  },
  bytes(n) {
    if (!isNumber(n)) return '–';
    const [size, name] = UNITS.find(([from]) => n >= from) ?? [1, 'B'];
    const value = n / size;
    return `${size === 1 || value >= 100 ? value.toFixed(0) : value.toPrecision(3)} ${name}`;
  },
  // A number of any size, in five digits.
  number(n) {
    if (!isNumber(n)) return '–';
    const size = Math.abs(n);
    if (size !== 0 && (size < 1e-3 || size >= 1e6)) return n.toExponential(2).replace(/\.?0+e/, 'e').replace('e+', 'e');
    return size >= 1000 ? n.toFixed(1) : size >= 1 ? n.toFixed(4) : n.toPrecision(4);
  },
  // A mark of an axis.
  mark: (n) => (n !== 0 && (Math.abs(n) < 1e-3 || Math.abs(n) >= 1e5) ? show.rate(n) : String(+n.toPrecision(6))),
  rate: (n) => (isNumber(n) ? (n === 0 ? '0' : n.toExponential(3).replace(/\.?0+e/, 'e').replace('e+', 'e')) : '–'),
  percent: (n) => (isNumber(n) ? `${(n * 100).toFixed(n < .1 ? 1 : 0)} %` : '–'),
  seconds(s) {
    if (!isNumber(s)) return '–';
    if (s === 0) return '0 s';
    if (s < 1) return `${trim((s * 1000).toPrecision(3))} ms`;
    if (s < 100) return `${trim(s.toPrecision(3))} s`;
    const minutes = Math.round(s / 60);
    if (s < 5400) return `${Math.floor(s / 60)} min ${String(Math.floor(s % 60)).padStart(2, '0')} s`;
    if (minutes < 2880) return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, '0')} min`;
    return `${Math.floor(minutes / 1440)} d ${Math.round(minutes % 1440 / 60)} h`;
  },
  // The time of an event, which is in UTC.
  time: (text) => (text ? `${text.slice(0, 10)} ${text.slice(11, 16)} UTC` : ''),
};

// The values that an axis can count by.
const AXES = {
  step: { name: 'step', word: 'Steps', text: show.count, mark: show.short },
  tokens: { name: 'tokens', word: 'Tokens', text: show.count, mark: show.short },
  seconds: { name: 'training time', word: 'Time', text: show.seconds, mark: null },
};

const roundUp = (value) => {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * ([1, 2, 5].find((factor) => factor * power >= value * (1 - 1e-9)) ?? 10);
};

// Round numbers in a range, and the text of each.
function marks(low, high, most, text) {
  if (!(high > low)) return [[low, text(low)]];
  const distance = roundUp((high - low) / most);
  const found = [];
  for (let n = Math.ceil(low / distance - 1e-9); n * distance <= high + distance * 1e-9; n++) {
    // Of 3 × 0.1 only one digit is meant.
    found.push(+(n * distance).toPrecision(12));
  }
  return found.map((mark) => [mark, text(mark)]);
}

// Round numbers of one unit of bytes.
function byteMarks(low, high, most) {
  const [size, name] = UNITS.find(([from]) => high >= from) ?? [1, 'B'];
  return marks(low / size, high / size, most, (n) => (n ? `${n} ${name}` : '0')).map(([mark, text]) => [mark * size, text]);
}

// Powers of ten, and 2 and 5 times of them where there is room.
function logMarks(low, high, most, text) {
  const every = Math.log10(high / low);
  const factors = every <= most / 3 ? [1, 2, 5] : [1];
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power++) {
    for (const factor of factors) {
      const mark = factor * 10 ** power;
      if (mark >= low * .999 && mark <= high * 1.001) found.push(+mark.toPrecision(12));
    }
  }
  const step = Math.max(1, Math.ceil(found.length / (most + 2)));
  const kept = found.filter((_, index) => index % step === 0);
  return kept.length > 1 ? kept.map((mark) => [mark, text(mark)]) : marks(low, high, most, text);
}

// Times are marked by whole numbers of one unit.
function timeMarks(low, high, most) {
  const units = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's'], [1e-3, 'ms']];
  const [length, name] = units.find(([unit]) => high - low >= (unit > 1 ? 2 * unit : unit)) ?? [1e-3, 'ms'];
  const round = length === 60 || length === 3600 ? [1, 2, 5, 10, 15, 30, 60, 120] : null;
  const wanted = (high - low) / length / most;
  const distance = round?.find((step) => step >= wanted) ?? Math.max(roundUp(wanted), length === 1e-3 ? 1e-6 : 1e-9);
  const found = [];
  for (let n = Math.ceil(low / length / distance - 1e-9); n * distance * length <= high * (1 + 1e-9); n++) {
    const value = +(n * distance).toPrecision(12);
    found.push([value * length, `${value} ${name}`]);
  }
  return found;
}
