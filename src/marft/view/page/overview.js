// How a run, or several beside each other, went: what was gained, how far each agent moved, where the time went.

import { html, useCallback, useEffect, useMemo, useState } from "preact";
import * as source from "marft/source";
import { Chart } from "marft/charts";
import { spells } from "marft/health";
import { chartsOf, folded, iterationsOf, namesOf, placed } from "marft/series";
import { count, duration, Empty, Explained, Failure, interval, Link, Loading,
  number, percent, Slider, Swatch, Table, useData, useRuns } from "marft/ui";

const SHARE = { format: percent, range: [0, 1] };
const COUNTED = "Iterations of play count from 0; a held-out mark stands at how many were done before it.";
const SECTIONS = [
  { title: "Did it get better?", charts: [
    { title: "Success", term: "success", measure: "success", note: COUNTED, ...SHARE },
    { title: "Reward", term: "reward", measure: "reward", note: COUNTED },
    { title: "Reward of each agent", term: "play/AGENT/reward", match: /^play\/([^/]+)\/reward$/, several: true },
  ] },
  { title: "How far did each agent move?", charts: [
    { title: "KL of an update", term: "update/AGENT/kl", match: /^update\/([^/]+)\/kl$/ },
    { title: "Entropy", term: "entropy/AGENT", match: /^entropy\/([^/]+)$/ },
    { title: "Ratio new/old", term: "update/AGENT/ratio_p50", match: /^update\/([^/]+)\/ratio_p50$/,
      quantiles: ["p05", "p95"],
      note: "Line: median; band: 5th to 95th percentile." },
    { title: "Clip share", term: "update/AGENT/clip_share", match: /^update\/([^/]+)\/clip_share$/, format: percent },
    { title: "Gradient norm", term: "update/AGENT/grad_norm", match: /^update\/([^/]+)\/grad_norm$/ },
    { title: "Reply length in tokens", term: "play/AGENT/reply_tokens", match: /^play\/([^/]+)\/reply_tokens$/ },
  ] },
  { title: "Is the critic any use?", charts: [
    { title: "Explained variance", term: "critic/explained_variance", match: /^(critic[^/]*)\/explained_variance$/ },
    { title: "Value loss", term: "critic/loss", match: /^(critic[^/]*)\/loss$/ },
    { title: "Critic's gradient norm", term: "critic/grad_norm", match: /^(critic[^/]*)\/grad_norm$/ },
  ] },
];
const SHARES = { title: "Time by phase", term: "share/PHASE", match: /^share\/(.+)$/,
  order: ["rollout", "score", "critic", "update", "evaluate", "save"], format: percent, range: [0, 1] };
const SPEEDS = [
  { title: "Seconds an iteration", term: "seconds", match: /^seconds$/, format: duration },
  { title: "Tokens a second in play", term: "play_tokens_per_second", match: /^play_tokens_per_second$/ },
  { title: "Tokens a second in learning", term: "update_tokens_per_second", match: /^update_tokens_per_second$/ },
];

// -------------------------------------------------------------------------------------------------------- summary

function total(values) {
  return values ? values.reduce((sum, value) => sum + (value ?? 0), 0) : null;
}

function middle(values) {
  const sorted = (values ?? []).filter((value) => value !== null).sort((a, b) => a - b);
  return sorted.length ? sorted[Math.floor(sorted.length / 2)] : null;
}

function BeforeAfter({ evaluations, kind }) {
  const having = evaluations.filter((one) => one[kind]?.success?.mean !== undefined);
  if (!having.length) return html`<span class="muted">not evaluated</span>`;
  const [first, last] = [having[0], having.at(-1)];
  const mean = (one) => percent(one[kind].success.mean);
  const range = (one) => `${percent(one[kind].success.low)} to ${percent(one[kind].success.high)}`;
  const ranges = having.length > 1 ? `${range(first)} → ${range(last)}`
    : `${range(first)}, after ${count(first.iteration)} iterations`;
  return html`<span><span class="number">${having.length > 1 ? `${mean(first)} → ${mean(last)}` : mean(first)}</span>
    <span class="interval">${ranges}</span></span>`;
}

