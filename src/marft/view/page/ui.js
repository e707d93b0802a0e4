// Small shared components. Use: import { html, useState } from "preact"; import { Explained, Select } from "marft/ui";
//
// Components
//   Explained({term | text, children})           words that explain themselves on hover, focus and tap; Escape closes.
//                                                term: a metric's key ("update/planner/kl") looked up in the glossary
//   Select({label, value, options, onChange})    options: [{value, label, group?}] or plain strings; onChange(value);
//                                                those of a group stand together under its name
//   Toggle({label, pressed, onChange})           a button with aria-pressed; onChange(!pressed)
//   Slider({label, value, min, max, step, onChange, format})
//   Link({view, params, children, ...rest})      a real link to "#/view?params"
//   Table({caption, columns, rows, id})          columns: [{label, cell: row => node, right?, head?}]; scrolls itself
//   Dialog({title, onClose, children})           a modal <dialog>; Escape closes, focus goes back
//   Empty({children})  Failure({error})  Loading({height})    what stands where data is missing
//   Tag({kind: "good" | "bad" | "warn" | "", children})
//   Swatch({colour: 0.., dash: 0..})             a piece of the line that a chart draws
// Hooks
//   useRuns() -> {runs, differences, version, report, run(id), stamp(id)}   what /api/runs says, kept fresh
//   useData(key, load, stamp) -> {data, error, pending}  load() again when key or stamp changes; after a new stamp the
//                                                 old data stay until the new are there, a new key drops them
//   useKeys([{key, label, action}])               single-key shortcuts while the component is shown; listed in the help
//   useTheme() -> "light" | "dark"                renders again when it changes
//   useGlossary() -> entries of /api/glossary ([] until they are there)
// Functions
//   number(x) percent(x) interval({mean, low, high}) count(x) duration(seconds) when(iso) clock(date)   texts; "–" if null
//   href(view, params)  matching(glossary, key)  agentColour(agents, name) -> 0..7  colour(i) -> "var(--series-N)"
//   paint(name) -> the colour a CSS variable has now (for a canvas);  DASHES: line styles by index, in pixels
//
// CSS variables (style.css; each has a light and a dark value, text on background and on soft keeps WCAG AA)
//   --background --surface --raised --line --strong-line --text --muted --accent --accent-soft
//   --good --good-soft --bad --bad-soft --warn --warn-soft --mark --grid --series-1..8 (lines and text on --background)
//   --space-1..6 (0.25 to 2.5 rem) --radius --body --mono
// Classes: button, button quiet, section, title, field, visually-hidden, muted, small, number, sentence (begins with a
//   capital), pre (text of models), tag, table-box, right

import { createContext, html, useContext, useEffect, useLayoutEffect, useRef, useState } from "preact";
import { href, number } from "marft/texts";

export { clock, count, duration, href, interval, number, percent, when } from "marft/texts";
export { Explained, matching, useGlossary } from "marft/explained";

// ---------------------------------------------------------------------------------------------------------- links

export function Link({ view, params, children, ...rest }) {
  return html`<a href=${href(view, params)} ...${rest}>${children}</a>`;
}

// -------------------------------------------------------------------------------------------------------- colours

export const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3], [5, 2], [1, 2], [12, 4], [4, 2, 1, 2]];
const SERIES = 8;

export function colour(index) {
  return `var(--series-${(index % SERIES) + 1})`;
}

export function agentColour(agents, name) {
  return Math.max(0, agents.indexOf(name)) % SERIES;
}

export function paint(name) {
  const variable = name.startsWith("var(") ? name.slice(4, -1) : name;
  return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
}

export function Swatch({ colour: index = 0, dash = 0 }) {
  const pattern = DASHES[dash % DASHES.length];
  return html`<svg class="swatch" viewBox="0 0 28 12" aria-hidden="true"><line x1="0" y1="6" x2="28" y2="6"
    stroke=${colour(index)} stroke-width="2.5"
      stroke-dasharray=${pattern.length ? pattern.join(" ") : "none"} /></svg>`;
}

export function useTheme() {
  const [theme, setTheme] = useState(themeNow);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const change = () => setTheme(themeNow());
    query.addEventListener("change", change);
    return () => query.removeEventListener("change", change);
  }, []);
  return theme;
}

