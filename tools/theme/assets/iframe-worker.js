// Browsers start no worker for a page that was opened as a file, and the search needs one. There, run its script in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      this.waiting = []
      this.frame = document.createElement("iframe")
      this.frame.hidden = true
      this.frame.onload = () => this.begin(String(url))
      document.documentElement.append(this.frame)
    }

    begin(url) {
      this.frame.onload = null
      const inner = this.frame.contentWindow
      this.deliver = data => inner.dispatchEvent(new inner.MessageEvent("message", { data }))
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inner.document.createElement("script")
      script.src = url
      script.onload = () => {
        const waiting = this.waiting
        this.waiting = null
        waiting.forEach(this.deliver)
      }
      inner.document.head.append(script)
    }

    postMessage(data) {
      if (this.waiting) this.waiting.push(data)
      else this.deliver(data)
    }

    terminate() {
      this.frame.remove()
    }
  }
}
