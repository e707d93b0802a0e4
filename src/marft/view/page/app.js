// The shell: header, navigation, choice of runs, shortcuts, and the view that the hash names.

import { html, render, useCallback, useEffect, useErrorBoundary, useLayoutEffect, useRef, useState } from "preact";
import * as source from "marft/source";
import { boundKeys, clock, count, Dialog, Failure, href, Link,
  Loading, pressKey, RunsContext, Select, shortcutsOn, Swatch, useKeys, useRuns, when } from "marft/ui";
import { Explanation } from "marft/explained";
import { Overview } from "marft/overview";
import { Health } from "marft/health";
import { Team } from "marft/team";
import { EpisodePage, Episodes } from "marft/episodes";
import { Compare } from "marft/compare";

const VIEWS = { overview: Overview, team: Team, episodes: Episodes,
  episode: EpisodePage, compare: Compare, health: Health };
const NAVIGATION = [["overview", "Overview"], ["team", "Team"], ["episodes", "Episodes"], ["health", "Health"]];
const WITHIN = { episode: "episodes", compare: "episodes" };

function readHash() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?", 2);
  return { view: path in VIEWS ? path : "overview", params: new URLSearchParams(query) };
}

function useHash() {
  const [hash, setHash] = useState(readHash);
  useEffect(() => {
    const change = () => setHash(readHash());
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  const go = useCallback((view, params, replace = false) => {
    const target = href(view, params);
    if (!replace) location.hash = target;
    else {
      history.replaceState(null, "", target);
      setHash(readHash());
    }
  }, []);
  return [hash, go];
}

function useLiveRuns() {
  const [state, setState] = useState({ all: null, error: null });
  useEffect(() => {
    const load = () => source.runs().then((all) => setState({ all, error: null }))
      .catch((error) => setState((old) => ({ all: old.all, error })));
    load();
    return source.subscribe((changed, all) => (all ? setState({ all, error: null }) : load()));
  }, []);
  return state;
}

// When the server last answered, once it does not any more; null while it does.
function useGone() {
  const [gone, setGone] = useState(null);
  useEffect(() => source.watchServer(setGone), []);
  return gone;
}

// --------------------------------------------------------------------------------------------------------- header

function progress(run, gone) {
  const of = run.iterations ? ` of ${run.iterations}` : "";
  if (run.error) return ["stopped", "cannot be read"];
  if (run.live) return gone ? ["stopped", `was training, ${run.done}${of} iterations done`]
    : ["live", `training, ${run.done}${of} iterations done`];
  if (!run.done) return ["stopped", "not started"];
  if (run.done >= run.iterations) return ["finished", `finished, ${run.done} iterations`];
  return ["stopped", `stopped, ${run.done}${of} iterations done`];
}

function LiveMark({ run }) {
  const [state, text] = progress(run, useGone());
  return html`<span class=${`live-mark ${state}`}><span class="live-dot" aria-hidden="true"></span>${text}</span>`;
}

function chosenRuns(hash, runs) {
  const wanted = (hash.params.get("runs") ?? hash.params.get("run") ?? "").split(",").filter(Boolean);
  const found = runs.filter((run) => wanted.includes(run.id));
  return found.length ? found : hash.view === "overview" ? runs : runs.slice(0, 1);
}

function Navigation({ hash, ids }) {
  const shown = WITHIN[hash.view] || hash.view;
  return html`<nav class="views" aria-label="Views">${NAVIGATION.map(([view, label]) =>
    html`<${Link} key=${view} view=${view}
    params=${view === "overview" ? { runs: ids.join(",") } : { run: ids[0] }}
    aria-current=${view === shown ? "page" : null}>${label}<//>`)}</nav>`;
}

function RunBar({ hash, go, chosen }) {
  const { runs } = useRuns();
  if (runs.length === 1)
    return html`<div class="run-bar"><span class="run-name">${runs[0].name}</span><${LiveMark} run=${runs[0]} /></div>`;
  if (hash.view !== "overview") {
    const choose = (id) => carried(hash, runs.find((run) => run.id === id)).then((place) => go(...place))
      .catch(() => go(WITHIN[hash.view] || hash.view, { run: id })); // what cannot be read says so itself
    return html`<div class="run-bar"><${Select} label="Run" value=${chosen[0].id} onChange=${choose}
      options=${runs.map((run) => ({ value: run.id, label: run.name }))} /><${LiveMark} run=${chosen[0]} /></div>`;
  }
  const ids = chosen.map((run) => run.id);
  const toggle = (id) => {
    const next = runs.map((run) => run.id).filter((one) => ids.includes(one) !== (one === id));
    if (next.length) go("overview", { ...Object.fromEntries(hash.params), runs: next.join(",") }, true);
  };
  return html`<div class="run-bar"><fieldset class="run-choice"><legend>Runs shown</legend>
    ${runs.map((run, index) => html`<label key=${run.id}><input type="checkbox" checked=${ids.includes(run.id)}
      disabled=${ids.length === 1 && ids[0] === run.id} onChange=${() => toggle(run.id)} />
      <${Swatch} colour=${index} dash=${index} /><span class="run-name">${run.name}</span>
        <${LiveMark} run=${run} /></label>`)}
  </fieldset></div>`;
}

// What is looked at, in another run: the filters stay, and so does what that run has too. Returns [view, params].
async function carried({ view, params }, run) {
  const { page, at, ...kept } = { ...Object.fromEntries(params), run: run.id };
  if (kept.agent && !run.agents.includes(kept.agent)) delete kept.agent;
  if (view === "team" && kept.episode && !(await hasEpisode(run.id, kept.episode)))
    return [view, { ...kept, episode: null, turn: null }];
  if (view === "episode" && !(await hasEpisode(run.id, kept.id))) return ["episodes", { ...kept, id: null }];
  if (view === "compare" && kept.task && !(await source.episodes(run.id, { task: kept.task, size: 1 })).total)
    return [view, { run: run.id, colour: kept.colour }];
  return [view, kept];
}

// An episode is looked for in the list: asking for one that is not there would be an error.
async function hasEpisode(run, id) {
  const iteration = Number(/-(\d+):/.exec(id)?.[1]);
  for (let page = 0, seen = 0, total = 1; seen < total; page++) {
    const found = await source.episodes(run, { iteration, sort: "oldest", page, size: 500 });
    if (found.items.some((item) => item.id === id)) return true;
    if (!found.items.length) return false;
    [seen, total] = [seen + found.items.length, found.total];
  }
  return false;
}

// What a report is, and what it left out.
function ReportNote({ all, run }) {
  const less = run && run.episodes_held < run.episodes_all;
  return html`<p class="muted report-note">Report of ${when(all.made)}: a copy, not live.${less
    ? ` It holds ${count(run.episodes_held)} of the ${count(run.episodes_all)} episodes.` : ""}</p>`;
}

// Files of episodes that cannot be read: said once, whatever view is open.
const TOLD = 3;

function Damaged({ chosen }) {
  const all = chosen.flatMap((run) => run.damaged ?? []);
  if (!all.length) return null;
  const more = all.length > TOLD ? ` and ${count(all.length - TOLD)} more files like this` : "";
  return html`<p class="failure damaged" role="status" style=${{ marginBottom: "var(--space-3)" }}>
    ${all.slice(0, TOLD).join("; ")}${more}.
    ${" "}${all.length === 1 ? "Its" : "Their"} episodes are left out; all else is shown.</p>`;
}

// A page whose server has gone says so, and of when it is.
function Gone() {
  const gone = useGone();
  return gone && html`<p class="failure gone" role="status"><b>marft view</b> does not answer any more; what you see is
    ${" "}of ${clock(gone)}.</p>`;
}

// The keys of views and places other than the whole page's, which are listed from what is bound.
const ELSEWHERE = [
  ["In the list of episodes", [["j ↓", "next episode"], ["k ↑", "previous episode"], ["Enter", "open it"]]],
  ["On an episode's page", [["n", "next episode of the list"], ["p", "previous episode of the list"],
    ["← →", "in a coloured reply: token by token"], ["Home End", "in a coloured reply: first, last token"]]],
  ["Stepping through an episode on Team", [["←", "previous turn"], ["→", "next turn"]]],
];

function Help({ onClose }) {
  const [on, setOn] = useState(shortcutsOn());
  return html`<${Dialog} title="Keys" onClose=${onClose}>
    <dl class="keys">${boundKeys().filter((one) => one.everywhere).map((one) => html`<dt key=${one.key}>
      <kbd>${one.key}</kbd></dt><dd>${one.label}</dd>`)}
      <dt><kbd>Tab</kbd></dt><dd>next link or control; an underlined name explains itself</dd>
      <dt><kbd>Esc</kbd></dt><dd>close an explanation or a dialog</dd></dl>
    ${ELSEWHERE.map(([place, keys]) => html`<h3 key=${place}>${place}</h3><dl class="keys">${keys.map(([key, what]) =>
      html`<dt key=${key}>${key.split(" ").map((one) => html`<kbd key=${one}>${one}</kbd>`)}</dt>
        <dd>${what}</dd>`)}</dl>`)}
    <h3>How iterations are counted</h3>
    <p class="keys-note">Play, alarms and rows of metrics.jsonl are numbered from 0. An evaluation and the header say
      how many iterations are done, and so does the terminal: iteration 0 is its “iter 1”.</p>
    <label class="field row"><input type="checkbox" checked=${on}
      onChange=${(event) => setOn(shortcutsOn(event.target.checked))} />
      Single-key shortcuts</label>
  <//>`;
}

// ----------------------------------------------------------------------------------------------------------- view

function View({ hash, go }) {
  const [error, retry] = useErrorBoundary();
  useEffect(() => { if (error) retry(); }, [hash.params.toString()]);
  if (error) return html`<div><h1 tabindex="-1">Not shown</h1>
    <${Failure} error=${`This view cannot be shown: ${error.message || error}.`} /></div>`;
  return html`<${VIEWS[hash.view]} hash=${hash} go=${go} />`;
}

// Before anything else may take the focus, such as the search that a key asked for.
function useViewChange(hash, ready) {
  const before = useRef(hash.view);
  useLayoutEffect(() => {
    const label = NAVIGATION.find(([view]) => view === (WITHIN[hash.view] || hash.view))[1];
    document.title = `${label} · marft`;
    if (!ready || before.current === hash.view) return;
    before.current = hash.view;
    scrollTo(0, 0);
    document.getElementById("main")?.focus({ preventScroll: true });
  }, [hash.view, ready]);
}

async function focusSearch(go, hash, ids) {
  if (hash.view !== "episodes") go("episodes", { run: ids[0] });
  for (let tries = 0; tries < 60; tries++) {
    const field = document.querySelector("main input[type=search]");
    if (field && readHash().view === "episodes") return field.focus();
    await new Promise(requestAnimationFrame);
  }
}

function App() {
  const [hash, go] = useHash();
  const { all, error } = useLiveRuns();
  const [help, setHelp] = useState(false);
  const chosen = all ? chosenRuns(hash, all.runs) : [];
  const ids = chosen.map((run) => run.id);
  useViewChange(hash, all !== null);
  useEffect(() => setHelp(false), [hash.view]);
  useEffect(() => {
    addEventListener("keydown", pressKey);
    return () => removeEventListener("keydown", pressKey);
  }, []);
  useKeys([
    ...NAVIGATION.map(([view, label], index) => ({ key: String(index + 1), label, action: () =>
      go(view, view === "overview" ? { runs: ids.join(",") } : { run: ids[0] }) })),
    { key: "/", label: "search the episodes", action: () => focusSearch(go, hash, ids) },
    { key: "?", label: "this list", action: () => setHelp(true) },
  ].map((one) => ({ ...one, everywhere: true })));
  const skip = (event) => { event.preventDefault(); document.getElementById("main").focus(); };
  return html`<${RunsContext.Provider} value=${all || { runs: [], differences: [], version: "", report: false }}>
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header class="top"><div class="top-inner"><span class="brand">marft</span>
      <${Navigation} hash=${hash} ids=${ids} />
      <button type="button" class="button quiet top-end" onClick=${() => setHelp(true)}>Keys</button></div></header>
    <main id="main" tabindex="-1">
      ${all && all.runs.length > 0 && html`<${RunBar} hash=${hash} go=${go} chosen=${chosen} />`}
      ${all?.report && html`<${ReportNote} all=${all} run=${chosen[0]} />`}
      <${Gone} /><${Damaged} chosen=${chosen} />
      ${error && html`<${Failure} error=${error} />`}
      ${all ? html`<${View} key=${hash.view} hash=${hash} go=${go} />` : !error && html`<${Loading} />`}
    </main>
    <${Explanation} />
    ${help && html`<${Help} onClose=${() => setHelp(false)} />`}
  <//>`;
}

render(html`<${App} />`, document.getElementById("app"));