function themeNow() {
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

// ----------------------------------------------------------------------------------------------------------- data

export const RunsContext = createContext({ runs: [], differences: [], version: "", report: false });

export function useRuns() {
  const all = useContext(RunsContext);
  const run = (id) => all.runs.find((one) => one.id === id) || null;
  return { ...all, run, stamp: (id) => run(id)?.stamp ?? "" };
}

export function useData(key, load, stamp = "") {
  const [state, setState] = useState({ key: null, data: null, error: null });
  const [pending, setPending] = useState(true);
  useEffect(() => {
    let current = true;
    setPending(true);
    Promise.resolve()
      .then(load)
      .then((data) => current && setState({ key, data, error: null }))
      .catch((error) => current && setState((old) => ({ key, data: old.key === key ? old.data : null, error })))
      .finally(() => current && setPending(false));
    return () => { current = false; };
  }, [key, stamp]);
  const mine = state.key === key;
  return { data: mine ? state.data : null, error: mine ? state.error : null, pending: pending || !mine };
}

// ----------------------------------------------------------------------------------------------------------- keys

const bindings = new Set();

export function useKeys(keys) {
  const latest = useRef(keys);
  latest.current = keys;
  useEffect(() => {
    bindings.add(latest);
    return () => bindings.delete(latest);
  }, []);
}

export function boundKeys() {
  return [...bindings].flatMap((one) => one.current);
}

export function shortcutsOn(change) {
  try {
    if (change !== undefined) localStorage.setItem("marft-shortcuts", change ? "on" : "off");
    return localStorage.getItem("marft-shortcuts") !== "off";
  } catch {
    return true; // no storage, as in a report opened from disk in some browsers
  }
}

const SIDEWAYS = ["ArrowLeft", "ArrowRight"]; // in a choice, up and down do the same

export function pressKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (document.querySelector("dialog[open]") || !shortcutsOn()) return;
  if (event.target.closest?.("input:not([type=checkbox]):not([type=range]), textarea, [contenteditable]")) return;
  if (event.target.closest?.("select") && !SIDEWAYS.includes(event.key)) return;
  const found = boundKeys().findLast((one) => one.key === event.key);
  if (!found) return;
  event.preventDefault();
  found.action();
}

// ----------------------------------------------------------------------------------------------------- components

export function Select({ label, value, options, onChange, ...rest }) {
  const all = options.map((one) => (typeof one === "string" ? { value: one, label: one } : one));
  return html`<label class="field"><span class="label">${label}</span>
    <select value=${value} onChange=${(event) => onChange(event.target.value)} ...${rest}>
      ${[...new Set(all.map((one) => one.group))].map((group) => {
        const own = all.filter((one) => one.group === group).map((one) => html`<option key=${one.value}
          value=${one.value} selected=${one.value === value}>${one.label}</option>`);
        return group ? html`<optgroup key=${group} label=${group}>${own}</optgroup>` : own;
      })}
    </select></label>`;
}

export function Toggle({ label, pressed, onChange, ...rest }) {
  return html`<button type="button" class="button" aria-pressed=${pressed ? "true" : "false"}
    onClick=${() => onChange(!pressed)} ...${rest}>${label}</button>`;
}

export function Slider({ label, value, min = 0, max = 1, step = 0.05, onChange, format = number }) {
  return html`<label class="field row slider"><span>${label}</span>
    <input type="range" min=${min} max=${max} step=${step} value=${value} aria-valuetext=${format(value)}
      onInput=${(event) => onChange(Number(event.target.value))} />
    <output class="number">${format(value)}</output></label>`;
}

export function Tag({ kind = "", children }) {
  return html`<span class=${`tag ${kind}`}>${children}</span>`;
}

export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}

export function Failure({ error }) {
  return html`<p class="failure" role="alert">${error?.message || String(error)}</p>`;
}

export function Loading({ height = "100vh" }) {
  return html`<div class="loading" role="status" style=${{ minHeight: height }}>Loading…</div>`;
}

export function Table({ caption, columns, rows, id = (row, index) => index }) {
  return html`<div class="table-box" role="region" aria-label=${caption} tabindex="0"><table>
    <caption>${caption}</caption>
    <thead><tr>${columns.map((one) => html`<th scope="col"
      class=${one.right ? "right" : ""}>${one.label}</th>`)}</tr></thead>
    <tbody>${rows.map((row, index) => html`<tr key=${id(row, index)}>${columns.map((one) =>
      one.head ? html`<th scope="row">${one.cell(row)}</th>`
        : html`<td class=${one.right ? "right" : ""}>${one.cell(row)}</td>`)}</tr>`)}</tbody>
  </table></div>`;
}

export function Dialog({ title, onClose, children }) {
  const box = useRef(null);
  useLayoutEffect(() => {
    const before = document.activeElement;
    box.current.showModal();
    return () => before?.focus?.();
  }, []);
  return html`<dialog ref=${box} aria-labelledby="dialog-title" onClose=${onClose}
      onClick=${(event) => event.target === box.current && box.current.close()}>
    <div class="dialog-head"><h2 id="dialog-title">${title}</h2>
      <button type="button" class="button" onClick=${() => box.current.close()}>Close</button></div>
    ${children}</dialog>`;
}
