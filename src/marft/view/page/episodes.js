// The list of episodes with its filters, and the page of one episode.

import { html, useEffect, useRef, useState } from "preact";
import * as source from "marft/source";
import { count, Empty, Failure, Link, Loading, number, Select, useData, useKeys, useRuns } from "marft/ui";
import { colourOf, ColourChoice, Outcome, PLAYS, signed, TaskPrompt, TokenBar, Transcript, useBus, useHeld, where,
  withoutTranscripts } from "marft/transcript";
import { missingOf, scaleOf } from "marft/tokens";

const SIZE = 50;
const FILTERS = ["split", "iteration", "agent", "outcome", "change", "task", "search"];
const SPLITS = [["", "All play"], ...PLAYS];
const OUTCOMES = [["", "Any"], ["won", "Won"], ["lost", "Lost"], ["failed", "Failed"]];
const CHANGES = [["", "Any"], ["up", "Rose"], ["down", "Fell"], ["same", "Same"], ["new", "First time"]];
const SORTS = [
  ["newest", "Newest first"],
  ["oldest", "Oldest first"],
  ["best", "Best reward first"],
  ["worst", "Worst reward first"],
  ["risen", "Risen most"],
  ["fallen", "Fallen most"],
  ["longest", "Longest first"],
  ["unlikely", "Least likely first"],
];
const NAMES = {
  split: "play", iteration: "iteration", agent: "agent", outcome: "outcome", change: "reward", task: "task",
  search: "search",
};
const WORDS = { split: SPLITS, outcome: OUTCOMES, change: CHANGES };
const options = (pairs) => pairs.map(([value, label]) => ({ value, label }));

/** The filters and the order that the hash holds; only what is set. */
function listOf(params) {
  const found = {};
  for (const key of [...FILTERS, "sort"]) if (params.get(key)) found[key] = params.get(key);
  return found;
}

function useRun(hash) {
  const { runs, stamp } = useRuns();
  const run = runs.find((each) => each.id === hash.params.get("run")) ?? runs[0];
  return { run, stamp: run ? stamp(run.id) : "" };
}

// -------------------------------------------------------------------------------------------------------- the list

export function Episodes({ hash, go }) {
  const { run, stamp } = useRun(hash);
  const list = listOf(hash.params);
  const page = Math.max(0, Number.parseInt(hash.params.get("page") ?? "0", 10) || 0);
  const colour = hash.params.get("colour");
  const query = { ...list, page, size: SIZE };
  const { data, error, pending } = useData(JSON.stringify([run?.id, query]), () => source.episodes(run.id, query),
    stamp);
  const shown = useHeld(error ? null : data);
  if (!run) return html`<${Empty}>There is no run to show.<//>`;
  if (withoutTranscripts(run)) return html`<h1 class="title">Episodes</h1><${Empty}>${withoutTranscripts(run)}<//>`;
  const change = (changes, replace = false) => go("episodes", { run: run.id, ...list, colour, ...changes }, replace);
  return html`<div class="title"><h1>Episodes</h1><p class="muted number"
    role="status">${shown ? total(shown.total, list) : "…"}</p></div>
    <${Filters} ...${{ run, stamp, list, change }} />
    ${run.episodes_held < run.episodes_all
      && html`<p class="muted held">This report holds ${count(run.episodes_held)} of the
      ${" "}run’s ${count(run.episodes_all)} episodes; changes are those of the whole run.</p>`}
    ${error && html`<${Failure} error=${error} />`}
    ${!shown && !error && html`<${Loading} />`}
    ${shown && !error && (shown.total === 0
      ? html`<${Loosen} ...${{ run, list, change }} />`
      : html`${unchanged(list, shown) && html`<p class="muted held">No task of these was played before, so nothing has
          risen or fallen; the newest come first.</p>`}
        <${Rows} ...${{ run, list, page, colour, shown, busy: pending && !data }} />
        <${Pager} page=${page} total=${shown.total} onPage=${(next) => change({ page: next || null })} />`)}`;
}

/** What the control of a filter says where it stands at a value. */
const wordOf = (key, value) => WORDS[key]?.find(([each]) => each === value)?.[1] ?? value;

