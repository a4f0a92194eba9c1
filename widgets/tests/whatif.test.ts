import { describe, expect, it, test, vi } from "vitest";
import fixture from "../../tests/fixtures/whatif.json";
import { switchesOf } from "../src/host/sync";
import { timelineOf } from "../src/model/drawn";
import { NOTHING, Settings } from "../src/model/settings";
import { Switches } from "../src/model/switches";
import { differenceOf, rowsOf, sortedRows, unfolded } from "../src/model/switchrows";
import { totalsOf } from "../src/model/timeline";
import { effectOf, fromTo } from "../src/panes/switcheffects";
import type { DrawnMemory, SwitchTable, TriedSettings, TriedTrade } from "../src/wire/explorer.generated";
import { host } from "./host";

interface Program {
  table: SwitchTable;
  settings: { regions: number[]; saved: number[]; offloaded: number[]; key: string }[];
  flips: [string, number, string][];
  tried: TriedSettings;
  drawn: DrawnMemory;
}

const { jax: _, ...others } = fixture as unknown as { jax: string } & Record<string, Program>;
const programs = others as Record<string, Program>;

describe.each(Object.entries(programs))("%s", (_name, { table, settings: cases, flips, drawn, tried }) => {
  const settings = new Settings(table);

  it.each(cases)("has the same key for a setting as Python: $key", ({ regions, saved, offloaded, key }) => {
    expect(
      settings.key({ regions: new Set(regions), saved: new Set(saved), offloaded: new Set(offloaded) }),
    ).toBe(key);
    expect(settings.key(settings.parse(key))).toBe(key);
  });

  it.each(flips)("toggles a checkpoint like Python: %s, region %i", (from, region, to) => {
    expect(settings.key(settings.flipped(settings.parse(from), region).setting)).toBe(to);
  });

  it("draws the given peak", () => {
    const { total, peak } = totalsOf(timelineOf(drawn));
    expect(total[peak]).toBe(tried.trades[drawn.key]![0]);
  });

  it("has a row for each group in a checkpoint, which expands into its values", () => {
    const [first] = settings.valuesOf;
    const rows = rowsOf(settings, { ...NOTHING, regions: new Set([0]) });
    expect(rows.flatMap((row) => row.values).sort((a, b) => a - b)).toEqual(first);
    for (const row of rows) {
      const inside = unfolded(settings, { ...NOTHING, regions: new Set([0]) }, row);
      expect(inside.map((one) => one.values)).toEqual(row.values.map((value) => [value]));
      expect(inside.reduce((sum, one) => sum + one.nbytes, 0)).toBe(row.nbytes);
    }
  });
});

test("rows with unknown effects are last, in either order", () => {
  const settings = new Settings(programs["layers"]!.table);
  const rows = rowsOf(settings, { ...NOTHING, regions: new Set([2]) });
  const [unknown] = rows;
  const peaks = new Map(rows.slice(1).map((row, i) => [row, -i]));
  for (const descending of [true, false]) {
    const sorted = sortedRows(rows, "peak", descending, (row) =>
      row === unknown ? null : [peaks.get(row)!, 0, 0, 0],
    );
    expect(sorted.at(-1)).toBe(unknown);
    const known = sorted.slice(0, -1).map((row) => peaks.get(row)!);
    expect(known).toEqual([...known].sort((a, b) => (descending ? b - a : a - b)));
  }
  expect(differenceOf(null, [1, 2, 3, 0])).toBeNull();
  expect(differenceOf([1, 2, 3, 0], [4, 4, 4, 5])).toEqual([3, 2, 1, 5]);
});

test("a switch says what it would change", () => {
  const [now, next]: [TriedTrade, TriedTrade] = [
    [64.6 * 2 ** 20, 39 * 2 ** 20, 0, 0],
    [32.1 * 2 ** 20, 6.6 * 2 ** 20, 13, 0],
  ];
  expect(effectOf("if switched on", now, next, 1000)).toBe(
    "if switched on: peak 64.6 → 32.1 MiB, saved 39.0 → 6.6 MiB, 1.3 % more work (13 FLOP)",
  );
  expect(effectOf("if switched off", next, now, 1000)).toContain("1.3 % less work");
  expect(effectOf("if saved", now, now, 0)).toBe(
    "if saved: peak 64.6 MiB as now, saved 39.0 MiB as now, no more work",
  );
  expect(fromTo(2 ** 20, 1023)).toEqual(["1.0 MiB", "1023 B"]);
});

