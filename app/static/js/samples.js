// Drawings to click; they are fetched when the page is there and nobody waits for it any more.
const idle = globalThis.requestIdleCallback ?? ((task) => setTimeout(task, 200));

/** Call `take` with the file of a drawing that is clicked. */
export function samples(take) {
  for (const button of document.querySelectorAll("button.sample")) {
    const picture = button.querySelector("img");
    idle(() => { picture.src = button.dataset.picture; });
    button.addEventListener("click", async () => {
      try {
        const blob = await (await fetch(button.dataset.picture)).blob();
        take([new File([blob], button.dataset.name, { type: blob.type })]);
      } catch {
        // Not even the page's own files can be had: the drawing is tried as an empty photo of that
        // name, so that its card says so.
        take([new File([], button.dataset.name, { type: "image/jpeg" })]);
      }
    });
  }
}
