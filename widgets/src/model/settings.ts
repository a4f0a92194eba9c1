/** Settings of the switches: which checkpoints there are and what they save, as sets and as the texts that Python knows them by. */

import type { SwitchTable } from "../wire/explorer.generated";
import { grouped, push } from "./groups";

/** Checkpoints around some regions, and the values that are to be saved, of which those count that the regions hold. */
export interface Setting {
  regions: ReadonlySet<number>;
  saved: ReadonlySet<number>;
}

export class Settings {
  /** The values of each region, in their order. */
  readonly valuesOf: readonly (readonly number[])[];
  /** The values of each group. */
  readonly membersOf: readonly (readonly number[])[];
  private readonly known = new Map<string, ReadonlySet<number>>();

  constructor(readonly table: SwitchTable) {
    this.valuesOf = table.regions.map(({ values }) =>
      values.flatMap(([first, n]) => Array.from({ length: n }, (_, i) => first + i)),
    );
    const members = new Map<number, number[]>();
    for (const [value, group] of table.values.group.entries()) push(members, group, value);
    this.membersOf = table.groups.map((_, group) => members.get(group) ?? []);
  }

  /** What the checkpoints around some regions can save: a region in another one saves what that one does. */
  held(regions: ReadonlySet<number>): ReadonlySet<number> {
    const id = [...regions].sort((a, b) => a - b).join();
    const known = this.known.get(id);
    if (known) return known;
    const outer = [...regions].filter((i) => !this.table.regions[i]!.inside.some((j) => regions.has(j)));
    const held = new Set(outer.flatMap((i) => this.valuesOf[i]!));
    this.known.set(id, held);
    return held;
  }

  /** The text of a setting, the same for those that do the same. */
  key({ regions, saved }: Setting): string {
    const held = this.held(regions);
    const byGroup = grouped([...held], (value) => this.table.values.group[value]!);
    const [whole, single]: [number[], number[]] = [[], []];
    for (const members of byGroup) {
      const kept = members.filter((value) => saved.has(value));
      if (kept.length === members.length) whole.push(this.table.values.group[members[0]!]!);
      else single.push(...kept);
    }
    const text = (numbers: Iterable<number>) => [...numbers].sort((a, b) => a - b).join();
    return `${text(regions)}|${text(whole)}|${text(single)}`;
  }

  parse(key: string): Setting {
    const [regions, groups, values] = key
      .split("|")
      .map((part) => (part === "" ? [] : part.split(",").map(Number)));
    const chosen = new Set(regions);
    const held = this.held(chosen);
    const whole = new Set(groups);
    const saved = new Set([...held].filter((value) => whole.has(this.table.values.group[value]!)));
    for (const value of values ?? []) saved.add(value);
    return { regions: chosen, saved };
  }

  /** A setting with the checkpoint around one region switched, and those that give way to it: they share a part with it. */
  flipped({ regions, saved }: Setting, region: number): { setting: Setting; gone: number[] } {
    const next = new Set(regions);
    if (next.delete(region)) return { setting: { regions: next, saved }, gone: [] };
    const gone = this.table.regions[region]!.crosses.filter((other) => next.delete(other));
    next.add(region);
    return { setting: { regions: next, saved }, gone };
  }

  /** A setting with some values saved, or recomputed. */
  with({ regions, saved }: Setting, values: readonly number[], isSaved: boolean): Setting {
    const next = new Set(saved);
    for (const value of values) {
      if (isSaved) next.add(value);
      else next.delete(value);
    }
    return { regions, saved: next };
  }

  /**
   * A setting in which some values are recomputed, with a checkpoint that holds them if there is none yet, which saves all else; null where no
   * checkpoint can hold them.
   */
  without(
    setting: Setting,
    values: readonly number[],
  ): { setting: Setting; added: number[]; gone: number[] } | null {
    const held = this.held(setting.regions);
    if (values.every((value) => held.has(value)))
      return { setting: this.with(setting, values, false), added: [], gone: [] };
    const region = this.valuesOf.findIndex(
      (of, i) => !setting.regions.has(i) && values.every((value) => of.includes(value)),
    );
    if (region < 0) return null;
    const { setting: wider, gone } = this.flipped(setting, region);
    const all = this.with(
      wider,
      this.valuesOf[region]!.filter((value) => !held.has(value)),
      true,
    );
    return { setting: this.with(all, values, false), added: [region], gone };
  }
}
