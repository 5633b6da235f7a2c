// Sends the chosen, dropped or pasted photo and shows the fragment that comes back.
"use strict";

(() => {
  const byId = (id) => document.getElementById(id);
  const form = byId("ask");
  const input = byId("file");
  const preview = byId("preview");
  const result = byId("result");
  const sample = byId("sample");
  const plate = document.querySelector(".plate");
  const maxBytes = Number(form.dataset.maxBytes);
  let asking = null;

  document.documentElement.classList.add("with-script");

  const show = (template) => result.replaceChildren(byId(template).content.cloneNode(true));

  const showPhoto = (address) => {
    if (preview.src.startsWith("blob:")) URL.revokeObjectURL(preview.src);
    preview.hidden = false;
    preview.src = address;
  };
  // Some formats that the server reads, such as TIFF, no browser shows.
  preview.addEventListener("error", () => { preview.hidden = true; });

  const ask = async (address, options) => {
    if (asking) asking.abort();
    const mine = asking = new AbortController();
    result.setAttribute("aria-busy", "true");
    plate.classList.add("busy");
    try {
      const response = await fetch(address, {
        ...options, signal: mine.signal, headers: { "X-Requested-With": "fetch" },
      });
      const text = await response.text();
      // What does not carry our request id came from something in between, not from this app.
      if (response.headers.has("X-Request-ID")) result.innerHTML = text;
      else show(response.status === 413 ? "too-large" : "no-answer");
    } catch (error) {
      if (error.name === "AbortError") return;
      show("no-answer");
    } finally {
      if (asking === mine) {
        asking = null;
        result.setAttribute("aria-busy", "false");
        plate.classList.remove("busy");
      }
    }
    result.scrollIntoView({ block: "nearest", behavior: "smooth" });
  };

  const send = (file) => {
    if (!file) return;
    showPhoto(URL.createObjectURL(file));
    if (file.size > maxBytes) {
      if (asking) asking.abort();
      show("too-large");
      return;
    }
    const body = new FormData();
    body.append("file", file, file.name || "pasted");
    ask(form.action, { method: "POST", body });
  };

  input.addEventListener("change", () => {
    send(input.files[0]);
    input.value = ""; // so that choosing the same photo again asks again
  });
  // Space opens the chooser by itself, Enter does not.
  input.addEventListener("keydown", (event) => {
    if (event.key !== "Enter") return;
    event.preventDefault();
    input.click();
  });
  form.addEventListener("submit", (event) => event.preventDefault());

  sample.addEventListener("click", (event) => {
    event.preventDefault();
    showPhoto(sample.dataset.picture);
    ask(sample.href, {});
  });

  document.addEventListener("dragover", (event) => {
    event.preventDefault();
    plate.classList.add("over");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) plate.classList.remove("over");
  });
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    plate.classList.remove("over");
    send(event.dataTransfer.files[0]);
  });
  document.addEventListener("paste", (event) => send(event.clipboardData.files[0]));
})();
