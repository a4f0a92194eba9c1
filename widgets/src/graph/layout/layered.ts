/** The layout of one level: boxes in ranks, so that edges go down; few crossings; edges as straight as may be. */

/** Boxes are numbered so that edges lead from lower numbers to higher ones. */
export interface Level {
  width: Float32Array;
  height: Float32Array;
  /** Boxes that stand at the very top, and at the very bottom: the inputs and results of the level. */
  top: Uint8Array;
  bottom: Uint8Array;
  from: Int32Array;
  to: Int32Array;
  /** Where an edge leaves and enters, from the middle of the box. */
  fromDx: Float32Array;
  toDx: Float32Array;
  /** Boxes that are open: two of them stand above each other by their middles, whatever their ports, so that a column of them is upright. */
  open: Uint8Array;
}

export interface Placed {
  /** The top left corner of each box. */
  x: Float32Array;
  y: Float32Array;
  width: number;
  height: number;
  /** For each edge the offset of its points: where it leaves, two points for each rank that it passes, where it enters. */
  starts: Int32Array;
  points: Float32Array;
  /** Edges that would pass too many ranks are cut: only their ends are drawn. */
  cut: Uint8Array;
}

export const GAP = 16;
export const RANK_GAP = 26;
/** What an edge that passes a rank takes of it. */
const LANE = 10;
const SWEEPS = 6;
/** Levels of more boxes get fewer sweeps. */
const MANY = 4000;
/** So many boxes that read nothing stand beside each other above the one that reads them. */
const ABREAST = 3;
/** A shelf of unconnected parts is filled up to this ratio of width to height. */
const RATIO = 1.8;

/** Places the boxes of a level. Parts that are not connected stand beside each other, in shelves. */
export function layered(level: Level): Placed {
  const n = level.width.length;
  const part = parts(level);
  const nParts = part.reduce((max, p) => Math.max(max, p + 1), 0);
  if (nParts <= 1) return place(level);
  const nodes: number[][] = Array.from({ length: nParts }, () => []);
  const edges: number[][] = Array.from({ length: nParts }, () => []);
  for (let i = 0; i < n; i++) nodes[part[i]!]!.push(i);
  for (let e = 0; e < level.from.length; e++) edges[part[level.from[e]!]!]!.push(e);
  const places = nodes.map((ns, p) => place(restrict(level, ns, edges[p]!)));
  const area = places.reduce((sum, p) => sum + (p.width + GAP) * (p.height + GAP), 0);
  // What has inputs or results of the level reaches from its top to its bottom: the rest stands in shelves beside that.
  const isThrough = nodes.map((ns) => ns.some((i) => level.top[i] === 1 || level.bottom[i] === 1));
  const inOrder = places
    .map((_, p) => p)
    .sort((p, q) => Number(isThrough[q]) - Number(isThrough[p]) || p - q);
  const rest = places.filter((_, p) => !isThrough[p]);
  const restArea = rest.reduce((sum, p) => sum + (p.width + GAP) * (p.height + RANK_GAP), 0);
  const through = places.reduce((most, p, k) => (isThrough[k] ? Math.max(most, p.height) : most), 0);
  const widest = Math.max(
    ...rest.map((p) => p.width),
    through > 0 ? Math.min((1.3 * restArea) / through, Math.sqrt(restArea)) : Math.sqrt(area * RATIO),
  );
  /** Where the shelves begin. */
  let margin = 0;
  const x = new Float32Array(n);
  const y = new Float32Array(n);
  const cut = new Uint8Array(level.from.length);
  const routes: Float32Array[] = new Array(level.from.length);
  let [left, top, shelf, width, height] = [0, 0, 0, 0, 0];
  for (const p of inOrder) {
    const placed = places[p]!;
    if (!isThrough[p] && left > margin && left + placed.width > margin + widest) {
      top += shelf + RANK_GAP;
      left = margin;
      shelf = 0;
    }
    nodes[p]!.forEach((node, i) => {
      x[node] = placed.x[i]! + left;
      y[node] = placed.y[i]! + top;
    });
    edges[p]!.forEach((edge, i) => {
      const points = placed.points.slice(placed.starts[i]!, placed.starts[i + 1]!);
      for (let k = 0; k < points.length; k += 2) {
        points[k]! += left;
        points[k + 1]! += top;
      }
      routes[edge] = points;
      cut[edge] = placed.cut[i]!;
    });
    left += placed.width + GAP;
    if (isThrough[p]) margin = left;
    shelf = Math.max(shelf, placed.height);
    width = Math.max(width, left - GAP);
    height = Math.max(height, top + placed.height);
  }
  return { x, y, width, height, cut, ...joined(routes) };
}