const unchanged = ({ sort }, { items }) => ["risen", "fallen"].includes(sort)
  && items.every((item) => item.change === null);

function total(all, list) {
  const filtered = FILTERS.some((key) => list[key]);
  return `${count(all)} ${all === 1 ? "episode" : "episodes"}${filtered ? " with these filters" : ""}`;
}

function Filters({ run, stamp, list, change }) {
  const { data } = useData(`iterations ${run.id}`, () => iterationsOf(run.id), stamp);
  const iterations = data ?? (list.iteration ? [list.iteration] : []);
  const pick = (key) => ({ value: list[key] ?? "", onChange: (value) => change({ [key]: value || null }) });
  return html`<form class="filters" role="search" aria-label="Filter the episodes"
    onSubmit=${(event) => event.preventDefault()}>
    <${Search} value=${list.search ?? ""} onSearch=${(search) => change({ search }, true)} />
    <${Select} label="Play" options=${options(SPLITS)} ...${pick("split")} />
    <${Select} label="Iteration, from 0" ...${pick("iteration")}
      options=${options([["", "All"], ...iterations.map((each) => [`${each}`, `${each}`])])} />
    <${Select} label="Agent" options=${options([["", "Any"], ...run.agents.map((each) => [each, each])])}
      ...${pick("agent")} />
    <${Select} label="Outcome" options=${options(OUTCOMES)} ...${pick("outcome")} />
    <${Select} label="Reward" options=${options(CHANGES)} ...${pick("change")} />
    <${Select} label="Order" options=${options(SORTS)} value=${list.sort ?? "newest"}
      onChange=${(value) => change({ sort: value === "newest" ? null : value })} />
    ${list.task && html`<p class="task-filter">Only task <b>${list.task}</b>
      <${Link} view="compare" params=${{ run: run.id, task: list.task }}>compare two plays<//>
      <button type="button" class="button quiet" onClick=${() => change({ task: null })}>show all tasks</button></p>`}
  </form>`;
}

async function iterationsOf(run) {
  const [metrics, evaluations] = await Promise.all([source.metrics(run), source.evaluations(run)]);
  const all = new Set([...metrics.iterations, ...evaluations.map((each) => each.iteration)]);
  return [...all].sort((a, b) => a - b);
}

function Search({ value, onSearch }) {
  const [text, setText] = useState(value);
  const asked = useRef(value);
  const latest = useRef(onSearch);
  latest.current = onSearch;
  useEffect(() => {
    if (value !== asked.current) setText(value);
    asked.current = value;
  }, [value]);
  useEffect(() => {
    if (text === asked.current) return undefined;
    const wait = setTimeout(() => {
      asked.current = text;
      latest.current(text || null);
    }, 200);
    return () => clearTimeout(wait);
  }, [text]);
  return html`<label class="field search"><span class="label">Search in all text</span>
    <input type="search" value=${text} onInput=${(event) => setText(event.target.value)} autocomplete="off"
      spellcheck=${false} /></label>`;
}

function Rows({ run, list, page, colour, shown, busy }) {
  const box = useRef(null);
  const move = (step) => {
    const links = [...box.current.querySelectorAll("a.episode-link")];
    const at = links.indexOf(document.activeElement);
    links[at < 0 ? (step > 0 ? 0 : links.length - 1) : Math.min(links.length - 1, Math.max(0, at + step))]?.focus();
  };
  useKeys([
    { key: "j", label: "next episode in the list", action: () => move(1) },
    { key: "k", label: "previous episode in the list", action: () => move(-1) },
  ]);
  const press = (event) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    move(step);
  };
  const kinds = new Set(shown.items.map((item) => item.task.kind)).size > 1;
  return html`<div class="episode-head" aria-hidden="true"><span>Outcome</span><span>Reward</span><span>Change</span>
      <span>Tokens</span><span>Task</span><span>Answer</span><span>Last reply</span><span>Played in</span></div>
    <ol class="episode-list" ref=${box} aria-label="Episodes" aria-busy=${busy ? "true" : "false"}
      start=${page * SIZE + 1}
      onKeyDown=${press}>${shown.items.map((item, index) => html`<${Row} key=${item.id} item=${item} kinds=${kinds}
        params=${{ run: run.id, id: item.id, ...list, at: page * SIZE + index, colour }} />`)}</ol>`;
}

