// From what the data source gives to what a chart draws: the same quantities of several runs, on one axis.
//
// A shown run is {index, label, agents, metrics, evaluations}. A spec names the quantities of a chart:
//   {title, term, match: /expression over keys, its group is the name/, format, range, quantiles, order, several}
//   several: drawn only where a team has several agents
//   or {title, term, measure: "success" | "reward"}: play with its band, held-out evaluations as marks.

import { onto, smoothed, union } from "marft/plot";

// The runs with their place among all, which gives each its colour and dash.
export function placed(runs, all) {
  return runs.map((run) => ({ ...run, index: all.findIndex((one) => one.id === run.id), label: run.name }));
}

// All iterations of play and of evaluations.
export function iterationsOf(shown) {
  return union(shown.flatMap((run) => [run.metrics.iterations, run.evaluations.map((one) => one.iteration)]));
}

// Names in the order the team declares them, others after, whatever the order of keys in a row.
export function namesOf(shown, match, order = []) {
  const found = new Set();
  for (const run of shown)
    for (const key of Object.keys(run.metrics.series)) {
      const hit = match.exec(key);
      if (hit) found.add(hit[1] ?? key);
    }
  const declared = [...order, ...shown.flatMap((run) => run.agents)];
  const place = (name) => (declared.includes(name) ? declared.indexOf(name) : declared.length);
  return [...found].sort((a, b) => place(a) - place(b) || a.localeCompare(b));
}

function smooth(one, weight) {
  return weight > 0 ? { ...one, raw: one.values, values: smoothed(one.values, weight) } : one;
}

function keyOf(run, match, name) {
  return Object.keys(run.metrics.series).find((key) => {
    const hit = match.exec(key);
    return hit && (hit[1] ?? key) === name;
  });
}

function lineOf(spec, run, name, x, weight, look) {
  const key = keyOf(run, spec.match, name);
  if (!key) return [];
  const values = (which) => onto(x, run.metrics.iterations, run.metrics.series[which]);
  const one = { ...look, values: values(key) };
  const [low, high] = (spec.quantiles ?? []).map((part) => values(key.replace(/p50$/, part)));
  return [low ? { ...one, low, high } : smooth(one, weight)];
}

// The lines of one run, told apart by colour and dash.
export function linesOf(spec, run, x, weight, keep = () => true) {
  const names = namesOf([run], spec.match, spec.order).filter(keep);
  const place = (name, index) => (run.agents.includes(name) ? run.agents.indexOf(name) : index);
  return names.flatMap((name, index) => lineOf(spec, run, name, x, weight,
    { label: spec.match.test(name) ? spec.title : name, colour: place(name, index), dash: place(name, index) }));
}

function facetsOf(spec, shown, x, weight, keep = () => true) {
  const names = namesOf(shown, spec.match, spec.order).filter(keep);
  const drawn = names.map((name) => ({
    title: names.length > 1 ? `${spec.title}: ${name}` : spec.title,
    series: shown.flatMap((run) => lineOf(spec, run, name, x, weight,
      { label: run.label, colour: run.index, dash: run.index })),
  }));
  const nothing = ({ series }) => series.every((one) => one.values.every((value) => !value));
  return spec.several ? drawn.filter((one) => !nothing(one)) : drawn;
}

function marksOf(run, x, measure, kind, single) {
  const from = run.evaluations.map((one) => one.iteration);
  const part = (name) => onto(x, from, run.evaluations.map((one) => one[kind]?.[measure]?.[name] ?? null));
  const label = `held-out, ${kind}`;
  return { label: single ? label : `${run.label}, ${label}`, groups: single ? [label] : [run.label, label],
    colour: single ? (kind === "greedy" ? 1 : 2) : run.index, dash: 0,
    marks: kind === "greedy" ? "circle" : "diamond", values: part("mean"), low: part("low"), high: part("high") };
}

// Success or reward of play with its band, and of held-out evaluations as marks.
function outcomeOf(spec, shown, x, weight) {
  const single = shown.length === 1;
  const lines = shown.filter((run) => run.metrics.series[spec.measure]).map((run) => {
    const bounds = run.metrics.intervals?.[spec.measure];
    const onX = (values) => onto(x, run.metrics.iterations, values);
    const one = { label: single ? "play" : run.label, colour: single ? 0 : run.index, dash: single ? 0 : run.index,
      values: onX(run.metrics.series[spec.measure]) };
    const banded = bounds ? { ...one, low: onX(bounds.low), high: onX(bounds.high) } : one;
    return smooth(banded, weight);
  });
  const marks = shown.flatMap((run) => ["greedy", "sampled"].map((kind) => marksOf(run, x, spec.measure, kind, single)))
    .filter((one) => one.values.some((value) => value !== null));
  return [...lines, ...marks];
}

// The charts of a spec: [{title, series}]; none where nothing was measured.
export function chartsOf(spec, shown, x, weight, keep) {
  const drawn = spec.measure ? [{ title: spec.title, series: outcomeOf(spec, shown, x, weight) }]
    : shown.length > 1 ? facetsOf(spec, shown, x, weight, keep)
    : [{ title: spec.title, series: linesOf(spec, shown[0], x, weight, keep) }];
  return drawn.filter(({ series }) => series.length && !(spec.several && namesOf(shown, spec.match).length < 2));
}

// Rows of settings that differ, [{key, values of the runs}], those below one key as one row where the key is absent or
// of another shape in a run; a value is then a list of texts, "recall: 2". What these runs share is left out. Of a key
// that may have more below it than what differs, the row is called "key.…".
export function folded(rows) {
  const differ = rows.filter(({ values }) => new Set(values.map((value) => value ?? null)).size > 1);
  const found = new Map();
  for (const row of differ) {
    const parts = row.key.split(".");
    const fold = parts.map((_, index) => foldAt(parts.slice(0, index + 1).join("."), differ)).find(Boolean);
    if (!fold) found.set(row.key, row);
    else found.set(fold.key, fold);
  }
  return [...found.values()];
}

function foldAt(prefix, differ) {
  const own = differ.find(({ key }) => key === prefix);
  const inner = differ.filter(({ key }) => key.startsWith(`${prefix}.`));
  const gone = ({ values }) => values.map((value) => value === null || value === undefined).join();
  if (own && inner.length) return together(prefix, prefix, own, inner);
  if (own || inner.length < 2 || !inner.every((row) => gone(row).includes("true"))) return null;
  // Of another shape in each run: only where that is all there is to tell, not several members that come and go
  const flat = inner.every(({ key }) => !key.slice(prefix.length + 1).includes("."));
  if (!flat && new Set(inner.map(gone)).size > 1) return null;
  const parts = inner.map(({ key }) => key.split("."));
  const same = parts[0].findIndex((part, index) => parts.some((each) => each[index] !== part));
  const shared = parts[0].slice(0, same).join(".");
  return together(`${shared}.…`, shared, null, inner);
}

// A key that is a single value in some runs (`own`) and several, or nothing, in others (`inner`).
function together(key, prefix, own, inner) {
  const values = inner[0].values.map((_, run) => {
    const parts = inner.filter((one) => (one.values[run] ?? null) !== null)
      .map((one) => `${one.key.slice(prefix.length + 1)}: ${one.values[run]}`);
    return parts.length ? parts : own?.values[run] ?? null;
  });
  return { key, values };
}
