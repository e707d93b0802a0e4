// From numbers to uPlot's options and columns: what is drawn, never where. The words are those of charts.js.

import { DASHES, colour, paint } from "marft/ui";

const WHOLE = [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000];
const AREA = 40; // per cent of colour in a filled area
const FONT = '12px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "Liberation Sans", sans-serif';

// ----------------------------------------------------------------------------------------------------- arithmetic

export function union(lists) {
  return [...new Set(lists.flat())].sort((a, b) => a - b);
}

const places = new WeakMap(); // of an axis: where each of its iterations stands

export function onto(x, from, values) {
  if (!values) return x.map(() => null);
  if (!places.has(from)) places.set(from, new Map(from.map((one, index) => [one, index])));
  const at = places.get(from);
  return x.map((one) => values[at.get(one)] ?? null);
}

// Exponential moving average with the start's bias taken out; gaps stay gaps.
export function smoothed(values, weight) {
  let sum = 0;
  let mass = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = weight * sum + (1 - weight) * value;
    mass = weight * mass + (1 - weight);
    return sum / mass;
  });
}

function nothing(values) {
  return values.map(() => null);
}

export function groupsOf(one) {
  return one.groups ?? [one.label];
}

function gone(one, hidden) {
  return groupsOf(one).some((group) => hidden.has(group));
}

function added(series, hidden) {
  let below = series[0]?.values.map(() => 0) ?? [];
  return series.map((one) => {
    if (!gone(one, hidden)) below = below.map((sum, index) => sum + (one.values[index] ?? 0));
    return below;
  });
}

// ------------------------------------------------------------------------------------------------------- drawing

// The columns uPlot gets: of each series the raw line, the lower and upper bound where there are any, then the line.
export function columnsOf(series, stacked, hidden) {
  const stack = stacked ? added(series, hidden) : null;
  return series.flatMap((one, index) => {
    const show = (values) => (gone(one, hidden) ? nothing(values) : values);
    const own = (part, values) => ({ part, owner: index, values });
    if (stack) return [own("line", stack[index])];
    return [
      ...(one.raw ? [own("raw", show(one.raw))] : []),
      ...(one.low ? [own("low", show(one.low)), own("high", show(one.high))] : []),
      own("line", show(one.values)),
    ];
  });
}

function faint(text, share) {
  return `color-mix(in srgb, ${text} ${share}%, transparent)`;
}

function present(values) {
  return values.flatMap((value, index) => (value === null ? [] : [index]));
}

// A value between two gaps has no line to be seen by.
function lonely(values) {
  return present(values).filter((index) => (values[index - 1] ?? null) === null
    && (values[index + 1] ?? null) === null);
}

function lineOf(column, series, stacked) {
  const one = series[column.owner];
  const stroke = paint(colour(one.colour));
  if (column.part === "low" || column.part === "high")
    return { stroke: "transparent", width: one.marks ? 0 : 0.01, points: { show: false },
      ...(one.marks ? { paths: () => null } : {}) };
  if (column.part === "raw") return { stroke: faint(stroke, 38), width: 1, points: { show: false } };
  if (one.marks) return { stroke, paths: () => null, points: { show: false } };
  return {
    stroke,
    width: 2,
    dash: DASHES[one.dash % DASHES.length].map((length) => length * devicePixelRatio),
    points: { size: 6, fill: stroke,
      filter: (u, index) => (one.points ? present(u.data[index]) : lonely(u.data[index])) },
    ...(stacked && column.owner === 0 ? { fill: faint(stroke, AREA), fillTo: 0 } : {}),
  };
}

function bandsOf(columns, series, stacked) {
  const fill = (index, share) => faint(paint(colour(series[index].colour)), share);
  const at = (part, owner) => columns.findIndex((one) => one.part === part && one.owner === owner) + 1;
  if (stacked) return columns.slice(1).map((one, index) => ({
    series: [index + 2, index + 1], fill: fill(one.owner, AREA) }));
  return series.flatMap((one, index) =>
    one.low && !one.marks ? [{ series: [at("high", index), at("low", index)], fill: fill(index, 15) }] : []);
}

