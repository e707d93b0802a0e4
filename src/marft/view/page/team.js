// The team as it played: a drawing of who reads whom, one agent's facts, a table of all, and an episode turn by turn.

import { html, useEffect, useRef, useState } from "preact";
import * as source from "marft/source";
import { agentColour, colour as series, count, Empty, Explained, Failure, Link, Loading, number, Select, Table, useData,
  useKeys, useRuns } from "marft/ui";
import { arrange, edgesOf, keyOf, stages } from "marft/drawing";
import { ended, Outcome, PLAYS, signed, where } from "marft/transcript";

export function Team({ hash, go }) {
  const { runs, stamp } = useRuns();
  const run = runs.find((each) => each.id === hash.params.get("run")) ?? runs[0];
  const now = run ? stamp(run.id) : "";
  const iteration = hash.params.get("iteration");
  const id = hash.params.get("episode");
  const all = useData(`team ${run?.id}`, () => source.team(run.id), now);
  const one = useData(`team ${run?.id} ${iteration}`,
    () => (iteration === null ? null : source.team(run.id, Number(iteration))), now);
  const played = useData(`episode ${run?.id} ${id}`, () => (id ? source.episode(run.id, id) : null));
  if (!run) return html`<${Empty}>There is no run to show.<//>`;
  const change = (changes, replace = true) => go("team",
    { ...Object.fromEntries(hash.params), run: run.id, ...changes }, replace);
  const error = all.error ?? one.error ?? played.error;
  if (!all.data) return html`<h1>Team</h1>${error ? html`<${Failure} error=${error} />` : html`<${Loading} />`}`;
  const team = iteration === null ? all.data : one.data;
  const episode = id ? played.data : null;
  const view = { run, all: all.data, team, change, hash, stamp: now };
  return html`<div class="title"><h1>Team</h1><p class="muted">${sentence(all.data, team, iteration)}</p></div>
    ${error && html`<${Failure} error=${error} />`}
    <div class="team-choices"><${Iterations} ...${view} iteration=${iteration} off=${Boolean(id)} />
      <${EpisodeChoice} ...${view} iteration=${iteration} id=${id} episode=${episode} /></div>
    ${id ? episode && html`<${Steps} key=${id} ...${view} episode=${episode} />` : html`<${Played} ...${view} />`}
    <${AgentTable} agents=${all.data.agents} influence=${all.data.influence} edges=${(team ?? all.data).edges} />
    ${!id && html`<${EdgeTable} edges=${(team ?? all.data).edges} />`}`;
}

function sentence(all, team, iteration) {
  if (!team) return `Iteration ${iteration} …`;
  const when = iteration === null ? "" : ` of iteration ${iteration}`;
  const organisation = all.dependency ? `Organisation: ${all.dependency}. ` : "";
  return `${organisation}As played in ${count(team.episodes)} episodes${when}.`;
}

function Iterations({ run, stamp, iteration, change, off }) {
  const { data } = useData(`iterations of ${run.id}`, () => source.metrics(run.id), stamp);
  const found = (data?.iterations ?? []).map((each) => `${each}`);
  if (iteration !== null && !found.includes(iteration)) found.push(iteration);
  return html`<${Select} label="Iteration, from 0" value=${iteration ?? ""} disabled=${off}
    options=${[{ value: "", label: "All iterations" }, ...found.map((value) => ({ value, label: value }))]}
    onChange=${(value) => change({ iteration: value || null })} />`;
}

const OFFERED = { train: 16, greedy: 12, sampled: 12 }; // so many plays of each split can be chosen

/** The newest plays of each split, of an iteration if one is chosen. */
async function offered(run, iteration) {
  const found = await Promise.all(PLAYS.map(([split]) =>
    source.episodes(run, { split, iteration, sort: "newest", page: 0, size: OFFERED[split] })));
  return found.flatMap(({ items }) => items);
}

