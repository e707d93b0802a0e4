// What went wrong in a run, said plainly; and what is worth a look even while nothing did.

import { html, useMemo } from "preact";
import * as source from "marft/source";
import { Chart } from "marft/charts";
import { onto, union } from "marft/plot";
import { linesOf } from "marft/series";
import { count, Empty, Explained, Failure, Loading, matching, number, percent,
  Table, Tag, useData, useGlossary, useRuns } from "marft/ui";

const CHARTS = [
  { title: "Gap between sampler and learner", term: "sampler_gap/max", match: /^sampler_gap\/(.+)$/ },
  { title: "Reply length in tokens", term: "play/AGENT/reply_tokens", match: /^play\/([^/]+)\/reply_tokens$/ },
  { title: "Truncated replies", term: "play/AGENT/truncated_replies", match: /^play\/([^/]+)\/truncated_replies$/,
    format: percent },
  { title: "Repeated word sequences", term: "play/AGENT/repeated", match: /^play\/([^/]+)\/repeated$/,
    format: percent },
  { title: "Entropy", term: "entropy/AGENT", match: /^entropy\/([^/]+)$/ },
  { title: "KL from the base model, as learnt", term: "update/AGENT/reference_kl",
    match: /^update\/([^/]+)\/reference_kl$/,
    needs: (values) => values.some((value) => value > 0) },
  { title: "Tool calls an episode", term: "play/AGENT/tool_calls", match: /^play\/([^/]+)\/tool_calls$/,
    needs: (values) => values.some((value) => value > 0) },
];

// Alarms of successive iterations that are the same trouble: first, last and greatest number of each.
export function spells(alarms) {
  const found = [];
  for (const one of alarms) {
    const open = found.findLast((each) => each.kind === one.kind && each.who === one.who);
    if (open && one.iteration - open.last <= 1)
      Object.assign(open, { last: one.iteration, value: one.value, times: open.times + 1 });
    else found.push({ kind: one.kind, who: one.who,
      first: one.iteration, last: one.iteration, at: one.value, value: one.value, times: 1 });
  }
  return found;
}

// Alarms under what the documentation says of them: kinds that it explains together stand together.
function grouped(alarms, entries) {
  const groups = new Map();
  for (const one of spells(alarms)) {
    const entry = matching(entries, `health/${one.kind}/team`);
    const name = entry?.name ?? one.kind;
    if (!groups.has(name)) groups.set(name, { name, entry, rows: [] });
    groups.get(name).rows.push(one);
  }
  return [...groups.values()];
}

function Alarms({ alarms }) {
  const columns = [
    { label: "What", head: true, cell: (one) => one.kind.replaceAll("_", " ") },
    { label: "Who", cell: (one) => one.who },
    { label: "Iterations, from 0", right: true,
      cell: (one) => (one.first === one.last ? one.first : `${one.first} to ${one.last}`) },
    { label: "Number", right: true,
      cell: (one) => (one.times > 1 ? `${number(one.at)} → ${number(one.value)}` : number(one.value)) },
  ];
  return grouped(alarms, useGlossary()).map(({ name, entry, rows }) => html`<article class="alarm" key=${name}>
    <div><h2>${name.replaceAll("_", " ")}</h2>
      ${entry && html`<p class="sentence">${entry.meaning}.</p><p><b>What to do:</b> ${entry.sick}.</p>`}</div>
    <${Table} caption="Alarms; the number when it began and when it ended" columns=${columns} rows=${rows}
      id=${(one) => `${one.kind}/${one.who}/${one.first}`} /></article>`);
}

function stretch(rows) {
  const all = rows.map((one) => one.iteration).sort((a, b) => a - b);
  return all[0] === all.at(-1) ? `iteration ${all[0]}` : `iterations ${all[0]} to ${all.at(-1)}`;
}

function Verdict({ run, metrics, health }) {
  const { alarms, rollbacks, diverged, failures } = health;
  const iterations = metrics.iterations.length;
  const watched = "health/alarms" in metrics.series;
  const told = [[spells(alarms), "alarm"], [rollbacks, "rollback"], [diverged, "update not made", "updates not made"]]
    .filter(([list]) => list.length)
    .map(([list, one, many]) => `${list.length} ${list.length === 1 ? one : many ?? `${one}s`}`);
  const last = metrics.iterations.at(-1);
  const grave = rollbacks.length + diverged.length > 0 || alarms.some((one) => one.iteration === last);
  const lost = failures.reduce((sum, one) => sum + one.count, 0);
  const played = (metrics.series.episodes ?? []).reduce((sum, one) => sum + (one ?? 0), 0);
  if (!iterations) return html`<${Empty}>Nothing was written yet: the first iteration has not ended.<//>`;
  const tail = lost ? ` ${count(lost)} of ${count(played)} episodes could not be played.`
    : " Every episode was played to its end.";
  if (told.length) return html`<p class="verdict"><${Tag} kind=${grave ? "bad" : "warn"}>${told.join(", ")}<//>${" "}
    in ${stretch([...alarms, ...rollbacks, ...diverged])}; ${count(iterations)}
    ${iterations === 1 ? " iteration is" : " iterations are"} done.${tail}</p>`;
  if (!watched) return html`<p class="verdict"><${Tag} kind="warn">Not watched<//>${" "}
    No alarms are in this run's rows: its guard was off, or it is older than the guard.${tail}</p>`;
  return html`<p class="verdict"><${Tag} kind="good">No alarm<//>${" "}
    No rollback and no update left out in ${count(iterations)} iterations.${tail} Nobody but you watches the curves
    below.</p>`;
}

