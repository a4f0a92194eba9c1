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

export class Parts {
  constructor(
    private readonly root: HTMLElement,
    private readonly widget: WidgetModel,
    private readonly state: State,
  ) {}

  /** Loads a part and adds its stylesheet. */
  private async load<T extends object>(name: string): Promise<T> {
    const part = await loadPart<T>(this.widget, name);
    if ("sheet" in part) addSheet(this.root, part.sheet as string);
    return part;
  }

  /** The texts of the help. */
  help(): Promise<typeof import("../host/parts/help")> {
    return this.load("help");
  }

  /** What the search field finds. */
  finder(): Promise<Finder> {
    return this.load("search");
  }

  /** The rewrite player; `codeOf` shows a stage as code. */
  player(codeOf: (stage: number, side: Side) => Pane): Pane & { toggle(): void; start(): void } {
    const { root, state } = this;
    const element = h("div.jv-guard.jv-fills.jv-column.jv-at-player");
    const canPlay = transformsOf(state.model).length > 0;
    let opened: PlayerPane | null = null;
    let pane: Pane | null = null;
    const load = async () => {
      const { PlayerPane } = await this.load<typeof import("../host/parts/player")>("player").catch(
        (error) => {
          pane = null; // so that it can be tried again
          throw error;
        },
      );
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
    return later("changes", async () => {
      const { ChangesPane } = await this.load<typeof import("../host/parts/diff")>("diff");
      return () => new ChangesPane(this.state, changes);
    });
  }

  /** The diff of two versions. */
  diff(other: Other, changes: Changes): Pane {
    const { state } = this;
    const load = async () => {
      const { DiffPane } = await this.load<typeof import("../host/parts/diff")>("diff");
      return () => new DiffPane(state, other, changes);
    };
    return later("diff", load, () => state.view === "diff");
  }

  /** The animation of a gradient. */
  motion(): Pane {
    const { state } = this;
    const load = async (isWanted: () => boolean) => {
      const { MotionPane, moving } = await this.load<typeof import("../host/parts/motion")>("motion");
      if (isLarge(state.model) && state.model.view.is_whole) await inSlices(moving(state.model), isWanted);
      return () => new MotionPane(state);
    };
    return later("motion", load, () => state.view === "motion");
  }

  /** The switches. */
  whatIf(isSeen: () => boolean): Pane {
    const load = async () => {
      const { WhatIfPane } = await this.load<typeof import("../host/parts/whatif")>("whatif");
      return () => new WhatIfPane(this.state);
    };
    return later("what-if", load, isSeen);
  }

  /** What zooms charts over time. */
  time(): Promise<typeof import("../host/parts/time")> {
    return this.load("time");
  }

  /** The memory over time. */
  memory(isSeen: () => boolean): Pane {
    const load = async () => {
      const { MemoryPane } = await this.time();
      return () => new MemoryPane(this.state, this.root);
    };
    return later("memory", load, isSeen);
  }

  /** What the gradient costs. */
  costs(isSeen: () => boolean): Pane {
    const load = async () => {
      const { CostsPane } = await this.load<typeof import("../host/parts/costs")>("costs");
      return () => new CostsPane(this.state);
    };
    return later("costs", load, isSeen);
  }

  /** Stages as a graph. */
  graph(stages: readonly number[], side: Side): Pane {
    const { root, state, widget } = this;
    return later("graph", async (isWanted) => {
      const { GraphPane } = await this.load<typeof import("../host/parts/graph")>("graph");
      const tree = await inSlices(keptTree(state.model, stages), isWanted);
      if (referencesOf(state.model).any) await inSlices(state.model.colouring(), isWanted);
      const loadDot = () => loadPart<string>(widget, "graphviz", undefined, textOf);
      return () => new GraphPane(state, tree, side, root, loadDot);
    });
  }

  /** The compiled stage. */
  compiled(compilation: Compilation, side: Side): Pane {
    return later("compiled", async () => {
      const { CompiledPane } = await this.load<typeof import("../host/parts/compiled")>("compiled");
      return () => new CompiledPane(this.state, compilation, side, this.root, textView);
    });
  }
}
