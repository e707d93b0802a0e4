// The shell: header, navigation, choice of runs, shortcuts, and the view that the hash names.

import { html, render, useCallback, useEffect, useErrorBoundary, useLayoutEffect, useRef, useState } from "preact";
import * as source from "marft/source";
import { boundKeys, count, Dialog, Failure, href, Link,
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

// --------------------------------------------------------------------------------------------------------- header

function progress(run) {
  if (run.error) return ["stopped", "cannot be read"];
  if (run.live) return ["live", `training, iteration ${run.done} of ${run.iterations}`];
  if (run.done >= run.iterations) return ["finished", `finished, ${run.done} iterations`];
  return ["stopped", `stopped after iteration ${run.done} of ${run.iterations}`];
}

function LiveMark({ run }) {
  const [state, text] = progress(run);
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
    const choose = (id) => go(WITHIN[hash.view] || hash.view, { run: id });
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

// What a report is, and what it left out.
function ReportNote({ all, run }) {
  const less = run && run.episodes_held < run.episodes_all;
  return html`<p class="muted report-note">Report of ${when(all.made)}: a copy, not live.${less
    ? ` It holds ${count(run.episodes_held)} of the ${count(run.episodes_all)} episodes.` : ""}</p>`;
}

function Help({ onClose }) {
  const [on, setOn] = useState(shortcutsOn());
  return html`<${Dialog} title="Keys" onClose=${onClose}>
    <dl class="keys">${boundKeys().map((one) => html`<dt key=${one.key}><kbd>${one.key}</kbd></dt>
      <dd>${one.label}</dd>`)}
      <dt><kbd>Tab</kbd></dt><dd>next link or control; an underlined name explains itself</dd>
      <dt><kbd>Esc</kbd></dt><dd>close an explanation or a dialog</dd></dl>
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
  ]);
  const skip = (event) => { event.preventDefault(); document.getElementById("main").focus(); };
  return html`<${RunsContext.Provider} value=${all || { runs: [], differences: [], version: "", report: false }}>
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header class="top"><div class="top-inner"><span class="brand">marft</span>
      <${Navigation} hash=${hash} ids=${ids} />
      <button type="button" class="button quiet top-end" onClick=${() => setHelp(true)}>Keys</button></div></header>
    <main id="main" tabindex="-1">
      ${all && all.runs.length > 0 && html`<${RunBar} hash=${hash} go=${go} chosen=${chosen} />`}
      ${all?.report && html`<${ReportNote} all=${all} run=${chosen[0]} />`}
      ${error && html`<${Failure} error=${error} />`}
      ${all ? html`<${View} key=${hash.view} hash=${hash} go=${go} />` : !error && html`<${Loading} />`}
    </main>
    <${Explanation} />
    ${help && html`<${Help} onClose=${() => setHelp(false)} />`}
  <//>`;
}

render(html`<${App} />`, document.getElementById("app"));