function Watched() {
  const entries = useGlossary();
  const names = entries.filter((one) =>
    one.patterns.some((pattern) => pattern.startsWith("health/") && pattern !== "health/alarms"));
  if (!names.length) return null;
  return html`<section class="section"><h2>What the guard watches</h2><dl class="watched">
    ${names.map((one) => html`<div key=${one.name}>
    <dt class="sentence">${one.name.replaceAll("_", " ")}</dt>
      <dd class="sentence">${one.meaning}.</dd></div>`)}</dl></section>`;
}

function Rollbacks({ rows }) {
  if (!rows.length) return null;
  return html`<${Table} rows=${rows}
    caption="Rollbacks: the guard went back to an earlier checkpoint, with smaller steps"
    columns=${[
    { label: "After iteration, from 0", head: true, cell: (one) => one.iteration },
    { label: "Back to checkpoint", right: true, cell: (one) => one.to },
    { label: html`<${Explained} term="lr_scale">Learning rates left<//>`, right: true,
      cell: (one) => percent(one.lr_scale) },
  ]} />`;
}

function Diverged({ rows }) {
  if (!rows.length) return null;
  return html`<${Table} caption="Updates that were not made" rows=${rows} columns=${[
    { label: "Iteration, from 0", head: true, cell: (one) => one.iteration },
    { label: "Who", cell: (one) => one.who },
    { label: "Why", cell: (one) => one.sentence },
  ]} />`;
}

function Failures({ rows }) {
  if (!rows.length) return null;
  return html`<${Table} caption="Episodes that could not be played, by reason; they are never trained on" rows=${rows}
    columns=${[
    { label: "Who: reason", head: true, cell: (one) => one.reason },
    { label: "Episodes", right: true, cell: (one) => count(one.count) },
    { label: "First iteration, from 0", right: true, cell: (one) => one.first },
    { label: "Last", right: true, cell: (one) => one.last },
  ]} />`;
}

// What the language of each agent is beside its base model's, over held-out evaluations.
function retentionOf(run, evaluations, of) {
  const agents = [...new Set(evaluations.flatMap((one) => Object.keys(one.retention ?? {})))];
  const place = (name, index) => (run.agents.includes(name) ? run.agents.indexOf(name) : index);
  const from = evaluations.map((one) => one.iteration);
  const x = union([from]);
  const series = agents.map((name, index) => ({ label: name, points: true,
    colour: place(name, index), dash: place(name, index),
    values: onto(x, from, evaluations.map((one) => (one.retention?.[name] ? of(one.retention[name]) : null))) }));
  return { x, series };
}

function Charts({ run, metrics, evaluations }) {
  const drawn = useMemo(() => CHARTS.map((spec) => ({ spec,
    series: linesOf(spec, { ...run, metrics }, metrics.iterations, 0) }))
    .filter(({ spec, series }) => series.length && (!spec.needs ||
      series.some((one) => spec.needs(one.values)))), [metrics]);
  const kl = useMemo(() => retentionOf(run, evaluations, (one) => one.kl ?? null), [evaluations]);
  const ratio = useMemo(() => retentionOf(run, evaluations,
    (one) => (one.base_perplexity ? one.perplexity / one.base_perplexity : null)), [evaluations]);
  return html`<div><section class="section"><h2>Worth a look</h2><div class="charts">${drawn.map(({ spec, series }) =>
      html`<${Chart} key=${spec.title} title=${spec.title} term=${spec.term}
        format=${spec.format} x=${metrics.iterations} series=${series} />`)}</div></section>
    <section class="section"><h2>Is the language still there?</h2>${kl.series.length ? html`<div class="charts">
      <${Chart} title="KL from the base model" term="evaluation: retention/AGENT/kl"
        x=${kl.x} series=${kl.series}
        note="Per token of the agents' own replies, at held-out evaluations." />
      <${Chart} title="Perplexity ratio" term="evaluation: retention/AGENT" x=${ratio.x} series=${ratio.series}
        note="On a neutral text: with the adapter ÷ without it." /></div>`
      : html`<${Empty}>Not measured: no evaluation of this run has${" "}
        <code>evaluation.retention</code>.<//>`}</section></div>`;
}

async function load(id) {
  const [metrics, evaluations, health] = await Promise.all([
    source.metrics(id), source.evaluations(id), source.health(id)]);
  return { metrics, evaluations, health };
}

export function Health({ hash }) {
  const { runs } = useRuns();
  const run = runs.find((one) => one.id === hash.params.get("run")) ?? runs[0];
  const { data, error } = useData(run?.id, () => (run ? load(run.id) : null), run?.stamp);
  const title = html`<h1 class="title">Health</h1>`;
  if (!run) return html`<div>${title}<${Empty}>No runs were given.<//></div>`;
  if (error && !data) return html`<div>${title}<${Failure} error=${error} /></div>`;
  if (!data) return html`<div>${title}<${Loading} /></div>`;
  const { metrics, evaluations, health } = data;
  const troubled = health.alarms.length + health.rollbacks.length + health.diverged.length + health.failures.length > 0;
  return html`<div>${title}<${Verdict} run=${run} metrics=${metrics} health=${health} />
    ${troubled && html`<div class="stack">${health.alarms.length > 0 && html`<${Alarms} alarms=${health.alarms} />`}
      <${Rollbacks} rows=${health.rollbacks} /><${Diverged} rows=${health.diverged} />
        <${Failures} rows=${health.failures} /></div>`}
    ${metrics.iterations.length > 0 && html`<${Charts} key=${run.id} run=${run}
      metrics=${metrics} evaluations=${evaluations} />`}
    <${Watched} /></div>`;
}