/** The number of the connected part that each box is in. */
function parts({ width, from, to }: Level): Int32Array {
  const n = width.length;
  const root = Int32Array.from({ length: n }, (_, i) => i);
  const find = (i: number): number => {
    let a = i;
    while (root[a] !== a) a = root[a] = root[root[a]!]!;
    return a;
  };
  for (let e = 0; e < from.length; e++) {
    const [a, b] = [find(from[e]!), find(to[e]!)];
    if (a !== b) root[Math.max(a, b)] = Math.min(a, b);
  }
  const number = new Int32Array(n).fill(-1);
  let next = 0;
  return Int32Array.from({ length: n }, (_, i) => {
    const r = find(i);
    if (number[r]! < 0) number[r] = next++;
    return number[r]!;
  });
}

function restrict(level: Level, nodes: number[], edges: number[]): Level {
  const index = new Map(nodes.map((node, i) => [node, i]));
  const of = <T extends Float32Array | Uint8Array>(values: T, which: number[]) =>
    (values.constructor as unknown as { from(v: number[]): T }).from(which.map((i) => values[i]!));
  return {
    width: of(level.width, nodes),
    height: of(level.height, nodes),
    top: of(level.top, nodes),
    bottom: of(level.bottom, nodes),
    open: of(level.open, nodes),
    from: Int32Array.from(edges, (e) => index.get(level.from[e]!)!),
    to: Int32Array.from(edges, (e) => index.get(level.to[e]!)!),
    fromDx: of(level.fromDx, edges),
    toDx: of(level.toDx, edges),
  };
}

function joined(routes: readonly Float32Array[]): { starts: Int32Array; points: Float32Array } {
  const starts = new Int32Array(routes.length + 1);
  routes.forEach((r, i) => {
    starts[i + 1] = starts[i]! + r.length;
  });
  const points = new Float32Array(starts[routes.length]!);
  routes.forEach((r, i) => {
    points.set(r, starts[i]!);
  });
  return { starts, points };
}

function place(level: Level): Placed {
  const n = level.width.length;
  if (n === 1 && level.from.length === 0)
    return {
      x: new Float32Array(1),
      y: new Float32Array(1),
      width: level.width[0]!,
      height: level.height[0]!,
      ...joined([]),
      cut: new Uint8Array(0),
    };
  const rank = ranks(level);
  const graph = withLanes(level, rank);
  order(graph, n > MANY ? 2 : SWEEPS);
  const centre = coordinates(graph, n > MANY ? 2 : SWEEPS);
  return finish(level, graph, centre);
}

