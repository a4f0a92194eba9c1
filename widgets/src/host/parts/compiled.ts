/** The stage `compiled`. */

export { CompiledPane } from "../../panes/compiled";
