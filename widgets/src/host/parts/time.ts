/** The memory over time. */

export { MemoryPane } from "../../panes/memory";
export { default as sheet } from "../../styles/time.css";
