/** The memory over time for a setting of the switches, as sent by Python. */

import type { DrawnMemory } from "../wire/explorer.generated";
import { MEMORY_KINDS } from "../wire/schema";
import type { Timeline } from "./timeline";

export function timelineOf({ turn, what, row, buffers, groups, texts }: DrawnMemory): Timeline {
  return {
    steps: what.map((text, i) => ({ what: texts[text]!, row: row[i]!, isBackward: i >= turn })),
    buffers: buffers.map(([nbytes, kind, born, last, row, name, type, group]) => ({
      nbytes,
      kind: MEMORY_KINDS[kind]!,
      born,
      last,
      row,
      name: texts[name]!,
      type: texts[type]!,
      group,
      residuals: [],
    })),
    labels: groups.map((text) => texts[text]!),
  };
}