const kindOf = (task) => (task.kind && task.kind !== "task" ? task.kind : null); // "task" is what has no kind

function Row({ item, kinds, params }) {
  const change = item.change === null ? "–"
    : `${item.change > 0 ? "▲ " : item.change < 0 ? "▼ " : ""}${signed(item.change)}`;
  const name = (text) => html`<span class="row-label">${text} </span>`;
  return html`<li><${Link} view="episode" params=${params} class="episode-link" data-id=${item.id}>
    <span class="outcome"><${Outcome} episode=${item} /></span>
    <span class="number right">${name("reward")}${signed(item.reward)}</span>
    <span class="number right">${name("change")}${change}</span>
    <span class="number right">${name("tokens")}${count(item.tokens)}</span>
    <span class="clamp task"><span class="muted small">${item.task.id}${kinds && kindOf(item.task)
      ? ` · ${kindOf(item.task)}` : ""}</span> ${item.task.prompt}</span>
    <span class="clamp answer">${name("answer")}${item.answer || "–"}</span>
    <span class="clamp last">${name("last reply")}${item.last || "–"}</span>
    <span class="muted small played">${where(item)}</span>
  <//></li>`;
}

function Pager({ page, total: all, onPage }) {
  const last = Math.ceil(all / SIZE) - 1;
  const [first, end] = [Math.min(page * SIZE + 1, all), Math.min((page + 1) * SIZE, all)];
  return html`<nav class="pager" aria-label="Pages">
    <button type="button" class="button" disabled=${page === 0}
      onClick=${() => onPage(page - 1)}>Previous ${SIZE}</button>
    <span class="number">${count(first)} to ${count(end)} of ${count(all)}</span>
    <button type="button" class="button" disabled=${page >= last}
      onClick=${() => onPage(page + 1)}>Next ${SIZE}</button>
  </nav>`;
}

/** Nothing fits: what there would be without each of the filters. */
function Loosen({ run, list, change }) {
  const set = FILTERS.filter((key) => list[key]);
  const without = (key) => source.episodes(run.id, { ...list, [key]: undefined, page: 0, size: 1 });
  const { data } = useData(JSON.stringify(["loosen", run.id, list]), () => Promise.all(set.map(without)));
  if (!set.length) return html`<${Empty}>No episodes have been written yet.<//>`;
  const useful = data && set.filter((_, index) => data[index].total > 0);
  const none = () => change(Object.fromEntries(set.map((key) => [key, null])));
  return html`<div class="empty"><p>No episode fits all of these filters.
      ${data && !useful.length && " Loosen more than one of them:"}</p>
    <ul class="loosen">${set.map((key, index) => html`<li key=${key}>
      <button type="button" class="button"
        onClick=${() => change({ [key]: null })}>Without ${NAMES[key]} “${wordOf(key, list[key])}”</button>
      ${" "}${data ? total(data[index].total, {}) : "…"}</li>`)}
      ${set.length > 1 && html`<li><button type="button" class="button"
        onClick=${none}>Without any filter</button></li>`}
    </ul></div>`;
}

// ------------------------------------------------------------------------------------------------------ one episode

