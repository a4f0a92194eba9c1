/** The panes whose code is a separate part, loaded when they are first shown. */

import { inSlices } from "../base/slices";
import { textView } from "../code/editor";
import { keptTree } from "../graph/layout/hierarchy";
import type { WidgetModel } from "../host/model";
import { loadPart } from "../host/parts";
import type { Compilation } from "../host/sync";
import { textOf } from "../host/zip";
import type { Model } from "../model/model";
import { transformsOf } from "../model/player";
import { referencesOf } from "../model/references";
import type { PlayerPane } from "../panes/player";
import type { Finder } from "../panes/search";
import type { Other, Side, State } from "../state/state";
import { h } from "../ui/dom";
import { later, type Pane } from "../ui/pane";
import { addSheet } from "../ui/sheet";
import type { Changes } from "../wire/explorer.generated";

/** Panes for at most this many equations, over all stages, are created synchronously. */
const MANY = 10_000;
export const isLarge = (model: Model): boolean => model.rows > MANY;

/** The modules, by name. */
interface Modules {
  compiled: typeof import("../host/parts/compiled");
  costs: typeof import("../host/parts/costs");
  diff: typeof import("../host/parts/diff");
  graph: typeof import("../host/parts/graph");
  help: typeof import("../host/parts/help");
  motion: typeof import("../host/parts/motion");
  player: typeof import("../host/parts/player");
  search: Finder;
  time: typeof import("../host/parts/time");
  whatif: typeof import("../host/parts/whatif");
}

export class Parts {
  constructor(
    private readonly root: HTMLElement,
    private readonly widget: WidgetModel,
    private readonly state: State,
  ) {}

  /** Loads a part and adds its stylesheet. */
  async load<Name extends keyof Modules>(name: Name): Promise<Modules[Name]> {
    const part = await loadPart<Modules[Name]>(this.widget, name);
    if ("sheet" in part) addSheet(this.root, part.sheet);
    return part;
  }

  /** A pane of a part. */
  private pane<Name extends keyof Modules>(
    name: string,
    part: Name,
    make: (loaded: Modules[Name]) => Pane,
    isSeen?: () => boolean,
  ): Pane {
    const load = async () => {
      const loaded = await this.load(part);
      return () => make(loaded);
    };
    return later(name, load, isSeen);
  }

  /** The rewrite player; `codeOf` shows a stage as code. */
  player(codeOf: (stage: number, side: Side) => Pane): Pane & { toggle(): void; start(): void } {
    const { root, state } = this;
    const element = h("div.jv-guard.jv-fills.jv-column.jv-at-player");
    const canPlay = transformsOf(state.model).length > 0;
    let opened: PlayerPane | null = null;
    let pane: Pane | null = null;
    const load = async () => {
      const { PlayerPane } = await this.load("player").catch((error) => {
        pane = null; // so that it can be tried again
        throw error;
      });
      return () => {
        opened = new PlayerPane(state, root, codeOf);
        return opened;
      };
    };
    const start = () => {
      if (opened) opened.start();
      else if (canPlay && pane === null) {
        // Meanwhile, the user may have turned to another question.
        pane = later("player", load, undefined, () => state.showsRules && opened?.start());
        element.replaceChildren(pane.element);
      }
    };
    const toggle = () => {
      if (!canPlay) return;
      if (!state.showsRules)
        state.arrange("derived"); // whose stages start it
      else if (opened) opened.toggle();
      else start();
    };
    return { element, destroy: () => pane?.destroy?.(), toggle, start };
  }

  /** The changes between two versions; in the same part as the diff. */
  changes(changes: Changes): Pane {
    return this.pane("changes", "diff", ({ ChangesPane }) => new ChangesPane(this.state, changes));
  }

  /** The diff of two versions. */
  diff(other: Other, changes: Changes, isSeen: () => boolean): Pane {
    return this.pane("diff", "diff", ({ DiffPane }) => new DiffPane(this.state, other, changes), isSeen);
  }

  /** The animation of a gradient. */
  motion(isSeen: () => boolean): Pane {
    const { state } = this;
    const load = async (isWanted: () => boolean) => {
      const { MotionPane, moving } = await this.load("motion");
      if (isLarge(state.model) && state.model.view.is_whole) await inSlices(moving(state.model), isWanted);
      return () => new MotionPane(state);
    };
    return later("motion", load, isSeen);
  }

  /** The switches. */
  whatIf(isSeen: () => boolean): Pane {
    return this.pane("what-if", "whatif", ({ WhatIfPane }) => new WhatIfPane(this.state), isSeen);
  }

  /** The memory over time. */
  memory(isSeen: () => boolean): Pane {
    return this.pane("memory", "time", ({ MemoryPane }) => new MemoryPane(this.state, this.root), isSeen);
  }

  /** What the gradient costs. */
  costs(isSeen: () => boolean): Pane {
    return this.pane("costs", "costs", ({ CostsPane }) => new CostsPane(this.state), isSeen);
  }

  /** Stages as a graph. */
  graph(stages: readonly number[], side: Side): Pane {
    const { root, state, widget } = this;
    return later("graph", async (isWanted) => {
      const { GraphPane } = await this.load("graph");
      const tree = await inSlices(keptTree(state.model, stages), isWanted);
      if (referencesOf(state.model).any) await inSlices(state.model.colouring(), isWanted);
      const loadDot = () => loadPart<string>(widget, "graphviz", undefined, textOf);
      return () => new GraphPane(state, tree, side, root, loadDot);
    });
  }

  /** The compiled stage. */
  compiled(compilation: Compilation, side: Side): Pane {
    return this.pane(
      "compiled",
      "compiled",
      ({ CompiledPane }) => new CompiledPane(this.state, compilation, side, this.root, textView),
    );
  }
}
