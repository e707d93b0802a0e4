// One chart: a uPlot canvas of fixed height, its legend below, and the same numbers as a table.
//
// Chart({title, term, x, series, height, format, range, stacked, note})
//   x: iterations, rising. series: [{label, groups, values, colour, dash, raw, low, high, points, marks}], each array
//   as long as x, null = gap. raw: drawn faintly behind. low, high: a band, or error bars where there are marks.
//   points: every value gets a dot. marks: "circle" or "diamond" instead of a line.
//   range: [low, high] that the vertical axis always shows. stacked: the values are added up and the areas filled.
//   groups: the names in the legend that switch a series off, its label alone where not given.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact";
import uPlot from "uplot";
import { aroundX, columnsOf, groupsOf, optionsOf, shapeOf } from "marft/plot";
import { colour, Explained, number, Swatch, useTheme } from "marft/ui";

// ---------------------------------------------------------------------------------------------------------- parts

// Whether a chart is near what is seen now, and whether it ever was: only then is it made; only near ones are redrawn.
// What is printed is seen as a whole.
function useNear(box) {
  const [state, setState] = useState({ near: false, met: false });
  useEffect(() => {
    const watcher = new IntersectionObserver((seen) => {
      const near = seen.at(-1).isIntersecting;
      setState((old) => ({ near, met: near || old.met }));
    }, { rootMargin: "400px" });
    watcher.observe(box.current);
    const print = () => setState({ near: true, met: true });
    const printed = () => { watcher.disconnect(); watcher.observe(box.current); };
    addEventListener("beforeprint", print);
    addEventListener("afterprint", printed);
    return () => {
      watcher.disconnect();
      removeEventListener("beforeprint", print);
      removeEventListener("afterprint", printed);
    };
  }, []);
  return state;
}

function Plot({ x, series, columns, stacked, range, format, height, label, onCursor, onZoom }) {
  const box = useRef(null);
  const plot = useRef(null);
  const { near, met } = useNear(box);
  const theme = useTheme();
  const data = useMemo(() => [x, ...columns.map((one) => one.values)], [x, columns]);
  const shape = shapeOf(columns, series, [theme, stacked, range, height]);
  useLayoutEffect(() => {
    if (!met) return;
    const width = () => Math.max(120, Math.floor(box.current.clientWidth));
    const made = new uPlot(
      optionsOf({ columns, series, stacked, range, format, width: width(), height, onCursor, onZoom }),
      data, box.current);
    plot.current = made;
    const watcher = new ResizeObserver(() => width() !== made.width && made.setSize({ width: width(), height }));
    watcher.observe(box.current);
    return () => { watcher.disconnect(); made.destroy(); plot.current = null; };
  }, [met, shape]);
  useLayoutEffect(() => {
    if (!near || !plot.current || plot.current.data === data) return;
    const { zoomed } = plot.current;
    plot.current.setData(data, !zoomed);
    if (zoomed) plot.current.redraw();
  }, [data, near]);
  return html`<div class="plot" ref=${box} role="img" aria-label=${label} style=${{ height: `${height}px` }}></div>`;
}

function Key({ one }) {
  if (!one.marks) return html`<${Swatch} colour=${one.colour} dash=${one.dash} />`;
  const shape = one.marks === "circle" ? html`<circle cx="14" cy="6" r="4" />`
    : html`<path d="M14 1 L19 6 L14 11 L9 6 Z" />`;
  return html`<svg class="swatch" viewBox="0 0 28 12" aria-hidden="true" stroke=${colour(one.colour)} stroke-width="1.8"
    fill=${one.marks === "circle" ? colour(one.colour) : "none"}>${shape}</svg>`;
}

function lastOf(values) {
  const index = values.findLastIndex((value) => value !== null);
  return index < 0 ? null : values[index];
}

// An entry for each group; what belongs to several groups has its value in the first, and lends its mark to the others.
function entriesOf(series) {
  const found = new Map();
  for (const one of series)
    for (const [place, group] of groupsOf(one).entries())
      if (!found.has(group)) found.set(group,
        place ? { group, look: { ...one, colour: 7 } } : { group, look: one, values: one.values });
  return [...found.values()];
}