test("overlapping regions exclude each other, and the change is reported", () => {
  const { table } = programs["halves"]!;
  const regions = table.regions.map((r, i) => ({ ...r, crosses: i === 0 ? [1] : i === 1 ? [0] : [] }));
  const settings = new Settings({ ...table, regions });
  const both = settings.flipped({ ...NOTHING, regions: new Set([1]) }, 0);
  expect([[...both.setting.regions], both.gone]).toEqual([[0], [1]]);
});

test("recomputing a value outside all checkpoints adds one that saves everything else", () => {
  const settings = new Settings(programs["layers"]!.table);
  const none = NOTHING;
  const [value] = settings.valuesOf[0]!;
  const found = settings.without(none, [value!])!;
  expect(found.added).toEqual([0]);
  expect([...found.setting.saved].sort((a, b) => a - b)).toEqual(settings.valuesOf[0]!.slice(1));
  expect(settings.without(found.setting, [value!])!.added).toEqual([]);
  expect(settings.without(none, [999])).toBeNull();
});

/** A kernel that answers from the fixture on demand. */
function kernel({ table, tried, drawn }: Program) {
  const start = {
    trades: { "": tried.trades[""], "||": tried.trades["||"] },
    failed: {},
    plan: null,
    asked: 0,
  };
  const model = host({
    what_if: JSON.stringify(table),
    tried: JSON.stringify(start),
    drawn: "",
    written: "",
  });
  let known: Record<string, unknown> = start.trades;
  const answer = (plan: string | null = null) => {
    const asked = model.sent.pop() as {
      keys: string[];
      draw?: string;
      compile?: string;
      code?: string;
      plan?: boolean;
    };
    if (asked.compile !== undefined)
      model.values["line"] = JSON.stringify({ key: asked.compile, turn: 1, total: [8, 24], error: "" });
    const keys = [...asked.keys, ...(plan === null ? [] : [plan])];
    known = { ...known, ...Object.fromEntries(keys.map((key) => [key, tried.trades[key] ?? [9, 9, 9, 0]])) };
    if (asked.draw !== undefined) model.values["drawn"] = JSON.stringify({ ...drawn, key: asked.draw });
    if (asked.code !== undefined)
      model.values["written"] = JSON.stringify({ key: asked.code, text: "# code" });
    model.set("tried", JSON.stringify({ trades: known, failed: {}, plan, asked: model.sent.length }));
    return asked;
  };
  const switches = new Switches(switchesOf(model as never));
  switches.ask();
  return { model, answer, switches };
}

test("the compiled memory is requested by a button, and cleared when the switches change", () => {
  const { model, answer, switches } = kernel(programs["layers"]!);
  switches.want(() => []);
  switches.compile();
  expect([switches.isCompiling, switches.line]).toEqual([true, null]);
  expect(answer().compile).toBe("");
  expect([switches.isCompiling, switches.line?.total]).toEqual([false, [8, 24]]);
  switches.flip(0);
  expect(switches.line).toBeNull();
  answer();
  answer();
  expect(model.sent).toEqual([]); // nothing is compiled without a request
  switches.compile();
  expect(answer().compile).toBe("0||");
  expect(switches.line?.key).toBe("0||");
  switches.compile();
  switches.undo();
  expect([switches.isCompiling, switches.line]).toEqual([false, null]);
});

test("a compilation for another pane is the line of the function as written, and of no other setting", () => {
  const { model, switches } = kernel(programs["layers"]!);
  model.values["line"] = JSON.stringify({ key: "", turn: 1, total: [8, 24], error: "" });
  switches.takeLine();
  expect(switches.line?.total).toEqual([8, 24]);
  switches.flip(0);
  expect(switches.line).toBeNull();
  switches.undo();
  expect(switches.line?.total).toEqual([8, 24]);
  // A page without a kernel shows it immediately.
  expect(new Switches(switchesOf(model as never)).line?.total).toEqual([8, 24]);
});

