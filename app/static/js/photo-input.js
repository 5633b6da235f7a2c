// The inputs for photos: chosen, taken, dropped or pasted.
import { byId, t } from "./ui.js";

/** Call `take` with the files of any input; a page may also offer to choose a folder. */
export function photoInput(take) {
  const chooser = byId("file");
  const folder = byId("folder");
  const dropZone = document.querySelector(".drop-zone");
  chooser.multiple = true; // without JavaScript the form takes one photo at a time

  for (const input of [chooser, byId("camera"), folder].filter(Boolean)) {
    input.addEventListener("change", () => {
      // A folder may also have other files.
      take([...input.files].filter(({ type }) => input !== folder || type.startsWith("image/")));
      input.value = ""; // so that the same photo can be chosen again
    });
    // Space opens the chooser by itself, Enter does not.
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      input.click();
    });
  }
  byId("ask").addEventListener("submit", (event) => event.preventDefault());

  const brings = (event, kind) => [...(event.dataTransfer?.types ?? [])].includes(kind);
  const refuse = (isAddress) => {
    byId("refused").hidden = !isAddress;
    byId("refused").textContent = t("address");
  };
  document.addEventListener("dragover", (event) => {
    if (!brings(event, "Files") && !brings(event, "text/uri-list")) return;
    event.preventDefault();
    dropZone.classList.add("over");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) dropZone.classList.remove("over");
  });
  document.addEventListener("drop", (event) => {
    const { files } = event.dataTransfer;
    if (!files.length && !brings(event, "text/uri-list")) return;
    event.preventDefault();
    dropZone.classList.remove("over");
    refuse(!files.length);
    take([...files]);
  });
  document.addEventListener("paste", ({ clipboardData, target }) => {
    const files = [...(clipboardData?.files ?? [])];
    if (files.length) take(files.map(named));
    if (!target.closest?.("input, textarea")) refuse(!files.length && /^\s*https?:\/\/\S+\s*$/.test(clipboardData?.getData("text/plain")));
  });
}

/** Name a pasted photo: browsers call every one image.png. */
const named = (file) => file.name === "image.png" ? new File([file], t("pasted"), { type: file.type }) : file;