function EpisodeChoice({ run, stamp, iteration, id, episode, change }) {
  const { data } = useData(`offered ${run.id} ${iteration}`, () => offered(run.id, iteration), stamp);
  const items = [...(data ?? [])];
  if (id && !items.some((item) => item.id === id))
    items.push(episode ? { ...episode, last: episode.actions.at(-1)?.text } : { id });
  const label = (item) => (item.task ? `${ended(item)} ${signed(item.reward)}, ${item.task.id}: ${
    (item.last ?? "").replace(/\s+/g, " ").trim().slice(0, 48) || "(an empty reply)"}` : item.id);
  const group = (item) => item.task && where(item).replace(/^./, (letter) => letter.toUpperCase());
  const options = [{ value: "", label: "None: all play" },
    ...items.map((item) => ({ value: item.id, label: label(item), group: group(item) }))];
  return html`<${Select} label="Step through an episode" value=${id ?? ""} options=${options}
    onChange=${(value) => change({ episode: value || null, turn: value ? 0 : null })} />`;
}

// ----------------------------------------------------------------------------------------------------- the drawing

function Played({ all, team, change, hash }) {
  if (!all.agents.length) return html`<${Empty}>The config.yaml of this run names no agents.<//>`;
  const names = all.agents.map((each) => each.name);
  const chosen = all.agents.find((each) => each.name === hash.params.get("agent"));
  const most = Math.max(...(team ?? all).edges.map((edge) => edge.per_episode), 1e-9);
  const text = 2 + Number(all.agents.some((each) => each.tools.length)) + Math.max(
    0, ...Object.values(all.influence).map((each) => (bounds(each) ? 2 : 1)));
  const draw = (edge) => ({ width: 1 + 3 * (edge.per_episode / most), text: perEpisode(edge.per_episode) });
  return html`<${Drawing} names=${names} layout=${all.edges} edges=${(team ?? all).edges} ...${{ draw, text }}
      card=${(name) => html`<${Card} agent=${all.agents.find((each) => each.name === name)}
        influence=${all.influence[name]} />`}
      chosen=${chosen?.name} onChoose=${(name) => change({ agent: name === chosen?.name ? null : name })}>
      <${Profile} agent=${chosen} /><//>
    <p class="small muted">An arrow goes from a speaker to its reader; the number beside it is how often that happened
      in an episode. Dashed: a message of an earlier turn, or against the order of the others.</p>`;
}

const perEpisode = (value) => `${Number(value.toFixed(2))}`;

function Card({ agent, influence }) {
  const [learns, sees] = [agent.trainable ? "learns" : "frozen", agent.sees_task ? "sees the task" : "task hidden"];
  return html`<span>${learns}, ${sees}</span>
    ${agent.tools.length > 0 && html`<span class="one-line">tools: ${agent.tools.join(", ")}</span>`}
    ${influence && html`<span>influence ${signed(influence.mean)}</span>`}
    ${influence && bounds(influence) && html`<span>${bounds(influence)}</span>`}`;
}

const bounds = ({ low, high }) => (low === null || low === undefined ? "" : `[${number(low)}, ${number(high)}]`);
const influenced = (influence) => `${signed(influence.mean)} ${bounds(influence)}`;

const ASIDE = 376; // pixels for the words beside the drawing, with the gap

function useWidth() {
  const box = useRef(null);
  const [width, setWidth] = useState(Math.min(innerWidth - 32, 1200));
  useEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
    watch.observe(box.current);
    return () => watch.disconnect();
  }, []);
  return [box, width];
}

/** Beside the words where the drawing fits there as well as alone, else above them. */
function fitted(names, edges, width, text) {
  const alone = arrange(names, edges, width, text);
  const beside = arrange(names, edges, width - ASIDE, text);
  const fits = width > 2 * ASIDE && beside.width <= width - ASIDE && beside.rows <= alone.rows;
  return fits ? { plan: beside, beside: true } : { plan: alone, beside: false };
}

