for (const chart of document.querySelectorAll("svg.chart")) {
  const points = [...chart.querySelectorAll(".points .pt")];
  if (!points.length) continue;
  const tip = chart.parentElement.querySelector(".tip");
  let current = -1;
  const show = (index) => {
    if (current >= 0) points[current].classList.remove("on");
    current = index;
    if (index < 0) { tip.textContent = ""; return; }
    const point = points[index];
    point.classList.add("on");
    tip.textContent = point.dataset.says;
    const box = chart.getBoundingClientRect(), home = chart.parentElement.getBoundingClientRect();
    const scale = box.width / chart.viewBox.baseVal.width;
    const half = tip.offsetWidth / 2;
    const x = box.left - home.left + point.dataset.x * scale;
    tip.style.left = Math.min(Math.max(x, half + 4), home.width - half - 4) + "px";
    tip.style.top = box.top - home.top + point.dataset.y * scale + "px";
  };
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const scale = chart.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    let best = 0, least = Infinity;
    points.forEach((point, index) => {
      const far = (point.dataset.x - x) ** 2 + (point.dataset.y - y) ** 2;
      if (far < least) [best, least] = [index, far];
    });
    show(best);
  });
  chart.addEventListener("pointerleave", () => show(-1));
  chart.addEventListener("blur", () => show(-1));
  chart.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") show(-1);
    if (!move) return;
    event.preventDefault();
    show((current + move + points.length) % points.length);
  });
}
