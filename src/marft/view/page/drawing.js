// Where the agents of a team stand and how the lines between them run, and the stages of an episode: numbers in,
// numbers out, nothing drawn here.
//
// Agents stand in rows: a reader below those it reads. Lines that do not lead down (a circle, or a message of an
// earlier turn) are dashed. A line to the next row is a soft S; one that passes rows runs beside them in a lane of its
// own; one within a row bows over it (rightwards) or under it (leftwards).

const LANE = 32;
const GAP = 70;
const SPACE = 26;
const HEAD = 11; // length of an arrow's head, in pixels
const FAR = 1e6;

/** {rows, width, height, nodes: {name: {x, y, width, height}}, lines: [edge + {dashed, path, head, label: {x, y}}]}.
 *
 * `room` is the width there is, in pixels, and `text` how many lines of text stand on an agent.
 */
export function arrange(names, edges, room, text = 2) {
  const narrow = room < 560;
  const size = { width: narrow ? 138 : 176, height: 18 + 18 * (text + Number(narrow)) };
  const known = edges.filter((edge) => names.includes(edge.from) && names.includes(edge.to));
  const between = known.filter((edge) => edge.from !== edge.to);
  const loops = known.filter((edge) => edge.from === edge.to);
  const space = loops.length ? SPACE + 34 : SPACE;
  const rows = wrapped(layers(names, between), Math.max(1, Math.floor((room + SPACE - 8) / (size.width + space))));
  const place = {};
  rows.forEach((row, index) => row.forEach((name, column) => (place[name] = { row: index, column, of: row.length })));
  const routed = between.map((edge) => route(edge, place));
  const grid = stand(rows, size, assignLanes(routed, place, rows), space);
  spread(routed, grid);
  const crowd = {};
  for (const edge of routed) if (edge.how === "next") crowd[edge.top] = (crowd[edge.top] ?? 0) + 1;
  const lines = [
    ...routed.map((edge) => ({ ...edge, ...curve(edge, grid, crowd[edge.top]) })),
    ...loops.map((edge) => ({ ...edge, dashed: true, ...loop(grid.nodes[edge.from]) })),
  ];
  return { rows: rows.length, width: grid.width, height: grid.height, nodes: grid.nodes, lines };
}

/** The agents in layers: the longest way from an agent that reads nobody; edges that would close a circle left out.
 *
 * A message of an earlier turn puts its reader below only where no way leads back, and who read each other as often
 * are not put below each other: who debates stands side by side.
 */
export function layers(names, edges) {
  const order = (edge) => names.indexOf(edge.from) * names.length + names.indexOf(edge.to);
  const answers = (edge, each) => each.from === edge.to && each.to === edge.from && !each.recall;
  const mutual = (edge) => edges.some((each) => answers(edge, each) && each.per_episode === edge.per_episode);
  const sorted = edges
    .filter((edge) => !edge.recall && !mutual(edge))
    .sort((a, b) => b.per_episode - a.per_episode || order(a) - order(b));
  const readers = Object.fromEntries(names.map((name) => [name, new Set()]));
  const all = Object.fromEntries(names.map((name) => [name, new Set()]));
  for (const edge of edges) all[edge.from].add(edge.to);
  for (const edge of sorted) if (!reaches(readers, edge.to, edge.from)) readers[edge.from].add(edge.to);
  for (const edge of edges) if (edge.recall && !reaches(all, edge.to, edge.from)) readers[edge.from].add(edge.to);
  const depths = {};
  const depth = (name) => {
    const speakers = names.filter((each) => readers[each].has(name));
    depths[name] ??= speakers.length ? 1 + Math.max(...speakers.map(depth)) : 0;
    return depths[name];
  };
  const deepest = Math.max(0, ...names.map(depth));
  const alone = (name) => !edges.some((edge) => edge.from === name || edge.to === name); // was never called
  const found = [];
  for (const name of names) (found[alone(name) ? deepest : depth(name)] ??= []).push(name);
  return found.filter(Boolean);
}

function reaches(readers, from, to, seen = new Set()) {
  if (from === to) return true;
  if (seen.has(from)) return false;
  seen.add(from);
  return [...readers[from]].some((next) => reaches(readers, next, to, seen));
}

function wrapped(all, most) {
  return all.flatMap((layer) => {
    const count = Math.ceil(layer.length / most);
    const each = Math.ceil(layer.length / count);
    return Array.from({ length: count }, (_, index) => layer.slice(index * each, (index + 1) * each)).filter(
      (row) => row.length,
    );
  });
}

