// The table of all captions on the page, as they were edited.
import { captions } from "./caption-card.js";
import { asCsv } from "./history-store.js";
import { byId, save } from "./ui.js";

const COLUMNS = ["file", "text", "written_by", "sure", "score", "model", "version"];

byId("captions-csv").addEventListener("click", () => {
  const rows = captions().map(({ content: { model, ...content } }) => ({ ...content, model: model?.name, version: model?.version }));
  save(new Blob([asCsv(rows, COLUMNS)], { type: "text/csv" }), "captions.csv");
});