/** The rank of each box: below all that it reads, and no further from its readers than need be. */
export function ranks({ width, top, bottom, from, to }: Level): Int32Array {
  const n = width.length;
  const out = lists(n, from);
  const rank = new Int32Array(n);
  const hasTop = top.some((t) => t === 1);
  const ins = new Int32Array(n);
  for (const j of to) ins[j]! += 1;
  // Boxes that read nothing and that one other reads, such as zeros, stand in rows above that one.
  const rowsUp = new Int32Array(n);
  const above = new Int32Array(n);
  for (let i = 0; i < n; i++) {
    if (ins[i]! > 0 || top[i] === 1 || out.starts[i + 1]! - out.starts[i]! !== 1) continue;
    rowsUp[i] = Math.floor(above[to[out.items[out.starts[i]!]!]!]!++ / ABREAST);
  }
  for (let i = 0; i < n; i++) {
    if (hasTop && top[i] === 0) rank[i] = Math.max(rank[i]!, 1);
    for (let k = out.starts[i]!; k < out.starts[i + 1]!; k++) {
      const j = to[out.items[k]!]!;
      if (j > i) rank[j] = Math.max(rank[j]!, rank[i]! + 1 + rowsUp[i]!);
    }
  }
  for (let i = n - 1; i >= 0; i--) {
    const outs = out.starts[i + 1]! - out.starts[i]!;
    if (top[i] === 1 || bottom[i] === 1 || outs === 0 || ins[i]! >= outs + (ins[i] === 0 ? 1 : 0)) continue;
    let least = Infinity;
    for (let k = out.starts[i]!; k < out.starts[i + 1]!; k++)
      least = Math.min(least, rank[to[out.items[k]!]!]!);
    if (least - 1 - rowsUp[i]! > rank[i]!) rank[i] = least - 1 - rowsUp[i]!;
  }
  const inner = rank.reduce((max, r, i) => (bottom[i] === 1 ? max : Math.max(max, r)), 0);
  for (let i = 0; i < n; i++) if (bottom[i] === 1) rank[i] = inner + 1;
  return rank;
}

interface Lists {
  starts: Int32Array;
  items: Int32Array;
}

/** For each box the edges at one of their ends. */
function lists(n: number, ends: Int32Array): Lists {
  const starts = new Int32Array(n + 1);
  for (const end of ends) starts[end + 1]! += 1;
  for (let i = 0; i < n; i++) starts[i + 1]! += starts[i]!;
  const next = starts.slice();
  const items = new Int32Array(ends.length);
  for (let e = 0; e < ends.length; e++) items[next[ends[e]!]!++] = e;
  return { starts, items };
}

/** The boxes, and a lane for each rank that an edge passes; links lead from one rank to the next. */
interface Graph {
  rank: Int32Array;
  width: Float32Array;
  /** How straight a thing is to stand: lanes more than boxes. */
  weight: Float32Array;
  rows: number[][];
  position: Int32Array;
  linkFrom: Int32Array;
  linkTo: Int32Array;
  fromDx: Float32Array;
  toDx: Float32Array;
  /** How far the lower end is to stand to the right of the upper one. */
  shift: Float32Array;
  ups: Lists;
  downs: Lists;
  /** For each edge its first lane and how many it has. */
  firstLane: Int32Array;
  lanes: Int32Array;
  cut: Uint8Array;
  n: number;
}

