// The same task at two times, side by side.

import { html } from "preact";
import * as source from "marft/source";
import { count, Empty, Failure, Link, Loading, Select, useData, useRuns } from "marft/ui";
import { ActionCard, colourOf, ColourChoice, ended, Outcome, signed, TaskPrompt, TokenBar, useBus, useHeld,
  where, withoutTranscripts } from "marft/transcript";
import { missingOf, scaleOf } from "marft/tokens";

export function Compare({ hash, go }) {
  const { runs, stamp } = useRuns();
  const run = runs.find((each) => each.id === hash.params.get("run")) ?? runs[0];
  const task = hash.params.get("task");
  const now = run ? stamp(run.id) : "";
  const { data, error } = useData(`task ${run?.id} ${task}`, () => (task ? source.task(run.id, task) : []), now);
  if (!run) return html`<${Empty}>There is no run to show.<//>`;
  const head = html`<div class="title"><h1>Compare</h1>${task && html`<span class="muted">task ${task}</span>`}</div>`;
  if (!task) return html`${head}<${Tasks} run=${run} stamp=${now} />`;
  if (error) return html`${head}<${Failure} error=${error} />`;
  if (!data) return html`${head}<${Loading} />`;
  if (!data.length) return html`${head}<${Empty}>This task was never played in this run.<//>`;
  const change = (changes) => go("compare", { ...Object.fromEntries(hash.params), run: run.id, ...changes }, true);
  const pick = (key) => data.find((each) => each.id === hash.params.get(key));
  const [left, right] = chosen(data, pick("left"), pick("right"));
  return html`${head}<${Pair} key=${task} ...${{ run, plays: data, left, right, change, hash }} />`;
}

/** What stands left and right: beside the play one comes from, the newest other of the same split, if there is any. */
export function chosen(plays, left, right) {
  const [first, last] = ends(plays);
  const other = left && (plays.findLast((each) => each !== left && each.split === left.split)
    ?? plays.findLast((each) => each !== left));
  return [left ?? first, right ?? other ?? last];
}

/** The first and the last evaluation of the task; where there are not two, the first and the last play. */
export function ends(plays) {
  const greedy = plays.filter((each) => each.split === "greedy");
  const evaluated = greedy.length > 1 ? greedy : plays.filter((each) => each.split !== "train");
  const from = evaluated.length > 1 ? evaluated : plays;
  return [from[0], from.at(-1)];
}

/** Tasks to choose from: those whose reward changed most. */
function Tasks({ run, stamp }) {
  const { data, error } = useData(`changed ${run.id}`, () => changed(run.id), stamp);
  if (error) return html`<${Failure} error=${error} />`;
  if (!data) return html`<${Loading} />`;
  if (!data.length) return html`<${Empty}>${withoutTranscripts(run) ?? "No task has been played yet."}<//>`;
  return html`<p class="muted">Choose a task. Those whose reward rose most from one evaluation to the next come
    first.</p>
    <ol class="tasks">${data.map((item) => html`<li key=${item.task.id}><${Link} view="compare"
      params=${{ run: run.id, task: item.task.id }}>${item.task.prompt || item.task.id}<//>
      ${" "}<span class="muted">${item.task.kind}</span></li>`)}</ol>`;
}

async function changed(run) {
  for (const split of ["greedy", "sampled", "train"]) {
    const { items } = await source.episodes(run, { split, sort: "risen", page: 0, size: 200 });
    if (items.length) return [...new Map(items.map((item) => [item.task.id, item])).values()].slice(0, 40);
  }
  return [];
}

