/** The pane of the compiled stage. */

export { CompiledPane } from "../../panes/compiled";
export { default as sheet } from "../../styles/compiled.css";