function withLanes(level: Level, rank: Int32Array): Graph {
  const { from, to } = level;
  const n = level.width.length;
  const m = from.length;
  const cut = new Uint8Array(m);
  const span = (e: number) => rank[to[e]!]! - rank[from[e]!]!;
  let total = 0;
  for (let e = 0; e < m; e++) {
    if (span(e) < 1) cut[e] = 1;
    else total += span(e) - 1;
  }
  const most = 6 * n + 400;
  if (total > most) {
    const longest = Array.from({ length: m }, (_, e) => e).sort((a, b) => span(b) - span(a));
    for (const e of longest) {
      if (total <= most || span(e) < 4) break;
      cut[e] = 1;
      total -= span(e) - 1;
    }
  }
  const size = n + Math.max(0, total);
  const ranksOf = new Int32Array(size);
  ranksOf.set(rank);
  const width = new Float32Array(size).fill(LANE);
  width.set(level.width);
  const weight = new Float32Array(size).fill(4);
  weight.fill(1, 0, n);
  const firstLane = new Int32Array(m).fill(-1);
  const lanes = new Int32Array(m);
  const links: number[][] = [[], []];
  const dx: number[][] = [[], []];
  const link = (a: number, b: number, da: number, db: number) => {
    links[0]!.push(a);
    links[1]!.push(b);
    dx[0]!.push(da);
    dx[1]!.push(db);
  };
  const behind: number[][] = Array.from({ length: n }, () => []);
  let next = n;
  for (let e = 0; e < m; e++) {
    if (cut[e] === 1) continue;
    const [a, b] = [from[e]!, to[e]!];
    let last = a;
    firstLane[e] = next;
    lanes[e] = span(e) - 1;
    for (let r = rank[a]! + 1; r < rank[b]!; r++) {
      ranksOf[next] = r;
      behind[a]!.push(next);
      link(last, next, last === a ? level.fromDx[e]! : 0, 0);
      last = next++;
    }
    link(last, b, last === a ? level.fromDx[e]! : 0, level.toDx[e]!);
  }
  const nRanks = ranksOf.reduce((max, r) => Math.max(max, r + 1), 0);
  const rows: number[][] = Array.from({ length: nRanks }, () => []);
  for (let i = 0; i < n; i++) {
    rows[rank[i]!]!.push(i);
    for (const lane of behind[i]!) rows[ranksOf[lane]!]!.push(lane);
  }
  const position = new Int32Array(size);
  for (const row of rows)
    row.forEach((i, k) => {
      position[i] = k;
    });
  const linkFrom = Int32Array.from(links[0]!);
  const linkTo = Int32Array.from(links[1]!);
  return {
    rank: ranksOf,
    width,
    weight,
    rows,
    position,
    linkFrom,
    linkTo,
    fromDx: Float32Array.from(dx[0]!),
    toDx: Float32Array.from(dx[1]!),
    shift: Float32Array.from(linkFrom, (a, l) => {
      const b = linkTo[l]!;
      return a < n && b < n && level.open[a] === 1 && level.open[b] === 1 ? 0 : dx[0]![l]! - dx[1]![l]!;
    }),
    ups: lists(size, linkTo),
    downs: lists(size, linkFrom),
    firstLane,
    lanes,
    cut,
    n,
  };
}

/** Orders each rank by where its neighbours stand, down and up; the order with the fewest crossings is kept. */
function order(g: Graph, sweeps: number): void {
  const key = new Float64Array(g.rank.length);
  let best = crossings(g);
  let kept = g.rows.map((row) => row.slice());
  for (let sweep = 0; sweep < sweeps && best > 0; sweep++) {
    const down = sweep % 2 === 0;
    const { starts, items } = down ? g.ups : g.downs;
    const ends = down ? g.linkFrom : g.linkTo;
    const dx = down ? g.fromDx : g.toDx;
    for (let r = 0; r < g.rows.length; r++) {
      const row = g.rows[down ? r : g.rows.length - 1 - r]!;
      for (const i of row) {
        const count = starts[i + 1]! - starts[i]!;
        let sum = 0;
        // Where an edge leaves a wide box counts as a part of a place.
        for (let k = starts[i]!; k < starts[i + 1]!; k++) {
          const other = ends[items[k]!]!;
          sum += g.position[other]! + dx[items[k]!]! / (g.width[other]! + 1);
        }
        key[i] = count === 0 ? g.position[i]! : sum / count;
      }
      row.sort((a, b) => key[a]! - key[b]! || g.position[a]! - g.position[b]!);
      row.forEach((i, k) => {
        g.position[i] = k;
      });
    }
    const now = crossings(g);
    if (now < best) {
      best = now;
      kept = g.rows.map((row) => row.slice());
    }
  }
  g.rows = kept;
  for (const row of kept)
    row.forEach((i, k) => {
      g.position[i] = k;
    });
}

