/** Settings of the switches: which regions are checkpointed and what they save, as sets and as Python's keys. */

import { entry } from "../base/maps";
import type { SwitchTable } from "../wire/explorer.generated";
import { grouped } from "./groups";

/**
 * Checkpoints around some regions, the values to save, and which of these to offload to the host. Values outside the regions are ignored.
 */
export interface Setting {
  regions: ReadonlySet<number>;
  saved: ReadonlySet<number>;
  offloaded: ReadonlySet<number>;
}

/** No checkpoints. */
export const NOTHING: Setting = { regions: new Set(), saved: new Set(), offloaded: new Set() };

/** What happens to a value in a checkpoint. */
export type Fate = "recomputed" | "saved" | "offloaded";

export class Settings {
  /** The values of each region, in order. */
  readonly valuesOf: readonly (readonly number[])[];
  /** The values of each group. */
  readonly membersOf: readonly number[][];
  private readonly known = new Map<string, ReadonlySet<number>>();

  constructor(readonly table: SwitchTable) {
    this.valuesOf = table.regions.map(({ values }) =>
      values.flatMap(([first, n]) => Array.from({ length: n }, (_, i) => first + i)),
    );
    this.membersOf = table.groups.map((): number[] => []);
    for (const [value, group] of table.values.group.entries()) this.membersOf[group]!.push(value);
  }

  /** The values that the checkpoints around some regions can save; only the outermost regions count. */
  held(regions: ReadonlySet<number>): ReadonlySet<number> {
    const id = [...regions].sort((a, b) => a - b).join();
    return entry(this.known, id, () => {
      const outer = [...regions].filter((i) => !this.table.regions[i]!.inside.some((j) => regions.has(j)));
      return new Set(outer.flatMap((i) => this.valuesOf[i]!));
    });
  }

  /** The canonical key of a setting. */
  key({ regions, saved, offloaded }: Setting): string {
    const held = this.held(regions);
    const byGroup = grouped([...held], (value) => this.table.values.group[value]!);
    const text = (numbers: Iterable<number>) => [...numbers].sort((a, b) => a - b).join();
    const chosen = (has: (value: number) => boolean) => {
      const [whole, single]: [number[], number[]] = [[], []];
      for (const members of byGroup) {
        const some = members.filter(has);
        if (some.length === members.length) whole.push(this.table.values.group[members[0]!]!);
        else single.push(...some);
      }
      return `${text(whole)}|${text(single)}`;
    };
    const key = `${text(regions)}|${chosen((value) => saved.has(value))}`;
    const isMoved = (value: number) => saved.has(value) && offloaded.has(value);
    return [...held].some(isMoved) ? `${key}|${chosen(isMoved)}` : key;
  }

  parse(key: string): Setting {
    const parts = key.split("|").map((part) => (part === "" ? [] : part.split(",").map(Number)));
    const [regions, ...lists] = parts;
    const chosen = new Set(regions);
    const held = this.held(chosen);
    const read = (groups: readonly number[] = [], values: readonly number[] = []) => {
      const whole = new Set(groups);
      return new Set([...[...held].filter((value) => whole.has(this.table.values.group[value]!)), ...values]);
    };
    return { regions: chosen, saved: read(lists[0], lists[1]), offloaded: read(lists[2], lists[3]) };
  }

  /** A setting with one region's checkpoint toggled, without checkpoints that partly overlap with it. */
  flipped(setting: Setting, region: number): { setting: Setting; gone: number[] } {
    const regions = new Set(setting.regions);
    if (regions.delete(region)) return { setting: { ...setting, regions }, gone: [] };
    const gone = this.table.regions[region]!.crosses.filter((other) => regions.delete(other));
    regions.add(region);
    return { setting: { ...setting, regions }, gone };
  }

  /** A setting with the given fate for some values. */
  with(setting: Setting, values: readonly number[], fate: Fate): Setting {
    const saved = new Set(setting.saved);
    const offloaded = new Set(setting.offloaded);
    for (const value of values) {
      if (fate === "recomputed") saved.delete(value);
      else saved.add(value);
      if (fate === "offloaded") offloaded.add(value);
      else offloaded.delete(value);
    }
    return { regions: setting.regions, saved, offloaded };
  }

  /**
   * A setting in which some values are recomputed. If no checkpoint contains them, one is added that saves everything else; null if none
   * can.
   */
  without(
    setting: Setting,
    values: readonly number[],
  ): { setting: Setting; added: number[]; gone: number[] } | null {
    const held = this.held(setting.regions);
    if (values.every((value) => held.has(value)))
      return { setting: this.with(setting, values, "recomputed"), added: [], gone: [] };
    const region = this.valuesOf.findIndex(
      (of, i) => !setting.regions.has(i) && values.every((value) => of.includes(value)),
    );
    if (region < 0) return null;
    const { setting: wider, gone } = this.flipped(setting, region);
    const all = this.with(
      wider,
      this.valuesOf[region]!.filter((value) => !held.has(value)),
      "saved",
    );
    return { setting: this.with(all, values, "recomputed"), added: [region], gone };
  }
}