function Legend({ series, at, hidden, toggle, format, stacked }) {
  const last = (values) => (stacked ? values.at(-1) : lastOf(values)); // parts of a whole are of one iteration
  const value = (values) => format(at === null ? last(values) : values[at]);
  return html`<ul class="chart-legend">${entriesOf(series).map(({ group, look, values }) =>
    html`<li key=${group}><button type="button" class="legend-entry"
      aria-pressed=${hidden.has(group) ? "false" : "true"}
      onClick=${() => toggle(group)}><${Key} one=${look} /><span class="legend-name">${group}</span>
      ${values && html`<span class="legend-value number">${value(values)}</span>`}</button></li>`)}</ul>`;
}

function Numbers({ title, x, series, format, height }) {
  const cell = (one, index) => {
    const text = format(one.values[index]);
    return one.low && one.values[index] !== null && one.low[index] !== null
      ? `${text} (${format(one.low[index])} to ${format(one.high[index])})` : text;
  };
  return html`<div class="table-box plot-table" role="region" tabindex="0"
    aria-label=${`${title}, as a table`} style=${{ height: `${height}px` }}>
    <table><thead><tr><th scope="col">Iteration, from 0</th>
      ${series.map((one) => html`<th scope="col" class="right">${one.label}</th>`)}</tr></thead>
    <tbody>${x.map((iteration, index) => html`<tr key=${iteration}><th scope="row">${iteration}</th>
      ${series.map((one) =>
      html`<td class="right">${cell(one, index)}</td>`)}</tr>`)}</tbody></table></div>`;
}

// One sentence for each series, for those who cannot see the lines.
function inWords(title, x, series, format) {
  const said = series.slice(0, 12).map((one) => {
    const present = one.values.filter((value) => value !== null);
    if (!present.length) return `${one.label}: no values`;
    const least = present.reduce((a, b) => Math.min(a, b));
    const most = present.reduce((a, b) => Math.max(a, b));
    const ends = `first ${format(present[0])}, last ${format(present.at(-1))}`;
    return `${one.label}: ${ends}, least ${format(least)}, greatest ${format(most)}`;
  });
  return `${title} over iterations ${x[0]} to ${x.at(-1)}. ${said.join(". ")}.`;
}

export function Chart({ title, term, x, series, height = 210, format = number,
  range = null, stacked = false, note = null }) {
  const [table, setTable] = useState(false);
  const [hidden, setHidden] = useState(() => new Set());
  const [at, setAt] = useState(null);
  const [zoom, setZoom] = useState(null);
  const columns = useMemo(() => columnsOf(series, stacked, hidden), [series, stacked, hidden]);
  const toggle = (label) => setHidden((old) => {
    const next = new Set(old);
    if (!next.delete(label)) next.add(label);
    return next;
  });
  const zoomed = (u) => {
    const all = aroundX(u, u.data[0][0], u.data[0].at(-1));
    u.zoomed = u.scales.x.min > all[0] + 1e-9 || u.scales.x.max < all[1] - 1e-9;
    setZoom(u.zoomed ? u : null);
  };
  const reset = () => zoom.setData(zoom.data, true);
  const words = useMemo(() => inWords(title, x, series, format), [title, x, series]);
  const empty = series.every((one) => one.values.every((value) => value === null));
  return html`<figure class="chart"><figcaption class="chart-head"><h3><${Explained} term=${term}>${title}<//></h3>
    ${zoom && html`<button type="button" class="button quiet" onClick=${reset}>All iterations</button>`}
    ${!empty && html`<button type="button" class="button quiet" aria-pressed=${table ? "true" : "false"}
      onClick=${() => setTable(!table)}>${table ? "Chart" : "Table"}
        <span class="visually-hidden"> of ${title}</span></button>`}</figcaption>
    ${empty ? html`<p class="plot plot-empty" style=${{ height: `${height}px` }}>No values yet.</p>`
      : table ? html`<${Numbers} title=${title} x=${x} series=${series} format=${format} height=${height} />`
      : html`<${Plot} x=${x} series=${series} columns=${columns} stacked=${stacked}
        range=${range} format=${format} height=${height}
          label=${words} onCursor=${setAt} onZoom=${zoomed} />`}
    ${at !== null && x[at] !== undefined && html`<span class="chart-where number">iteration ${x[at]}</span>`}
    <${Legend} series=${series} at=${at} hidden=${hidden} toggle=${toggle} format=${format} stacked=${stacked} />
    ${note && html`<p class="muted small">${note}</p>`}</figure>`;
}