/** How many pairs of links cross. */
function crossings(g: Graph): number {
  let total = 0;
  for (let r = 0; r + 1 < g.rows.length; r++) {
    const size = g.rows[r + 1]!.length;
    if (size < 2) continue;
    const tree = new Int32Array(size + 1);
    let seen = 0;
    for (const i of g.rows[r]!) {
      const ends: number[] = [];
      for (let k = g.downs.starts[i]!; k < g.downs.starts[i + 1]!; k++)
        ends.push(g.position[g.linkTo[g.downs.items[k]!]!]!);
      for (const end of ends) {
        let before = 0;
        for (let k = end + 1; k > 0; k -= k & -k) before += tree[k]!;
        total += seen - before;
      }
      for (const end of ends) {
        for (let k = end + 1; k <= size; k += k & -k) tree[k]! += 1;
        seen += 1;
      }
    }
  }
  return total;
}

/** The middle of each thing: as near to its neighbours as those beside it leave room for. */
function coordinates(g: Graph, sweeps: number): Float64Array {
  const x = new Float64Array(g.rank.length);
  for (const row of g.rows) {
    let left = 0;
    for (const i of row) {
      x[i] = left + g.width[i]! / 2;
      left += g.width[i]! + gap(g, i, i);
    }
    const half = left / 2;
    for (const i of row) x[i]! -= half;
  }
  const wanted = new Float64Array(g.rank.length);
  for (let sweep = 0; sweep <= sweeps; sweep++) {
    const [up, down] = sweep === sweeps ? [true, true] : [sweep % 2 === 0, sweep % 2 === 1];
    for (let r = 0; r < g.rows.length; r++) {
      const row = g.rows[up ? r : g.rows.length - 1 - r]!;
      for (const i of row) {
        let sum = 0;
        let weights = 0;
        const add = (other: number, at: number) => {
          // Two lanes of one edge are to stand above each other.
          const weight = i >= g.n && other >= g.n ? 8 : i >= g.n || other >= g.n ? 2 : 1;
          sum += weight * at;
          weights += weight;
        };
        if (up)
          for (let k = g.ups.starts[i]!; k < g.ups.starts[i + 1]!; k++) {
            const l = g.ups.items[k]!;
            add(g.linkFrom[l]!, x[g.linkFrom[l]!]! + g.shift[l]!);
          }
        if (down)
          for (let k = g.downs.starts[i]!; k < g.downs.starts[i + 1]!; k++) {
            const l = g.downs.items[k]!;
            add(g.linkTo[l]!, x[g.linkTo[l]!]! - g.shift[l]!);
          }
        wanted[i] = weights === 0 ? x[i]! : sum / weights;
      }
      spread(g, row, wanted, x);
    }
  }
  for (let pass = 0; pass < 2; pass++) straighten(g, x);
  return x;
}

/** Puts the lanes of an edge above each other, as far as what stands beside them leaves room. */
function straighten(g: Graph, x: Float64Array): void {
  const room = (i: number): [number, number] => {
    const row = g.rows[g.rank[i]!]!;
    const k = g.position[i]!;
    const [before, after] = [row[k - 1], row[k + 1]];
    const half = g.width[i]! / 2;
    return [
      before === undefined ? -Infinity : x[before]! + g.width[before]! / 2 + gap(g, before, i) + half,
      after === undefined ? Infinity : x[after]! - g.width[after]! / 2 - gap(g, i, after) - half,
    ];
  };
  for (let e = 0; e < g.firstLane.length; e++) {
    const end = g.firstLane[e]! + g.lanes[e]!;
    for (let start = g.firstLane[e]!; start < end; ) {
      let [low, high] = [-Infinity, Infinity];
      let stop = start;
      let sum = 0;
      for (; stop < end; stop++) {
        const [a, b] = room(stop);
        if (Math.max(low, a) > Math.min(high, b)) break;
        [low, high] = [Math.max(low, a), Math.min(high, b)];
        sum += x[stop]!;
      }
      if (stop === start) {
        start += 1;
        continue;
      }
      const at = Math.min(high, Math.max(low, sum / (stop - start)));
      for (; start < stop; start++) x[start] = at;
    }
  }
}