test("the current setting is requested first, then its memory over time, then its neighbours", () => {
  const { model, answer, switches } = kernel(programs["layers"]!);
  expect(model.sent).toEqual([]);
  switches.want(() => ["1||", "2||"]);
  expect(model.sent).toEqual([{ work: "try", keys: ["1||", "2||"] }]);
  switches.flip(0);
  expect(switches.isPending).toBe(true);
  expect(model.sent).toHaveLength(1); // the kernel is busy
  answer();
  expect(model.sent).toEqual([{ work: "try", keys: ["0||"] }]);
  answer();
  expect(switches.isPending).toBe(false);
  expect(switches.trade()).toEqual(programs["layers"]!.tried.trades["0||"]);
  expect([switches.isDrawing, switches.timeline]).toEqual([true, null]);
  expect(answer().draw).toBe("0||");
  expect(switches.isDrawing).toBe(false);
  expect(totalsOf(switches.timeline!).total.length).toBeGreaterThan(0);
  expect(model.sent).toEqual([]);
  // Known effects are available immediately.
  switches.flip(1);
  expect(answer().keys).toEqual(["0,1||"]);
  switches.undo();
  expect(switches.isPending).toBe(false);
  expect(switches.trade()).toEqual(programs["layers"]!.tried.trades["0||"]);
  switches.destroy();
  expect(model.count()).toBe(0);
});

test("clicks are undone one by one, and redone", () => {
  const { switches } = kernel(programs["layers"]!);
  switches.flip(0);
  switches.flip(2);
  switches.choose(null);
  expect([switches.key, switches.canRedo]).toEqual(["", false]);
  switches.undo();
  expect(switches.key).toBe("0,2||");
  switches.undo();
  expect(switches.key).toBe("0||");
  switches.undo();
  expect([switches.key, switches.chosen, switches.canUndo]).toEqual(["", null, false]);
  switches.undo();
  switches.redo();
  switches.redo();
  expect(switches.key).toBe("0,2||");
  switches.flip(0);
  expect(switches.canRedo).toBe(false);
});

test("applying the plan changes all switches, and says so", () => {
  const { model, answer, switches } = kernel(programs["layers"]!);
  switches.plan();
  expect(switches.isPlanning).toBe(true);
  expect(model.sent).toEqual([{ work: "try", keys: [], plan: true }]);
  answer("0|0|");
  expect([switches.isPlanning, switches.key]).toEqual([false, "0|0|"]);
  expect(switches.said).toContain("All switches are set as in the plan");
});

test("the code is returned once it is written", () => {
  const { answer, switches } = kernel(programs["layers"]!);
  const then = vi.fn();
  switches.flip(0);
  switches.code(then);
  answer();
  expect(answer().code).toBe("0||");
  expect(then).toHaveBeenCalledExactlyOnceWith("# code");
  switches.code(then);
  expect(then).toHaveBeenCalledTimes(2);
});

test("a page without a kernel has what was computed before", async () => {
  const { table, tried } = programs["layers"]!;
  const values = { what_if: JSON.stringify(table), tried: JSON.stringify(tried), drawn: "", written: "" };
  const model = { ...host(values), comm_live: false };
  const switches = new Switches(switchesOf(model as never));
  switches.ask();
  switches.want(() => ["7||"]);
  await vi.waitFor(() => expect(switches.canAsk).toBe(false));
  switches.flip(0);
  expect([switches.isPending, switches.isDrawing]).toEqual([false, false]);
  expect(switches.trade()).toEqual(tried.trades["0||"]);
  expect(switches.timeline).toBeNull();
  switches.destroy();
});

test("a value to recompute gets a checkpoint, and the message says which", () => {
  const { switches } = kernel(programs["layers"]!);
  const [value] = switches.settings!.valuesOf[0]!;
  expect(switches.keeps(value!)).toBe(true);
  switches.set([value!], "recomputed");
  expect(switches.keeps(value!)).toBe(false);
  expect(switches.said).toContain("Switched on with it: a checkpoint around 4 calls of layer");
  switches.set([value!], "offloaded");
  expect([switches.keeps(value!), switches.key.split("|").length]).toEqual([true, 5]);
  switches.set([value!], "saved");
  expect([switches.keeps(value!), switches.said]).toEqual([true, ""]);
  expect(switches.key.split("|").length).toBe(3);
});