function factsOf(run) {
  const { series, iterations } = run.metrics;
  const alarms = series["health/alarms"] ? spells(run.health.alarms).length : null; // as Health counts them
  return [
    ["Success, greedy", html`<${BeforeAfter} evaluations=${run.evaluations} kind="greedy" />`,
      "evaluation: greedy/success"],
    ["Success, sampled", html`<${BeforeAfter} evaluations=${run.evaluations} kind="sampled" />`,
      "evaluation: sampled/success"],
    ["Iterations", html`<span class="number">${count(iterations.length)} of ${count(run.iterations)}</span>`],
    ["Time", html`<span class="number">${duration(total(series.seconds))}</span>`],
    ["Episodes", html`<span class="number">${count(total(series.episodes))}</span>`],
    ["Tokens a second", html`<span class="number">${number(middle(series.play_tokens_per_second))}</span>`,
      "play_tokens_per_second"],
    ["Alarms", html`<${Link} view="health" params=${{ run: run.id }}>
      ${alarms === null ? "not watched" : count(alarms)}<//>`, "health/alarms"],
  ];
}

function Summary({ shown }) {
  if (shown.length === 1)
    return html`<dl class="key-facts">${factsOf(shown[0]).map(([name, value, term]) =>
      html`<div class="key-fact" key=${name}>
      <dt><${Explained} term=${term}>${name}<//></dt><dd>${value}</dd></div>`)}</dl>`;
  const columns = factsOf(shown[0]).map(([name, , term], index) =>
    ({ label: html`<${Explained} term=${term}>${name}<//>`, cell: (run) => factsOf(run)[index][1] }));
  const name = { label: "Run", head: true,
    cell: (run) => html`<${Swatch} colour=${run.index} dash=${run.index} /> ${run.label}` };
  return html`<${Table} caption="Success of held-out tasks before and after training, with 95% intervals"
    columns=${[name, ...columns]} rows=${shown} />`;
}

// ---------------------------------------------------------------------------------------------------------- charts

// One chart; of several runs one for each agent, so that colour and dash always tell the runs apart.
function Drawn({ spec, shown, x, weight, keep, stacked }) {
  const drawn = useMemo(() => chartsOf(spec, shown, x, weight, keep), [spec, shown, x, weight, keep]);
  return drawn.map(({ title, series }) => html`<${Chart} key=${title} title=${title} term=${spec.term} note=${spec.note}
    format=${spec.format} range=${spec.range} x=${x} series=${series} stacked=${stacked} />`);
}

function Times({ shown, weight }) {
  const x = useMemo(() => iterationsOf(shown.map((run) => ({ ...run, evaluations: [] }))), [shown]);
  const alone = useMemo(() => shown.map((run) => [run, [run], { ...SHARES,
    title: shown.length > 1 ? `${SHARES.title}, ${run.label}` : SHARES.title }]), [shown]);
  return html`<section class="section"><h2>Where does the time go?</h2><div class="charts">
    ${alone.map(([run, own, spec]) => html`<${Drawn} key=${run.id} spec=${spec} shown=${own}
      x=${run.metrics.iterations} weight=${0} stacked />`)}
    ${SPEEDS.map((spec) => html`<${Drawn} key=${spec.title} spec=${spec} shown=${shown} x=${x}
      weight=${weight} />`)}</div></section>`;
}

function More({ shown, x, weight, chosen, choose }) {
  const [search, setSearch] = useState("");
  const keys = useMemo(() => [...new Set(shown.flatMap((run) => Object.keys(run.metrics.series)))].sort(), [shown]);
  const specs = useMemo(() => chosen.map((key) => ({ title: key, term: key, match: exactly(key) })), [chosen.join()]);
  const words = search.toLowerCase().split(/\s+/).filter(Boolean);
  const fitting = keys.filter((key) => words.every((word) => key.toLowerCase().includes(word)));
  const toggle = (key) => choose(chosen.includes(key) ? chosen.filter((one) => one !== key) : [...chosen, key]);
  return html`<section class="section"><h2>All metrics</h2><div class="more">
    <label class="field"><span class="label">Find a metric by name</span>
      <input type="search" value=${search} placeholder="planner kl"
        onInput=${(event) => setSearch(event.target.value)} /></label>
    <p class="muted small" role="status">${fitting.length} of ${keys.length} metrics</p>
    <div class="more-list" role="group" aria-label="Metrics to draw" tabindex="0">
      ${fitting.map((key) => html`<label key=${key}>
      <input type="checkbox" checked=${chosen.includes(key)} onChange=${() => toggle(key)} />
        <span>${key}</span></label>`)}</div></div>
    <div class="charts">${specs.map((spec) => html`<${Drawn} key=${spec.title} spec=${spec} shown=${shown} x=${x}
      weight=${weight} />`)}</div>
  </section>`;
}

