// The API's documentation: Swagger UI in the colours that the reader's system has, and examples to copy.
/* global SwaggerUIBundle */
const dark = matchMedia("(prefers-color-scheme: dark)");
const paint = () => document.documentElement.classList.toggle("dark-mode", dark.matches);
dark.addEventListener("change", paint);
paint();

SwaggerUIBundle({
  url: document.getElementById("swagger-ui").dataset.url,
  dom_id: "#swagger-ui",
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  displayRequestDuration: true,
  tryItOutEnabled: true,
});

for (const button of document.querySelectorAll(".copy")) {
  button.hidden = !navigator.clipboard; // only over TLS and on localhost
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = button.dataset.done;
  });
}