function route(edge, place) {
  const [from, to] = [place[edge.from], place[edge.to]];
  const down = to.row - from.row;
  const how = down === 0 ? "row" : Math.abs(down) === 1 ? "next" : "side";
  const up = down < 0 || (down === 0 && to.column < from.column);
  return { ...edge, how, up, top: Math.min(from.row, to.row), dashed: Boolean(edge.recall) || down <= 0 };
}

/** Gives each bowed line its lane: the first one that no line over the same stretch holds; short ones lie inside. */
function assignLanes(routed, place, rows) {
  const used = { left: [], right: [], over: rows.map(() => []), under: rows.map(() => []) };
  const middle = (name) => place[name].column - (place[name].of - 1) / 2;
  const stretch = (edge) => {
    const at = (name) => (edge.how === "row" ? place[name].column : place[name].row);
    return [Math.min(at(edge.from), at(edge.to)), Math.max(at(edge.from), at(edge.to))];
  };
  const span = (edge) => stretch(edge)[1] - stretch(edge)[0];
  const bowed = routed.filter((edge) => edge.how !== "next").sort((a, b) => span(a) - span(b));
  let even = 0;
  for (const edge of bowed) {
    if (edge.how === "side") {
      const lean = middle(edge.from) + middle(edge.to);
      const right = lean === 0 ? (even++ % 2 === 0) !== edge.up : lean > 0;
      edge.side = right ? "right" : "left";
    } else {
      edge.side = edge.up ? "under" : "over";
    }
    const taken = edge.how === "side" ? used[edge.side] : used[edge.side][edge.top];
    const [low, high] = stretch(edge);
    edge.lane = 0;
    while ((taken[edge.lane] ?? []).some(([from, to]) => low < to && from < high)) edge.lane += 1;
    (taken[edge.lane] ??= []).push([low, high]);
  }
  return used;
}

function stand(rows, size, lanes, space) {
  const widest = Math.max(...rows.map((row) => row.length));
  const inner = widest * size.width + (widest - 1) * space;
  const left = 4 + lanes.left.length * LANE + (lanes.left.length ? 12 : 0);
  const right = 4 + lanes.right.length * LANE + (lanes.right.length ? 12 : 0) + (space > SPACE ? 44 : 0);
  const nodes = {};
  let y = 4;
  rows.forEach((row, index) => {
    y += lanes.over[index].length * LANE;
    const start = left + (inner - row.length * size.width - (row.length - 1) * space) / 2;
    row.forEach((name, column) => (nodes[name] = { x: start + column * (size.width + space), y, ...size }));
    y += size.height + lanes.under[index].length * LANE + (index + 1 < rows.length ? GAP : 4);
  });
  return { nodes, width: left + inner + right, height: y, left, right: left + inner };
}

/** Gives every end of a line its own place on the edge of its agent, `start` and `end` {x, y}, so that few cross. */
function spread(routed, grid) {
  const sides = {};
  const put = (edge, end, name, bottom, toward) => {
    (sides[`${bottom} ${name}`] ??= { node: grid.nodes[name], bottom, ends: [] }).ends.push({ edge, end, toward });
  };
  const middle = (name) => grid.nodes[name].x + grid.nodes[name].width / 2;
  for (const edge of routed) {
    const lane = edge.side === "left" ? grid.left - edge.lane * LANE : grid.right + edge.lane * LANE;
    for (const [end, name, other] of [["start", edge.from, edge.to], ["end", edge.to, edge.from]]) {
      const away = middle(other) - middle(name);
      // Within a row the far-reaching bow encloses the near one, so it stands nearer to the agent's middle
      const toward = { next: middle(other), side: lane, row: away > 0 ? FAR - away : -FAR - away }[edge.how];
      const bottom = edge.how === "row" ? edge.side === "under" : (end === "start") !== edge.up;
      put(edge, end, name, bottom, toward);
    }
  }
  for (const { node, bottom, ends } of Object.values(sides)) {
    ends.sort((a, b) => a.toward - b.toward || Number(a.edge.up) - Number(b.edge.up));
    const step = Math.min(26, (node.width - 28) / ends.length);
    ends.forEach(({ edge, end }, index) => {
      const x = node.x + node.width / 2 + (index - (ends.length - 1) / 2) * step;
      edge[end] = { x, y: bottom ? node.y + node.height : node.y };
    });
  }
}

function curve(edge, grid, crowd) {
  const over = edge.how === "row" && edge.side === "over";
  const arrowUp = edge.how === "row" ? !over : edge.up;
  const tip = edge.end;
  const end = { x: tip.x, y: tip.y + (arrowUp ? HEAD - 2 : 2 - HEAD) }; // the line stops within its head
  const head = `M${spot(tip)} l-5,${arrowUp ? HEAD : -HEAD} l10,0 z`;
  if (edge.how === "row") return { head, ...bow(edge, end, over) };
  return { head, ...(edge.how === "next" ? soft(edge.start, end, crowd) : lane(edge, end, grid)) };
}