/** Agents as buttons over lines; `layout` (all edges) places the agents, `edges` are drawn as `draw(edge)` says. */
function Drawing({ names, layout, edges, draw, card, text = 2, chosen, onChoose, children }) {
  const [box, width] = useWidth();
  const { plan, beside } = fitted(names, once([...layout, ...edges]), width, text);
  const drawn = new Map(edges.map((edge) => [keyOf(edge), edge]));
  const lines = plan.lines.filter((line) => drawn.has(keyOf(line))).map((line) => {
    const edge = drawn.get(keyOf(line));
    return { ...line, edge, ...draw(edge) };
  });
  return html`<div class=${`team-view${beside ? " beside" : ""}`} ref=${box}><div class="drawing-box" tabindex="0"
    role="group" aria-label="Drawing of the team">
    <div class="drawing" style=${{ width: `${plan.width}px`, height: `${plan.height}px` }}>
      <${Lines} plan=${plan} lines=${lines} />
      ${names.map((name) => html`<button type="button" key=${name} class="agent-node"
          aria-pressed=${name === chosen ? "true" : "false"}
          data-agent=${name} onClick=${() => onChoose(name)}
          style=${{ ...pixels(plan.nodes[name]), "--agent": series(agentColour(names, name)) }}>
        <strong><span class="agent-dot" aria-hidden="true"></span>${name}</strong>${card(name)}</button>`)}
    </div></div>${children}</div>`;
}

function Lines({ plan, lines }) {
  const said = lines.map((line) =>
    `${line.from} to ${line.to}${line.recall ? " (of an earlier turn)" : ""}: ${line.text || line.edge.count}`);
  return html`<svg width=${plan.width} height=${plan.height} role="img"
    aria-label=${`Who reads whom. ${said.join("; ") || "Nobody read anybody."}`}>
    ${lines.map((line) => html`<g key=${keyOf(line)}
        class=${`edge${line.faint ? " faint" : ""}${line.strong ? " strong" : ""}`}
        data-from=${line.from} data-to=${line.to} data-recall=${line.recall ? "true" : "false"}
        data-count=${line.edge.count}>
      <path class="line" d=${line.path} stroke-width=${line.width} stroke-dasharray=${line.dashed ? "6 4" : null} />
      <path class="head" d=${line.head} /></g>`)}
    ${lines.map((line) => line.text
      && html`<text key=${`text ${keyOf(line)}`} x=${line.label.x} y=${line.label.y} dy="0.35em">${line.text}</text>`)}
  </svg>`;
}

const once = (edges) => [...new Map(edges.map((edge) => [keyOf(edge), edge])).values()];
const pixels = ({ x, y, width, height }) => ({ left: `${x}px`, top: `${y}px`, width: `${width}px`,
  height: `${height}px` });

function Profile({ agent }) {
  if (!agent) return html`<aside class="profile"><p class="muted">Choose an agent to read its profile.</p></aside>`;
  return html`<aside class="profile" aria-live="polite"><h2>${agent.name}</h2>
    <dl><dt>Adapter</dt><dd>${agent.adapter ?? "none"}</dd><dt>Model</dt><dd>${agent.model ?? "–"}</dd></dl>
    <h3>Profile (system prompt)</h3>
    <div class="pre text">${agent.profile || html`<span class="muted">(empty)</span>`}</div></aside>`;
}

// ------------------------------------------------------------------------------------------------------ the tables

const INFLUENCE = "Success minus success when the agent's messages are replaced by those from another task, in the " +
  "latest evaluation, with 95% interval. Near 0: the others do without this agent.";

function AgentTable({ agents, influence, edges }) {
  if (!agents.length) return null;
  const reads = (name) => [...new Set(edges.filter((edge) => edge.to === name).map((edge) => edge.from))].join(", ")
    || "nobody";
  const columns = [
    { label: "Agent", head: true, cell: (each) => each.name },
    { label: "Learns", cell: (each) => (each.trainable ? "yes" : "frozen") },
    { label: "Sees the task", cell: (each) => (each.sees_task ? "yes" : "no") },
    { label: "Reads", cell: (each) => reads(each.name) },
    { label: "Tools", cell: (each) => each.tools.join(", ") || "none" },
    { label: html`<${Explained} text=${INFLUENCE}>Influence<//>`, right: true,
      cell: (each) => (influence[each.name] ? influenced(influence[each.name]) : "–") },
    { label: "Adapter", cell: (each) => each.adapter ?? "none" },
    { label: "Model", cell: (each) => each.model ?? "–" },
  ];
  return html`<section class="section"><h2>Agents</h2><${Table} caption="The agents, as declared"
    columns=${columns} rows=${agents} id=${(each) => each.name} /></section>`;
}

