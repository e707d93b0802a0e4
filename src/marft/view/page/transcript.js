// An episode's play as text: cards of actions, replies coloured token by token, and what is known of each token.
//
// Exports: ActionCard, Transcript, ColourChoice, TokenBar, Outcome, TaskPrompt, useBus, useHeld, signed, where,
// ended, PLAYS, withoutTranscripts, colourOf

import { h, html, useEffect, useRef, useState } from "preact";
import { agentColour, colour as series, count, Explained, number, Tag } from "marft/ui";
import { advantageOf, COLOURS, legendOf, missing, missingOf, shade, tokensOf, wordsOf } from "marft/tokens";

// -------------------------------------------------------------------------------------------------- words of a play

/** A number with its sign, as rewards, changes and advantages are shown. */
export function signed(value) {
  if (value === null || value === undefined) return number(value);
  const text = number(Math.abs(value));
  return text === "0" ? "0" : `${value < 0 ? "−" : "+"}${text}`;
}

/** What the splits are called in a choice. */
export const PLAYS = [["train", "Training"], ["greedy", "Evaluation, greedy"], ["sampled", "Evaluation, sampled"]];

/** Which play an episode comes from: "training, iteration 3". */
export function where({ split, iteration }) {
  const play = PLAYS.find(([value]) => value === split)?.[1] ?? split;
  return `${play.toLowerCase()}, iteration ${iteration}`;
}

/** Why a report has no episodes to show; null where it may have some. */
export function withoutTranscripts(run) {
  return run.episodes_held === 0 && run.episodes_all > 0 ? "This report was made without transcripts." : null;
}

/** How an episode ended: "won", "lost" or "failed". */
export function ended(episode) {
  if (episode.failed ?? Boolean(episode.error)) return "failed";
  return episode.success >= 0.5 ? "won" : "lost";
}

/** Won, lost or failed, in a word and a sign. */
export function Outcome({ episode }) {
  const word = ended(episode);
  const [kind, sign] = { failed: ["warn", "!"], won: ["good", "✓"], lost: ["bad", "✗"] }[word];
  return html`<${Tag} kind=${kind}><span aria-hidden="true">${sign} </span>${word}<//>`;
}

/** What the environment asked; a long one scrolls by itself. */
export function TaskPrompt({ text }) {
  return html`<div class="task-prompt pre" role="group" aria-label="Task" tabindex="0">${text}</div>`;
}

/** What the hash says the tokens are coloured by. */
export function colourOf(params) {
  const asked = params.get("colour");
  return COLOURS.some((each) => each.value === asked) ? asked : "none";
}

// ------------------------------------------------------------------------------------------------------- the cards

/** All actions of an episode, one below the other. */
export function Transcript({ actions, agents, scale, bus }) {
  if (!actions.length) return html`<p class="empty">Nobody spoke in this episode.</p>`;
  const whole = missingOf(actions, scale.colour);
  return html`${whole && html`<p class="colour-missing">${whole}</p>`}<ol class="transcript">${actions.map(
    (action, index) => html`<li key=${index}>
      <${ActionCard} ...${{ action, index, agents, scale, bus, said: whole }} /></li>`,
  )}</ol>`;
}

/** One action: who, having read whom, said what, and what it earned; `said`: a sentence not to be repeated. */
export function ActionCard({ action, index, agents, scale, bus, said }) {
  const results = action.tool_results ?? [];
  return html`<article class="action" style=${{ "--agent": series(agentColour(agents, action.agent)) }}>
    <header><h3><span class="agent-dot" aria-hidden="true"></span>${action.agent}</h3>
      <${Facts} action=${action} /></header>
    ${action.prompt !== undefined && html`<${Prompt} text=${action.prompt} left=${action.truncated_tokens} />`}
    <${Reply} key=${scale.colour} ...${{ action, index, scale, bus, said }} />
    ${results.map(
      (result, place) => html`<div class="tool-result" key=${place}>
        <h4>Tool result${results.length > 1 ? ` ${place + 1}` : ""}</h4><div class="pre">${result}</div></div>`,
    )}
  </article>`;
}

function Facts({ action }) {
  const advantage = advantageOf(action);
  const tokens = `${count(action.tokens)} ${action.tokens === 1 ? "token" : "tokens"}`;
  const facts = [
    `turn ${action.turn + 1}${action.step ? `, step ${action.step + 1}` : ""}`,
    action.saw?.length ? `read: ${speakers(action)}` : "read no other message",
    action.reward ? `reward ${signed(action.reward)}` : null,
    tokens,
    action.mean_logprob === null || action.mean_logprob === undefined
      ? null
      : `mean log-probability ${number(action.mean_logprob)}`,
    advantage && `advantage ${signed(advantage.mean)}${advantage.count > 1 ? ` (mean of ${advantage.count})` : ""}`,
  ].filter(Boolean);
  return html`<ul class="action-facts">${facts.map((fact) => html`<li key=${fact}>${fact}</li>`)}
    ${action.stop === "length" && html`<li>
      <${Tag} kind="warn">cut off at ${tokens}<//></li>`}</ul>`;
}

const speakers = ({ agent, saw }) => saw.map((each) => (each === agent ? "itself" : each)).join(", ");

function Prompt({ text, left }) {
  return html`<details><summary>What it read <span class="muted">(${count(text.length)} characters)</span></summary>
    ${left > 0 && html`<p class="small muted">${count(left)} tokens were left out to make the reply fit.</p>`}
    <div class="prompt pre">${text}</div></details>`;
}

