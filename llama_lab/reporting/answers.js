(() => {  // every answer as a point; what hides one is a checkbox, which a keyboard reaches too
  const runs = JSON.parse(document.getElementById("answers").textContent), part = document.getElementById("every-answer");
  const select = document.getElementById("answers-run"), shown = document.getElementById("answers-shown"), canvas = part.querySelector("canvas");
  let chart;
  const draw = () => {
    const run = runs[select.value], titled = text => ({ title: { display: true, text } });
    chart?.destroy();
    chart = new Chart(canvas, {
      type: "scatter",
      data: { datasets: run.map(s => ({
        label: s.name, pointStyle: s.shape, backgroundColor: s.colour, borderColor: s.colour,
        data: s.answers.map(([x, y, words]) => ({ x, y, words })),
      })) },
      options: {
        animation: false, maintainAspectRatio: false,
        scales: { x: titled("answer, in the order of measurement"), y: { type: "logarithmic", ...titled("tokens/s (log scale)") } },
        plugins: { legend: { display: false }, tooltip: { callbacks: { label: at => [`${at.dataset.label}: ${at.raw.y} tokens/s`, at.raw.words] } } },
      },
    });
    shown.replaceChildren(...run.map((s, i) => {
      const label = document.createElement("label"), box = Object.assign(document.createElement("input"), { type: "checkbox", checked: true });
      box.style.accentColor = s.colour;
      box.addEventListener("change", () => { chart.setDatasetVisibility(i, box.checked); chart.update(); });
      label.append(box, ` ${s.name}`);
      return label;
    }));
  };
  select.addEventListener("change", draw);
  part.addEventListener("toggle", () => { if (part.open && !chart) draw(); });  // it has no size before
  if (part.open) draw();
})();
