/** What hosts provide to each widget, as defined by anywidget; the optional parts may be missing. */

/** A signal of JupyterLab. */
interface Signal<T> {
  connect(slot: (sender: unknown, content: T) => void): void;
  disconnect(slot: (sender: unknown, content: T) => void): void;
}

/** JupyterLab's connection to a kernel; other hosts may have only some of it. */
export interface Kernel {
  status?: string;
  statusChanged?: Signal<string>;
  disposed?: Signal<void>;
  interrupt?(): Promise<void>;
  requestExecute?(what: object): { done: Promise<unknown> };
  supportsSubshells?: boolean;
  subshellId?: string | null | undefined;
  requestCreateSubshell?(what: object): { done: Promise<{ content: { subshell_id: string } }> };
  requestDeleteSubshell?(which: { subshell_id: string }): { done: Promise<unknown> };
}

interface Notebook {
  /** Only in JupyterLab; null after the kernel has shut down. */
  kernel?: Kernel | null;
  get_model?(id: string): Promise<Pick<WidgetModel, "get" | "comm_live"> | undefined>;
}

export interface WidgetModel {
  get(name: string): unknown;
  set(name: string, value: unknown): void;
  save_changes(): void;
  send?(content: unknown): void;
  on(event: string, callback: (content: never, buffers: never) => void): void;
  off(event: string, callback?: (content: never, buffers: never) => void): void;
  /** Whether it has a live kernel, if the host knows. */
  comm_live?: boolean;
  widget_manager?: Notebook;
}

export interface Host {
  model: WidgetModel;
  el: HTMLElement;
}
