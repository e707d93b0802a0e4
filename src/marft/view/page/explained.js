// Words that explain themselves, from the glossary that documents the metrics.

import { html, useEffect, useRef, useState } from "preact";
import * as source from "marft/source";

const NAMES = new Set(["AGENT", "WHO", "E", "PHASE", "CRITIC", "KIND", "K"]);
  // each stands for one segment, REASON for the rest
let words = null;

function fits(pattern, key) {
  const wanted = pattern.split("/");
  const parts = key.split("/");
  const rest = wanted.at(-1) === "REASON";
  if (rest ? parts.length < wanted.length : parts.length !== wanted.length) return false;
  return wanted.every((one, index) => one === parts[index] || NAMES.has(one) || (rest && index === wanted.length - 1));
}

// The entry that speaks of a key; one that names it outright before one with a placeholder.
export function matching(glossary, key) {
  return glossary.find((entry) => entry.patterns.includes(key))
    || glossary.find((entry) => entry.patterns.some((pattern) => fits(pattern, key))) || null;
}

export function useGlossary(wanted = true) {
  const [entries, setEntries] = useState([]);
  useEffect(() => {
    if (!wanted) return;
    words = words || source.glossary();
    words.then(setEntries).catch(() => { words = null; });
  }, [wanted]);
  return entries;
}

// One explanation is open at a time. It stands at the end of the page, not within the words: a heading that explains
// itself keeps its name.
const ID = "explanation";
let tell = null;
let owner = null;

function show(words, said) {
  owner = words;
  tell?.(words ? { said, place: placeFor(words.getBoundingClientRect()) } : null);
}

export function Explanation() {
  const [open, setOpen] = useState(null);
  const box = useRef(null);
  useEffect(() => { tell = setOpen; return () => { tell = null; }; }, []);
  useEffect(() => {
    if (!open) return;
    const close = () => show(null);
    const key = (event) => { if (event.key === "Escape") { event.stopPropagation(); close(); } };
    const press = (event) => box.current?.contains(event.target) || owner?.contains(event.target) || close();
    document.addEventListener("keydown", key, true);
    document.addEventListener("pointerdown", press);
    addEventListener("scroll", close, { passive: true });
    addEventListener("hashchange", close);
    return () => {
      document.removeEventListener("keydown", key, true);
      document.removeEventListener("pointerdown", press);
      removeEventListener("scroll", close);
      removeEventListener("hashchange", close);
    };
  }, [open !== null]);
  return open && html`<div class="explanation" role="tooltip" id=${ID} ref=${box} style=${open.place}
    onMouseLeave=${(event) => owner?.contains(event.relatedTarget) || show(null)}>${open.said}</div>`;
}

export function Explained({ term, text, children }) {
  const entries = useGlossary(Boolean(term));
  const entry = term ? matching(entries, term) : null;
  const words = useRef(null);
  useEffect(() => () => { if (owner && owner === words.current) show(null); }, []);
  if (!entry && !text) return html`<span>${children}</span>`;
  const open = () => owner === words.current || show(words.current,
    text ? html`<p>${text}</p>` : html`<${Entry} entry=${entry} />`);
  const close = () => owner === words.current && show(null);
  const left = (event) => document.getElementById(ID)?.contains(event.relatedTarget) || close();
  return html`<button type="button" class="explained-button" ref=${words} aria-describedby=${ID}
    onMouseEnter=${open} onMouseLeave=${left} onFocus=${open} onBlur=${close} onClick=${open}>${children}</button>`;
}

// Beside the words, within the window: below them, or above where more room is there.
function placeFor(box) {
  const width = Math.min(352, innerWidth - 16);
  const left = Math.max(8, Math.min(box.left, innerWidth - width - 8));
  const below = innerHeight - box.bottom > 220 || innerHeight - box.bottom > box.top;
  return below ? { left: `${left}px`, top: `${box.bottom}px`, bottom: "auto" }
    : { left: `${left}px`, top: "auto", bottom: `${innerHeight - box.top}px` };
}

function Entry({ entry }) {
  const line = (name, said) => said && html`<p><b>${name}:</b> ${said}</p>`;
  return html`<div>${entry.meaning && html`<p class="sentence">${entry.meaning}</p>`}
    ${line("Healthy", entry.healthy)}${line("Sick", entry.sick)}</div>`;
}