function Pair({ run, plays, left, right, change, hash }) {
  const load = (play) => () => source.episode(run.id, play.id);
  const one = useData(`${run.id} ${left.id}`, load(left));
  const two = useData(`${run.id} ${right.id}`, load(right));
  const bus = useBus();
  const colour = colourOf(hash.params);
  const both = useHeld(one.data && two.data && [one.data, two.data]);
  const failed = one.error ?? two.error;
  if (failed) return html`<${Failure} error=${failed} />`;
  if (!both) return html`<${Loading} />`;
  const scale = scaleOf(both.flatMap((each) => each.actions), colour);
  const whole = missingOf(both.flatMap((each) => each.actions), colour);
  const rows = Math.max(...both.map((each) => each.actions.length));
  const options = labelled(plays);
  const pick = (side) => (id) => change({ left: left.id, right: right.id, [side]: id });
  const column = (episode, play, side) => ({ episode, play, side, agents: run.agents, scale, bus, said: whole });
  return html`<${TaskPrompt} text=${both[0].task.prompt} />
    <${Strip} plays=${plays} left=${left} right=${right} />
    <${ColourChoice} colour=${colour} onColour=${(value) => change({ colour: value })} />
    ${whole && html`<p class="colour-missing">${whole}</p>`}
    <h2 class="visually-hidden">The two plays</h2>
    <div class="pair"><${Side} ...${{ name: "Left", play: left, options, run, onPick: pick("left") }} />
      <${Side} ...${{ name: "Right", play: right, options, run, onPick: pick("right") }} />
      ${Array.from({ length: rows }, (_, index) => html`<div class="pair-row" key=${index}>
        <${Cell} ...${column(both[0], left, "left")} index=${index} />
        <${Cell} ...${column(both[1], right, "right")} index=${index} /></div>`)}
    </div>${!whole && html`<${TokenBar} key=${colour} scale=${scale} bus=${bus} />`}`;
}

/** The plays as options; those of the same split and iteration are numbered, to tell them apart. */
function labelled(plays) {
  const all = {};
  for (const each of plays) all[where(each)] = (all[where(each)] ?? 0) + 1;
  const seen = {};
  return plays.map((each) => {
    seen[where(each)] = (seen[where(each)] ?? 0) + 1;
    const which = all[where(each)] > 1 ? `, play ${seen[where(each)]}` : "";
    return { value: each.id, label: `${where(each)}: ${ended(each)} ${signed(each.reward)}${which}` };
  });
}

function Side({ name, play, options, run, onPick }) {
  return html`<div class="side"><${Select} label=${name} value=${play.id} options=${options} onChange=${onPick} />
    <p><${Outcome} episode=${play} />
      ${" "}<span class="number">reward ${signed(play.reward)}, success ${Number(play.success.toFixed(2))}</span>
    ${" "}<${Link} view="episode" params=${{ run: run.id, id: play.id }}>open<//></p></div>`;
}

function Cell({ episode, play, side, index, ...shared }) {
  const action = episode.actions[index];
  return html`<div class=${`cell ${side}`}><p class="cell-name small muted">${where(play)}</p>
    ${action ? html`<${ActionCard} ...${{ action, index: `${side} ${index}`, ...shared }} />`
      : html`<p class="muted small">Nobody speaks here.</p>`}</div>`;
}

/** Every time the task was played: filled where it was won, hollow where it was lost, crossed where play failed. */
function Strip({ plays, left, right }) {
  const gap = plays.length > 60 ? 8 : 14;
  const rows = new Set(plays.map((each) => each.split === "train")).size;
  const won = plays.filter((each) => ended(each) === "won").length;
  const mark = (play, index) => {
    const x = 12 + index * gap;
    const y = rows > 1 && play.split === "train" ? 28 : 10;
    const letter = play.id === left.id ? "L" : play.id === right.id ? "R" : null;
    return html`<g key=${play.id} class=${`play ${ended(play)}`}
        data-id=${play.id}><title>${where(play)}: ${ended(play)} ${signed(play.reward)}</title>
      <circle cx=${x} cy=${y} r="4" />
      ${ended(play) === "failed" && html`<path d=${`M${x - 4},${y - 4} l8,8 m0,-8 l-8,8`} />`}
      ${letter && html`<text x=${x} y=${y + 17}>${letter}</text>`}</g>`;
  };
  const order = `oldest left${rows > 1 ? "; upper row evaluation, lower row training" : ""}`;
  return html`<figure class="strip">
    <figcaption class="small muted">Played ${count(plays.length)} times, won ${count(won)}, ${order}. Filled:
      won, hollow: lost, crossed: failed. L and R: shown below.</figcaption>
    <div class="strip-box" tabindex="0" role="group" aria-label="All plays of the task">
      <svg width=${plays.length * gap + 24} height=${18 * rows + 14} role="img"
      aria-label=${`Played ${plays.length} times, won ${won}`}>${plays.map(mark)}</svg></div></figure>`;
}