function soft(start, end, crowd) {
  const half = (end.y - start.y) / 2;
  const points = [start, { x: start.x, y: start.y + half }, { x: end.x, y: end.y - half }, end];
  const path = `M${spot(start)} C${points.slice(1).map(spot).join(" ")}`;
  return { path, label: along(points, crowd > 1 ? 0.35 : 0.45) };
}

function lane({ start, side, lane: number, up }, end, grid) {
  const out = 16 + number * LANE;
  const x = round(side === "left" ? grid.left - out : grid.right + out);
  const turn = up ? -GAP + HEAD : GAP - HEAD;
  const path =
    `M${spot(start)} C${round(start.x)},${round(start.y + turn / 2)} ${x},${round(start.y + turn / 4)} ` +
    `${x},${round(start.y + turn)} L${x},${round(end.y - turn)} C${x},${round(end.y - turn / 4)} ` +
    `${round(end.x)},${round(end.y - turn / 2)} ${spot(end)}`;
  return { path, label: { x, y: (start.y + end.y) / 2 } };
}

function bow({ start, lane: number }, end, over) {
  const height = (over ? -1 : 1) * LANE * (number + 0.75);
  const bend = round(start.y + height / 0.75);
  const path = `M${spot(start)} C${round(start.x)},${bend} ${round(end.x)},${bend} ${spot(end)}`;
  return { path, label: { x: (start.x + end.x) / 2, y: start.y + height } };
}

function loop(node) {
  const [x, y] = [node.x + node.width, node.y + node.height / 2];
  const path = `M${spot({ x, y: y - 14 })} C${spot({ x: x + 40, y: y - 26 })} ${spot({ x: x + 44, y: y
    + 22 })} ${spot({ x: x + 8, y: y + 14 })}`;
  return { path, head: `M${spot({ x, y: y + 13 })} l11,-3 l-3,8 z`, label: { x: x + 32, y } };
}

function along([a, b, c, d], t) {
  const s = 1 - t;
  const mix = (axis) => s ** 3 * a[axis] + 3 * s * s * t * b[axis] + 3 * s * t * t * c[axis] + t ** 3 * d[axis];
  return { x: mix("x"), y: mix("y") };
}

const round = (number) => Math.round(number * 10) / 10;
const spot = (point) => `${round(point.x)},${round(point.y)}`;

// ------------------------------------------------------------------------------------------- an episode's stages

/** What tells one line from another. */
export const keyOf = (edge) => JSON.stringify([edge.from, edge.to, Boolean(edge.recall)]);

/** An episode in stages, [{turn, round, rounds, places}]: in each no agent speaks twice, and all come after those they
 * read. A turn is one stage unless its agents answer each other in it. A call and what follows its tool are one stage.
 */
export function stages(actions) {
  const last = {};
  const round = [];
  actions.forEach((action, place) => {
    const mine = last[action.agent];
    const continued = mine !== undefined && actions[mine].turn === action.turn && toolAnswered(action, actions);
    const again = mine !== undefined && actions[mine].turn === action.turn ? round[mine] + (continued ? 0 : 1) : 0;
    const read = parentsOf(action, actions).filter((each) => actions[each].turn === action.turn && each < place);
    round.push(Math.max(again, ...read.map((each) => round[each])));
    last[action.agent] = place;
  });
  const found = new Map();
  actions.forEach(({ turn }, place) => {
    const key = turn * 1e6 + round[place];
    if (!found.has(key)) found.set(key, { turn, round: round[place], places: [] });
    found.get(key).places.push(place);
  });
  const sorted = [...found].sort(([a], [b]) => a - b).map(([, stage]) => stage);
  return sorted.map((stage) => ({ ...stage, rounds: sorted.filter((each) => each.turn === stage.turn).length }));
}

const parentsOf = (action, actions) => (action.parents ?? []).filter((place) => actions[place]);
const toolAnswered = (action, actions) => parentsOf(action, actions)
  .some((place) => actions[place].agent === action.agent && actions[place].tool_results?.length);

/** Who read whom in some actions, [{from, to, recall, count}]; as in a run's counts, own calls are none. */
export function edgesOf(places, actions) {
  const found = new Map();
  for (const action of places.map((place) => actions[place])) {
    if (toolAnswered(action, actions)) continue;
    for (const speaker of parentsOf(action, actions).map((place) => actions[place])) {
      const edge = { from: speaker.agent, to: action.agent, recall: speaker.turn < action.turn, per_episode: 1 };
      found.set(keyOf(edge), { ...edge, count: (found.get(keyOf(edge))?.count ?? 0) + 1 });
    }
  }
  return [...found.values()];
}