function EdgeTable({ edges }) {
  const columns = [
    { label: "Speaker", head: true, cell: (each) => each.from },
    { label: "Reader", cell: (each) => each.to },
    { label: "Message of", cell: (each) => (each.recall ? "an earlier turn" : "the same turn") },
    { label: "Times", right: true, cell: (each) => count(each.count) },
    { label: "In an episode", right: true, cell: (each) => perEpisode(each.per_episode) },
  ];
  if (!edges.length) return null;
  return html`<section class="section"><h2>Who reads whom</h2><${Table} caption="As played, the busiest first"
    columns=${columns}
    rows=${edges} id=${keyOf} /></section>`;
}

// ------------------------------------------------------------------------------------------------ an episode's turns

function Steps({ run, all, episode, change, hash }) {
  const { actions } = episode;
  const parts = stages(actions);
  const place = Math.min(parts.length - 1, Math.max(0, Number.parseInt(hash.params.get("turn") ?? "0", 10) || 0));
  const to = (next) => next >= 0 && next < parts.length && change({ turn: next });
  useKeys([
    { key: "ArrowLeft", label: "previous turn", action: () => to(place - 1) },
    { key: "ArrowRight", label: "next turn", action: () => to(place + 1) },
  ]);
  if (!parts.length) return html`<${Empty}>Nobody spoke in this episode.<//>`;
  const current = edgesOf(parts[place].places, actions);
  const strong = new Set(current.map(keyOf));
  const whole = once([...all.edges, ...edgesOf(actions.map((_, index) => index), actions)]);
  const spoken = parts[place].places.map((index) => actions[index]);
  const order = (name) => spoken.flatMap((each, index) => (each.agent === name ? [index + 1] : []));
  const draw = (edge) => (strong.has(keyOf(edge)) ? { width: 3, text: "", strong: true }
    : { width: 1.25, text: "", faint: true });
  const names = [...new Set([...all.agents.map((each) => each.name), ...actions.map((each) => each.agent)])];
  const chosen = hash.params.get("agent");
  return html`<div class="stepper"><button type="button" class="button" disabled=${place === 0}
    onClick=${() => to(place - 1)}>Previous turn</button>
      <strong class="number" role="status">${nameOf(parts, place)}</strong>
      <button type="button" class="button" disabled=${place === parts.length - 1}
      onClick=${() => to(place + 1)}>Next turn</button>
      <${Outcome} episode=${episode} /><${Link} view="episode"
      params=${{ run: run.id, id: episode.id }}>Read this episode<//></div>
    <${Drawing} names=${names} layout=${whole} edges=${once([...whole, ...current])} ...${{ draw, chosen }}
      card=${(name) => html`<span>${order(name).length ? `speaks ${order(name).map(nth).join(" and ")}`
      : "silent here"}</span>`}
      onChoose=${(name) => change({ agent: name === chosen ? null : name })}>
      <ol class="spoken" aria-label=${`Messages of ${nameOf(parts, place)}`}>${spoken.map((each,
      index) => html`<li key=${index}
          class=${each.agent === chosen ? "marked" : ""} style=${{ "--agent": series(agentColour(names, each.agent)) }}>
        <strong>${each.agent}</strong> <span
        class="muted">${each.saw?.length ? `having read ${each.saw.join(", ")}` : "having read no other message"}</span>
        <div class="pre clamp">${each.text || "(an empty reply)"}</div></li>`)}</ol><//>
    <p class="small muted">Strong arrows: who read whom here. Faint ones: in other turns, or in other episodes.</p>`;
}

/** "Turn 2 of 3", "Round 2 of 3" in an episode of one turn, or both. */
function nameOf(parts, place) {
  const { turn, round, rounds } = parts[place];
  const turns = [...new Set(parts.map((each) => each.turn))];
  const inTurn = rounds > 1 ? `ound ${round + 1} of ${rounds}` : "";
  if (turns.length === 1) return inTurn ? `R${inTurn}` : "Turn 1 of 1";
  return `Turn ${turns.indexOf(turn) + 1} of ${turns.length}${inTurn ? `, r${inTurn}` : ""}`;
}

function nth(number) {
  if (number % 100 > 10 && number % 100 < 14) return `${number}th`;
  return `${number}${{ 1: "st", 2: "nd", 3: "rd" }[number % 10] ?? "th"}`;
}