function exactly(key) {
  return new RegExp(`^${key.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$`);
}

// ---------------------------------------------------------------------------------------------------------- tables

function Evaluations({ shown }) {
  const rows = shown.flatMap((run) => run.evaluations.map((one) => ({ run, one })));
  if (!rows.length) return null;
  const passes = [...new Set(rows.flatMap(({ one }) => Object.keys(one.sampled?.pass_at ?? {})))].sort((a, b) => a - b);
  const columns = [
    ...(shown.length > 1 ? [{ label: "Run", cell: ({ run }) => run.label }] : []),
    { label: "Iterations done", head: true, cell: ({ one }) => one.iteration },
    { label: "Tasks", right: true, cell: ({ one }) => count(one.tasks) },
    { label: "Success, greedy", right: true, cell: ({ one }) => interval(one.greedy?.success) },
    { label: "Success, sampled", right: true, cell: ({ one }) => interval(one.sampled?.success) },
    ...passes.map((k) => ({ label: `pass@${k}`, right: true, cell: ({ one }) => percent(one.sampled?.pass_at?.[k]) })),
  ];
  return html`<${Table} caption="Held-out evaluations, with 95% intervals" columns=${columns} rows=${rows}
    id=${({ run, one }) => `${run.id}-${one.iteration}`} />`;
}

function Failures({ shown }) {
  const rows = shown.flatMap((run) => run.health.failures.map((one) => ({ run, ...one })));
  const columns = [
    ...(shown.length > 1 ? [{ label: "Run", cell: ({ run }) => run.label }] : []),
    { label: "Who: reason", head: true, cell: (one) => one.reason },
    { label: "Episodes", right: true, cell: (one) => count(one.count) },
    { label: "First", right: true, cell: (one) => one.first },
    { label: "Last", right: true, cell: (one) => one.last },
  ];
  return html`<section class="section"><h2><${Explained} term="failures">Episodes that could not be played<//></h2>
    ${rows.length ? html`<${Table} rows=${rows} columns=${columns}
      caption="By reason; first and last iteration, from 0" />`
      : html`<${Empty}>None: every episode was played to its end.<//>`}</section>`;
}

function Differences({ shown, differences, runs }) {
  const places = shown.map((run) => runs.findIndex((one) => one.id === run.id));
  const text = (value) => (value === null || value === undefined ? html`<span class="muted">not set</span>`
    : Array.isArray(value) ? html`<ul class="parts">${value.map((part) => html`<li key=${part}>${part}</li>`)}</ul>`
    : typeof value === "string" ? value : JSON.stringify(value));
  const rows = folded(differences.map(({ key, values }) => ({ key, values: places.map((place) => values[place]) })));
  const columns = [{ label: "Setting", head: true, cell: (one) => html`<code>${one.key}</code>` },
    ...shown.map((run, index) => ({ label: run.label, cell: (one) => text(one.values[index]) }))];
  return html`<section class="section"><h2>What differs between the runs</h2>${rows.length
    ? html`<${Table} caption="Settings whose values differ" columns=${columns} rows=${rows} id=${(one) => one.key} />`
    : html`<${Empty}>Their configurations are the same.<//>`}</section>`;
}

// ------------------------------------------------------------------------------------------------------------ view

// What cannot be read of one run is said, and the others are shown.
async function load(runs) {
  return Promise.all(runs.map(async (run) => {
    try {
      const [metrics, evaluations, health] = await Promise.all([
        source.metrics(run.id), source.evaluations(run.id), source.health(run.id)]);
      return { id: run.id, metrics, evaluations, health };
    } catch (error) {
      return { id: run.id, error };
    }
  }));
}