function Reply({ action, index, scale, bus, said }) {
  const [at, setAt] = useState(null);
  const box = useRef(null);
  useEffect(() => {
    if (at !== null) box.current.children[at].scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [at]);
  const why = missing(action, scale.colour);
  if (scale.colour === "none" || why) {
    return html`<div class="reply pre">${action.text || html`<span class="muted">(an empty reply)</span>`}</div>
      ${why && why !== said && html`<p class="small muted">${why}</p>`}`;
  }
  const tokens = tokensOf(action);
  const show = (place) => bus.show(place === null ? null : { token: tokens[place], place, of: tokens.length, action });
  const move = (place) => {
    setAt(place);
    show(place);
  };
  const press = (event) => {
    const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -tokens.length, End: tokens.length };
    if (!(event.key in steps) || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    move(Math.min(tokens.length - 1, Math.max(0, (at ?? 0) + steps[event.key])));
  };
  const pointed = (event) => Number(event.target.closest("[data-token]")?.dataset.token ?? Number.NaN);
  const over = (event) => Number.isNaN(pointed(event)) || show(pointed(event));
  const point = (event) => Number.isNaN(pointed(event)) || move(pointed(event));
  return html`<div class="reply pre tokens" role="group" tabindex="0" onKeyDown=${press} onMouseOver=${over}
    aria-label=${`Reply of ${action.agent}, ${tokens.length} tokens; left and right move through them`}
    onFocus=${(event) => event.target.matches(":focus-visible") && move(at ?? 0)} onClick=${point}
    onBlur=${() => { setAt(null); show(null); }} onMouseLeave=${() => show(at)}
    ref=${box} data-action=${index}>${tokens.map((token, place) => drawn(token, place, scale, place === at))}</div>`;
}

// A plain element, not a component: a long episode has tens of thousands
function drawn(token, place, scale, here) {
  const found = shade(token, scale);
  const lines = token.piece.split("\n");
  return h("span", {
    class: `token ${found?.side ?? "unknown"}${here ? " here" : ""}`,
    "data-token": place,
    "data-logprob": token.logprob,
    "data-advantage": token.advantage,
    "data-ratio": token.ratio,
    style: `--depth:${Math.round(100 * (found?.depth ?? 0))}%`,
  }, lines.length === 1 ? token.piece : lines.map((line, row) => (row ? [newline(), "\n", line] : line)));
}

const newline = () => h("span", { class: "newline" }); // its sign is drawn by the style sheet, so it is not copied

// ------------------------------------------------------------------------------------------- colours and their bar

/** A channel from replies to the bar: `bus.show({token, place, of, action} | null)`. */
export function useBus() {
  const [bus] = useState(() => ({ show: () => {} }));
  return bus;
}

/** What was last there while the next is loading, so that nothing jumps. */
export function useHeld(data) {
  const held = useRef(null);
  if (data) held.current = data;
  return data ?? held.current;
}

/** What the tokens are coloured by, as a group of radio buttons. */
export function ColourChoice({ colour, onColour }) {
  return html`<fieldset class="colour-choice"><legend>Colour of tokens</legend>${COLOURS.map(
    ({ value, text }) => html`<label key=${value}><input type="radio" name="colour" value=${value}
      checked=${value === colour} onChange=${() => onColour(value === "none" ? null : value)} />${text}</label>`,
  )}</fieldset>`;
}

const MEANINGS = {
  logprob: ["probability p", "How likely the agent was to say this token, of all it could have said: e to the power " +
    "of the log-probability. Coloured are the tokens where something else was likely too."],
  advantage: ["advantage", "How much better the decision turned out than expected, normalised as the update used it. " +
    "Above 0 the update made it more likely, below 0 less. At action level a whole reply is one decision."],
  ratio: ["ratio new/old", "Probability of the token after the update over that before it: above 1 it became more " +
    "likely. The scale is logarithmic."],
};

/** The bar that stays in sight while tokens are coloured: the legend, and the numbers of the token one is at. */
export function TokenBar({ scale, bus }) {
  const [at, setAt] = useState(null);
  useEffect(() => {
    bus.show = setAt;
    return () => { bus.show = () => {}; };
  }, []);
  if (scale.colour === "none") return null;
  const [name, meaning] = MEANINGS[scale.colour];
  return html`<div class="token-bar">
    <div class="token-legend"><${Explained} text=${meaning}>${name}<//><ol>${legendOf(scale).map(
      (mark) => html`<li key=${mark.text} class=${`token ${mark.side}`}
        style=${{ "--depth": `${Math.round(100 * mark.depth)}%` }}>${mark.text}</li>`,
    )}</ol></div>
    <p class="readout" aria-live="polite">${at ? html`<${Readout} at=${at} />` : html`<span class="muted">Point at a
      token, or focus a reply and press ← →, to read its numbers.</span>`}</p>
  </div>`;
}

function Readout({ at }) {
  return html`<span class="muted">${at.action.agent}, token ${at.place + 1} of ${at.of}</span>
    <code>${JSON.stringify(at.token.piece)}</code>${wordsOf(at.token).map(
      ([name, value]) => html`<span key=${name} class="number"><span class="muted">${name}</span> ${value}</span>`,
    )}`;
}