export function EpisodePage({ hash, go }) {
  const { run, stamp } = useRun(hash);
  const id = hash.params.get("id");
  const list = listOf(hash.params);
  const at = hash.params.has("at") ? Number.parseInt(hash.params.get("at"), 10) : null;
  const { data, error } = useData(JSON.stringify([run?.id, id]), () => source.episode(run.id, id), stamp);
  const near = useData(JSON.stringify(["near", run?.id, id, list, at]), () => neighbours(run.id, list, at, id),
    stamp).data;
  const episode = useHeld(error ? null : data);
  const to = (place) => place && go("episode",
    { run: run.id, id: place.id, ...list, at: place.at, colour: hash.params.get("colour") });
  useKeys([
    { key: "n", label: "next episode", action: () => to(near?.after) },
    { key: "p", label: "previous episode", action: () => to(near?.before) },
  ]);
  if (!run) return html`<${Empty}>There is no run to show.<//>`;
  const back = { run: run.id, ...list, page: at >= SIZE ? Math.floor(at / SIZE) : null,
    colour: hash.params.get("colour") };
  return html`<nav class="episode-nav" aria-label="Episodes">
      <${Link} view="episodes" params=${back}>Back to the list<//>
      ${at !== null && html`<span class="steps">
        <button type="button" class="button" disabled=${!near?.before}
          onClick=${() => to(near.before)}>Previous</button>
        <span class="number muted">${near?.total ? `${count(at + 1)} of ${count(near.total)}` : "–"}</span>
        <button type="button" class="button" disabled=${!near?.after}
          onClick=${() => to(near.after)}>Next</button></span>`}</nav>
    ${error && html`<${Failure} error=${error} />`}
    ${!episode && !error && html`<${Loading} />`}
    ${episode && html`<${Whole} key=${episode.id} ...${{ episode, run, hash, go }} />`}`;
}

/** The episodes before and after place `at` of the list, {before, after, total}; null where the place is not known. */
async function neighbours(run, list, at, id) {
  if (at === null || Number.isNaN(at)) return null;
  const around = [at - 1, at, at + 1].filter((place) => place >= 0);
  const pages = [...new Set(around.map((place) => Math.floor(place / SIZE)))];
  const found = await Promise.all(pages.map((page) => source.episodes(run, { ...list, page, size: SIZE })));
  const item = (place) => {
    const found_at = pages.indexOf(Math.floor(place / SIZE));
    const row = found_at < 0 ? undefined : found[found_at].items[place % SIZE];
    return row && { id: row.id, at: place };
  };
  const { total: all } = found[0];
  if (item(at)?.id !== id) return null; // the list has changed since the link was made
  return { before: at > 0 ? item(at - 1) : null, after: item(at + 1) ?? null, total: all };
}

function Whole({ episode, run, hash, go }) {
  const bus = useBus();
  const colour = colourOf(hash.params);
  const scale = scaleOf(episode.actions, colour);
  const onColour = (value) => go("episode", { ...Object.fromEntries(hash.params), colour: value }, true);
  return html`<${Head} episode=${episode} run=${run} />
    <section class="section" aria-label="Transcript"><div class="title"><h2>Transcript</h2>
      <${ColourChoice} colour=${colour} onColour=${onColour} /></div>
      <${Transcript} ...${{ actions: episode.actions, agents: run.agents, scale, bus }} />
      ${!missingOf(episode.actions, colour)
        && html`<${TokenBar} key=${colour} scale=${scale} bus=${bus} />`}</section>`;
}

function Head({ episode, run }) {
  const ended = [
    episode.terminated && "terminated (the world ended it)",
    episode.truncated && "truncated (out of turns)",
  ];
  const metrics = Object.entries(episode.metrics ?? {}).filter(([name]) => name !== "success");
  const facts = [
    ["Reward", signed(episode.reward)],
    ["Success", number(episode.success)],
    ["Answer", episode.answer || "–"],
    ["End", ended.filter(Boolean).join(", ") || "–"],
    ...metrics.map(([name, value]) => [name, number(value)]),
  ];
  const task = { run: run.id, task: episode.task.id };
  return html`<div class="title"><h1>Task ${episode.task.id}</h1><${Outcome} episode=${episode} />
      <span class="muted">${kindOf(episode.task) && `${episode.task.kind}, `}${where(episode)},
        ${" "}sample ${episode.sample}</span></div>
    ${episode.error && html`<p class="failure">Not played to its end: ${episode.error.who} failed,
      ${" "}${episode.error.reason}</p>`}
    <${TaskPrompt} text=${episode.task.prompt} />
    <dl class="episode-facts">${facts.map(([name, value]) =>
      html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <ul class="episode-links">
      <li><${Link} view="episodes" params=${{ ...task, sort: "oldest" }}>All plays of this task<//></li>
      <li><${Link} view="compare" params=${{ ...task, left: episode.id }}>Compare with another play of it<//></li>
      <li><${Link} view="team" params=${{ run: run.id, episode: episode.id, turn: 0 }}>Who read whom, turn by turn<//></li>
    </ul>`;
}