function gap(g: Graph, a: number, b: number): number {
  return a >= g.n && b >= g.n ? 2 : GAP;
}

/** The places nearest to the wanted ones, by least squares, in which the things of a rank do not overlap (pool adjacent violators). */
function spread(g: Graph, row: readonly number[], wanted: Float64Array, x: Float64Array): void {
  const means: number[] = [];
  const weights: number[] = [];
  const counts: number[] = [];
  const offsets = new Float64Array(row.length);
  for (let k = 0; k < row.length; k++) {
    const i = row[k]!;
    if (k > 0) {
      const before = row[k - 1]!;
      offsets[k] = offsets[k - 1]! + (g.width[before]! + g.width[i]!) / 2 + gap(g, before, i);
    }
    let [mean, weight, count] = [wanted[i]! - offsets[k]!, g.weight[i]!, 1];
    while (means.length > 0 && means.at(-1)! > mean) {
      const w = weights.pop()!;
      mean = (mean * weight + means.pop()! * w) / (weight + w);
      weight += w;
      count += counts.pop()!;
    }
    means.push(mean);
    weights.push(weight);
    counts.push(count);
  }
  let k = 0;
  means.forEach((mean, block) => {
    for (let c = 0; c < counts[block]!; c++, k++) x[row[k]!] = mean + offsets[k]!;
  });
}

function finish(level: Level, g: Graph, centre: Float64Array): Placed {
  const n = g.n;
  const tops = new Float64Array(g.rows.length);
  const heights = new Float64Array(g.rows.length);
  let [y, left, right] = [0, Infinity, -Infinity];
  g.rows.forEach((row, r) => {
    let tallest = 0;
    for (const i of row) {
      if (i < n) tallest = Math.max(tallest, level.height[i]!);
      left = Math.min(left, centre[i]! - g.width[i]! / 2);
      right = Math.max(right, centre[i]! + g.width[i]! / 2);
    }
    tops[r] = y;
    heights[r] = tallest;
    y += tallest + RANK_GAP;
  });
  const x = new Float32Array(n);
  const ys = new Float32Array(n);
  for (let i = 0; i < n; i++) {
    const r = g.rank[i]!;
    x[i] = centre[i]! - g.width[i]! / 2 - left;
    // A level's inputs stand at its upper edge; other boxes in the middle of their rank, so that chains are evenly spaced.
    ys[i] =
      tops[r]! +
      (level.bottom[i] === 1
        ? heights[r]! - level.height[i]!
        : level.top[i] === 1
          ? 0
          : Math.min(12, (heights[r]! - level.height[i]!) / 2));
  }
  const routes: Float32Array[] = [];
  for (let e = 0; e < level.from.length; e++) {
    const [a, b] = [level.from[e]!, level.to[e]!];
    const out = centre[a]! - left + level.fromDx[e]!;
    const points = [out, ys[a]! + level.height[a]!];
    const below = tops[g.rank[a]!]! + heights[g.rank[a]!]!;
    // Straight down past taller boxes of its rank.
    if (below > points[1]! + 1) points.push(out, points[1]!, out, below);
    for (let k = 0; k < g.lanes[e]!; k++) {
      const lane = g.firstLane[e]! + k;
      const r = g.rank[lane]!;
      points.push(centre[lane]! - left, tops[r]!, centre[lane]! - left, tops[r]! + heights[r]!);
    }
    points.push(centre[b]! - left + level.toDx[e]!, ys[b]!);
    routes.push(Float32Array.from(points));
  }
  return { x, y: ys, width: right - left, height: y - RANK_GAP, cut: g.cut, ...joined(routes) };
}