function Agents({ names, hidden, choose }) {
  const toggle = (name) => choose(hidden.includes(name) ? hidden.filter((one) => one !== name) : [...hidden, name]);
  return html`<fieldset class="run-choice"><legend>Agents</legend>${names.map((name, index) => html`<label key=${name}>
    <input type="checkbox" checked=${!hidden.includes(name)} onChange=${() => toggle(name)} />
      ${name}</label>`)}</fieldset>`;
}

function useShown(hash) {
  const { runs } = useRuns();
  const wanted = (hash.params.get("runs") ?? "").split(",");
  const some = runs.filter((run) => wanted.includes(run.id));
  const chosen = some.length ? some : runs;
  const key = chosen.map((run) => run.id).join(",");
  const { data, error } = useData(key, () => load(chosen), chosen.map((run) => run.stamp).join(","));
  const all = useMemo(() => data && placed(chosen, runs).map((run, index) => ({ ...run, ...data[index] })), [data]);
  const shown = useMemo(() => all && all.filter((run) => !run.error), [all]);
  return { shown, errors: error ? [error] : (all ?? []).filter((run) => run.error).map((run) => run.error) };
}

// The slider draws at once; the address follows when it rests, since browsers refuse many changes of it in a row.
function useSmoothing(hash, go) {
  const told = Math.min(0.95, Math.max(0, Number(hash.params.get("smooth")) || 0));
  const [value, setValue] = useState(told);
  useEffect(() => setValue(told), [told]);
  useEffect(() => {
    if (value === told) return;
    const rest = setTimeout(() =>
      go("overview", { ...Object.fromEntries(hash.params), smooth: value || null }, true), 250);
    return () => clearTimeout(rest);
  }, [value]);
  return [value, setValue];
}

export function Overview({ hash, go }) {
  const { runs, differences } = useRuns();
  const { shown, errors } = useShown(hash);
  const [smooth, setSmooth] = useSmoothing(hash, go);
  const hidden = (hash.params.get("without") ?? "").split(",").filter(Boolean);
  const more = (hash.params.get("more") ?? "").split(",").filter(Boolean);
  const set = (change) => go("overview", { ...Object.fromEntries(hash.params), ...change }, true);
  const keep = useCallback((name) => !hidden.includes(name), [hidden.join()]);
  const x = useMemo(() => shown && iterationsOf(shown), [shown]);
  if (!runs.length) return html`<div><h1 class="title">Overview</h1><${Empty}>No runs were given.<//></div>`;
  const failures = errors.map((error) => html`<${Failure} key=${error.message} error=${error} />`);
  if (!shown?.length) return html`<div><h1 class="title">Overview</h1>
    ${failures.length ? failures : html`<${Loading} />`}</div>`;
  const agents = namesOf(shown, /^(?:play|update)\/([^/]+)\/(?:kl|reply_tokens)$/);
  const nothing = shown.every((run) => !run.metrics.iterations.length && !run.evaluations.length);
  return html`<div><h1 class="title">Overview</h1>${failures}
    ${nothing ? html`<${Empty}>Nothing was written yet: the first iteration has not ended.<//>`
      : html`<div><${Summary} shown=${shown} />
      <div class="controls"><${Slider} label="Smoothing" value=${smooth} max=${0.95}
          onChange=${setSmooth} format=${(value) => (value ? value.toFixed(2) : "off")} />
        ${agents.length > 1 && html`<${Agents} names=${agents} hidden=${hidden}
          choose=${(names) => set({ without: names.join(",") })} />`}</div>
      ${SECTIONS.map((section, index) => html`<section class="section" key=${section.title}><h2>${section.title}</h2>
        <div class="charts">${section.charts.map((spec) => html`<${Drawn} key=${spec.title} spec=${spec} shown=${shown}
          x=${x} weight=${smooth}
          keep=${spec.match && agents.length > 1 ? keep : undefined} />`)}</div>
        ${index === 0 && html`<div class="below-charts"><${Evaluations} shown=${shown} /></div>`}</section>`)}
      <${Times} shown=${shown} weight=${smooth} /><${Failures} shown=${shown} /></div>`}
    ${shown.length > 1 && html`<${Differences} shown=${shown} differences=${differences} runs=${runs} />`}
    ${!nothing && html`<${More} shown=${shown} x=${x} weight=${smooth} chosen=${more}
      choose=${(keys) => set({ more: keys.join(",") })} />`}
  </div>`;
}
