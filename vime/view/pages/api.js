// Requests to the server, and the rows of metrics that are already here.

export async function get(route, words = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(words)) {
    for (const one of Array.isArray(value) ? value : [value]) if (one != null && one !== "") query.append(name, one);
  }
  const answer = await fetch(`/api/${route}?${query}`, { headers: { accept: "application/json" } });
  const data = await answer.json().catch(() => ({ problem: `the server answered ${answer.status}` }));
  if (!answer.ok) throw new Error(data.problem);
  return data;
}

const known = new Map();

/** All rows of a run's metrics; only those that are new travel. */
export async function metrics(run) {
  const before = known.get(run) ?? { rows: [], offset: 0, inode: 0 };
  const found = await get("metrics", { run, offset: before.offset, inode: before.inode });
  const rows = found.from === 0 ? found.rows : [...before.rows, ...found.rows];
  known.set(run, { rows, offset: found.offset, inode: found.inode });
  return rows;
}

/** The curves, of which those of evaluations begin with the untrained and end with the trained agent, whose scores are not in the metrics. */
export function withEnds(found, datasets, numSteps) {
  const all = { ...found };
  for (const [name, { scaffold, trained }] of Object.entries(datasets)) {
    let { x, y } = found[`evaluation/${name}`] ?? { x: [], y: [] };
    if (scaffold?.mean != null && x[0] !== 0 && (x.length || trained?.mean != null)) [x, y] = [[0, ...x], [scaffold.mean, ...y]];
    if (trained?.mean != null && x.at(-1) !== numSteps) [x, y] = [[...x, numSteps], [...y, trained.mean]];
    if (x.length) all[`evaluation/${name}`] = { x, y };
  }
  return all;
}

/** {metric: {x: steps, y: values}} in the order of steps; null stands for a value that is no number. */
export function curves(rows) {
  const found = {};
  for (const row of [...rows].sort((a, b) => a.step - b.step)) {
    for (const [name, value] of Object.entries(row)) {
      if (name === "step" || name === "time") continue;
      (found[name] ??= { x: [], y: [] }).x.push(row.step);
      found[name].y.push(value);
    }
  }
  return found;
}