function mark(context, shape, left, top, size) {
  context.beginPath();
  if (shape === "circle") context.arc(left, top, size, 0, 2 * Math.PI);
  else {
    context.moveTo(left, top - 1.3 * size);
    context.lineTo(left + 1.3 * size, top);
    context.lineTo(left, top + 1.3 * size);
    context.lineTo(left - 1.3 * size, top);
    context.closePath();
  }
}

// How far a mark stands beside its iteration, in pixels: enough to tell those of one iteration apart, and no further.
export function asideOf(order, count) {
  return (order - (count - 1) / 2) * Math.min(2, 6 / Math.max(1, count - 1));
}

// Marks with error bars; those of the same iteration stand side by side.
function drawMarks(u, columns, series) {
  const marked = columns.filter((one) => one.part === "line" && series[one.owner].marks);
  const scale = devicePixelRatio;
  const context = u.ctx;
  context.save();
  context.beginPath();
  context.rect(u.bbox.left - 4 * scale, u.bbox.top - 6 * scale, u.bbox.width + 12 * scale, u.bbox.height + 12 * scale);
  context.clip();
  marked.forEach((column, order) => {
    const one = series[column.owner];
    const aside = asideOf(order, marked.length) * scale;
    const [values, low, high] = ["line", "low", "high"].map((part) =>
      u.data[columns.findIndex((other) => other.part === part && other.owner === column.owner) + 1]);
    context.strokeStyle = paint(colour(one.colour));
    context.fillStyle = one.marks === "circle" ? context.strokeStyle : paint("--background");
    context.lineWidth = 1.5 * scale;
    u.data[0].forEach((x, index) => {
      if (values[index] === null || values[index] === undefined) return;
      const left = u.valToPos(x, "x", true) + aside;
      const top = (value) => u.valToPos(value, "y", true);
      if (one.low && low[index] !== null) {
        context.beginPath();
        context.moveTo(left, top(low[index]));
        context.lineTo(left, top(high[index]));
        context.stroke();
      }
      mark(context, one.marks, left, top(values[index]), 4 * scale);
      context.fill();
      context.stroke();
    });
  });
  context.restore();
}

function padded(range) {
  return (u, low, high) => {
    if (low === null || low === undefined || (low === 0 && high === 0)) return range || [0, 1];
    let [least, most] = range ? [Math.min(low, range[0]), Math.max(high, range[1])] : [low, high];
    if (!range && least >= 0 && least < 0.25 * most) least = 0;
    const room = 0.06 * (most - least || Math.abs(most) || 1);
    return [least === 0 && !range ? 0 : least - room, most + room];
  };
}

// The cursor stands on an iteration, never between two.
function snapped(u, left, top) {
  return left < 0 ? [left, top] : [u.valToPos(u.data[0][u.posToIdx(left)], "x"), top];
}

export function aroundX(u, low, high) {
  if (low === null || low === undefined) return [0, 1];
  const room = Math.max(0.4, 0.04 * (high - low));
  return [low - room, high + room];
}

export function optionsOf({ columns, series, stacked, range, format, width, height, onCursor, onZoom }) {
  const axis = { font: FONT, stroke: paint("--muted"), grid: { stroke: paint("--grid"), width: 1 },
    ticks: { show: false } };
  return {
    width, height,
    legend: { show: false },
    cursor: { y: false, move: snapped, points: { show: false },
      sync: { key: "iterations", scales: ["x", null] }, drag: { x: true, y: false } },
    scales: { x: { time: false, range: aroundX }, y: { range: padded(range) } },
    axes: [
      { ...axis, incrs: WHOLE, space: 48, size: 30, values: (u, splits) => splits.map((one) => String(one)) },
      { ...axis, size: 58, space: 34, values: (u, splits) => splits.map((one) => format(one)) },
    ],
    series: [{}, ...columns.map((one) => lineOf(one, series, stacked))],
    bands: bandsOf(columns, series, stacked),
    hooks: {
      setCursor: [(u) => onCursor(u.cursor.idx ?? null)],
      setScale: [(u, key) => key === "x" && onZoom(u)],
      draw: [(u) => drawMarks(u, columns, series)],
    },
  };
}

// What makes uPlot start anew instead of taking new numbers.
export function shapeOf(columns, series, rest) {
  return JSON.stringify([columns.map((one) => [one.part, one.owner]),
    series.map((one) => [one.label, one.colour, one.dash, one.marks]),
    rest]);
}
