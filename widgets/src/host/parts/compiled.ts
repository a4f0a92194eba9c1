/** The stage `compiled`. */

export { CompiledPane } from "../../panes/compiled";
export { default as sheet } from "../../styles/compiled.css";
